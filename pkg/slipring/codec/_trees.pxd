from libc.stdint cimport uint32_t, uint64_t

# Kinds of nodes: as tree.py has them.
cdef enum:
    NODE_LEAF = 0
    NODE_NONE = 1
    NODE_DICT = 2
    NODE_ODICT = 3
    NODE_LIST = 4
    NODE_TUPLE = 5
    NODE_NAMED = 6
    NODE_DATACLASS = 7


cdef class Node:
    cdef int kind
    cdef object data     # see tree.py
    cdef tuple children  # nodes; None: a leaf


cdef class Tree:
    cdef bytes definition
    cdef uint64_t key    # its hash
    cdef Node root
    cdef uint32_t leaves
    cdef bint has(self, const char *data, uint64_t n)


cdef uint64_t hash_bytes(const char *data, uint64_t n) noexcept nogil
cdef Tree tree_of(const char *data, uint64_t n, uint64_t key)
