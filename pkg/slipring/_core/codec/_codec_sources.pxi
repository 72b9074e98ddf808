# The sources of a value's leaves: a leaf that occurs twice is written once.

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset


cdef struct Source:
    PyObject *owner     # the user's array, tensor or object; a reference to it is kept
    const char *data    # of a dense array or tensor; NULL: only the same object is the same source
    PyObject *dtype     # NULL without data; else the array's dtype, or the name of the tensor's
    uint64_t key
    uint32_t leaf, kind
    uint32_t next       # number of another source in the same bucket; NOTHING: there is none


cdef uint32_t NOTHING = <uint32_t> -1


@cython.final
cdef class Sources:
    """The objects from which the leaves of a value were made: an object that occurs again is no new leaf.

    It keeps a reference to each owner. Otherwise its memory could be freed and become another owner's.
    """

    cdef Source *sources
    cdef uint32_t *buckets  # each has the number of a source, or NOTHING
    cdef uint32_t n, room   # of sources; there are as many buckets

    def __cinit__(self):
        self.sources, self.buckets = NULL, NULL

    def __dealloc__(self):
        self.forget()
        PyMem_Free(self.sources)
        PyMem_Free(self.buckets)

    cdef Source *first(self, uint64_t key) except? NULL:
        """Return a source with that key, or NULL; `next_of` returns the others."""
        if self.n == self.room:
            self.grow()
        return self.at(self.buckets[key % self.room], key)

    cdef Source *next_of(self, Source *source) noexcept:
        return self.at(source.next, source.key)

    cdef Source *at(self, uint32_t number, uint64_t key) noexcept:
        while number != NOTHING and self.sources[number].key != key:
            number = self.sources[number].next
        return NULL if number == NOTHING else self.sources + number

    cdef void add(self, Source *new) noexcept:
        """Add a source; there is room after `first`."""
        Py_INCREF(<object> new.owner)
        if new.dtype != NULL:
            Py_INCREF(<object> new.dtype)
        self.sources[self.n] = new[0]
        self.chain(self.n)
        self.n += 1

    cdef void chain(self, uint32_t number) noexcept:
        cdef uint32_t *bucket = self.buckets + self.sources[number].key % self.room
        self.sources[number].next = bucket[0]
        bucket[0] = number

    cdef int grow(self) except -1:
        cdef uint32_t room = max(16, 4 * self.room), i
        cdef Source *sources = <Source *> PyMem_Realloc(self.sources, room * sizeof(Source))
        if sources == NULL:
            raise MemoryError()
        self.sources = sources
        cdef uint32_t *buckets = <uint32_t *> PyMem_Realloc(self.buckets, room * sizeof(uint32_t))
        if buckets == NULL:
            raise MemoryError()
        self.buckets, self.room = buckets, room
        memset(buckets, 0xFF, room * sizeof(uint32_t))
        for i in range(self.n):
            self.chain(i)
        return 0

    cdef int forget(self) except -1:
        """Drop all references."""
        cdef uint32_t n = self.n, i
        self.n = 0
        for i in range(n):
            self.buckets[self.sources[i].key % self.room] = NOTHING
        for i in range(n):
            Py_DECREF(<object> self.sources[i].owner)
            if self.sources[i].dtype != NULL:
                Py_DECREF(<object> self.sources[i].dtype)
        return 0
