"""Torch tensors come out of a slot unchanged, without a pickle."""

import numpy as np
import pytest

from tests.support.inside import default_collate, empty

torch = pytest.importorskip("torch")

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
    "complex128", "uint16", "uint32", "uint64", "bfloat16", "complex32", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
DTYPES = [getattr(torch, name) for name in DTYPES if hasattr(torch, name)]


def filled(dtype, shape):
    """Return a tensor of a dtype with different bytes."""
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = torch.arange(n, dtype=torch.int64).to(torch.uint8) % (2 if dtype is torch.bool else 120)
    return data.view(dtype).reshape(shape)


def same(sent, got):
    assert type(got) is torch.Tensor and got.dtype is sent.dtype and got.shape == sent.shape
    if sent.numel():
        carrier = [t.contiguous().flatten().view(torch.uint8).tolist() for t in (sent, got)]
        assert carrier[0] == carrier[1]
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_every_dtype_arrives_as_it_was(trip, dtype):
    for shape in ((), (3,), (2, 3, 4), (0,), (2, 0)):
        sent = filled(dtype, shape)
        assert same(sent, trip(sent)), shape
        assert trip.pickled(sent) == 0


def test_conjugate_and_negative_views_arrive_resolved(trip):
    base = torch.tensor([1 + 2j, 3 - 4j])
    for sent in (base.conj(), base.conj().imag, torch.view_as_real(base)):
        got = trip(sent)
        assert torch.equal(got, sent) and not got.is_conj() and not got.is_neg()


def test_requires_grad_travels_and_the_graph_does_not(trip):
    leaf = torch.ones(3, requires_grad=True)
    for sent in (leaf, leaf * 2):
        got = trip(sent)
        assert got.requires_grad and got.is_leaf and torch.equal(got, sent)
    assert not trip(leaf.detach()).requires_grad


@pytest.mark.parametrize(
    "make",
    [lambda: torch.empty(2, 3, device="meta"), lambda: torch.ones([1] * 13)],
    ids=["meta", "many dimensions"],
)
def test_tensors_whose_bytes_do_not_say_all_are_pickled(trip, make):
    sent = make()
    got = trip(sent)
    assert got.dtype is sent.dtype and got.device == sent.device and got.shape == sent.shape
    assert sent.device.type == "meta" or torch.equal(got, sent)
    assert trip.pickled(sent) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # all of it is deprecated
def test_quantized_tensors_are_pickled(trip):
    try:
        sent = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8)
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"this torch cannot quantize: {error}")
    assert torch.equal(trip(sent).dequantize(), sent.dequantize())


def test_other_values_of_torch_are_pickled(trip):
    for sent in (torch.float32, torch.Size([1, 2]), torch.device("cpu")):
        got = trip([sent])[0]
        assert type(got) is type(sent) and got == sent


def test_a_tensor_over_an_array_in_the_slot_is_not_copied(trip):
    def work():
        array = empty((1000, 25), np.float32)
        array[:] = 3
        return {"x": torch.from_numpy(array), "row": torch.from_numpy(array)[7]}

    assert trip.bytes_of(work) < 1000 * 25 * 4 + 1000
    got = trip(work)
    assert got["row"].data_ptr() == got["x"].data_ptr() + 7 * 100
    assert got["x"].sum() == 75_000


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_collated_tensors_are_torchs_own_result_made_in_the_slot(trip, dtype):
    for shape in ((), (3,), (2, 3), (2, 0)):
        samples = [filled(dtype, shape) for _ in range(3)]
        wanted = torch.stack([s.view(torch.uint8) if s.dim() else s.reshape(1).view(torch.uint8) for s in samples])

        def work(samples=samples):
            return default_collate(samples)

        got = trip(work)
        assert got.dtype is dtype and got.shape == (3, *shape)
        assert bytes(got.flatten().view(torch.uint8).numpy()) == bytes(wanted.flatten().numpy())
        assert trip.bytes_of(work) <= 64 * (1 + (got.nbytes + 63) // 64) + 256
        assert trip.pickled(work) == 0


def test_tensors_of_two_dtypes_are_promoted_as_torch_does(trip):
    samples = [torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.float64)]
    got = trip(lambda: default_collate(samples))
    assert torch.equal(got, torch.stack(samples)) and got.dtype is torch.stack(samples).dtype


def test_subclasses_and_gradients_are_collated(trip):
    got = trip(lambda: default_collate([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))]))
    assert got.tolist() == [[1, 1], [0, 0]]


def test_tensors_that_differ_are_named_by_index(trip):
    fill = trip.claim([40, 41, 42])
    with fill:
        with pytest.raises(ValueError, match=r"index 40 has shape \(2,\), index 42 has shape \(3,\)"):
            default_collate([torch.ones(2), torch.ones(2), torch.ones(3)])
        with pytest.raises(ValueError, match=r"at \['x'\]: index 40 has type Tensor, index 41 has type ndarray"):
            default_collate([{"x": torch.ones(2)}, {"x": np.ones(2)}])
        fill.abort()


class OnDevice(torch.Tensor):
    """Claims to be on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 0)


def test_a_tensor_on_a_device_is_refused_in_the_worker():
    from tests.support.inside import tensors

    sent = torch.ones(2).as_subclass(OnDevice)
    for refuse in (lambda: tensors.pack(sent), lambda: tensors.stack([sent], empty)):
        with pytest.raises(TypeError, match="tensor on cuda:0; return CPU tensors"):
            refuse()
