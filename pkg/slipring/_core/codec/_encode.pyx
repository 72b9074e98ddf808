"""The encoder flattens a pytree into leaf records, and copies the leaves that are not in the slot yet.

Also here: batches that several workers make, one range of rows each, and values packed in memory of their own.
"""

import dataclasses
import pickle
from collections import OrderedDict

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free as c_free
from libc.string cimport memcpy, memset

from slipring._core.codec._codec cimport (
    DTYPE_DEFINED, LEAF_ARRAY, LEAF_ARROW, LEAF_BOOL, LEAF_BYTES, LEAF_BYTESTRINGS, LEAF_FLOAT, LEAF_FLOATS, LEAF_INT,
    LEAF_INTS, LEAF_OBJECT, LEAF_SCALAR, LEAF_STR, LEAF_STRINGS, LEAF_TENSOR, NPY_HALF, REQUIRES_GRAD, AsTensor, all_of,
    array_over, copy_in, decode, hash_bytes, is_fixed, is_tensor, order_of, padded, tensor_class,
)
from slipring._core.ring._segment cimport (
    SET_APART, SR_BATCH, SR_EMPTY, SR_END, SR_ERROR, SR_LAYOUT_DIRECT, SR_LAYOUT_STAGED, SR_LEAF_ALIGN, SR_MAX_DIMS,
    SR_WHOLE, WITH_STATE, sr_leaf, sr_result,
)
from slipring._core.ring._segment cimport Meter
from slipring._core.ring._slot cimport SlotWriter, WriteTarget

cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

import numpy as np

from slipring._core.codec import pytree
from slipring._core.codec._codec import foreign_module, reserve
from slipring.errors import CorruptBatch

cnp.import_array()

cdef uint64_t NO_OFFSET = <uint64_t> -1
cdef uint32_t NOTHING = <uint32_t> -1
cdef int MAX_DEPTH = pytree.MAX_DEPTH
BATCH, ERROR, END, EMPTY = SR_BATCH, SR_ERROR, SR_END, SR_EMPTY


# ---- the sources of a value's leaves: a leaf that occurs twice is written once


cdef struct Source:
    PyObject *owner     # the user's array, tensor or object; a reference to it is kept
    const char *data    # of a dense array or tensor; NULL: only the same object is the same source
    PyObject *dtype     # NULL without data; else the array's dtype, or the name of the tensor's
    uint64_t key
    uint32_t leaf, kind
    uint32_t next       # number of another source in the same bucket; NOTHING: there is none


@cython.final
cdef class Sources:
    """The objects from which the leaves of a value were made: an object that occurs again is no new leaf.

    It keeps a reference to each owner. Otherwise its memory could be freed and become another owner's.
    """

    cdef Source *sources
    cdef uint32_t *buckets  # each has the number of a source, or NOTHING
    cdef uint32_t n, capacity   # of sources; there are as many buckets

    def __cinit__(self):
        self.sources, self.buckets = NULL, NULL

    def __dealloc__(self):
        self.forget()
        PyMem_Free(self.sources)
        PyMem_Free(self.buckets)

    cdef Source *first(self, uint64_t key) except? NULL:
        """Return a source with that key, or NULL; `next_of` returns the others."""
        if self.n == self.capacity:
            self.grow()
        return self.at(self.buckets[key % self.capacity], key)

    cdef Source *next_of(self, Source *source) noexcept:
        return self.at(source.next, source.key)

    cdef Source *at(self, uint32_t number, uint64_t key) noexcept:
        while number != NOTHING and self.sources[number].key != key:
            number = self.sources[number].next
        return NULL if number == NOTHING else self.sources + number

    cdef void add(self, Source *new) noexcept:
        """Add a source; there is capacity after `first`."""
        Py_INCREF(<object> new.owner)
        if new.dtype != NULL:
            Py_INCREF(<object> new.dtype)
        self.sources[self.n] = new[0]
        self.chain(self.n)
        self.n += 1

    cdef void chain(self, uint32_t number) noexcept:
        cdef uint32_t *bucket = self.buckets + self.sources[number].key % self.capacity
        self.sources[number].next = bucket[0]
        bucket[0] = number

    cdef int grow(self) except -1:
        cdef uint32_t capacity = max(16, 4 * self.capacity), i
        cdef Source *sources = <Source *> PyMem_Realloc(self.sources, capacity * sizeof(Source))
        if sources == NULL:
            raise MemoryError()
        self.sources = sources
        cdef uint32_t *buckets = <uint32_t *> PyMem_Realloc(self.buckets, capacity * sizeof(uint32_t))
        if buckets == NULL:
            raise MemoryError()
        self.buckets, self.capacity = buckets, capacity
        memset(buckets, 0xFF, capacity * sizeof(uint32_t))
        for i in range(self.n):
            self.chain(i)
        return 0

    cdef int forget(self) except -1:
        """Drop all references."""
        cdef uint32_t n = self.n, i
        self.n = 0
        for i in range(n):
            self.buckets[self.sources[i].key % self.capacity] = NOTHING
        for i in range(n):
            Py_DECREF(<object> self.sources[i].owner)
            if self.sources[i].dtype != NULL:
                Py_DECREF(<object> self.sources[i].dtype)
        return 0


# ---- the encoder


cdef class TreeDefWriter:
    """The treedef of a batch, which pytree.py reads; docs/protocol.md has the format.

    Its bytes grow node by node. The buffer is kept from one treedef to the next.
    """

    cdef char *defs
    cdef uint64_t n_defs, defs_capacity

    def __cinit__(self):
        self.defs = NULL

    def __dealloc__(self):
        PyMem_Free(self.defs)

    cdef int put(self, const void *data, uint64_t n) except -1:
        if self.n_defs + n > self.defs_capacity:
            capacity = max(<uint64_t> 4096, 2 * (self.n_defs + n))
            grown = <char *> PyMem_Realloc(self.defs, capacity)
            if grown == NULL:
                raise MemoryError()
            self.defs, self.defs_capacity = grown, capacity
        memcpy(self.defs + self.n_defs, data, n)
        self.n_defs += n
        return 0

    cdef int tag(self, char c) except -1:
        return self.put(&c, 1)

    cdef int count(self, Py_ssize_t length) except -1:
        cdef uint32_t n = <uint32_t> length
        if length >= 1 << 32:
            raise ValueError(f"{length} elements are too many for one container; use an array")
        return self.put(&n, 4)

    cdef int text(self, bytes data) except -1:
        self.count(PyBytes_GET_SIZE(data))
        return self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int named(self, cls, char c) except -1:
        self.tag(c)
        self.text((<str> cls.__module__).encode("utf-8", "surrogatepass"))
        return self.text((<str> cls.__qualname__).encode("utf-8", "surrogatepass"))

    cdef bint key(self, key, int depth) except *:
        """Write a dict's key; return False if treedefs have no form for its type."""
        cdef int64_t integer
        cdef int overflow = 0
        cdef double real
        kind = type(key)
        if kind is str:
            self.tag(b"s")
            self.text((<str> key).encode("utf-8", "surrogatepass"))
        elif kind is bool:
            self.tag(b"1" if key else b"2")
        elif kind is int:
            integer = PyLong_AsLongLongAndOverflow(key, &overflow)
            if overflow:
                return False
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
        elif kind is tuple and depth < MAX_DEPTH:
            self.tag(b"(")
            self.count(len(<tuple> key))
            for part in <tuple> key:
                if not self.key(part, depth + 1):
                    return False
        else:
            return False
        return True


@cython.final
cdef class Encoder(TreeDefWriter):
    """An encoder that flattens one value after the other and keeps its buffers. One per worker."""

    cdef WriteTarget target  # where the value goes
    cdef sr_leaf *leaves
    cdef uint32_t n_leaves, n_records
    cdef uint32_t pickled
    cdef uint64_t low, high  # range of the value's bytes that were in the slot already; low NO_OFFSET: none
    cdef bytes trailer  # bytes to write after the treedef, or None
    cdef dict found  # class -> whether the consumer can make its objects from leaves; reset for each value
    cdef Sources sources

    def __cinit__(self):
        self.leaves = NULL
        self.sources = Sources()

    def __dealloc__(self):
        PyMem_Free(self.leaves)

    # ---- leaves

    cdef sr_leaf *record(self, int kind) except NULL:
        """Return a new record; the pointer is valid until the next one is made."""
        if self.n_leaves == self.n_records:
            many = max(64, 2 * self.n_records)
            grown = <sr_leaf *> PyMem_Realloc(self.leaves, many * sizeof(sr_leaf))
            if grown == NULL:
                raise MemoryError()
            self.leaves, self.n_records = grown, many
        cdef sr_leaf *leaf = self.leaves + self.n_leaves
        self.n_leaves += 1
        memset(leaf, 0, sizeof(sr_leaf))
        leaf.kind = kind
        return leaf

    cdef bint is_repeated(self, owner, uint32_t kind, cnp.ndarray array=None, dtype=None, uint64_t order=0) except *:
        """Write a node that names the leaf of the same source; return False if there is none.

        After False, the next leaf is of this source. `array` is dense in that order; other arrays with the same
        address, shape and dtype are the same source.
        """
        cdef Source new
        cdef Source *found
        cdef int d
        new.owner, new.data, new.dtype, new.leaf, new.kind = <PyObject *> owner, NULL, NULL, self.n_leaves, kind
        new.key = <uint64_t> new.owner
        if array is not None:
            new.data, new.dtype = <const char *> cnp.PyArray_DATA(array), <PyObject *> dtype
            new.key = <uint64_t> new.data
            for d in range(cnp.PyArray_NDIM(array)):
                new.key = (new.key ^ <uint64_t> cnp.PyArray_DIM(array, d)) * <uint64_t> 0x9FB21C651E98DF25
        new.key = (new.key ^ new.key >> 32) * <uint64_t> 0x9FB21C651E98DF25 >> 32
        found = self.sources.first(new.key)
        while found != NULL:
            if found.kind == kind and self.is_source(found, &new, array, order):
                self.tag(b"S")
                self.put(&found.leaf, 4)
                return True
            found = self.sources.next_of(found)
        self.sources.add(&new)
        return False

    cdef bint is_source(self, const Source *source, const Source *new, cnp.ndarray array, uint64_t order) except *:
        """Return whether a source is the same as a new one of the same kind."""
        cdef const sr_leaf *leaf = self.leaves + source.leaf
        cdef cnp.dtype a, b
        cdef int d
        if source.data != new.data:
            return False
        if new.data == NULL:
            return source.owner == new.owner
        if leaf.ndim != cnp.PyArray_NDIM(array) or leaf.extra != order:
            return False
        for d in range(leaf.ndim):
            if leaf.shape[d] != cnp.PyArray_DIM(array, d):
                return False
        if source.dtype == new.dtype:
            return True
        if type(<object> new.dtype) is str:
            return <str> source.dtype == <str> new.dtype
        a, b = <cnp.dtype> source.dtype, <cnp.dtype> new.dtype
        return cnp.PyArray_EquivTypes(a, b)

    cdef int blob(self, int kind, bytes data) except -1:
        """Write a leaf of plain bytes."""
        self.write_bytes(kind, data)
        return self.tag(b"L")

    cdef int write_bytes(self, int kind, bytes data) except -1:
        """Write bytes and their record."""
        cdef uint64_t n = PyBytes_GET_SIZE(data)
        cdef char *at = self.target.alloc(n, SR_LEAF_ALIGN)
        copy_in(at, PyBytes_AS_STRING(data), n)
        cdef sr_leaf *leaf = self.record(kind)
        leaf.offset, leaf.nbytes = <uint64_t> (at - self.target.payload), n
        return 0

    cdef int array(self, cnp.ndarray value, int kind, str name, owner=None, bint borrowed=True,
                   uint8_t flags=0) except -1:
        """Write an array leaf; if its bytes already lie in the slot, write only a record.

        `name` is the name of a torch dtype. If the dtype has no textual form, the array is pickled. `owner` is the
        user's object; if it is repeated, it gets no new leaf. `borrowed`: the array uses the owner's memory.
        """
        cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(value)
        cdef int num = cnp.PyArray_TYPE(value), i
        cdef uint64_t nbytes = cnp.PyArray_NBYTES(value), offset = 0, order
        cdef cnp.npy_intp strides[SR_MAX_DIMS]
        cdef bint packed = order_of(value, strides, &order)
        cdef char *at
        cdef char tag = b"L"
        cdef tuple texts = ()
        if name is not None:
            tag, texts = b"T", (name,)
        elif cnp.PyTypeNum_ISUSERDEF(num):
            tag, texts = b"E", pytree.extension_name(descr) if descr.metadata is None else None
        elif not says_all(descr):
            texts = None
        elif (not (num < cnp.NPY_OBJECT or num == NPY_HALF or num == cnp.NPY_STRING or num == cnp.NPY_UNICODE)
                or not cnp.PyArray_ISNOTSWAPPED(value)):
            text = pytree.write_dtype(descr)
            tag, texts = b"D", None if text is None else (text,)
        if texts is None:
            return self.pickled_leaf(value if kind == LEAF_ARRAY else value[()])
        if owner is not None:
            dense = value if borrowed and packed and nbytes else None
            if self.is_repeated(owner, kind | <uint32_t> flags << 8, dense, descr if name is None else name, order):
                return 0
        self.tag(tag)
        for text in texts:
            self.text((<str> text).encode("utf-8", "surrogatepass"))
        if tag == b"D" or tag == b"E":
            num = DTYPE_DEFINED
        if nbytes:
            offset = NO_OFFSET
            if packed:
                offset = self.target.offset_of(cnp.PyArray_DATA(value), nbytes)
            if offset != NO_OFFSET:
                self.low, self.high = min(self.low, offset), max(self.high, offset + nbytes)
            else:
                at = self.target.alloc(nbytes, SR_LEAF_ALIGN)
                offset = <uint64_t> (at - self.target.payload)
                if packed:
                    copy_in(at, <char *> cnp.PyArray_DATA(value), nbytes)
                else:
                    array_over(at, cnp.PyArray_NDIM(value), cnp.PyArray_DIMS(value), strides, descr,
                               None)[...] = value
        cdef sr_leaf *leaf = self.record(kind)
        leaf.dtype, leaf.ndim, leaf.itemsize = num, cnp.PyArray_NDIM(value), <uint32_t> descr.itemsize
        leaf.offset, leaf.nbytes, leaf.extra, leaf.flags = offset, nbytes, order, flags
        for i in range(leaf.ndim):
            leaf.shape[i] = cnp.PyArray_DIM(value, i)
        return 0

    cdef int strings(self, list values, int kind) except -1:
        cdef uint64_t n = len(values), end = 0, i
        cdef list parts = values
        if kind == LEAF_STRINGS:
            parts = [None] * len(values)  # no comprehension: see Decoder.build
            for i in range(n):
                parts[i] = values[i].encode("utf-8", "surrogatepass")
        ends = np.zeros(n + 1, np.uint64)
        cdef uint64_t *at = <uint64_t *> cnp.PyArray_DATA(ends)
        for i in range(n):
            end += PyBytes_GET_SIZE(parts[i])
            at[i + 1] = end
        self.blob(kind, ends.tobytes() + b"".join(parts))
        self.leaves[self.n_leaves - 1].extra = n
        return 0

    cdef bint numbers(self, list values, int kind) except -1:
        """Write a leaf of Python's numbers; return False if one of them needs more than 64 bits."""
        cdef Py_ssize_t n = len(values), i
        cdef int overflow = 0
        cdef char *at = self.target.alloc(8 * <uint64_t> n, SR_LEAF_ALIGN)
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
        leaf.offset, leaf.nbytes, leaf.extra = <uint64_t> (at - self.target.payload), 8 * <uint64_t> n, n
        self.tag(b"L")
        return True

    cdef int pickled_leaf(self, value) except -1:
        """Write a leaf for a value that has no form of its own; a repeated object gets no new leaf."""
        return 0 if self.is_repeated(value, LEAF_OBJECT) else self.object_leaf(value)

    cdef int object_leaf(self, value) except -1:
        """Pickle a value as the last resort: protocol 5, its buffers out of band; with torch, those of tensors too."""
        cdef Py_buffer piece
        cdef list buffers = []
        if tensor_class() is None:
            data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        else:
            data = foreign_module("tensor objects").dumps(value, buffers.append)
        cdef list parts = [data] * (len(buffers) + 1), sizes = [len(data)] * (len(buffers) + 1)
        cdef uint64_t size = len(parts) * 8, i, offset
        for i in range(<uint64_t> len(buffers)):  # no comprehension: see Decoder.build
            parts[i + 1] = buffers[i].raw()
            sizes[i + 1] = parts[i + 1].nbytes
        for i in range(<uint64_t> len(parts)):
            size = padded(size) + <uint64_t> sizes[i]
        cdef char *at = self.target.alloc(size, SR_LEAF_ALIGN)
        offset = len(parts) * 8
        for i in range(<uint64_t> len(parts)):
            (<uint64_t *> at)[i] = sizes[i]
            PyObject_GetBuffer(parts[i], &piece, PyBUF_SIMPLE)
            offset = padded(offset)
            copy_in(at + offset, <char *> piece.buf, piece.len)
            offset += piece.len
            PyBuffer_Release(&piece)
        cdef sr_leaf *leaf = self.record(LEAF_OBJECT)
        leaf.extra, leaf.nbytes, leaf.offset = len(buffers), size, <uint64_t> (at - self.target.payload)
        self.pickled += 1
        return self.tag(b"L")

    cdef int foreign(self, value, kind) except -1:
        """Write a value of another library in its own form, or else as a pickle."""
        module = getattr(kind, "__module__", None)
        if type(module) is str:
            module = (<str> module).partition(".")[0]
        if module == "torch" or is_tensor(value):  # it may be a user's subclass
            packed = foreign_module("tensor").pack(value)
            if packed is not None:
                return self.array(<cnp.ndarray?> packed[0], LEAF_TENSOR, packed[1], value, packed[3],
                                  REQUIRES_GRAD if packed[2] else 0)
        elif module == "pyarrow":
            if self.is_repeated(value, LEAF_OBJECT):
                return 0
            packed = foreign_module("arrow").pack(value, reserve if type(self.target) is SlotWriter else np.empty)
            if packed is not None:
                return self.array(<cnp.ndarray?> packed, LEAF_ARROW, None)
            return self.object_leaf(value)
        return self.pickled_leaf(value)

    # ---- nodes

    cdef int add(self, value, int depth) except -1:
        """Write one node and all nodes below it."""
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
                return self.array(array, LEAF_ARRAY, None, array)
            return self.pickled_leaf(value)
        if kind is AsTensor:
            array = (<AsTensor> value).array
            if cnp.PyArray_NDIM(array) <= <int> SR_MAX_DIMS:
                return self.array(array, LEAF_TENSOR, (<AsTensor> value).name(), value)
            name = (<AsTensor> value).name()
            return self.pickled_leaf(foreign_module("tensor").restore(array, name, False))
        if kind is dict:
            return self.mapping(value, b"d", depth)
        if kind is OrderedDict:
            return self.pickled_leaf(value) if vars(value) else self.mapping(value, b"o", depth)
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
        # Records and users' subclasses cannot be restored from their bytes.
        if isinstance(value, np.generic) and kind is value.dtype.type and is_fixed(value.dtype):
            return self.array(np.asarray(value), LEAF_SCALAR, None)
        if isinstance(value, tuple) and self.can_be_made(kind) and is_complete(<tuple> value):
            self.named(kind, b"n")
            return self.children(<tuple> value, depth)
        if dataclasses.is_dataclass(kind) and self.can_be_made(kind):
            values = pytree.contents(value)
            if values is not None:
                self.named(kind, b"c")
                names = pytree.field_names(kind)
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
        values = list(values)  # while the encoder waits for memory or pickles, other code may change the original list
        first = type(values[0]) if values else None
        if (first is str or first is bytes) and all_of(values, first):
            return self.strings(values, LEAF_STRINGS if first is str else LEAF_BYTESTRINGS)
        if (first is int or first is float) and all_of(values, first):
            if self.numbers(values, LEAF_INTS if first is int else LEAF_FLOATS):
                return 0
        self.tag(b"l")
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
        """Return whether the consumer can find this class and make its objects from leaves alone."""
        known = self.found.get(kind)
        if known is None:
            plain = pytree.is_plain_namedtuple(kind) or pytree.is_plain_dataclass(kind)
            known = plain and pytree.can_be_found(kind)
            self.found[kind] = known
        return known

    # ---- a whole value

    cdef int encode(self, WriteTarget target, list box, int kind, sr_result *result, SlotWriter apart=None,
                    bytes state=None) except -1:
        """Flatten ``box.pop()`` into a `WriteTarget`; store the fields for a publish in `*result`.

        `apart` is the target if worker code may still have arrays in the slot: the batch then gets bytes of its
        own. `state` is the worker's state (`state_in`).
        """
        cdef char *at
        if self.target is not None:
            raise RuntimeError("this Encoder is at work already: each worker needs its own")
        self.target = target
        self.n_leaves = self.n_defs = self.pickled = 0
        self.low, self.high = NO_OFFSET, 0
        self.found = {}
        try:
            value = box.pop()
            self.add(value, 0)
            self.sources.forget()
            memset(result, 0, sizeof(sr_result))
            if state is not None:
                self.write_bytes(LEAF_BYTES, state)
                result.flags |= WITH_STATE
            at = self.table_memory()
            value = None
            if apart is not None and self.low != NO_OFFSET and apart.is_kept():
                self.set_apart()
                result.flags |= SET_APART
                at = self.table_memory()
            self.table(result, at)
        finally:
            self.sources.forget()
            self.target = None
            self.found = None
        result.kind, result.pickled = kind, self.pickled
        return 0

    cdef int set_apart(self) except -1:
        """Copy the bytes that lay in the slot before the encoding to a part of the slot in which no code has an array.

        All of them are copied in one piece: it is not known which arrays remain, and leaves that share bytes must
        continue to share them.
        """
        cdef uint64_t first = self.low // SR_LEAF_ALIGN * SR_LEAF_ALIGN, n = self.high - first, by
        cdef char *at = self.target.alloc(n, SR_LEAF_ALIGN)
        cdef uint32_t i
        cdef sr_leaf *leaf
        copy_in(at, self.target.payload + first, n)
        by = <uint64_t> (at - self.target.payload) - first
        for i in range(self.n_leaves):
            leaf = self.leaves + i
            if leaf.nbytes and self.low <= leaf.offset < self.high:
                leaf.offset += by
        return 0

    cdef char *table_memory(self) except NULL:
        cdef uint64_t more = 0 if self.trailer is None else PyBytes_GET_SIZE(self.trailer)
        return self.target.alloc(self.n_leaves * sizeof(sr_leaf) + self.n_defs + more, SR_LEAF_ALIGN)

    cdef int table(self, sr_result *result, char *at) except -1:
        """Write the leaf records and the treedef after the leaves."""
        cdef uint64_t table = <uint64_t> self.n_leaves * sizeof(sr_leaf)
        cdef uint64_t more = 0 if self.trailer is None else PyBytes_GET_SIZE(self.trailer)
        if table:
            memcpy(at, self.leaves, table)
        memcpy(at + table, self.defs, self.n_defs)
        if more:
            memcpy(at + table + self.n_defs, PyBytes_AS_STRING(self.trailer), more)
        result.table_off = <uint64_t> (at - self.target.payload)
        result.def_off = result.table_off + table
        result.n_leaves, result.def_bytes = self.n_leaves, <uint32_t> self.n_defs
        result.def_hash = hash_bytes(self.defs, self.n_defs)
        result.bytes = result.def_off + self.n_defs
        return 0

    # ---- methods for workers; `box` is a list with the value. It is emptied, so that only worker code can still refer
    # ---- to arrays in the slot when the slot is published

    def publish(self, SlotWriter writer not None, list box not None, int kind=SR_BATCH, uint64_t begun=0,
                uint64_t fetched=0, bint moved=False, bytes state=None):
        """Encode ``box.pop()`` into the slot and publish it.

        `begun` and `fetched` (ns, as `_ring.now`) are when fetching began and ended, for the statistics. `moved`: code
        that still refers to arrays in the slot has promised not to use them any more. `state` is the worker's state
        after this value.
        """
        cdef sr_result result
        self.encode(writer, box, kind, &result, None if moved else writer, state)
        if begun:
            writer.record_times(begun, fetched)
        writer.publish(&result)

    def stage(self, SlotWriter writer not None, list box not None, int kind=SR_BATCH, uint64_t begun=0,
              uint64_t fetched=0):
        """Encode the result of a range and end the range; return True if this worker must finish the slot."""
        cdef sr_result result
        self.encode(writer, box, kind, &result)  # the worker that puts the ranges together copies them
        if begun:
            writer.record_times(begun, fetched)
        return writer.range_done(&result) == 1

    def settle_direct(self, SlotWriter writer not None, skeleton, bytes codes):
        """Record the layout of a cooperative batch, for `layout`; return False if other workers cannot decode it.

        `skeleton` has an array in the slot for each leaf with rows; `codes` are the columns' codes.
        """
        cdef sr_result result
        self.trailer = len(codes).to_bytes(4, "little") + codes
        try:
            self.encode(writer, [skeleton], SR_BATCH, &result)  # only the caller still refers to it
        finally:
            self.trailer = None
        if result.pickled:
            return False
        writer.settle(SR_LAYOUT_DIRECT, &result)
        return True

    def settle_staged(self, SlotWriter writer not None):
        """Record that each range stages its samples."""
        writer.settle(SR_LAYOUT_STAGED, NULL)


# ---- batches that several workers make, one range of rows each: it ends a range, and records the errors for the
# ---- worker that publishes the slot


def range_done(SlotWriter writer not None, uint64_t begun, uint64_t fetched):
    """End a range whose rows lie in place; return True if this worker must finish the slot."""
    writer.record_times(begun, fetched)
    return writer.range_done(NULL) == 1


def range_lost(SlotWriter writer not None, uint32_t why, uint64_t needed, uint64_t free):
    """End a range whose error has no room in the slot: keep three numbers. Return the same as `range_done`."""
    cdef sr_result result
    memset(&result, 0, sizeof(result))
    result.kind, result.pickled, result.table_off, result.def_off = SR_ERROR, why, needed, free
    return writer.range_done(&result) == 1


def lost(SlotWriter writer not None, range_no):
    """Return the numbers that `range_lost` kept; None for any other range."""
    cdef sr_result result = writer.result_of(range_no)[0]
    if result.kind != SR_ERROR or result.def_bytes:
        return None
    return result.pickled, result.table_off, result.def_off


def view(SlotWriter writer not None, range_no=None):
    """Return (kind, value) that a range has staged, or of the settled layout (`range_no` None), as views."""
    cdef sr_result result = writer.result_of(SR_WHOLE if range_no is None else range_no)[0]
    if result.kind == 0:
        return 0, None
    return result.kind, decode(writer.payload, writer.limit(), &result, writer.slot_pin(), False)


def layout(SlotWriter writer not None):
    """Return (value, codes) of the layout that `Encoder.settle_direct` recorded; the value consists of views."""
    cdef sr_result result = writer.result_of(SR_WHOLE)[0]
    cdef uint64_t at = result.bytes, limit = writer.limit()
    cdef uint32_t length
    if at + 4 > limit:
        raise CorruptBatch("a worker sent a layout without its codes")
    memcpy(&length, writer.payload + at, 4)
    if length > limit - at - 4:
        raise CorruptBatch(f"a worker sent {length} codes of a layout, for which there is no room in the slot")
    return view(writer)[1], writer.payload[at + 4:at + 4 + length]


def publish_range(SlotWriter writer not None, range_no=None):
    """Publish the error that a range has staged, or the settled layout (`range_no` None), as the slot's batch."""
    cdef sr_result result = writer.result_of(SR_WHOLE if range_no is None else range_no)[0]
    writer.publish(&result)


# ---- values in memory of their own


@cython.final
@cython.auto_pickle(False)
cdef class Packed(WriteTarget):
    """A value packed as a slot would carry it: a copy, from which only read-only values are decoded."""

    def __dealloc__(self):
        c_free(self.payload)

    cdef char *alloc(self, uint64_t nbytes, uint64_t align) except NULL:
        cdef uint64_t at = padded(self.used), size
        cdef char *grown
        if at + nbytes > self.size or self.payload == NULL:
            size = padded(max(at + nbytes, 2 * self.size, <uint64_t> 512))
            grown = <char *> aligned_alloc(SR_LEAF_ALIGN, size)
            if grown == NULL:
                raise MemoryError()
            if self.used:
                memcpy(grown, self.payload, self.used)
            c_free(self.payload)
            self.payload, self.size = grown, size
        self.used = at + nbytes
        return self.payload + at

    cdef object value(self):
        return decode(self.payload, self.used, &self.result, self, True)


cdef list idle = []  # encoders that no thread is using


cdef Packed pack(value):
    """Return a value packed in memory of its own; errors of pickling are raised."""
    cdef Packed packed = Packed.__new__(Packed)
    cdef Encoder encoder
    try:
        encoder = idle.pop()
    except IndexError:
        encoder = Encoder()
    encoder.encode(packed, [value], SR_BATCH, &packed.result)
    idle.append(encoder)
    return packed


def detached(value, Meter meter not None):
    """Return a value as a slot would deliver it, in memory of its own; count its bytes and pickled leaves."""
    cdef Packed packed = pack(value)
    meter.bytes += packed.used
    meter.pickled_leaves += packed.result.pickled
    return decode(packed.payload, packed.used, &packed.result, packed, False)


cdef bint is_complete(tuple value) except *:
    """Return whether a namedtuple has its fields and no other attributes."""
    return len(value) == len(type(value)._fields) and not getattr(value, "__dict__", None)


cdef bint says_all(cnp.dtype descr) except *:
    """Return whether a dtype's number, size and text describe it completely."""
    cdef int num = descr.type_num
    if (num < cnp.NPY_OBJECT or num == NPY_HALF) and descr is cnp.PyArray_DescrFromType(num):
        return True
    return pytree.is_plain_dtype(descr)
