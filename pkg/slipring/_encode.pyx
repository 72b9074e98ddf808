"""From a batch to a slot: flattens a tree to leaf records, and copies only what does not lie in the slot yet."""

import dataclasses
import pickle
import sys
from collections import OrderedDict

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from slipring._codec cimport (
    DTYPE_DEFINED, LEAF_ARRAY, LEAF_ARROW, LEAF_BOOL, LEAF_BYTES, LEAF_BYTESTRINGS, LEAF_FLOAT, LEAF_INT,
    LEAF_OBJECT, LEAF_SCALAR, LEAF_STR, LEAF_STRINGS, LEAF_TENSOR, NPY_HALF, decode,
    hash_bytes,
)
from slipring._ring cimport (
    SR_BATCH, SR_END, SR_ERROR, SR_LEAF_ALIGN, SR_MAX_DIMS, Fill, Hold, copy_streaming, current_fill, sr_leaf, sr_result,
)

import numpy as np

from slipring import _codec, _ring
from slipring import tree as _tree

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, cnp.npy_intp *dims,
                                cnp.npy_intp *strides, void *data, int flags, PyObject *obj)

cdef uint64_t NOWHERE = <uint64_t> -1
cdef uint64_t BIG_COPY = 1 << 16  # from here on other threads may run during a copy
cdef uint64_t STREAMING = 4 << 20  # from here on an array leaves the caches before anybody reads it
MAX_DEPTH = 100


def empty(shape, dtype=float):
    """Return a new array, inside the slot being filled if the calling thread fills one.

    In a worker (in ``__getitem__``, ``__getitems__``, a transform or a `collate_fn`) the array already lies where
    the consumer will read it, so a batch made of it is not copied. Elsewhere it is ``numpy.empty(shape, dtype)``.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
        Any fixed-size dtype; object dtypes get ordinary memory.

    Returns
    -------
    numpy.ndarray
        C-contiguous, not initialised. It may be kept past the batch: its slot then does not circulate until it
        is gone.

    Raises
    ------
    SegmentFull, BatchTooLarge
        The slot cannot take it.
    """
    cdef Fill fill = current_fill()
    if fill is None:
        return np.empty(shape, dtype)
    cdef cnp.dtype descr = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
    if descr.hasobject or descr.itemsize == 0 or not is_fixed(descr):
        return np.empty(shape, dtype)
    return in_slot(fill, shape if type(shape) is tuple else _as_shape(shape), descr)


def _as_shape(shape):
    return tuple(shape) if hasattr(shape, "__iter__") else (shape,)


cdef object in_slot(Fill fill, tuple shape, cnp.dtype descr):
    """A new array in the fill's slot."""
    cdef cnp.npy_intp dims[64]
    cdef uint64_t nbytes = descr.itemsize
    cdef int i, n = len(shape)
    if n > 64:
        raise ValueError(f"an array has at most 64 dimensions, not {n}")
    for i in range(n):
        dims[i] = shape[i]
        if dims[i] < 0:
            raise ValueError(f"negative dimensions are not allowed: {shape}")
        if dims[i] and nbytes > (<uint64_t> 1 << 62) // <uint64_t> dims[i]:
            raise ValueError(f"an array of shape {shape} is too large")
        nbytes *= <uint64_t> dims[i]
    cdef char *at = fill.alloc(nbytes, SR_LEAF_ALIGN)
    Py_INCREF(descr)
    array = <cnp.ndarray> PyArray_NewFromDescr(
        <PyTypeObject *> cnp.ndarray, descr, n, dims, NULL, at,
        cnp.NPY_ARRAY_WRITEABLE | cnp.NPY_ARRAY_ALIGNED, NULL)
    hold = fill.holder()
    Py_INCREF(hold)
    cnp.PyArray_SetBaseObject(array, hold)
    return array


cdef bint is_fixed(cnp.dtype descr):
    """Whether every element has its bytes in the array itself."""
    return not descr.hasobject and (<bytes> b"biufcmMSUV?").find(chr(descr.kind).encode()) >= 0


@cython.final
cdef class Encoder:
    """Flattens one value after the other; keeps its buffers. One per worker."""

    cdef Fill fill
    cdef sr_leaf *leaves
    cdef uint32_t n_leaves, room
    cdef char *defs
    cdef uint64_t n_defs, defs_room
    cdef uint32_t pickled

    def __cinit__(self):
        self.leaves = NULL
        self.defs = NULL

    def __dealloc__(self):
        PyMem_Free(self.leaves)
        PyMem_Free(self.defs)

    # ---- the definition

    cdef int put(self, const void *data, uint64_t n) except -1:
        if self.n_defs + n > self.defs_room:
            room = max(4096, 2 * (self.n_defs + n))
            grown = <char *> PyMem_Realloc(self.defs, room)
            if grown == NULL:
                raise MemoryError()
            self.defs, self.defs_room = grown, room
        memcpy(self.defs + self.n_defs, data, n)
        self.n_defs += n
        return 0

    cdef int tag(self, char c) except -1:
        return self.put(&c, 1)

    cdef int counted(self, char c, uint32_t n) except -1:
        self.put(&c, 1)
        return self.put(&n, 4)

    cdef int text(self, bytes data) except -1:
        cdef uint32_t n = <uint32_t> PyBytes_GET_SIZE(data)
        self.put(&n, 4)
        return self.put(PyBytes_AS_STRING(data), n)

    cdef int named(self, cls, char c) except -1:
        self.tag(c)
        self.text((<str> cls.__module__).encode())
        return self.text((<str> cls.__qualname__).encode())

    cdef bint key(self, key) except *:
        """Write a dict's key; False if it is of no type that definitions know."""
        cdef int64_t integer
        cdef double real
        kind = type(key)
        if kind is str:
            self.tag(b"s")
            self.text((<str> key).encode("utf-8", "surrogatepass"))
        elif kind is bool:
            self.tag(b"1" if key else b"2")
        elif kind is int and -(1 << 63) <= key < (1 << 63):
            integer = key
            self.tag(b"i")
            self.put(&integer, 8)
        elif kind is float:
            real = key
            self.tag(b"f")
            self.put(&real, 8)
        elif kind is bytes:
            self.tag(b"b")
            self.text(key)
        elif key is None:
            self.tag(b"0")
        elif kind is tuple:
            self.counted(b"(", len(key))
            for part in key:
                if not self.key(part):
                    return False
        else:
            return False
        return True

    # ---- leaves

    cdef sr_leaf *record(self, int kind) except NULL:
        if self.n_leaves == self.room:
            room = max(64, 2 * self.room)
            grown = <sr_leaf *> PyMem_Realloc(self.leaves, room * sizeof(sr_leaf))
            if grown == NULL:
                raise MemoryError()
            self.leaves, self.room = grown, room
        cdef sr_leaf *leaf = self.leaves + self.n_leaves
        self.n_leaves += 1
        memset(leaf, 0, sizeof(sr_leaf))
        leaf.kind = kind
        return leaf

    cdef int place(self, sr_leaf *leaf, const char *data, uint64_t n) except -1:
        """Copy `n` bytes into the slot."""
        cdef char *at = self.fill.alloc(n, SR_LEAF_ALIGN)
        leaf.offset, leaf.nbytes = <uint64_t> (at - self.fill.payload), n
        memcpy(at, data, n)
        return 0

    cdef int array(self, cnp.ndarray value, int kind, str name) except -1:
        """An array leaf; where its bytes lie in the slot already, only a record is written."""
        cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(value)
        cdef int num = cnp.PyArray_TYPE(value), i
        cdef uint64_t nbytes = cnp.PyArray_NBYTES(value), offset = NOWHERE
        cdef sr_leaf *leaf = self.record(kind)
        cdef char *at
        if name is not None:
            self.tag(b"T")
            self.text(name.encode())
        elif ((0 <= num < cnp.NPY_OBJECT or num == NPY_HALF or num == cnp.NPY_STRING or num == cnp.NPY_UNICODE)
                and cnp.PyArray_ISNOTSWAPPED(value) and descr.itemsize > 0):
            self.tag(b"L")
        else:
            self.tag(b"D")
            self.text(_tree.write_dtype(descr).encode())
            num = DTYPE_DEFINED
        leaf.dtype, leaf.ndim = num, cnp.PyArray_NDIM(value)
        leaf.itemsize = <uint32_t> descr.itemsize
        for i in range(leaf.ndim):
            leaf.shape[i] = cnp.PyArray_DIM(value, i)
        leaf.nbytes = nbytes
        if nbytes == 0:
            return 0
        if cnp.PyArray_IS_C_CONTIGUOUS(value):
            offset = self.fill.offset_of(cnp.PyArray_DATA(value), nbytes)
        if offset == NOWHERE:
            at = self.fill.alloc(nbytes, SR_LEAF_ALIGN)
            offset = <uint64_t> (at - self.fill.payload)
            if not cnp.PyArray_IS_C_CONTIGUOUS(value):
                self._gather(value, descr, at)
            elif nbytes >= BIG_COPY:
                with nogil:
                    if nbytes >= STREAMING:
                        copy_streaming(at, cnp.PyArray_DATA(value), nbytes)
                    else:
                        memcpy(at, cnp.PyArray_DATA(value), nbytes)
            else:
                memcpy(at, cnp.PyArray_DATA(value), nbytes)
        leaf.offset = offset
        return 0

    cdef int _gather(self, cnp.ndarray value, cnp.dtype descr, char *at) except -1:
        """Copy a strided array to C order."""
        Py_INCREF(descr)
        target = PyArray_NewFromDescr(
            <PyTypeObject *> cnp.ndarray, descr, cnp.PyArray_NDIM(value), cnp.PyArray_DIMS(value), NULL, at,
            cnp.NPY_ARRAY_WRITEABLE | cnp.NPY_ARRAY_ALIGNED, NULL)
        target[...] = value
        return 0

    cdef int strings(self, list values, int kind) except -1:
        cdef uint64_t n = len(values), end = 0
        parts = [v.encode("utf-8", "surrogatepass") for v in values] if kind == LEAF_STRINGS else values
        ends = np.zeros(n + 1, np.uint64)
        cdef uint64_t[::1] view = ends
        cdef uint64_t i
        for i in range(n):
            end += PyBytes_GET_SIZE(parts[i])
            view[i + 1] = end
        cdef sr_leaf *leaf = self.record(kind)
        leaf.extra = n
        self.tag(b"L")
        cdef bytes data = ends.tobytes() + b"".join(parts)
        return self.place(leaf, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int pickle(self, value) except -1:
        """The last resort: pickle protocol 5, its buffers out of band."""
        buffers = []
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        parts = [memoryview(data)] + [b.raw() for b in buffers]
        lengths = np.array([p.nbytes for p in parts], np.uint64)
        cdef uint64_t offset = lengths.nbytes
        starts = []
        for part in parts:
            offset = (offset + SR_LEAF_ALIGN - 1) // SR_LEAF_ALIGN * SR_LEAF_ALIGN
            starts.append(offset)
            offset += part.nbytes
        room = in_slot(self.fill, (offset,), np.dtype(np.uint8))
        room[: lengths.nbytes] = lengths.view(np.uint8)
        for start, part in zip(starts, parts):
            room[start:start + part.nbytes] = np.frombuffer(part, np.uint8)
        cdef sr_leaf *leaf = self.record(LEAF_OBJECT)
        self.tag(b"L")
        leaf.extra = len(buffers)
        leaf.nbytes = offset
        leaf.offset = <uint64_t> (<char *> cnp.PyArray_DATA(room) - self.fill.payload)
        self.pickled += 1
        return 0

    cdef int foreign(self, value, kind) except -1:
        """Values of other libraries that have a form of their own, or else a pickle."""
        module = kind.__module__.partition(".")[0]
        if module == "torch":
            packed = _codec.foreign_module("tensor").pack(value)
            if packed is not None:
                return self.array(<cnp.ndarray> packed[0], LEAF_TENSOR, packed[1])
        elif module == "pyarrow":
            packed = _codec.foreign_module("arrow").pack(value, empty)
            if packed is not None:
                self.array(<cnp.ndarray> packed, LEAF_ARROW, None)
                return 0
        return self.pickle(value)

    cdef int add(self, value, int depth) except -1:
        """Write one node and all below it."""
        cdef sr_leaf *leaf
        cdef bytes data
        cdef uint64_t mark
        cdef double real
        kind = type(value)
        if depth > MAX_DEPTH:
            raise ValueError(f"a batch is nested deeper than {MAX_DEPTH} containers; does it contain itself?")
        if kind is np.ndarray or kind is np.memmap:
            if is_fixed(value.dtype) and value.ndim <= SR_MAX_DIMS:
                return self.array(<cnp.ndarray> value, LEAF_ARRAY, None)
            return self.pickle(value)
        if kind is dict or kind is OrderedDict:
            mark = self.n_defs
            self.counted(b"d" if kind is dict else b"o", len(value))
            keys_at = self.n_leaves
            for key, child in value.items():
                if not self.key(key):
                    self.n_defs, self.n_leaves = mark, keys_at
                    return self.pickle(value)
                self.add(child, depth + 1)
            return 0
        if kind is tuple:
            self.counted(b"t", len(value))
            for child in <tuple> value:
                self.add(child, depth + 1)
            return 0
        if kind is list:
            first = type(value[0]) if value else None
            if first is str and all_of(<list> value, str):
                return self.strings(value, LEAF_STRINGS)
            if first is bytes and all_of(<list> value, bytes):
                return self.strings(value, LEAF_BYTESTRINGS)
            self.counted(b"l", len(value))
            for child in <list> value:
                self.add(child, depth + 1)
            return 0
        if kind is bool or (kind is int and -(1 << 63) <= value < (1 << 63)):
            self.tag(b"L")
            leaf = self.record(LEAF_BOOL if kind is bool else LEAF_INT)
            leaf.extra = <uint64_t> <int64_t> value
            return 0
        if kind is float:
            self.tag(b"L")
            leaf = self.record(LEAF_FLOAT)
            real = value
            memcpy(&leaf.extra, &real, 8)
            return 0
        if value is None:
            return self.tag(b"N")
        if kind is str or kind is bytes:
            data = (<str> value).encode("utf-8", "surrogatepass") if kind is str else value
            self.tag(b"L")
            return self.place(self.record(LEAF_STR if kind is str else LEAF_BYTES),
                              PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if isinstance(value, np.generic) and is_fixed(value.dtype):
            return self.array(np.asarray(value), LEAF_SCALAR, None)
        if _tree.is_namedtuple(kind) and _tree.can_be_found(kind):
            self.named(kind, b"n")
            self.put_count(len(value))
            for child in value:
                self.add(child, depth + 1)
            return 0
        if dataclasses.is_dataclass(kind) and _tree.can_be_found(kind):
            fields = [f.name for f in dataclasses.fields(kind)]
            self.named(kind, b"c")
            self.put_count(len(fields))
            for name in fields:
                self.text(name.encode())
                self.add(getattr(value, name), depth + 1)
            return 0
        return self.foreign(value, kind)

    cdef int put_count(self, uint32_t n) except -1:
        return self.put(&n, 4)

    # ---- a whole value

    cdef int encode(self, Fill fill, value, int kind, sr_result *result) except -1:
        """Flatten `value` into the fill's slot; *result is what a publish needs."""
        self.fill = fill
        self.n_leaves = self.n_defs = self.pickled = 0
        try:
            self.add(value, 0)
            memset(result, 0, sizeof(sr_result))
            self.table(result)
        finally:
            self.fill = None
        result.kind, result.pickled = kind, self.pickled
        return 0

    cdef int table(self, sr_result *result) except -1:
        """Write leaf records and definition behind the leaves."""
        cdef uint64_t table = <uint64_t> self.n_leaves * sizeof(sr_leaf)
        cdef char *at = self.fill.alloc(table + self.n_defs, SR_LEAF_ALIGN)
        memcpy(at, self.leaves, table)
        memcpy(at + table, self.defs, self.n_defs)
        result.table_off = <uint64_t> (at - self.fill.payload)
        result.def_off = result.table_off + table
        result.n_leaves, result.def_bytes = self.n_leaves, <uint32_t> self.n_defs
        result.def_hash = hash_bytes(self.defs, self.n_defs)
        result.bytes = result.def_off + self.n_defs
        return 0

    # ---- what a worker calls; `box` is a list with the value, emptied so that nothing but worker code
    # ---- still refers to arrays in the slot when it is published

    def publish(self, Fill fill, list box, int kind=SR_BATCH, uint64_t begun=0, uint64_t fetched=0):
        """Encode ``box.pop()`` into the slot and publish it.

        `begun` and `fetched` (ns, as `_ring.now`) are when fetching began and ended: the statistics' times.
        """
        cdef sr_result result
        self.encode(fill, box.pop(), kind, &result)
        if begun:
            fill.note(begun, fetched)
        fill.publish(&result)

    def stage(self, Fill fill, list box, int kind=SR_BATCH, uint64_t begun=0, uint64_t fetched=0):
        """Encode what a range yields and end the range; True if this worker must finish the slot."""
        cdef sr_result result
        self.encode(fill, box.pop(), kind, &result)
        if begun:
            fill.note(begun, fetched)
        return fill.range_done(&result) == 1

    def settle_direct(self, Fill fill, skeleton):
        """Record how the rows of a cooperative batch lie; `skeleton` has an array in the slot per leaf."""
        cdef sr_result result
        self.encode(fill, skeleton, SR_BATCH, &result)
        fill.settle(_ring.DIRECT, &result)

    def settle_staged(self, Fill fill):
        """Record that each range stages its samples."""
        fill.settle(_ring.STAGED, NULL)


BATCH, ERROR, END = SR_BATCH, SR_ERROR, SR_END


def range_done(Fill fill, uint64_t begun, uint64_t fetched):
    """End a range whose rows lie in place; True if this worker must finish the slot."""
    fill.note(begun, fetched)
    return fill.range_done(NULL) == 1


def view(Fill fill, which=None):
    """Return (kind, value) of what a range staged, or of the settled layout (`which` None), as views."""
    cdef const sr_result *shared = fill.result_of(_ring.WHOLE if which is None else which)
    cdef sr_result result = shared[0]
    if result.kind == 0:
        return 0, None
    return result.kind, decode(fill.payload, fill.limit(), &result, fill.holder(), False)


def publish_range(Fill fill, which=None):
    """Publish what a range staged (its error), or the settled layout (`which` None), as the slot's batch."""
    cdef sr_result result = fill.result_of(_ring.WHOLE if which is None else which)[0]
    fill.publish(&result)


cdef bint all_of(list values, kind):
    for value in values:
        if type(value) is not kind:
            return False
    return True
