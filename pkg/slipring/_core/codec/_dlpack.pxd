"""DLPack: the address and layout of a tensor's memory, without a call of torch's operators."""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# The function table of DLPack 1.x, which a type offers as __dlpack_c_exchange_api__. It describes a tensor without
# creating a Python object and without torch's headers.
cdef enum:
    DL_CPU = 1
    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2

cdef extern from *:
    """
    typedef struct {
        void *data;
        struct { int32_t kind, number; } device;
        int32_t ndim;
        struct { uint8_t code, bits; uint16_t lanes; } dtype;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } slipring_dl_tensor;
    typedef struct {
        uint32_t major, minor;
        void *older;
        void *allocate, *take, *give;
        int (*describe)(PyObject *tensor, slipring_dl_tensor *out);
        void *stream;
    } slipring_dl_api;
    """
    ctypedef struct DLDevice "slipring_dl_tensor.device":
        int32_t kind
    ctypedef struct DLType "slipring_dl_tensor.dtype":
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct DLTensor "slipring_dl_tensor":
        char *data
        DLDevice device
        int32_t ndim
        DLType dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct DLApi "slipring_dl_api":
        uint32_t major
        int (*describe)(PyObject *tensor, DLTensor *out) except -1


cdef inline const DLApi *exchange(kind) except? NULL:
    """Return the function table for tensors of that type; NULL if this torch has none."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return NULL
    api = <const DLApi *> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    return api if api.major == 1 else NULL


cdef inline bint describe(const DLApi *api, tensor, DLTensor *out):
    """Return whether a tensor is contiguous CPU memory; *out describes it."""
    cdef int64_t step = 1
    cdef int d
    try:
        api.describe(<PyObject *> tensor, out)
    except Exception:  # a sparse tensor, or one whose values differ from its memory
        return False
    if out.device.kind != DL_CPU or out.dtype.lanes != 1:
        return False
    if out.strides != NULL:
        for d in range(out.ndim - 1, -1, -1):
            if out.shape[d] != 1 and out.strides[d] != step:
                return False
            step *= out.shape[d]
    return True


cdef inline bint single_float(const DLTensor *tensor) noexcept:
    cdef int d
    for d in range(tensor.ndim):
        if tensor.shape[d] != 1:
            return False
    return tensor.dtype.code == DL_FLOAT


cdef inline bint is_ambiguous(const DLTensor *tensor) noexcept:
    """Return whether several dtypes of torch have that description: int1 to int8, or uint1 to uint8."""
    return tensor.dtype.bits == 8 and (tensor.dtype.code == DL_INT or tensor.dtype.code == DL_UINT)


cdef inline bint alike(const DLTensor *a, const DLTensor *b) noexcept:
    cdef int d
    if a.ndim != b.ndim or a.dtype.code != b.dtype.code or a.dtype.bits != b.dtype.bits:
        return False
    for d in range(a.ndim):
        if a.shape[d] != b.shape[d]:
            return False
    return True
