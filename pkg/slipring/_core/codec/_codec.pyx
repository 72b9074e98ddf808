"""The decoder turns a slot into a batch of views.

It trusts nothing: a faulty worker may have written anything, and may still be writing. It copies each record first, and
checks the copy against the slot's committed bytes before it uses it. The arrays that `slipring.empty` makes in a slot
are in an included file.
"""

import importlib
import pickle
from collections import OrderedDict

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from slipring._core.ring._ring cimport Ring
from slipring._core.ring._segment cimport (
    SR_BATCH, SR_CONSUMER, SR_LEAF_ALIGN, SR_MAX_DIMS, WITH_STATE, clock, sr_leaf, sr_result,
)
from slipring._core.ring._slot cimport Lease, take

import numpy as np

from slipring._core.codec import pytree
from slipring.errors import CorruptBatch, shown

include "_codec_arrays.pxi"

cnp.import_array()

# Modules that turn foreign leaves back into values; each is imported for the first such leaf.
FOREIGN = {
    "tensor": "slipring._core.codec.tensors",
    "arrow": "slipring.arrow",
    "tensor objects": "slipring._core.codec.tensor_objects",
}

cdef object make_tuple = tuple.__new__
cdef object _from_numpy = None  # torch.from_numpy, after the first tensor
cdef enum:
    UNKNOWN = -2  # Node.carrier
cdef dict _foreign = {}
cdef dict _text_dtypes = {}  # (type number, itemsize) -> dtype of fixed-width text
cdef uint64_t LARGEST = <uint64_t> 1 << 62  # bytes; numpy's own computations of sizes overflow beyond it


# ---- known trees: each definition is parsed once, and then found by its hash

cdef dict _known = {}           # hash -> Tree
cdef uint64_t _known_bytes = 0  # of their definitions; the parsed trees take about twenty times as much
cdef uint64_t KNOWN_BYTES = 256 << 10
cdef Tree _last = None          # the tree of the last lookup: usually the next lookup needs it again


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Node:
    """A container, or the position of a leaf."""


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Tree:
    """A treedef, and its parsed form."""

    cdef bint has(self, const char *data, uint64_t n) noexcept:
        return (<uint64_t> PyBytes_GET_SIZE(self.definition) == n
                and memcmp(PyBytes_AS_STRING(self.definition), data, n) == 0)


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


cdef Tree tree_of(const char *data, uint64_t n, uint64_t key):
    """Return the tree of a treedef, from the cache if these bytes are known; raise CorruptBatch if it is invalid."""
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
        parsed, tree.leaves, tree.repeats = pytree.parse(tree.definition)
    except pytree.BadDefinition as error:
        raise CorruptBatch(f"a worker sent a tree that cannot be read: {error}") from None
    tree.root = node_of(parsed)
    if _known_bytes > KNOWN_BYTES:  # ragged containers make a definition per batch: keep few of them
        _known.clear()
        _known_bytes = 0
    _known_bytes += n
    _known[key] = tree
    return tree


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
    cdef bint fixed          # decoded values are read-only
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
        if node.carrier == UNKNOWN:
            module = foreign_module("tensor")
            _from_numpy = module.torch.from_numpy
            node.carrier = module.carrier(node.data)
        array = self.array(record, None, at)
        if self.fixed:  # torch has no read-only tensors
            array = array.copy()
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
            offset = (offset + SR_LEAF_ALIGN - 1) // SR_LEAF_ALIGN * SR_LEAF_ALIGN
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
        found = _text_dtypes.get(key)
        if found is None:
            unit = 4 if num == cnp.NPY_UNICODE else 1
            if record.itemsize == 0 or record.itemsize > 1 << 30 or record.itemsize % unit:
                raise CorruptBatch(f"a worker sent an array of texts of {record.itemsize} bytes each")
            found = np.dtype(f"{'U' if unit == 4 else 'S'}{record.itemsize // unit}")
            if len(_text_dtypes) < 4096:
                _text_dtypes[key] = found
        return found
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
    cdef uint64_t count = record.extra, i, head, start = 0, end, room
    if count >= record.nbytes // 8:
        raise CorruptBatch(f"a worker sent a list of {count} texts in {record.nbytes} bytes")
    head = (count + 1) * 8
    room = record.nbytes - head
    cdef bytes data = PyBytes_FromStringAndSize(at, record.nbytes)
    cdef const uint64_t *ends = <const uint64_t *> PyBytes_AS_STRING(data)
    cdef list out = []
    for i in range(count):
        end = ends[i + 1]
        if end < start or end > room:
            raise CorruptBatch(f"a worker sent a list of texts whose element {i} ends at {end} of {room}")
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


cdef object decode(char *payload, uint64_t limit, const sr_result *result, object base, bint fixed):
    """Return the value that `result` describes.

    Arrays are views with `base` as their owner. `fixed`: they are read-only.
    """
    cdef Decoder d = Decoder.__new__(Decoder)
    cdef uint32_t n_leaves = result.n_leaves
    if result.bytes < limit:
        limit = result.bytes
    if not tables_fit(limit, result):
        raise misplaced(limit, result)
    if result.flags & WITH_STATE:
        n_leaves -= 1
    cdef Tree known = tree_of(payload + result.def_off, result.def_bytes, result.def_hash)
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


def receive(Ring ring, uint32_t slot, int copy):
    """Take a READY slot; return (kind, value), or raise CorruptBatch.

    The kind is one of `enum sr_kind`. The value is the batch, or the error's fields; END and EMPTY have none.
    COPY_AUTO copies if a lease would leave fewer than two slots circulating.
    """
    cdef int kind = 0
    value = receive_kind(ring, slot, copy, &kind)
    return kind, value


cdef object receive_kind(Ring ring, uint32_t slot, int copy, int *kind):
    """Take a READY slot as `receive` does; store the kind in `*kind`."""
    cdef Lease lease = take(ring, SR_CONSUMER, slot)
    kind[0] = lease.result.kind
    return unpack(lease, copy)


cdef object unpack(Lease lease, int copy):
    """Return the value of a leased slot: views that keep the lease, or a copy if `copy` says so."""
    cdef sr_result result = lease.result
    cdef uint64_t begun = clock() if result.pickled else 0
    if result.kind == SR_BATCH and copy != NEVER and (copy == ALWAYS or lease.ring.in_circulation(2) < 2):
        value = decode_copy(lease, &result)
    else:
        value = decode(lease.payload, lease.limit, &result, lease, False)
    if begun:
        lease.ring.meter.unpickle_ns += clock() - begun
    return value


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
