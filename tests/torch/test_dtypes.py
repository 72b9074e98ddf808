"""Tensors of every dtype that the installed torch has: exact, or as torch's own loader treats them."""

import threading
from multiprocessing.context import ForkContext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

import slipring.torch  # noqa: E402
from slipring import Cache, Loader, Queue, cached  # noqa: E402
from tests.support.datasets import as_is  # noqa: E402
from tests.support.kinds import kinds  # noqa: E402
from tests.support.options import grouped  # noqa: E402
from tests.support.torch_datasets import Made, assert_same, raises  # noqa: E402

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTIZED = [dtype for dtype in DTYPES if str(dtype).startswith(("torch.qint", "torch.quint"))]
PLAIN = [dtype for dtype in DTYPES if dtype not in QUANTIZED]
FACES = pytest.mark.parametrize("make", [Loader, slipring.torch.DataLoader], ids=["Loader", "torch"])
pytestmark = pytest.mark.filterwarnings("ignore:.*quantize", "ignore:B?Complex(Half|32)", "ignore:TypedStorage")


class Threads(ForkContext):
    """A context whose workers are threads, for torch's face."""

    Process = threading.Thread


def options(make, kind):
    """Return options for a face: torch's names the start method by `multiprocessing_context`."""
    if make is not Loader and "start_method" in kind:
        method = kind["start_method"]
        context = Threads() if method == "thread" else method
        kind = {"num_workers": kind["num_workers"], "multiprocessing_context": context}
    return grouped(**kind)


def sample(dtype, i, shape=(3, 4)):
    n = int(np.prod(shape)) * dtype.itemsize
    return ((torch.arange(n) + i) % 2).to(torch.uint8).view(dtype).view(shape)


def every(i):
    """Return a tensor of each dtype that bytes describe."""
    return {str(dtype): sample(dtype, i) for dtype in PLAIN}


def every_strided(i):
    return {str(dtype): sample(dtype, i).t() for dtype in PLAIN}


def carried(tensor):
    """Return the tensor's bytes along a new last dimension."""
    return tensor.unsqueeze(-1).view(torch.uint8)


def assert_batch(batch, make, indices):
    for name, first in make(indices[0]).items():
        tensor = batch[name]
        assert type(tensor) is torch.Tensor and tensor.dtype is first.dtype
        assert tensor.shape == (len(indices), *first.shape)
        assert torch.equal(carried(tensor), torch.stack([carried(make(i)[name]) for i in indices])), name


def assert_sample(got, sent):
    for name, tensor in sent.items():
        assert type(got[name]) is torch.Tensor and got[name].dtype is tensor.dtype
        assert torch.equal(carried(got[name]), carried(tensor)), name


@FACES
@kinds("inline", "fork", "thread", "ranges")
def test_batches_of_every_dtype_have_the_samples_bytes(make, kind):
    batches = list(make(Made(every, 5), 2, **options(make, kind)))
    assert len(batches) == 3 and len(PLAIN) > 14
    for batch, indices in zip(batches, ((0, 1), (2, 3), (4,)), strict=True):
        assert_batch(batch, every, indices)


@kinds("inline", "fork", "thread", "ranges")
def test_strided_tensors_of_every_dtype_are_collated(kind):
    """Also those that torch itself cannot collate, because it has no copy of the dtype."""
    for batch, indices in zip(Loader(Made(every_strided, 4), 2, **grouped(**kind)), ((0, 1), (2, 3)), strict=True):
        assert_batch(batch, every_strided, indices)


@kinds("fork", "thread", "ranges")
def test_torchs_face_collates_strided_tensors_of_every_dtype_with_workers(kind):
    loader = slipring.torch.DataLoader(Made(every_strided, 4), 2, **options(data.DataLoader, kind))
    for batch, indices in zip(loader, ((0, 1), (2, 3)), strict=True):
        assert_batch(batch, every_strided, indices)


@FACES
@kinds("inline", "fork", "thread")
@pytest.mark.parametrize("function", [every, every_strided])
def test_samples_of_every_dtype_travel_without_collation(make, kind, function):
    for i, got in enumerate(make(Made(function, 3), batch_size=None, **options(make, kind))):
        assert_sample(got, function(i))
    for i, got in enumerate(make(Made(function, 3), 1, collate_fn=as_is, **options(make, kind))):
        assert_sample(got[0], function(i))


@pytest.mark.parametrize("function", [every, every_strided])
def test_queues_and_caches_keep_every_dtype(function):
    queue, cache = Queue(2), Cache("8MiB")
    queue.put(function(1))
    assert_sample(queue.get(), function(1))
    cache.put(0, function(2))
    assert_sample(cache.get(0), function(2))
    kept = cached(Made(function, 2), "8MiB")
    for _ in range(2):
        for i in range(2):
            assert_sample(kept[i], function(i))


def test_objects_that_contain_tensors_keep_every_dtype():
    queue = Queue(2)
    for dtype in PLAIN:
        for tensor in (sample(dtype, 1), sample(dtype, 1).t(), sample(dtype, 1, (1, 1))[0, 0]):
            queue.put({1j: tensor})  # such a key has no form in a treedef, so the dict is pickled
            got = queue.get()[1j]
            assert got.dtype is dtype and torch.equal(carried(got), carried(tensor))


PAIRS = [
    ("int8", "int1"),
    ("int1", "int8"),
    ("uint1", "uint2"),
    ("uint8", "bits8"),
    ("float8_e5m2", "float4_e2m1fn_x2"),
]
PAIRS = [pair for pair in PAIRS if all(hasattr(torch, name) for name in pair)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@kinds("inline", "one fork", "ranges")
def test_dtypes_that_torch_cannot_combine_are_named(pair, kind):
    mixed = Made(lambda i: {"x": sample(getattr(torch, pair[i % 2]), 0)}, 8)
    says = rf"at \['x'\]: .* has dtype torch.{pair[0]}, .*1 has dtype torch.{pair[1]}; make them alike"
    with pytest.raises(ValueError, match=says):
        list(Loader(mixed, 8, **grouped(**kind)))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_face_combines_dtypes_as_torch_or_refuses_as_torch(pair, num_workers):
    assert_outcome_of_torch(Made(lambda i: sample(getattr(torch, pair[i % 2]), 0), 2), num_workers)


def assert_outcome_of_torch(dataset, num_workers, plain=lambda batch: batch):
    """Fail unless both loaders make the same batches, compared as `plain` ones, or the same kind of error."""
    outcomes = []
    for make in (data.DataLoader, slipring.torch.DataLoader):
        try:
            outcomes.append([plain(batch) for batch in make(dataset, 2, num_workers=num_workers)])
        except (RuntimeError, TypeError) as error:
            outcomes.append(type(error))
            error.__traceback__ = None
    assert_same(outcomes[1], outcomes[0])


@pytest.mark.parametrize(
    "storage", [lambda i: torch.UntypedStorage([i, 7]), lambda i: torch.arange(3 * i).untyped_storage()], ids=["", "0"]
)
@kinds("inline", "fork", "thread")
@FACES
def test_storages_travel(make, kind, storage):
    for i, got in enumerate(make(Made(storage, 3), batch_size=None, **options(make, kind))):
        assert type(got) is torch.UntypedStorage and got.tolist() == storage(i).tolist()


def test_storages_in_a_queue_and_a_cache_are_as_they_were():
    queue, cache = Queue(2), Cache("1MiB")
    queue.put([torch.UntypedStorage([1, 2])])
    assert queue.get()[0].tolist() == [1, 2]
    cache.put(0, torch.UntypedStorage([1, 2]))
    cache.get(0)[0] = 9
    assert cache.get(0).tolist() == [1, 2]
    batch = next(iter(Loader([torch.UntypedStorage([1]), torch.UntypedStorage([2])], 2, num_workers=1)))
    assert [storage.tolist() for storage in batch] == [[1], [2]]


def test_torchs_face_refuses_to_collate_storages_as_torch_does():
    for make in (data.DataLoader, slipring.torch.DataLoader):
        for num_workers in (0, 1):
            with raises(TypeError, match="found <class 'torch.storage.UntypedStorage'>"):
                list(make([torch.UntypedStorage(4)] * 2, 2, num_workers=num_workers))


def quantized(dtype, i):
    values = torch.arange(12.0).view(3, 4) + i
    if "x" not in str(dtype):
        return torch.quantize_per_tensor(values, 0.5, 3, dtype)
    return torch.quantize_per_channel(values, torch.ones(3), torch.zeros(3), 0, dtype)


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@kinds("inline", "one fork", "one thread")
def test_quantized_tensors_travel_and_are_collated_as_torch_does(dtype, kind):
    """torch's loader with workers can do neither."""
    dataset = Made(lambda i: quantized(dtype, i), 2)
    for make in (Loader, slipring.torch.DataLoader):
        for i, got in enumerate(make(dataset, batch_size=None, **options(make, kind))):
            assert got.dtype is dtype and got.qscheme() == quantized(dtype, i).qscheme()
            assert torch.equal(got.dequantize(), quantized(dtype, i).dequantize())
    try:
        (expected,) = list(data.DataLoader(dataset, 2))
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error).split("'")[0]):
            list(Loader(dataset, 2, **grouped(**kind)))
        return
    (got,) = Loader(dataset, 2, **grouped(**kind))
    assert got.dtype is dtype and torch.equal(got.dequantize(), expected.dequantize())


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_face_collates_quantized_tensors_as_torch_or_refuses_as_torch(dtype, num_workers):
    assert_outcome_of_torch(Made(lambda i: quantized(dtype, i), 2), num_workers, torch.Tensor.dequantize)
