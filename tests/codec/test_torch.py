"""Torch tensors come out of a slot unchanged and without a pickle; subclasses keep their attributes."""

import collections
import enum
import gc

import numpy as np
import pytest

from tests.support.inside import COPY_ALWAYS, COPY_AUTO, default_collate, empty

torch = pytest.importorskip("torch")

DTYPES = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
DTYPES = sorted((dtype for dtype in DTYPES if not str(dtype).startswith(("torch.qint", "torch.quint"))), key=str)


def filled(dtype, shape):
    """Return a tensor of a dtype with different bytes."""
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = torch.arange(n, dtype=torch.int64).to(torch.uint8) % (2 if dtype is torch.bool else 120)
    return data.view(dtype).reshape(shape)


def same_bytes(sent, got):
    assert type(got) is torch.Tensor and got.dtype is sent.dtype and got.shape == sent.shape
    if sent.numel():
        carrier = [t.contiguous().flatten().view(torch.uint8).tolist() for t in (sent, got)]
        assert carrier[0] == carrier[1]
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_every_dtype_arrives_as_it_was(trip, dtype):
    for shape in ((), (3,), (2, 3, 4), (0,), (2, 0)):
        sent = filled(dtype, shape)
        assert same_bytes(sent, trip(sent)), shape
        assert trip.pickled(sent) == 0


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


def test_tensors_that_differ_are_named_by_index(trip):
    writer = trip.claim([40, 41, 42])
    with writer:
        with pytest.raises(ValueError, match=r"index 40 has shape \(2,\), index 42 has shape \(3,\)"):
            default_collate([torch.ones(2), torch.ones(2), torch.ones(3)])
        with pytest.raises(ValueError, match=r"at \['x'\]: index 40 has type Tensor, index 41 has type ndarray"):
            default_collate([{"x": torch.ones(2)}, {"x": np.ones(2)}])
        writer.abort()


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


# ---- subclasses of Tensor, sparse and nested tensors, objects with tensors: their bytes are in the slot


BIG = 1 << 18  # bytes of each tensor below: a second copy in the slot would show


class Format(enum.Enum):
    XYXY = "XYXY"


class Dressed(torch.Tensor):
    """Like torchvision's tv_tensors: most operations return a plain tensor."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return made.as_subclass(torch.Tensor) if isinstance(made, torch.Tensor) else made


class Boxes(Dressed):
    def __new__(cls, data, format, canvas_size):
        made = torch.Tensor._make_subclass(cls, data)
        made.format, made.canvas_size = format, canvas_size
        return made


class Counted(torch.Tensor):
    """Defines how it is pickled."""

    def __reduce_ex__(self, protocol):
        return counted, (self.as_subclass(torch.Tensor) + 1,)


def counted(data):
    return data.as_subclass(Counted)


class Slotted(torch.Tensor):
    __slots__ = ("extra",)


class Holder:
    def __init__(self, **values):
        vars(self).update(values)


def big(dtype=torch.float32):
    n = BIG // dtype.itemsize
    return (torch.arange(n) % 100).to(dtype).reshape(64, -1)


def same(sent, got):
    assert type(got) is type(sent) and got.requires_grad == sent.requires_grad
    sent, got = (t.detach().as_subclass(torch.Tensor) for t in (sent, got))
    assert got.dtype is sent.dtype and got.shape == sent.shape and got.stride() == sent.clone().stride()
    assert torch.equal(got, sent)
    return True


@pytest.mark.parametrize("copy", [COPY_AUTO, COPY_ALWAYS], ids=["lease", "copy"])
def test_a_subclass_arrives_with_its_attributes_and_its_bytes_in_the_slot(trip, copy):
    sent = Boxes(big(), Format.XYXY, (480, 640))
    got = trip({"boxes": [sent]}, copy)["boxes"][0]
    assert trip.free == (3 if copy == COPY_AUTO else 4)  # it is a view
    assert same(sent, got) and got.format is Format.XYXY and got.canvas_size == (480, 640)
    assert trip.bytes_of(sent) < BIG + 3000
    got.as_subclass(torch.Tensor)[0, 0] = 5
    assert got[0, 0] == 5


def test_a_subclass_keeps_shape_strides_gradients_and_attributes_that_refer_to_it(trip):
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    for tensor in (
        torch.tensor(True),
        torch.ones(0, 4, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.uint16),
        base.contiguous(memory_format=torch.channels_last),
        base[:, :, ::2],
        base[1:].expand(3, 3, 4, 5),
        base.clone().requires_grad_(),
        torch.ones(2, dtype=torch.complex64).conj(),
    ):
        sent = tensor.detach().as_subclass(Dressed)
        if tensor.requires_grad:
            sent.requires_grad_()
        assert same(sent, trip(sent))
    sent = base.as_subclass(Dressed)
    sent.me = [sent]
    got = trip(sent)
    assert got.me[0] is got


def test_a_tensor_with_attributes_has_its_bytes_in_the_slot(trip):
    sent = big()
    sent.label = "seven"
    got = trip(sent)
    assert trip.free == 3  # it is a view
    assert got.label == "seven" and same(sent, got) and trip.bytes_of(sent) < BIG + 2000


def test_a_subclass_that_says_how_to_be_pickled_is_asked(trip):
    assert trip(torch.zeros(3).as_subclass(Counted)).tolist() == [1, 1, 1]
    sent = torch.zeros(3).as_subclass(Slotted)
    sent.extra = "more"
    assert trip(sent).extra == "more"


def compressed(layout):
    return torch.eye(600).to_sparse(layout=layout, **({"blocksize": (2, 2)} if "bs" in str(layout) else {}))


SPARSE = {
    "coo": lambda: torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3)),
    "coalesced": lambda: torch.eye(600).to_sparse(),
    "csr": lambda: compressed(torch.sparse_csr),
    "bsr": lambda: compressed(torch.sparse_bsr),
}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse ")
def test_sparse_tensors_have_their_parts_in_the_slot(trip, make):
    sent = make()
    waiting = len(torch._utils._sparse_tensors_to_validate)
    got = trip(sent)
    assert got.layout is sent.layout and got.dtype is sent.dtype and torch.equal(got.to_dense(), sent.to_dense())
    if sent.layout is torch.sparse_coo:
        assert got.is_coalesced() == sent.is_coalesced()
        assert got._values().data_ptr() % 64 == 0
    free = trip.free
    del got
    gc.collect()
    assert trip.free == free + 1  # torch's list of loaded storages does not keep the slot
    assert len(torch._utils._sparse_tensors_to_validate) == waiting


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_have_their_parts_in_the_slot(trip):
    sent = torch.nested.nested_tensor([big()[:20], big()[:44]], layout=torch.jagged)
    got = trip([sent, 1])[0]
    assert trip.free == 3  # it is a view
    assert got.is_nested and got.layout is sent.layout
    assert all(map(torch.equal, got.unbind(), sent.unbind()))
    assert trip.bytes_of(sent) < BIG + 6000


CONTAINERS = {
    "an object": lambda tensor: Holder(x=tensor, y={"deep": [tensor]}),
    "a dict with an odd key": lambda tensor: {frozenset("k"): tensor, 1: 2},
    "a parameter": lambda tensor: torch.nn.Parameter(tensor),
    "a module": lambda tensor: torch.nn.ParameterDict({"x": tensor}),
}


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    value = vars(value) if isinstance(value, Holder) else value
    value = value.values() if hasattr(value, "values") else value
    return [t for item in value for t in tensors_in(item)] if isinstance(value, collections.abc.Iterable) else []


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_whatever_holds_a_tensor_has_its_bytes_in_the_slot_once(trip, make):
    sent = make(big())
    [got] = trip([sent])
    assert trip.free == 3  # it is a view
    assert type(got) is type(sent) and trip.pickled([sent]) == 1
    for ours, theirs in zip(tensors_in(got), tensors_in(sent), strict=True):
        assert same(theirs, ours) and ours.data_ptr() % 64 == 0
    assert trip.bytes_of([sent]) < BIG + 4000


def test_a_slot_is_held_until_the_last_tensor_of_an_object_has_gone(trip):
    got = trip(Holder(x=big(), y=big()[:2]))
    assert trip.free == 3
    kept = got.y
    del got
    gc.collect()
    assert trip.free == 3 and torch.equal(kept, big()[:2])
    del kept
    gc.collect()
    assert trip.free == 4
