"""Writes the definition of a batch's tree, which tree.py reads; docs/codec.md has the format."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from slipring.codec import tree as _tree

cdef int MAX_DEPTH = _tree.MAX_DEPTH


cdef class Definition:
    """Bytes that grow node by node; the buffer is kept from one definition to the next."""

    def __cinit__(self):
        self.defs = NULL

    def __dealloc__(self):
        PyMem_Free(self.defs)

    cdef int put(self, const void *data, uint64_t n) except -1:
        if self.n_defs + n > self.defs_room:
            room = max(<uint64_t> 4096, 2 * (self.n_defs + n))
            grown = <char *> PyMem_Realloc(self.defs, room)
            if grown == NULL:
                raise MemoryError()
            self.defs, self.defs_room = grown, room
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
        """Write a dict's key; False if it is of no type that definitions know."""
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
