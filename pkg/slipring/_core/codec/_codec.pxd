cimport numpy as cnp
from libc.stdint cimport uint64_t

from slipring._core.ring._segment cimport SR_LEAF_ALIGN, sr_result
from slipring._core.ring._slot cimport SlotWriter, Lease


cdef extern from "numpy/arrayobject.h":
    enum:
        NPY_HALF  # numpy's own .pxd lacks it

cdef inline bint all_of(list values, kind) noexcept:
    """Return whether all values are of exactly that type."""
    for value in values:
        if type(value) is not kind:
            return False
    return True

cdef inline uint64_t padded(uint64_t n) noexcept:
    """Return the next boundary at which a leaf may begin."""
    return (n + SR_LEAF_ALIGN - 1) // SR_LEAF_ALIGN * SR_LEAF_ALIGN

cdef enum:
    STREAMING = 4 << 20  # bytes; a copy of this size or more leaves the caches before the consumer reads it

cdef class AsTensor:
    cdef readonly cnp.ndarray array
    cdef str name(self)

cdef object tensor_class()
cdef bint is_tensor(value)
cdef bint is_foreign_array(value) except -1
cdef int is_fixed(cnp.dtype descr) except -1
cdef object in_slot(SlotWriter writer, tuple shape, cnp.dtype descr)
cdef object array_over(char *at, int ndim, cnp.npy_intp *shape, cnp.npy_intp *strides, cnp.dtype descr,
                       object base)
cdef void copy_in(char *to, const char *source, uint64_t nbytes) noexcept
cdef void copy_row(char *to, const char *source, uint64_t nbytes, bint large) noexcept
cdef void copy_rows(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept
cdef bint order_of(cnp.ndarray value, cnp.npy_intp *strides, uint64_t *order) noexcept


# Leaf kinds: sr_leaf.kind. docs/protocol.md describes the contents of each.
cdef enum:
    LEAF_ARRAY = 1      # numpy array: dtype, shape, bytes at offset
    LEAF_TENSOR = 2     # torch tensor: as ARRAY, the dtype's name in the treedef
    LEAF_SCALAR = 3     # numpy scalar: as ARRAY of no dimension
    LEAF_INT = 4        # the number in extra
    LEAF_FLOAT = 5      # the number's bits in extra
    LEAF_BOOL = 6       # extra 0 or 1
    LEAF_STR = 7        # UTF-8 at offset
    LEAF_BYTES = 8
    LEAF_STRINGS = 9    # list of str: extra + 1 ends (uint64), then the bytes
    LEAF_BYTESTRINGS = 10
    LEAF_OBJECT = 11    # pickle protocol 5; extra: number of out-of-band buffers
    LEAF_ARROW = 12     # Arrow IPC stream
    LEAF_INTS = 13      # list of ints: extra of them (int64)
    LEAF_FLOATS = 14    # list of floats: extra of them (double)

# sr_leaf.dtype: numpy's type number if it describes the dtype completely; otherwise the definition has the dtype.
cdef enum:
    DTYPE_DEFINED = 255

# sr_leaf.flags
cdef enum:
    REQUIRES_GRAD = 1  # LEAF_TENSOR


cdef uint64_t hash_bytes(const char *data, uint64_t n) noexcept nogil
cdef object decode(char *payload, uint64_t limit, const sr_result *result, object base, int fixed)
cdef object unpack(Lease lease, int copy)
cdef object unpack_shared(Lease lease, int copy)
cdef bytes state_in(char *payload, uint64_t limit, const sr_result *result)
