"""Arrays in slots, and the decoder, which turns a slot into a batch of views.

The decoder trusts nothing: a faulty worker may have written anything, and may still be writing. It copies each record
first, and checks the copy against the slot's committed bytes before it uses it.
"""

import importlib
import pickle
import sys
from collections import OrderedDict

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from slipring._core.codec._dlpack cimport DL_CPU
from slipring._core.ring._ring cimport Ring
from slipring._core.ring._segment cimport (
    FREE_THREADED, SR_BATCH, SR_CONSUMER, SR_LEAF_ALIGN, SR_MAX_DIMS, SR_WHOLE, WITH_STATE, clock, copy_large, sr_leaf,
    sr_result,
)
from slipring._core.ring._slot cimport SlotWriter, Lease, current_writer, share, take

import numpy as np

from slipring._core.codec import pytree
from slipring.errors import CorruptBatch, shown, message_of

cdef extern from "numpy/arrayobject.h":
    # numpy's own .pxd cannot say that the last argument may be NULL.
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, cnp.npy_intp *dims,
                                cnp.npy_intp *strides, void *data, int flags, PyObject *obj)
    enum:
        NPY_ITEM_REFCOUNT
        NPY_LIST_PICKLE
        NPY_ITEM_IS_POINTER

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define other_threads() 0 /* none that waits for a GIL */
    #else
    #define other_threads() (PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != NULL)
    #endif
    """
    bint other_threads() noexcept

cnp.import_array()

# Modules that turn foreign leaves back into values; each is imported for the first such leaf.
FOREIGN = {
    "tensor": "slipring._core.codec.tensors",
    "arrow": "slipring.arrow",
    "tensor objects": "slipring._core.codec.tensor_objects",
}

cdef uint64_t BIG_COPY = 1 << 16  # bytes; a copy of this size or more releases the GIL
# torch's names of dtypes. numpy computes `dtype.name` again at each access.
cdef dict _NAMES = {np.dtype(kind).num: np.dtype(kind).name for kind in "?bBhHiIlLqQefdFD"}
cdef object make_tuple = tuple.__new__
cdef object _from_numpy = None  # torch.from_numpy, after the first tensor
cdef dict _foreign = {}
cdef dict _text_dtypes = {}  # (type number, itemsize) -> dtype of fixed-width text
cdef uint64_t LARGEST = <uint64_t> 1 << 62  # bytes; numpy's own computations of sizes overflow beyond it


# ---- arrays in the slot that a worker fills


@cython.final
cdef class AsTensor:
    """An array that the consumer receives as a torch tensor."""

    cdef str name(self):
        return <str> _NAMES[cnp.PyArray_TYPE(self.array)]


cdef object tensor_class():
    """Return torch.Tensor without importing torch: if there is a tensor, torch has been imported."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


cdef bint is_tensor(value):
    """Return whether a value is a torch tensor."""
    kind = tensor_class()
    return kind is not None and isinstance(value, kind)


cdef bint is_foreign_array(value) except -1:
    """Return whether a value is another library's array in CPU memory, by the array API standard, such as JAX's."""
    kind = type(value)
    if not hasattr(kind, "__array_namespace__") or not hasattr(kind, "__dlpack_device__"):
        return False
    if isinstance(value, (np.ndarray, np.generic)) or is_tensor(value):
        return False
    try:
        return value.__dlpack_device__()[0] == DL_CPU
    except (BufferError, ValueError):  # it lies on several devices
        return False


def empty(shape, dtype=float):
    """Return a new array, inside the slot being filled if the calling thread fills one.

    In a worker's `collate_fn`, or with ``batch_size=None``, the array lies in the slot, where the consumer reads it. A
    batch made of it is therefore not copied. If there is a `collate_fn`, this also holds in ``__getitem__``,
    ``__getitems__`` and transforms. Elsewhere the function returns ``numpy.empty(shape, dtype)``: with the default
    collation, and if several workers share a batch, each sample is copied to its row.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
        Any fixed-size dtype; object dtypes get ordinary memory.

    Returns
    -------
    numpy.ndarray
        C-contiguous, not initialised. Your code may keep it after the batch has been published. The batch is then
        copied once more, and its slot does not circulate until the array is deleted.

    Raises
    ------
    SegmentFull, BatchTooLarge
        The array does not fit in the slot.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> def collate(samples):
    ...     batch = slipring.empty((len(samples), 2), np.float32)
    ...     for row, sample in enumerate(samples):
    ...         batch[row] = sample, sample ** 2
    ...     return batch
    >>> with slipring.Loader(range(4), batch_size=4, collate_fn=collate) as loader:
    ...     print(next(iter(loader)).tolist())
    [[0.0, 0.0], [1.0, 1.0], [2.0, 4.0], [3.0, 9.0]]
    """
    cdef SlotWriter writer = current_writer()
    # If several workers fill a slot, only the worker that publishes it can pin it. That worker also writes the batch
    # over the rows that the others have staged, so that a slot never has to hold both.
    if writer is None or writer.range != SR_WHOLE or writer.by_rows:
        return made(shape, dtype)
    return reserve(shape, dtype)


cdef object made(shape, dtype):
    """Return an ordinary numpy array; name the arguments in its errors."""
    try:
        return np.empty(shape, dtype)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"empty(shape={shown(shape)}, dtype={shown(dtype)}): {message_of(error)}") from error


def reserve(shape, dtype):
    """Return an array as `empty` does, also in a range of a batch that several workers share; no code may keep it."""
    cdef SlotWriter writer = current_writer()
    cdef cnp.dtype descr = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
    if writer is None or descr.subdtype is not None or not is_fixed(descr):
        return np.empty(shape, dtype)
    if type(shape) is not tuple:
        shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
    return in_slot(writer, shape, descr)


cdef int is_fixed(cnp.dtype descr) except -1:
    """Return whether every element has its bytes in the array itself."""
    cdef int num = descr.type_num
    if descr.itemsize == 0:
        return False
    if cnp.PyTypeNum_ISUSERDEF(num):
        return descr.flags & (NPY_ITEM_REFCOUNT | NPY_LIST_PICKLE | NPY_ITEM_IS_POINTER) == 0
    if num < 0 or num > NPY_HALF or num == cnp.NPY_OBJECT:
        return False
    return num != cnp.NPY_VOID or not descr.hasobject


cdef object in_slot(SlotWriter writer, tuple shape, cnp.dtype descr):
    """Return a new array in the slot of a `SlotWriter`."""
    cdef cnp.npy_intp dims[64]
    cdef uint64_t nbytes = descr.itemsize
    cdef int i, n = <int> len(shape)
    if n > 64:
        raise ValueError(f"an array has at most 64 dimensions, not {n}")
    for i in range(n):
        dims[i] = PyNumber_AsSsize_t(shape[i], OverflowError)
        if dims[i] < 0:
            raise ValueError(f"negative dimensions are not allowed: {shape}")
        if dims[i] and nbytes > LARGEST // <uint64_t> dims[i]:
            raise ValueError(f"an array of shape {shape} is too large")
        nbytes *= <uint64_t> dims[i]
    return array_over(writer.alloc(nbytes, SR_LEAF_ALIGN), n, dims, NULL, descr, writer.slot_pin())


cdef object array_over(char *at, int ndim, cnp.npy_intp *shape, cnp.npy_intp *strides, cnp.dtype descr,
                       object base):
    """Return an array over memory that `base` (None: the caller) keeps alive; `strides` NULL: C order."""
    Py_INCREF(descr)  # the call steals a reference, even if it fails
    array = <cnp.ndarray> PyArray_NewFromDescr(
        <PyTypeObject *> cnp.ndarray, descr, ndim, shape, strides, at,
        cnp.NPY_ARRAY_WRITEABLE | cnp.NPY_ARRAY_ALIGNED, NULL)
    if <uint64_t> at % SR_LEAF_ALIGN:
        cnp.PyArray_UpdateFlags(array, cnp.NPY_ARRAY_ALIGNED)
    if base is not None:
        Py_INCREF(base)  # likewise
        cnp.PyArray_SetBaseObject(array, base)
    return array


cdef void copy_in(char *to, const char *source, uint64_t nbytes) noexcept:
    """Copy memory, without the GIL if it takes long."""
    copy_rows(to, &source, 1, nbytes)


cdef void copy_row(char *to, const char *source, uint64_t nbytes, bint large) noexcept:
    """Copy one row of a batch; `large`: the batch leaves the caches before the consumer reads it."""
    # Releasing the GIL for each row slows down a worker without other threads by some percent.
    if nbytes < BIG_COPY or not other_threads():
        if large:
            copy_large(to, &source, 1, nbytes)
        else:
            memcpy(to, source, nbytes)
        return
    with nogil:
        if large:
            copy_large(to, &source, 1, nbytes)
        else:
            memcpy(to, source, nbytes)


cdef void copy_rows(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept:
    """Copy `n` pieces of `nbytes` each, one after the other."""
    cdef uint64_t i
    if n * nbytes < BIG_COPY:
        for i in range(n):
            memcpy(to + i * nbytes, sources[i], nbytes)
        return
    with nogil:
        if n * nbytes < STREAMING:
            for i in range(n):
                memcpy(to + i * nbytes, sources[i], nbytes)
        else:
            copy_large(to, sources, n, nbytes)


# ---- the order of dimensions in memory, as one number; docs/protocol.md has its form (The codec)
#
# The bytes of a channels_last batch, of an image whose channels come first in its shape and last in memory, or of a
# Fortran array have no gaps, only another order than C's. They are sent in this order.


cdef bint order_of(cnp.ndarray value, cnp.npy_intp *strides, uint64_t *order) noexcept:
    """Choose the layout of an array of at most SR_MAX_DIMS dimensions; return whether its bytes have it already.

    `*order` is 0 for C order. An array with gaps gets the layout of torch's ``clone``: without gaps, in the order of
    its strides.
    """
    cdef int n = cnp.PyArray_NDIM(value), d, i
    cdef int outwards[SR_MAX_DIMS]
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(value)
    cdef cnp.npy_intp *actual = cnp.PyArray_STRIDES(value)
    cdef cnp.npy_intp step = cnp.PyArray_ITEMSIZE(value)
    cdef bint same = True
    order[0] = 0
    for d in range(n - 1, -1, -1):
        strides[d] = step
        same = same and actual[d] == step
        step *= shape[d]
    if same or step == 0:
        return True
    sort(n, shape, actual, outwards)
    same = True
    step = cnp.PyArray_ITEMSIZE(value)
    for i in range(n):
        d = outwards[i]
        strides[d] = step
        step *= shape[d]
        order[0] |= <uint64_t> d << 4 * (n - 1 - i)
        same = same and d == n - 1 - i
    if same:
        order[0] = 0
    for d in range(n):
        if shape[d] != 1 and actual[d] != strides[d]:
            return False
    return True


cdef void sort(int n, const cnp.npy_intp *shape, const cnp.npy_intp *strides, int *outwards) noexcept:
    """Sort dimensions from the innermost to the outermost, exactly as torch's infer_dense_strides does."""
    cdef int i, inner, outer
    cdef cnp.npy_intp a, b
    for i in range(n):
        outwards[i] = n - 1 - i
    for i in range(1, n):
        outer = i
        for inner in range(i - 1, -1, -1):
            a, b = abs(strides[outwards[inner]]), abs(strides[outwards[outer]])
            if a == 0 or b == 0:
                continue  # a stride of 0 does not order this pair
            if a > b or (a == b and shape[outwards[inner]] > shape[outwards[outer]]):
                outwards[inner], outwards[outer] = outwards[outer], outwards[inner]
                outer = inner
            elif a < b:
                break


cdef bint strides_in(uint64_t order, int ndim, const cnp.npy_intp *shape, cnp.npy_intp itemsize,
                     cnp.npy_intp *strides) noexcept:
    """Return whether `order` is valid for `ndim` dimensions; store the strides of such an array in `*strides`."""
    cdef int i, d
    cdef unsigned int seen = 0
    cdef cnp.npy_intp step = itemsize
    if order >> 4 * ndim:
        return False
    for i in range(ndim - 1, -1, -1):
        d = <int> (order >> 4 * i & 15)
        if d >= ndim or seen >> d & 1:
            return False
        seen |= 1u << d
        strides[d] = step
        step *= shape[d]
    return True


# ---- known treedefs: each is parsed once, and then found by its hash

# Kinds of nodes, as in pytree.py.
cdef enum:
    NODE_LEAF = 0
    NODE_NONE = 1
    NODE_DICT = 2
    NODE_ODICT = 3
    NODE_LIST = 4
    NODE_TUPLE = 5
    NODE_NAMED = 6
    NODE_DATACLASS = 7
    NODE_SAME = 8

cdef enum:
    UNKNOWN = -2  # Node.carrier

cdef dict _treedefs = {}           # hash -> TreeDef
cdef uint64_t _known_bytes = 0  # of their definitions; the parsed trees take about twenty times as much
cdef uint64_t KNOWN_BYTES = 256 << 10
cdef TreeDef _last = None  # with a GIL, the treedef of the last lookup: usually the next lookup needs it again


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Node:
    """A container, or the position of a leaf."""

    cdef int kind
    cdef int carrier     # of a tensor: number of the numpy dtype that identifies torch's; -1 if none does; or UNKNOWN
    cdef object data     # see pytree.py
    cdef tuple children  # nodes; None: a leaf


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class TreeDef:
    """A treedef, and its parsed form."""

    cdef bytes data
    cdef uint64_t key    # its hash
    cdef Node root
    cdef uint32_t leaves
    cdef bint repeats    # a leaf occurs more than once

    cdef bint has(self, const char *data, uint64_t n) noexcept:
        return (<uint64_t> PyBytes_GET_SIZE(self.data) == n
                and memcmp(PyBytes_AS_STRING(self.data), data, n) == 0)


cdef Node node_of(tuple parsed):
    cdef Node node = Node.__new__(Node)
    node.kind, node.data, node.carrier = parsed[0], parsed[1], UNKNOWN
    if parsed[2] is not None:
        children = []
        for child in parsed[2]:
            children.append(node_of(child))
        node.children = tuple(children)  # the garbage collector does not track tuples of such nodes
    return node


cdef uint64_t hash_bytes(const char *data, uint64_t n) noexcept nogil:
    """Hash a treedef, eight bytes at a time."""
    cdef uint64_t h = <uint64_t> 0xCBF29CE484222325 ^ n, word
    cdef uint64_t i = 0
    while i < n:
        word = 0
        memcpy(&word, data + i, 8 if n - i >= 8 else n - i)
        h = (h ^ word) * <uint64_t> 0x9FB21C651E98DF25
        h ^= h >> 32
        i += 8
    return h


cdef TreeDef treedef_of(const char *data, uint64_t n, uint64_t key):
    """Return a treedef from its bytes, from the cache if these bytes are known; raise CorruptBatch if it is invalid."""
    global _last
    cdef TreeDef treedef = None if FREE_THREADED else _last
    if treedef is None or treedef.key != key or not treedef.has(data, n):
        try:
            treedef = <TreeDef> _treedefs[key]  # not get(): another thread may free what it returns
        except KeyError:
            treedef = None
        if treedef is None or not treedef.has(data, n):
            treedef = read(data, n, key)
        if not FREE_THREADED:
            _last = treedef
    return treedef


cdef TreeDef read(const char *data, uint64_t n, uint64_t key):
    global _known_bytes
    cdef TreeDef treedef = TreeDef.__new__(TreeDef)
    treedef.data, treedef.key = PyBytes_FromStringAndSize(data, n), key
    try:
        parsed, treedef.leaves, treedef.repeats = pytree.parse(treedef.data)
    except pytree.BadTreeDef as error:
        raise CorruptBatch(f"a worker sent a tree that cannot be read: {error}") from None
    treedef.root = node_of(parsed)
    with cython.critical_section(_treedefs):
        if _known_bytes > KNOWN_BYTES:  # ragged containers make a treedef per batch: keep few of them
            _treedefs.clear()
            _known_bytes = 0
        _known_bytes += n
        _treedefs[key] = treedef
    return treedef


# ---- leaves


@cython.final
cdef class Views:
    """A buffer that lets Python code see bytes of a slot without owning them: it keeps `base` alive."""

    cdef object base
    cdef char *at
    cdef Py_ssize_t n
    cdef bint fixed

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.fixed and flags & PyBUF_WRITABLE:
            raise BufferError("cached values are read-only: copy them first")
        buffer.buf, buffer.len, buffer.obj = self.at, self.n, self
        buffer.itemsize, buffer.readonly, buffer.ndim = 1, self.fixed, 1
        buffer.format = b"B"
        buffer.shape = &self.n
        buffer.strides = &buffer.itemsize
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        pass

    def __reduce__(self):
        raise TypeError("a view of a slot is valid in this process alone: pickle a copy of it")


cdef object memory(object base, char *at, uint64_t n, bint fixed):
    cdef Views view = Views.__new__(Views)
    view.base, view.at, view.n, view.fixed = base, at, <Py_ssize_t> n, fixed
    return PyMemoryView_FromObject(view)


cdef enum:
    READ_ONLY = 1  # Decoder.fixed
    SHARED = 2


@cython.final
@cython.no_gc
@cython.freelist(4)
@cython.internal
cdef class Decoder:
    cdef char *payload
    cdef uint64_t limit      # readable bytes of the payload
    cdef const char *next    # the next record; it may be unaligned
    cdef uint32_t left
    cdef object base
    cdef int fixed           # READ_ONLY, SHARED, or 0
    cdef list made           # the leaves so far, if one occurs more than once; else None

    cdef object leaf(self, Node node):
        cdef sr_leaf record
        cdef double real
        if self.left == 0:
            raise CorruptBatch("a worker sent fewer leaf records than its tree needs")
        memcpy(&record, self.next, sizeof(sr_leaf))
        self.next += sizeof(sr_leaf)
        self.left -= 1
        if record.offset > self.limit or record.nbytes > self.limit - record.offset:
            raise CorruptBatch(
                f"a worker sent a leaf of {record.nbytes} bytes at {record.offset}; "
                f"the slot has {self.limit} bytes in use"
            )
        cdef char *at = self.payload + record.offset
        cdef uint64_t n = record.nbytes
        if record.kind == LEAF_ARRAY:
            return self.array(&record, node.data, at)
        if record.kind == LEAF_TENSOR:
            return self.tensor(&record, node, at)
        if record.kind == LEAF_SCALAR:
            return element(self.array(&record, node.data, at))
        if record.kind == LEAF_INT:
            return <int64_t> record.extra
        if record.kind == LEAF_FLOAT:
            memcpy(&real, &record.extra, 8)
            return real
        if record.kind == LEAF_BOOL:
            return record.extra != 0
        if record.kind == LEAF_STR:
            # Decoded from a copy: a decoder may read a byte twice, and the worker may still be writing.
            return text(PyBytes_FromStringAndSize(at, n), 0, n)
        if record.kind == LEAF_BYTES:
            return PyBytes_FromStringAndSize(at, n)
        if record.kind == LEAF_STRINGS or record.kind == LEAF_BYTESTRINGS:
            return strings(&record, at)
        if record.kind == LEAF_INTS or record.kind == LEAF_FLOATS:
            return numbers(&record, at)
        if record.kind == LEAF_OBJECT:
            return self.unpickle(&record, at)
        if record.kind == LEAF_ARROW:
            return foreign_module("arrow").restore(memory(self.base, at, n, self.fixed))
        raise CorruptBatch(f"a worker sent a leaf of unknown kind {record.kind}")

    cdef object array(self, const sr_leaf *record, data, char *at):
        cdef cnp.npy_intp shape[SR_MAX_DIMS]
        cdef cnp.npy_intp strides[SR_MAX_DIMS]
        cdef cnp.dtype dtype = dtype_of(record, data)
        cdef uint64_t total = record.itemsize
        cdef int i
        cdef bint hollow = False
        if record.ndim > SR_MAX_DIMS or record.itemsize != <uint64_t> dtype.itemsize:
            raise CorruptBatch(
                f"a worker sent an array of {record.ndim} dimensions, {record.itemsize} bytes per {dtype}"
            )
        for i in range(record.ndim):
            shape[i] = record.shape[i]
            if shape[i] == 0:
                hollow = True
            elif shape[i] < 0 or total > LARGEST // <uint64_t> shape[i]:
                raise CorruptBatch(f"a worker sent an array of {shape[i]} elements in dimension {i}")
            else:
                total *= <uint64_t> shape[i]
        if hollow:
            total = 0
        if total != record.nbytes:
            raise CorruptBatch(f"a worker sent an array of {total} bytes in {record.nbytes} bytes")
        if record.extra and not strides_in(record.extra, record.ndim, shape, record.itemsize, strides):
            raise CorruptBatch(
                f"a worker sent an array of {record.ndim} dimensions that lie in the order {record.extra:#x}"
            )
        if hollow:  # an empty array has no bytes in the slot and needs no lease
            return np.empty(tuple([shape[i] for i in range(record.ndim)]), dtype)
        made = array_over(at, record.ndim, shape, strides if record.extra else NULL, dtype, self.base)
        if self.fixed:
            cnp.PyArray_CLEARFLAGS(<cnp.ndarray> made, cnp.NPY_ARRAY_WRITEABLE)
        return made

    cdef object tensor(self, const sr_leaf *record, Node node, char *at):
        global _from_numpy
        # Another thread may set the two in any order.
        if node.carrier == UNKNOWN or _from_numpy is None:
            module = foreign_module("tensor")
            if _from_numpy is None:
                _from_numpy = module.torch.from_numpy
            node.carrier = module.carrier(node.data)
        array = self.array(record, None, at)
        # torch has no read-only tensors, and warns about arrays that are.
        if self.fixed == READ_ONLY:
            array = array.copy()
        elif self.fixed == SHARED:
            cnp.PyArray_ENABLEFLAGS(<cnp.ndarray> array, cnp.NPY_ARRAY_WRITEABLE)
        if node.carrier != <int> record.dtype or record.nbytes == 0 or record.flags & REQUIRES_GRAD:
            return foreign_module("tensor").restore(array, node.data, record.flags & REQUIRES_GRAD)
        # The usual case: `restore`, in Python, takes about 3,900 more instructions for each tensor.
        try:
            return _from_numpy(array)
        except (TypeError, RuntimeError, ValueError) as error:
            raise foreign_module("tensor").unusable(array, node.data, error) from None

    cdef object unpickle(self, const sr_leaf *record, char *at):
        """Unpickle a leaf: [n + 1 lengths, then the pickle and its n buffers, each on a boundary of 64 bytes]."""
        cdef uint64_t count = record.extra, i, length, offset
        if count >= record.nbytes // 8:
            raise CorruptBatch(f"a worker sent an object of {count} buffers in {record.nbytes} bytes")
        offset = (count + 1) * 8
        cdef bytes head = PyBytes_FromStringAndSize(at, offset)
        cdef const uint64_t *lengths = <const uint64_t *> PyBytes_AS_STRING(head)
        cdef list parts = []
        for i in range(count + 1):
            length = lengths[i]
            offset = padded(offset)
            if offset > record.nbytes or length > record.nbytes - offset:
                raise CorruptBatch(f"a worker sent an object whose part {i} has {length} bytes")
            parts.append(memory(self.base, at + offset, length, self.fixed))
            offset += length
        try:
            return pickle.loads(parts[0], buffers=parts[1:])
        except Exception as error:
            raise CorruptBatch(f"an object from a worker cannot be unpickled here: {shown(error)}") from error

    cdef object build(self, Node node):
        cdef tuple children = node.children, out
        cdef list parts
        cdef Py_ssize_t i, n
        if node.kind == NODE_LEAF:
            leaf = self.leaf(node)
            if self.made is not None:
                self.made.append(leaf)
            return leaf
        if node.kind == NODE_NONE:
            return None
        if node.kind == NODE_SAME:
            return self.made[<Py_ssize_t> node.data]
        n = len(children)
        if node.kind == NODE_TUPLE or node.kind == NODE_NAMED:
            out = PyTuple_New(n)
            for i in range(n):
                part = self.build(<Node> children[i])
                Py_INCREF(part)  # PyTuple_SET_ITEM steals a reference
                PyTuple_SET_ITEM(out, i, part)
            return out if node.kind == NODE_TUPLE else make_tuple(node.data, out)
        if node.kind == NODE_LIST:
            # No comprehension: Cython 3.3's frees an element twice when the list cannot grow.
            parts = [None] * n
            for i in range(n):
                parts[i] = self.build(<Node> children[i])
            return parts
        if node.kind == NODE_DATACLASS:
            cls, names = node.data
            made = object.__new__(cls)
            for i in range(n):
                object.__setattr__(made, names[i], self.build(<Node> children[i]))
            return made
        mapping = {} if node.kind == NODE_DICT else OrderedDict()
        keys = <tuple> node.data
        for i in range(n):
            mapping[keys[i]] = self.build(<Node> children[i])
        return mapping


cdef cnp.dtype dtype_of(const sr_leaf *record, data):
    """Return the dtype of an array leaf; it never contains objects."""
    cdef int num = record.dtype
    if num == DTYPE_DEFINED:
        if not isinstance(data, np.dtype):
            raise CorruptBatch("a worker sent an array whose dtype is missing in its tree")
        return data
    if 0 <= num < cnp.NPY_OBJECT or num == NPY_HALF:
        return cnp.PyArray_DescrFromType(num)
    if num == cnp.NPY_STRING or num == cnp.NPY_UNICODE:
        key = (num, record.itemsize)
        if key in _text_dtypes:
            return _text_dtypes[key]  # not get(), whose result may be freed before it is counted if there is no GIL
        unit = 4 if num == cnp.NPY_UNICODE else 1
        if record.itemsize == 0 or record.itemsize > 1 << 30 or record.itemsize % unit:
            raise CorruptBatch(f"a worker sent an array of texts of {record.itemsize} bytes each")
        found = np.dtype(f"{'U' if unit == 4 else 'S'}{record.itemsize // unit}")
        return _text_dtypes.setdefault(key, found) if len(_text_dtypes) < 4096 else found
    raise CorruptBatch(f"a worker sent an array of unknown dtype {num}")


cdef object element(array):
    """Return the only element of an array."""
    if array.dtype.kind == "U":
        # numpy makes a str of any code points, even of those that Python does not allow.
        codes = array.reshape(-1).view(array.dtype.byteorder + "u4")
        if codes.max() > 0x10FFFF:
            raise CorruptBatch(f"a worker sent a text with the code point {codes.max():#x}")
    return array[()]


cdef object text(bytes data, uint64_t start, uint64_t end):
    try:
        return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(data) + start, end - start, b"surrogatepass")
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"a worker sent text that is not UTF-8: {error}") from None


cdef list strings(const sr_leaf *record, const char *at):
    """Return the texts of a leaf: [n + 1 ends, then the bytes of n texts]."""
    cdef uint64_t count = record.extra, i, head, start = 0, end, available
    if count >= record.nbytes // 8:
        raise CorruptBatch(f"a worker sent a list of {count} texts in {record.nbytes} bytes")
    head = (count + 1) * 8
    available = record.nbytes - head
    cdef bytes data = PyBytes_FromStringAndSize(at, record.nbytes)
    cdef const uint64_t *ends = <const uint64_t *> PyBytes_AS_STRING(data)
    cdef list out = []
    for i in range(count):
        end = ends[i + 1]
        if end < start or end > available:
            raise CorruptBatch(f"a worker sent a list of texts whose element {i} ends at {end} of {available}")
        if record.kind == LEAF_STRINGS:
            out.append(text(data, head + start, head + end))
        else:
            out.append(PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + head + start, end - start))
        start = end
    return out


cdef list numbers(const sr_leaf *record, const char *at):
    """Return the numbers of a leaf: [n numbers of 8 bytes]."""
    cdef uint64_t count = record.extra, i
    cdef int64_t integer
    cdef double real
    if record.nbytes % 8 or count != record.nbytes // 8:
        raise CorruptBatch(f"a worker sent a list of {count} numbers in {record.nbytes} bytes")
    cdef list out = [None] * <Py_ssize_t> count  # no comprehension: see Decoder.build
    for i in range(count):
        if record.kind == LEAF_INTS:
            memcpy(&integer, at + 8 * i, 8)
            out[i] = integer
        else:
            memcpy(&real, at + 8 * i, 8)
            out[i] = real
    return out


def foreign_module(name):
    """Return the module that packs and restores the leaves of another library."""
    module = _foreign.get(name)
    if module is None:
        module = _foreign[name] = importlib.import_module(FOREIGN[name])
    return module


cdef inline bint tables_fit(uint64_t limit, const sr_result *result) noexcept nogil:
    """Return whether the leaf records and the treedef lie within the first `limit` bytes of the payload."""
    cdef uint64_t table = <uint64_t> result.n_leaves * sizeof(sr_leaf)
    return not (result.table_off > limit or table > limit - result.table_off
                or result.def_off > limit or result.def_bytes > limit - result.def_off)


cdef object misplaced(uint64_t limit, const sr_result *result):
    """Return the exception for a result whose tables do not fit."""
    return CorruptBatch(
        f"a worker sent a table of {result.n_leaves} leaves at {result.table_off} and a tree of "
        f"{result.def_bytes} bytes at {result.def_off}; the slot has {limit} bytes in use"
    )


cdef bytes state_in(char *payload, uint64_t limit, const sr_result *result):
    """Return the worker's state that was published with the value, or None if there is none."""
    cdef sr_leaf record
    cdef uint64_t used = min(limit, result.bytes)
    if not result.flags & WITH_STATE:
        return None
    if result.n_leaves == 0 or not tables_fit(used, result):
        raise misplaced(used, result)
    memcpy(&record, payload + result.table_off + (result.n_leaves - 1) * sizeof(sr_leaf), sizeof(sr_leaf))
    if record.kind != LEAF_BYTES or record.offset > used or record.nbytes > used - record.offset:
        raise CorruptBatch(
            f"a worker sent a state of kind {record.kind} and {record.nbytes} bytes at {record.offset}; the slot has "
            f"{used} bytes in use"
        )
    return PyBytes_FromStringAndSize(payload + record.offset, record.nbytes)


cdef object decode(char *payload, uint64_t limit, const sr_result *result, object base, int fixed):
    """Return the value that `result` describes.

    Arrays are views with `base` as their owner. They are writable if `fixed` is 0, otherwise read-only. Tensors are
    copied if it is READ_ONLY; they are views if it is SHARED, and nothing keeps code from writing to them.
    """
    cdef Decoder d = Decoder.__new__(Decoder)
    cdef uint32_t n_leaves = result.n_leaves
    if result.bytes < limit:
        limit = result.bytes
    if not tables_fit(limit, result):
        raise misplaced(limit, result)
    if result.flags & WITH_STATE:
        n_leaves -= 1
    cdef TreeDef known = treedef_of(payload + result.def_off, result.def_bytes, result.def_hash)
    if known.leaves != n_leaves:
        raise CorruptBatch(f"a worker sent {n_leaves} leaf records; its tree needs {known.leaves}")
    d.payload, d.limit, d.base, d.fixed = payload, limit, base, fixed
    d.next, d.left = payload + result.table_off, n_leaves
    if known.repeats:
        d.made = []
    return d.build(known.root)


cdef enum:
    AUTO = 0
    ALWAYS = 1
    NEVER = 2

COPY_AUTO, COPY_ALWAYS, COPY_NEVER = AUTO, ALWAYS, NEVER
COPY = {"auto": AUTO, "always": ALWAYS, "never": NEVER}  # by the value of an argument `copy`


def receive(Ring ring, uint32_t slot, int copy, bint shared=False):
    """Take a READY slot, with `shared` also for all readers; return (kind, value), or raise CorruptBatch.

    The kind is one of `enum sr_kind`. The value is the batch, or the error's fields; END and EMPTY have none.
    COPY_AUTO copies if a lease would leave fewer than two slots for other batches.
    """
    cdef Lease lease = take(ring, SR_CONSUMER, slot)
    cdef int kind = lease.result.kind
    if shared:
        share(lease)
    return kind, unpack(lease, copy)


cdef object unpack(Lease lease, int copy):
    """Return the value of a leased slot: views that keep the lease, or a copy if `copy` says so."""
    cdef sr_result result = lease.result
    cdef uint64_t begun = clock() if result.pickled else 0
    if result.kind == SR_BATCH and copy != NEVER and (copy == ALWAYS or lease.ring.fillable(2) < 2):
        value = decode_copy(lease, &result)
    else:
        value = decode(lease.payload, lease.limit, &result, lease, False)
    if begun:
        lease.ring.meter.unpickle_ns += clock() - begun
    return value


cdef object unpack_shared(Lease lease, int copy):
    """Return the value of a slot that other processes read, too: read-only views, or a copy if `copy` says so.

    COPY_AUTO copies if views would leave fewer than two slots that no reader keeps.
    """
    cdef sr_result result = lease.result
    if copy == ALWAYS or (copy == AUTO and lease.ring.in_circulation(2) < 2 and lease.ring.unkept(2) < 2):
        return decode_copy(lease, &result)
    return decode(lease.payload, lease.limit, &result, lease, SHARED)


cdef object decode_copy(Lease lease, sr_result *result):
    """Return a copy of the value in memory of its own, and release the slot."""
    cdef uint64_t n = result.bytes if result.bytes < lease.limit else lease.limit
    own = np.empty(n + SR_LEAF_ALIGN, np.uint8)
    cdef char *start = <char *> cnp.PyArray_DATA(own)
    start += (-<uint64_t> start) % SR_LEAF_ALIGN
    copy_in(start, lease.payload, n)
    value = decode(start, n, result, own, False)
    # Only now: if a signal handler raises before this point, the batch stays in its slot.
    lease.ring.meter.copied_batches += 1
    lease.ring.meter.copied_bytes += n
    lease.release()
    return value


def probe(data, uint64_t table_off, uint32_t n_leaves, uint64_t def_off, uint32_t def_bytes,
          uint64_t bytes_used, def_hash=None, bint with_state=False):
    """Decode a payload given as a writable buffer: the entry point for fuzzers and tests of malformed payloads.

    `def_hash` is the treedef's hash; None: the right one. `with_state`: return (value, state).
    """
    cdef unsigned char[::1] view = data
    cdef uint64_t n = view.shape[0]
    cdef char nothing = 0
    cdef char *payload = <char *> &view[0] if n else &nothing
    cdef sr_result result
    memset(&result, 0, sizeof(result))
    result.table_off, result.n_leaves, result.kind = table_off, n_leaves, SR_BATCH
    result.def_off, result.def_bytes, result.bytes = def_off, def_bytes, bytes_used
    result.flags = WITH_STATE if with_state else 0
    if def_hash is not None:
        result.def_hash = def_hash
    elif def_off <= n and def_bytes <= n - def_off:
        result.def_hash = hash_bytes(payload + def_off, def_bytes)
    value = decode(payload, n, &result, data, False)
    return (value, state_in(payload, n, &result)) if with_state else value
