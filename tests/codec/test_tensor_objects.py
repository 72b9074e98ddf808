"""Subclasses of Tensor, sparse and nested tensors, objects with tensors: their bytes are in the slot."""

import collections
import copyreg
import enum
import gc

import pytest

from tests.support.inside import COPY_ALWAYS, COPY_AUTO

torch = pytest.importorskip("torch")

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


class Registered(torch.Tensor):
    pass


copyreg.pickle(Registered, lambda value: (counted, (value.as_subclass(torch.Tensor) + 2,)))


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
    assert trip(torch.zeros(3).as_subclass(Registered)).tolist() == [2, 2, 2]
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


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_have_their_parts_in_the_slot(trip, layout):
    sent = torch.nested.nested_tensor([big()[:20], big()[:44]], layout=layout)
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


def test_torchvisions_own_tensors_arrive(trip):
    tv_tensors = pytest.importorskip("torchvision.tv_tensors", exc_type=Exception)
    boxes = tv_tensors.BoundingBoxes(torch.ones(5, 4), format="XYXY", canvas_size=(48, 64))
    for sent in (boxes, tv_tensors.Image(torch.ones(3, 4, 5)), tv_tensors.Mask(torch.ones(2, 4, 5, dtype=torch.bool))):
        got = trip([sent])[0]
        assert same(sent, got) and vars(got) == vars(sent)
