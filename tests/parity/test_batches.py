"""Map datasets: the batches of torch's DataLoader, in type, layout and value."""

import collections
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: E402

from tests.support.datasets import as_is  # noqa: E402
from tests.support.torch_datasets import (  # noqa: E402
    Custom,
    Fetched,
    Made,
    Pair,
    Record,
    Special,
    Values,
    as_custom,
    assert_as_torch,
    assert_same,
    batches,
    torchs_and_more,
)

DTYPES = [
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
    and dtype in {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
        torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    }
]  # fmt: skip


def grid(i):
    return torch.arange(12, dtype=torch.float32).reshape(3, 4) + i


KINDS = {
    "tensors": grid,
    "tensors without dimensions": lambda i: torch.tensor(i),
    "empty tensors": lambda i: torch.empty(0, 3),
    "transposed tensors": lambda i: grid(i).t(),
    "strided tensors": lambda i: grid(i)[:, ::2],
    "expanded tensors": lambda i: torch.tensor([i]).expand(5),
    "channels last": lambda i: torch.arange(24.0).reshape(2, 3, 4).permute(1, 2, 0) + i,
    "arrays": lambda i: np.arange(6, dtype=np.int16).reshape(2, 3) + i,
    "arrays without dimensions": lambda i: np.array(float(i)),
    "strided arrays": lambda i: np.arange(12)[::3] + i,
    "numpy numbers": lambda i: np.float32(i) / 3,
    "numpy booleans": lambda i: np.bool_(i % 2),
    "integers": lambda i: i,
    "huge integers": lambda i: 2**62 + i,
    "odd floats": lambda i: (float("nan"), float("inf"), -0.0)[i % 3],
    "booleans": lambda i: i % 2 == 0,
    "integers and floats": lambda i: i if i % 2 else i / 2,
    "text": lambda i: f"né {i} \x00",
    "bytes": lambda i: b"\x00" * i,
    "dicts": lambda i: {"a": i, "b": torch.ones(2) * i, 3: "text"},
    "default dicts": lambda i: collections.defaultdict(list, {"a": i}),
    "lists": lambda i: [i, float(i), str(i)],
    "tuples": lambda i: (i, np.ones(2) * i, (i, {"x": i})),
    "namedtuples": lambda i: Pair(i, Pair(torch.ones(1), "x")),
    "deep nests": lambda i: {"a": [{"b": (i, [torch.tensor([i])])}], "c": Pair([i], {})},
    "empty tuples": lambda i: (),
    "empty dicts": lambda i: {},
    "ranges": lambda i: range(i, i + 3),
    "tensor subclasses": lambda i: (torch.ones(2) * i).as_subclass(Special),
    "a dict in half of the positions": lambda i: (i, {"only": i}),
    "more samples than a byte counts": lambda i: [i] * 300,
    "more dimensions than a record has": lambda i: (np.ones([1] * 12 + [2]) * i, torch.ones([1] * 12 + [2]) * i),
    "every dtype of torch": lambda i: {
        str(dtype): (torch.arange(64, dtype=torch.uint8).reshape(4, 16) % 2).view(dtype) for dtype in DTYPES
    },
    # Without q and Q: torch knows only one of the 64-bit types.
    "every dtype of numpy": lambda i: {code: np.full(3, i % 2, code) for code in "?bBhHiIlLefdFD"},
}


def together(kinds, n=5):
    """Return a dataset with `n` samples of each kind, and (kind, indices) of its batches of two."""
    samples = [(name, i) for name in kinds for i in range(n)]
    firsts = [k + i for k in range(0, len(samples), n) for i in range(0, n, 2)]
    lists = [(samples[k][0], [j for j in (k, k + 1) if samples[j : j + 1] and j // n == k // n]) for k in firsts]
    return Made(lambda i: kinds[samples[i][0]](samples[i][1]), len(samples)), lists


def assert_batches_as_torchs(make, kinds, num_workers, n=5, **options):
    """Fail unless one loader makes the batches of each kind as torch's does."""
    dataset, lists = together(kinds, n)
    theirs, ours = (
        batches(cls, dataset, batch_sampler=[indices for _, indices in lists], num_workers=num_workers, **options)
        for cls in (data.DataLoader, make)
    )
    for (name, _), one, other in zip(lists, ours, theirs, strict=True):
        assert_same(one, other, name)


workers = pytest.mark.parametrize("num_workers", [0, 1])


@workers
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_samples_of_any_kind_make_torchs_batches(make, num_workers):
    assert_batches_as_torchs(make, KINDS, num_workers)


@workers
def test_batches_without_elements_have_torchs_strides(make, num_workers):
    for kind, shape in itertools.product((np.zeros, torch.zeros), ((0,), (0, 3), (2, 0, 3))):
        theirs, ours = (
            batches(cls, [kind(shape)] * 3, batch_size=2, num_workers=num_workers) for cls in (data.DataLoader, make)
        )
        assert [batch.stride() for batch in ours] == [batch.stride() for batch in theirs]


SINGLE = {name: kind for name, kind in KINDS.items() if name not in ("tensor subclasses",)} | {
    "objects": lambda i: Custom(i),
    "dataclasses": lambda i: Record(torch.ones(1) * i),
    "none": lambda i: None,
    "complex numbers": lambda i: complex(i, 1),
    "big integers": lambda i: 2**80 + i,
    "text arrays": lambda i: np.array(["a", "bc"]),
    "compressed rows": lambda i: torch.eye(3).to_sparse_csr(),
    "quantities of text": lambda i: {"a": None, "b": ["x", b"y", i, {"t": torch.ones(i)}]},
}


@workers
@pytest.mark.filterwarnings("ignore:Sparse ", "ignore:ComplexHalf")
def test_samples_without_batching_are_torchs(make, num_workers):
    dataset, lists = together(SINGLE, 2)
    theirs, ours = (batches(cls, dataset, batch_size=None, num_workers=num_workers) for cls in (data.DataLoader, make))
    for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert_same(one, other, lists[k // 2][0])


@pytest.mark.parametrize(("batch_size", "num_workers"), [(2, 0), (None, 1)])
def test_a_leaf_that_requires_grad_is_torchs(make, batch_size, num_workers):
    dataset = Made(lambda i: torch.ones(2, requires_grad=True), 2)
    assert_as_torch(make, dataset, batch_size=batch_size, num_workers=num_workers)


@workers
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_handed_on(make, num_workers):
    def nest(samples):
        return torch.nested.nested_tensor(samples, layout=torch.strided)

    dataset = Made(lambda i: torch.ones(i + 1), 4)
    if num_workers and make is data.DataLoader:
        pytest.skip("torch cannot share nested tensors between processes")
    ours = batches(make, dataset, batch_size=2, num_workers=num_workers, collate_fn=nest)
    assert_same(ours, [nest([torch.ones(i + 1), torch.ones(i + 2)]) for i in (0, 2)])


REFUSED = {
    "dataclasses": lambda i: Record(i),
    "none": lambda i: None,
    "objects": lambda i: Custom(i),
    "sets": lambda i: {i},
    "text arrays": lambda i: np.array(["a"]),
    "object arrays": lambda i: np.array([None]),
    "tensors of two shapes": lambda i: torch.ones(i + 1),
    "lists of two lengths": lambda i: [0] * (i + 1),
    "keys that are missing": lambda i: {i: 0},
    "complex numbers": lambda i: complex(i, 1),
    "sparse tensors": lambda i: torch.eye(3).to_sparse(),
}


def refusals(cls, num_workers):
    """Return {kind: (type, last line) of the exception} for batches of samples that torch does not collate."""
    dataset, lists = together(REFUSED, 2)
    iterator = iter(cls(dataset, batch_sampler=[indices for _, indices in lists], num_workers=num_workers))
    found = {}
    for name, _ in lists:
        try:
            found[name] = next(iterator)
        except Exception as error:
            found[name] = type(error), str(error).strip().splitlines()[-1].split("at entry")[0]
    return found


@workers
def test_samples_that_torch_refuses_to_collate_are_refused_alike(make, num_workers):
    theirs = refusals(data.DataLoader, num_workers)
    assert refusals(make, num_workers) == theirs and all(type(refusal) is tuple for refusal in theirs.values())


@workers
def test_the_result_of_collate_fn_is_delivered_unchanged(make, num_workers):
    dataset = Made(lambda i: (grid(i), i), 7)
    for collate_fn, batch_size in ((as_custom, 3), (torchs_and_more, 3), (lambda samples: None, 3), (as_is, None)):
        assert_as_torch(make, dataset, batch_size=batch_size, collate_fn=collate_fn, num_workers=num_workers)


def channels_last(samples):
    return torch.stack(samples).contiguous(memory_format=torch.channels_last)


LAYOUTS = {
    "channels last": channels_last,
    "channels last of one channel": lambda samples: channels_last([image[:1] for image in samples]),
    "channels last of one pixel": lambda samples: channels_last([image[:, :1, :1] for image in samples]),
    "channels last, bfloat16": lambda samples: channels_last(samples).bfloat16(),
    "channels last of films": lambda samples: torch.stack(
        [torch.stack([image] * 2, 1) for image in samples]
    ).contiguous(memory_format=torch.channels_last_3d),
    "channels last, every second row": lambda samples: channels_last(samples)[:, :, ::2],
    "samples as they lie": list,
    "a dict of both": lambda samples: {"a": channels_last(samples), "b": [image.numpy() for image in samples]},
    "stacked by torch": torch.stack,
    "transposed": lambda samples: torch.stack(samples).transpose(0, 1),
    "expanded": lambda samples: samples[0].expand(4, *samples[0].shape),
    "empty": lambda samples: torch.stack(samples)[:0],
}


@workers
def test_images_have_the_memory_order_of_torchs(make, num_workers):
    def image(i):
        return (torch.arange(60.0).reshape(4, 5, 3) + i).permute(2, 0, 1)  # as decoders return them

    def collate(samples):
        return LAYOUTS[samples[0][0]]([image for _, image in samples])

    kinds = {name: lambda i, name=name: (name, image(i)) for name in LAYOUTS}
    assert_batches_as_torchs(make, kinds, num_workers, n=4, collate_fn=collate)


@workers
def test_registered_types_are_collated_by_their_function(make, num_workers, monkeypatch):
    def collate(batch, *, collate_fn_map=None):
        return Custom([sample.value for sample in batch])

    monkeypatch.setitem(default_collate_fn_map, Custom, collate)
    dataset = Made(lambda i: {"x": Custom(i), "y": i}, 5)
    assert_as_torch(make, dataset, batch_size=2, num_workers=num_workers)


@pytest.mark.parametrize(("batch_size", "num_workers"), [(2, 0), (2, 1), (None, 1)])
def test_datasets_may_be_torchs_own(make, batch_size, num_workers):
    rows = data.TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    for dataset in (
        rows,
        data.Subset(rows, [3, 1, 1, 9]),
        data.ConcatDataset([rows, rows]),
        data.StackDataset(a=rows, b=Values(list("abcdefghij"))),
        {i: str(i) for i in range(5)},
    ):
        assert_as_torch(make, dataset, batch_size=batch_size, num_workers=num_workers)


@pytest.mark.parametrize(("batch_size", "num_workers"), [(3, 0), (3, 1), (None, 1)])
def test_getitems_is_called_where_torch_calls_it(make, batch_size, num_workers):
    assert_as_torch(make, Fetched(list(range(8))), batch_size=batch_size, num_workers=num_workers)


@pytest.mark.parametrize("lazy", [lambda x: x.conj(), lambda x: x.conj().imag], ids=["conjugated", "negated"])
def test_tensors_whose_sign_is_put_off_are_collated_without_workers(make, lazy):
    assert_as_torch(make, Made(lambda i: lazy(torch.tensor([1 + 2j * i])), 4), batch_size=2)
