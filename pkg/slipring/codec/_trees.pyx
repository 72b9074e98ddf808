"""Trees that have been met: a definition is read once, and then known by its hash."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from slipring.codec import tree as _tree
from slipring.errors import CorruptBatch

cdef dict _known = {}           # hash -> Tree
cdef uint64_t _known_bytes = 0  # of their definitions; what was made of them takes some twenty times as much
cdef uint64_t KNOWN_BYTES = 256 << 10
cdef Tree _last = None          # the one asked for last: mostly it is that again


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Node:
    """A container, or the place of a leaf."""


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Tree:
    """A definition, and what it says."""

    cdef bint has(self, const char *data, uint64_t n):
        return (<uint64_t> PyBytes_GET_SIZE(self.definition) == n
                and memcmp(PyBytes_AS_STRING(self.definition), data, n) == 0)


cdef Node node_of(tuple parsed):
    cdef Node node = Node.__new__(Node)
    node.kind, node.data = parsed[0], parsed[1]
    if parsed[2] is not None:
        children = []
        for child in parsed[2]:
            children.append(node_of(child))
        node.children = tuple(children)  # the garbage collector leaves tuples of such nodes alone
    return node


cdef uint64_t hash_bytes(const char *data, uint64_t n) noexcept nogil:
    """Hash a definition, eight bytes at a time."""
    cdef uint64_t h = <uint64_t> 0xCBF29CE484222325 ^ n, word
    cdef uint64_t i = 0
    while i < n:
        word = 0
        memcpy(&word, data + i, 8 if n - i >= 8 else n - i)
        h = (h ^ word) * <uint64_t> 0x9FB21C651E98DF25
        h ^= h >> 32
        i += 8
    return h


cdef Tree tree_of(const char *data, uint64_t n, uint64_t key):
    """Return the tree of a definition, from the cache where the very bytes are known.

    Raises
    ------
    CorruptBatch
    """
    global _last
    cdef Tree tree = _last
    if tree is None or tree.key != key or not tree.has(data, n):
        tree = <Tree> _known.get(key)
        if tree is None or not tree.has(data, n):
            tree = read(data, n, key)
        _last = tree
    return tree


cdef Tree read(const char *data, uint64_t n, uint64_t key):
    global _known_bytes
    cdef Tree tree = Tree.__new__(Tree)
    tree.definition, tree.key = PyBytes_FromStringAndSize(data, n), key
    try:
        parsed, tree.leaves = _tree.parse(tree.definition)
    except _tree.BadDefinition as error:
        raise CorruptBatch(f"a worker sent a tree that cannot be read: {error}") from None
    tree.root = node_of(parsed)
    if _known_bytes > KNOWN_BYTES:  # ragged containers make a definition per batch: keep few of them
        _known.clear()
        _known_bytes = 0
    _known_bytes += n
    _known[key] = tree
    return tree
