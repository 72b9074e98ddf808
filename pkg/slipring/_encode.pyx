"""From a batch to a slot: flattens a tree to leaf records, and copies what does not lie in the slot yet."""

import dataclasses
import pickle
from collections import OrderedDict

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from slipring._codec cimport (
    DTYPE_DEFINED, LEAF_ARRAY, LEAF_ARROW, LEAF_BOOL, LEAF_BYTES, LEAF_BYTESTRINGS, LEAF_FLOAT, LEAF_FLOATS,
    LEAF_INT, LEAF_INTS, LEAF_OBJECT, LEAF_SCALAR, LEAF_STR, LEAF_STRINGS, LEAF_TENSOR, REQUIRES_GRAD, decode,
)
from slipring._define cimport Definition
from slipring._empty cimport NPY_HALF, AsTensor, array_over, copy_in, is_fixed
from slipring._segment cimport (
    SR_BATCH, SR_END, SR_ERROR, SR_LAYOUT_DIRECT, SR_LAYOUT_STAGED, SR_LEAF_ALIGN, SR_MAX_DIMS, SR_WHOLE,
    sr_leaf, sr_result,
)
from slipring._slot cimport Fill
from slipring._stack cimport all_of, is_tensor
from slipring._trees cimport hash_bytes

import numpy as np

from slipring import _codec
from slipring import tree as _tree
from slipring._empty import empty, reserve

cnp.import_array()

__all__ = [
    "BATCH", "END", "ERROR", "Encoder", "empty", "lost", "publish_range", "range_done", "range_lost", "view",
]

cdef uint64_t NOWHERE = <uint64_t> -1
cdef int MAX_DEPTH = _tree.MAX_DEPTH
BATCH, ERROR, END = SR_BATCH, SR_ERROR, SR_END


@cython.final
cdef class Encoder(Definition):
    """Flattens one value after the other; keeps its buffers. One per worker."""

    cdef Fill fill
    cdef sr_leaf *leaves
    cdef uint32_t n_leaves, room
    cdef uint32_t pickled
    cdef dict found  # class -> whether the other side can make its objects from leaves; for one value

    def __cinit__(self):
        self.leaves = NULL

    def __dealloc__(self):
        PyMem_Free(self.leaves)

    # ---- leaves

    cdef sr_leaf *record(self, int kind) except NULL:
        """A new record; it is good until the next one is made."""
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

    cdef int blob(self, int kind, bytes data) except -1:
        """A leaf of plain bytes."""
        cdef uint64_t n = PyBytes_GET_SIZE(data)
        cdef char *at = self.fill.alloc(n, SR_LEAF_ALIGN)
        copy_in(at, PyBytes_AS_STRING(data), n)
        cdef sr_leaf *leaf = self.record(kind)
        leaf.offset, leaf.nbytes = <uint64_t> (at - self.fill.payload), n
        return self.tag(b"L")

    cdef int array(self, cnp.ndarray value, int kind, str name) except -1:
        """An array leaf; where its bytes lie in the slot already, only a record is written.

        `name` is a torch dtype's. An array whose dtype has no text is pickled.
        """
        cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(value)
        cdef int num = cnp.PyArray_TYPE(value), i
        cdef uint64_t nbytes = cnp.PyArray_NBYTES(value), offset = 0
        cdef char *at
        if name is not None:
            self.tag(b"T")
            self.text(name.encode())
        elif ((num < cnp.NPY_OBJECT or num == NPY_HALF or num == cnp.NPY_STRING or num == cnp.NPY_UNICODE)
                and cnp.PyArray_ISNOTSWAPPED(value)):
            self.tag(b"L")
        else:
            text = _tree.write_dtype(descr)
            if text is None:
                return self.pickled_leaf(value if kind == LEAF_ARRAY else value[()])
            self.tag(b"D")
            self.text((<str> text).encode("utf-8", "surrogatepass"))
            num = DTYPE_DEFINED
        if nbytes:
            offset = NOWHERE
            if cnp.PyArray_IS_C_CONTIGUOUS(value):
                offset = self.fill.offset_of(cnp.PyArray_DATA(value), nbytes)
            if offset == NOWHERE:
                at = self.fill.alloc(nbytes, SR_LEAF_ALIGN)
                offset = <uint64_t> (at - self.fill.payload)
                if cnp.PyArray_IS_C_CONTIGUOUS(value):
                    copy_in(at, <char *> cnp.PyArray_DATA(value), nbytes)
                else:
                    array_over(at, cnp.PyArray_NDIM(value), cnp.PyArray_DIMS(value), descr, None)[...] = value
        cdef sr_leaf *leaf = self.record(kind)
        leaf.dtype, leaf.ndim, leaf.itemsize = num, cnp.PyArray_NDIM(value), <uint32_t> descr.itemsize
        leaf.offset, leaf.nbytes = offset, nbytes
        for i in range(leaf.ndim):
            leaf.shape[i] = cnp.PyArray_DIM(value, i)
        return 0

    cdef int strings(self, list values, int kind) except -1:
        cdef uint64_t n = len(values), end = 0, i
        parts = [v.encode("utf-8", "surrogatepass") for v in values] if kind == LEAF_STRINGS else values
        ends = np.zeros(n + 1, np.uint64)
        cdef uint64_t *at = <uint64_t *> cnp.PyArray_DATA(ends)
        for i in range(n):
            end += PyBytes_GET_SIZE(parts[i])
            at[i + 1] = end
        self.blob(kind, ends.tobytes() + b"".join(parts))
        self.leaves[self.n_leaves - 1].extra = n
        return 0

    cdef bint numbers(self, list values, int kind) except -1:
        """A leaf of Python's numbers; False if one of them needs more than 64 bits."""
        cdef Py_ssize_t n = len(values), i
        cdef int overflow = 0
        cdef char *at = self.fill.alloc(8 * <uint64_t> n, SR_LEAF_ALIGN)
        cdef int64_t *ints = <int64_t *> at
        cdef double *floats = <double *> at
        for i in range(n):
            if kind == LEAF_FLOATS:
                floats[i] = values[i]
                continue
            ints[i] = PyLong_AsLongLongAndOverflow(values[i], &overflow)
            if overflow:
                return False
        cdef sr_leaf *leaf = self.record(kind)
        leaf.offset, leaf.nbytes, leaf.extra = <uint64_t> (at - self.fill.payload), 8 * <uint64_t> n, n
        self.tag(b"L")
        return True

    cdef int pickled_leaf(self, value) except -1:
        """The last resort: pickle protocol 5, its buffers out of band."""
        cdef Py_buffer piece
        cdef list buffers = []
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        cdef list parts = [data, *[b.raw() for b in buffers]]
        cdef list sizes = [len(data), *[p.nbytes for p in parts[1:]]]
        cdef uint64_t size = len(parts) * 8, i, offset
        for i in range(<uint64_t> len(parts)):
            size = padded(size) + <uint64_t> sizes[i]
        cdef char *at = self.fill.alloc(size, SR_LEAF_ALIGN)
        offset = len(parts) * 8
        for i in range(<uint64_t> len(parts)):
            (<uint64_t *> at)[i] = sizes[i]
            PyObject_GetBuffer(parts[i], &piece, PyBUF_SIMPLE)
            offset = padded(offset)
            copy_in(at + offset, <char *> piece.buf, piece.len)
            offset += piece.len
            PyBuffer_Release(&piece)
        cdef sr_leaf *leaf = self.record(LEAF_OBJECT)
        leaf.extra, leaf.nbytes, leaf.offset = len(buffers), size, <uint64_t> (at - self.fill.payload)
        self.pickled += 1
        return self.tag(b"L")

    cdef int foreign(self, value, kind) except -1:
        """Values of other libraries that have a form of their own, or else a pickle."""
        module = getattr(kind, "__module__", None)
        if type(module) is str:
            module = (<str> module).partition(".")[0]
        if module == "torch" or is_tensor(value):  # a subclass of the user's
            packed = _codec.foreign_module("tensor").pack(value)
            if packed is not None:
                self.array(<cnp.ndarray?> packed[0], LEAF_TENSOR, packed[1])
                self.leaves[self.n_leaves - 1].flags = REQUIRES_GRAD if packed[2] else 0
                return 0
        elif module == "pyarrow":
            packed = _codec.foreign_module("arrow").pack(value, reserve)
            if packed is not None:
                return self.array(<cnp.ndarray?> packed, LEAF_ARROW, None)
        return self.pickled_leaf(value)

    # ---- nodes

    cdef int add(self, value, int depth) except -1:
        """Write one node and all below it."""
        cdef int64_t integer
        cdef int overflow = 0
        cdef double real
        cdef sr_leaf *leaf
        cdef cnp.ndarray array
        kind = type(value)
        if depth > MAX_DEPTH:
            raise ValueError(f"a batch is nested deeper than {MAX_DEPTH} levels; does it contain itself?")
        if kind is np.ndarray or kind is np.memmap:
            array = <cnp.ndarray> value
            fixed = is_fixed(<cnp.dtype> cnp.PyArray_DESCR(array))
            if fixed and cnp.PyArray_NDIM(array) <= <int> SR_MAX_DIMS:
                return self.array(array, LEAF_ARRAY, None)
            return self.pickled_leaf(value)
        if kind is AsTensor:
            array = (<AsTensor> value).array
            return self.array(array, LEAF_TENSOR, (<AsTensor> value).name())
        if kind is dict or kind is OrderedDict:
            return self.mapping(value, b"d" if kind is dict else b"o", depth)
        if kind is tuple:
            self.tag(b"t")
            return self.children(value, depth)
        if kind is list:
            return self.sequence(<list> value, depth)
        if kind is bool or kind is int:
            integer = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow:
                return self.pickled_leaf(value)
            leaf = self.record(LEAF_BOOL if kind is bool else LEAF_INT)
            leaf.extra = <uint64_t> integer
            return self.tag(b"L")
        if kind is float:
            real = value
            leaf = self.record(LEAF_FLOAT)
            memcpy(&leaf.extra, &real, 8)
            return self.tag(b"L")
        if value is None:
            return self.tag(b"N")
        if kind is str:
            return self.blob(LEAF_STR, (<str> value).encode("utf-8", "surrogatepass"))
        if kind is bytes:
            return self.blob(LEAF_BYTES, value)
        # A record would come back without its fields as attributes.
        if isinstance(value, np.generic) and kind is not np.record and is_fixed(value.dtype):
            return self.array(np.asarray(value), LEAF_SCALAR, None)
        if isinstance(value, tuple) and self.can_be_made(kind) and is_complete(<tuple> value):
            self.named(kind, b"n")
            return self.children(<tuple> value, depth)
        if dataclasses.is_dataclass(kind) and self.can_be_made(kind):
            values = _tree.contents(value)
            if values is not None:
                self.named(kind, b"c")
                names = _tree.field_names(kind)
                self.count(len(names))
                for name in names:
                    self.text((<str> name).encode())
                for child in values:
                    self.add(child, depth + 1)
                return 0
        return self.foreign(value, kind)

    cdef int children(self, tuple values, int depth) except -1:
        self.count(len(values))
        for child in values:
            self.add(child, depth + 1)
        return 0

    cdef int sequence(self, list values, int depth) except -1:
        first = type(values[0]) if values else None
        if (first is str or first is bytes) and all_of(values, first):
            return self.strings(values, LEAF_STRINGS if first is str else LEAF_BYTESTRINGS)
        if (first is int or first is float) and all_of(values, first):
            if self.numbers(values, LEAF_INTS if first is int else LEAF_FLOATS):
                return 0
        self.tag(b"l")
        # A copy: what is pickled below may be code that changes the list.
        return self.children(tuple(values), depth)

    cdef int mapping(self, value, char c, int depth) except -1:
        cdef uint64_t mark = self.n_defs
        cdef tuple items = tuple(value.items())
        self.tag(c)
        self.count(len(items))
        for pair in items:
            if not self.key((<tuple> pair)[0], depth):
                self.n_defs = mark
                return self.pickled_leaf(value)
        for pair in items:
            self.add((<tuple> pair)[1], depth + 1)
        return 0

    cdef bint can_be_made(self, kind) except *:
        """Whether the other side finds this class, and can make its objects from leaves alone."""
        known = self.found.get(kind)
        if known is None:
            known = (_tree.is_namedtuple(kind) or _tree.is_plain_dataclass(kind)) and _tree.can_be_found(kind)
            self.found[kind] = known
        return known

    # ---- a whole value

    cdef int encode(self, Fill fill, value, int kind, sr_result *result) except -1:
        """Flatten `value` into the fill's slot; *result is what a publish needs."""
        if self.fill is not None:
            raise RuntimeError("this Encoder is at work already: each worker needs its own")
        self.fill = fill
        self.n_leaves = self.n_defs = self.pickled = 0
        self.found = {}
        try:
            self.add(value, 0)
            memset(result, 0, sizeof(sr_result))
            self.table(result)
        finally:
            self.fill = None
            self.found = None
        result.kind, result.pickled = kind, self.pickled
        return 0

    cdef int table(self, sr_result *result) except -1:
        """Write leaf records and definition behind the leaves."""
        cdef uint64_t table = <uint64_t> self.n_leaves * sizeof(sr_leaf)
        cdef char *at = self.fill.alloc(table + self.n_defs, SR_LEAF_ALIGN)
        if table:
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
        fill.settle(SR_LAYOUT_DIRECT, &result)

    def settle_staged(self, Fill fill):
        """Record that each range stages its samples."""
        fill.settle(SR_LAYOUT_STAGED, NULL)


def range_done(Fill fill, uint64_t begun, uint64_t fetched):
    """End a range whose rows lie in place; True if this worker must finish the slot."""
    fill.note(begun, fetched)
    return fill.range_done(NULL) == 1


def range_lost(Fill fill, uint32_t why, uint64_t needed, uint64_t free):
    """End a range whose error found no room in the slot: three numbers are kept. True as `range_done`."""
    cdef sr_result result
    memset(&result, 0, sizeof(result))
    result.kind, result.pickled, result.table_off, result.def_off = SR_ERROR, why, needed, free
    return fill.range_done(&result) == 1


def lost(Fill fill, which):
    """Return the numbers that `range_lost` kept; None for any other range."""
    cdef sr_result result = fill.result_of(which)[0]
    if result.kind != SR_ERROR or result.def_bytes:
        return None
    return result.pickled, result.table_off, result.def_off


def view(Fill fill, which=None):
    """Return (kind, value) of what a range staged, or of the settled layout (`which` None), as views."""
    cdef sr_result result = fill.result_of(SR_WHOLE if which is None else which)[0]
    if result.kind == 0:
        return 0, None
    return result.kind, decode(fill.payload, fill.limit(), &result, fill.holder())


def publish_range(Fill fill, which=None):
    """Publish what a range staged (its error), or the settled layout (`which` None), as the slot's batch."""
    cdef sr_result result = fill.result_of(SR_WHOLE if which is None else which)[0]
    fill.publish(&result)


cdef bint is_complete(tuple value) except *:
    """Whether a namedtuple has its fields, and nothing besides."""
    return len(value) == len(type(value)._fields) and not getattr(value, "__dict__", None)


cdef uint64_t padded(uint64_t n) noexcept:
    return (n + SR_LEAF_ALIGN - 1) // SR_LEAF_ALIGN * SR_LEAF_ALIGN
