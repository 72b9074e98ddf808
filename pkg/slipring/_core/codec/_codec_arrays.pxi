# Part of _codec.pyx: arrays in the slot that a worker fills, and the order of an array's dimensions in memory.

import sys

cimport cython
cimport numpy as cnp
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from slipring._core.codec._dlpack cimport DL_CPU
from slipring._core.ring._segment cimport SR_LEAF_ALIGN, SR_MAX_DIMS, SR_WHOLE, copy_large
from slipring._core.ring._slot cimport Fill, current_fill

import numpy as np

from slipring.errors import shown, told

cdef extern from "numpy/arrayobject.h":
    # numpy's own .pxd cannot say that the last argument may be NULL.
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, cnp.npy_intp *dims,
                                cnp.npy_intp *strides, void *data, int flags, PyObject *obj)
    enum:
        NPY_ITEM_REFCOUNT
        NPY_LIST_PICKLE
        NPY_ITEM_IS_POINTER

cdef extern from "Python.h":
    ctypedef struct PyInterpreterState:
        pass
    ctypedef struct PyThreadState:
        pass
    PyInterpreterState *PyInterpreterState_Get() noexcept
    PyThreadState *PyInterpreterState_ThreadHead(PyInterpreterState *interpreter) noexcept
    PyThreadState *PyThreadState_Next(PyThreadState *thread) noexcept

cdef uint64_t BIG_COPY = 1 << 16   # bytes; a copy of this size or more releases the GIL
cdef uint64_t STREAMING = 4 << 20  # bytes; a copy of this size or more leaves the caches before anybody reads it


# torch's names of dtypes. numpy computes `dtype.name` again at each access.
cdef dict _NAMES = {
    np.dtype(kind).num: np.dtype(kind).name for kind in "?bBhHiIlLqQefdFD"
}


@cython.final
cdef class AsTensor:
    """An array that the consumer receives as a torch tensor."""

    cdef str name(self):
        return <str> _NAMES[cnp.PyArray_TYPE(self.array)]


cdef object tensor_class():
    """Return torch.Tensor without importing torch: if there is a tensor, torch has been imported."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


cdef bint is_tensor(value):
    """Return whether a value is a torch tensor."""
    kind = tensor_class()
    return kind is not None and isinstance(value, kind)


cdef bint is_foreign_array(value) except -1:
    """Return whether a value is another library's array in CPU memory, by the array API standard, such as JAX's."""
    kind = type(value)
    if not hasattr(kind, "__array_namespace__") or not hasattr(kind, "__dlpack_device__"):
        return False
    if isinstance(value, (np.ndarray, np.generic)) or is_tensor(value):
        return False
    try:
        return value.__dlpack_device__()[0] == DL_CPU
    except (BufferError, ValueError):  # it lies on several devices
        return False


def empty(shape, dtype=float):
    """Return a new array, inside the slot being filled if the calling thread fills one.

    In a worker's `collate_fn`, or with ``batch_size=None``, the array lies in the slot, where the consumer reads it. A
    batch made of it is therefore not copied. If there is a `collate_fn`, this also holds in ``__getitem__``,
    ``__getitems__`` and transforms. Elsewhere the function returns ``numpy.empty(shape, dtype)``: with the default
    collation, and if several workers share a batch, each sample is copied to its row.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
        Any fixed-size dtype; object dtypes get ordinary memory.

    Returns
    -------
    numpy.ndarray
        C-contiguous, not initialised. Your code may keep it after the batch has been published. The batch is then
        copied once more, and its slot does not circulate until the array is deleted.

    Raises
    ------
    SegmentFull, BatchTooLarge
        The array does not fit in the slot.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> def collate(samples):
    ...     batch = slipring.empty((len(samples), 2), np.float32)
    ...     for row, sample in enumerate(samples):
    ...         batch[row] = sample, sample ** 2
    ...     return batch
    >>> with slipring.Loader(range(4), batch_size=4, collate_fn=collate) as loader:
    ...     print(next(iter(loader)).tolist())
    [[0.0, 0.0], [1.0, 1.0], [2.0, 4.0], [3.0, 9.0]]
    """
    cdef Fill fill = current_fill()
    # If several workers fill a slot, only the worker that publishes it can pin it. That worker also writes the batch
    # over the rows that the others have staged, so that a slot never has to hold both.
    if fill is None or fill.range != SR_WHOLE or fill.by_rows:
        return made(shape, dtype)
    return reserve(shape, dtype)


cdef object made(shape, dtype):
    """Return an ordinary numpy array; name the arguments in its errors."""
    try:
        return np.empty(shape, dtype)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"empty(shape={shown(shape)}, dtype={shown(dtype)}): {told(error)}") from error


def reserve(shape, dtype):
    """Return an array as `empty` does, also in a range of a batch that several workers share; no code may keep it."""
    cdef Fill fill = current_fill()
    cdef cnp.dtype descr = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
    if fill is None or descr.subdtype is not None or not is_fixed(descr):
        return np.empty(shape, dtype)
    if type(shape) is not tuple:
        shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
    return in_slot(fill, shape, descr)


cdef int is_fixed(cnp.dtype descr) except -1:
    """Return whether every element has its bytes in the array itself."""
    cdef int num = descr.type_num
    if descr.itemsize == 0:
        return False
    if cnp.PyTypeNum_ISUSERDEF(num):
        return descr.flags & (NPY_ITEM_REFCOUNT | NPY_LIST_PICKLE | NPY_ITEM_IS_POINTER) == 0
    if num < 0 or num > NPY_HALF or num == cnp.NPY_OBJECT:
        return False
    return num != cnp.NPY_VOID or not descr.hasobject


cdef object in_slot(Fill fill, tuple shape, cnp.dtype descr):
    """Return a new array in the slot of a `Fill`."""
    cdef cnp.npy_intp dims[64]
    cdef uint64_t nbytes = descr.itemsize
    cdef int i, n = <int> len(shape)
    if n > 64:
        raise ValueError(f"an array has at most 64 dimensions, not {n}")
    for i in range(n):
        dims[i] = PyNumber_AsSsize_t(shape[i], OverflowError)
        if dims[i] < 0:
            raise ValueError(f"negative dimensions are not allowed: {shape}")
        if dims[i] and nbytes > (<uint64_t> 1 << 62) // <uint64_t> dims[i]:
            raise ValueError(f"an array of shape {shape} is too large")
        nbytes *= <uint64_t> dims[i]
    return array_over(fill.alloc(nbytes, SR_LEAF_ALIGN), n, dims, NULL, descr, fill.holder())


cdef object array_over(char *at, int ndim, cnp.npy_intp *shape, cnp.npy_intp *strides, cnp.dtype descr,
                       object base):
    """Return an array over memory that `base` (None: the caller) keeps alive; `strides` NULL: C order."""
    Py_INCREF(descr)  # the call steals a reference, even if it fails
    array = <cnp.ndarray> PyArray_NewFromDescr(
        <PyTypeObject *> cnp.ndarray, descr, ndim, shape, strides, at,
        cnp.NPY_ARRAY_WRITEABLE | cnp.NPY_ARRAY_ALIGNED, NULL)
    if <uint64_t> at % SR_LEAF_ALIGN:
        cnp.PyArray_UpdateFlags(array, cnp.NPY_ARRAY_ALIGNED)
    if base is not None:
        Py_INCREF(base)  # likewise
        cnp.PyArray_SetBaseObject(array, base)
    return array


cdef void copy_in(char *to, const char *source, uint64_t nbytes) noexcept:
    """Copy memory, without the GIL if it takes long."""
    copy_rows(to, &source, 1, nbytes)


cdef void copy_row(char *to, const char *source, uint64_t nbytes, bint large) noexcept:
    """Copy one row of a batch; `large`: the batch leaves the caches before the consumer reads it."""
    # Releasing the GIL for each row slows down a worker without other threads by some percent.
    if nbytes < BIG_COPY or PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) == NULL:
        if large:
            copy_large(to, &source, 1, nbytes)
        else:
            memcpy(to, source, nbytes)
        return
    with nogil:
        if large:
            copy_large(to, &source, 1, nbytes)
        else:
            memcpy(to, source, nbytes)


cdef void copy_rows(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept:
    """Copy `n` pieces of `nbytes` each, one after the other."""
    cdef uint64_t i
    if n * nbytes < BIG_COPY:
        for i in range(n):
            memcpy(to + i * nbytes, sources[i], nbytes)
        return
    with nogil:
        if n * nbytes < STREAMING:
            for i in range(n):
                memcpy(to + i * nbytes, sources[i], nbytes)
        else:
            copy_large(to, sources, n, nbytes)


# ---- the order of dimensions in memory, as one number; docs/protocol.md has its form (The codec)
#
# The bytes of a channels_last batch, of an image whose channels come first in its shape and last in memory, or of a
# Fortran array have no gaps, only another order than C's. They are sent in this order.


cdef bint order_of(cnp.ndarray value, cnp.npy_intp *strides, uint64_t *order) noexcept:
    """Choose the layout of an array of at most SR_MAX_DIMS dimensions; return whether its bytes have it already.

    `*order` is 0 for C order. An array with gaps gets the layout of torch's ``clone``: without gaps, in the order of
    its strides.
    """
    cdef int n = cnp.PyArray_NDIM(value), d, i
    cdef int outwards[SR_MAX_DIMS]
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(value)
    cdef cnp.npy_intp *actual = cnp.PyArray_STRIDES(value)
    cdef cnp.npy_intp step = cnp.PyArray_ITEMSIZE(value)
    cdef bint same = True
    order[0] = 0
    for d in range(n - 1, -1, -1):
        strides[d] = step
        same = same and actual[d] == step
        step *= shape[d]
    if same or step == 0:
        return True
    sort(n, shape, actual, outwards)
    same = True
    step = cnp.PyArray_ITEMSIZE(value)
    for i in range(n):
        d = outwards[i]
        strides[d] = step
        step *= shape[d]
        order[0] |= <uint64_t> d << 4 * (n - 1 - i)
        same = same and d == n - 1 - i
    if same:
        order[0] = 0
    for d in range(n):
        if shape[d] != 1 and actual[d] != strides[d]:
            return False
    return True


cdef void sort(int n, const cnp.npy_intp *shape, const cnp.npy_intp *strides, int *outwards) noexcept:
    """Sort dimensions from the innermost to the outermost, exactly as torch's infer_dense_strides does."""
    cdef int i, inner, outer
    cdef cnp.npy_intp a, b
    for i in range(n):
        outwards[i] = n - 1 - i
    for i in range(1, n):
        outer = i
        for inner in range(i - 1, -1, -1):
            a, b = abs(strides[outwards[inner]]), abs(strides[outwards[outer]])
            if a == 0 or b == 0:
                continue  # a stride of 0 does not order this pair
            if a > b or (a == b and shape[outwards[inner]] > shape[outwards[outer]]):
                outwards[inner], outwards[outer] = outwards[outer], outwards[inner]
                outer = inner
            elif a < b:
                break


cdef bint strides_in(uint64_t order, int ndim, const cnp.npy_intp *shape, cnp.npy_intp itemsize,
                     cnp.npy_intp *strides) noexcept:
    """Return whether `order` is valid for `ndim` dimensions; store the strides of such an array in `*strides`."""
    cdef int i, d
    cdef unsigned int seen = 0
    cdef cnp.npy_intp step = itemsize
    if order >> 4 * ndim:
        return False
    for i in range(ndim - 1, -1, -1):
        d = <int> (order >> 4 * i & 15)
        if d >= ndim or seen >> d & 1:
            return False
        seen |= 1u << d
        strides[d] = step
        step *= shape[d]
    return True
