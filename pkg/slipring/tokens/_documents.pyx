"""One field of a batch's documents: where the rows of each lie, and how they become one array.

The loops take no Python object per document. They read token ids of any integer type and write int64, if asked to.
"""

cimport cython
cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from slipring._core.codec._codec cimport all_of, is_fixed

import bisect
from collections.abc import Mapping

import numpy as np

from slipring.errors import shown

cnp.import_array()

# The same names as in _documents.pyi.
__all__ = [
    "Documents", "are_numbers", "count", "from_samples", "from_spans", "longest", "number", "set_first", "starts_of",
]

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *at) noexcept nogil

cdef Py_ssize_t AHEAD = 1 << 12  # bytes of the next document to prefetch: its first page
cdef Py_ssize_t WITHOUT_GIL = 1 << 16  # bytes; a copy of this size or more releases the GIL

ctypedef fused token:
    int8_t
    uint8_t
    int16_t
    uint16_t
    int32_t
    uint32_t


@cython.final
@cython.auto_pickle(False)
cdef class Documents:
    """The rows of one field, document by document, in memory that others own.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
        The shape of one row: () for a field of numbers.
    lengths : numpy.ndarray of int64
        The number of rows of each document.
    """

    cdef readonly cnp.dtype dtype
    cdef readonly tuple shape
    cdef readonly cnp.ndarray lengths
    cdef str field             # its name, for errors
    cdef object owner          # keeps the memory alive
    cdef const char **rows     # the first row of each document
    cdef Py_ssize_t n, row     # documents; items of a row

    def __cinit__(self, Py_ssize_t n, first, str field):
        self.field, self.dtype, self.shape, self.n, self.row = field, first.dtype, first.shape[1:], n, 1
        for size in self.shape:
            self.row *= size
        self.lengths = int64_array(n)
        self.rows = <const char **> PyMem_Malloc(max(n, 1) * sizeof(char *))
        if self.rows == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.rows)

    cdef void set(self, Py_ssize_t i, const char *rows, int64_t length) noexcept:
        self.rows[i] = rows
        (<int64_t *> cnp.PyArray_DATA(self.lengths))[i] = length

    def differs(self, Documents other not None):
        """Return the number of the first document that has another length in another field; None if there is none."""
        cdef const int64_t *here = <const int64_t *> cnp.PyArray_DATA(self.lengths)
        cdef const int64_t *there = <const int64_t *> cnp.PyArray_DATA(other.lengths)
        cdef Py_ssize_t i
        for i in range(min(self.n, other.n)):
            if here[i] != there[i]:
                return i
        return None if self.n == other.n else min(self.n, other.n)

    def write(self, cnp.ndarray out not None, cnp.ndarray at not None, pad=0, bint shift=False):
        """Write each document to its position, and `pad` to the rest.

        Parameters
        ----------
        out : numpy.ndarray
            C-contiguous, of this field's dtype, or int64 for a field of integers.
        at : numpy.ndarray of int64
            The rows of `out` where the documents begin, and the number of its rows.
        pad : number
        shift : bool
            Leave out the first row of each document: the labels of a causal model.
        """
        cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(out)
        cdef Py_ssize_t itemsize = descr.itemsize, total = cnp.PyArray_SIZE(out)
        cdef int num = self.dtype.type_num
        cdef const int64_t *starts = <const int64_t *> cnp.PyArray_DATA(at)
        cdef const int64_t *lengths = <const int64_t *> cnp.PyArray_DATA(self.lengths)
        cdef char *to = <char *> cnp.PyArray_DATA(out)
        cdef cnp.ndarray item
        cdef const char *fill = NULL
        cdef Py_ssize_t i, used = 0
        if not cnp.PyArray_IS_C_CONTIGUOUS(out) or cnp.PyArray_SIZE(at) != self.n + 1:
            raise ValueError("out must be C-contiguous, and at must have an element for each document and the end")
        if cnp.PyArray_EquivTypes(descr, self.dtype):
            num = -1  # the bytes stay as they are
        elif descr.type_num != cnp.NPY_LONG or num == cnp.NPY_BOOL or num > cnp.NPY_UINT:
            raise TypeError(
                f"field {self.field!r} is {self.dtype}: token ids and labels must be int64 or integers of fewer bits. "
                "Convert them in the dataset")
        for i in range(self.n):
            if starts[i] < 0 or starts[i] + max(lengths[i] - shift, 0) > starts[i + 1]:
                raise ValueError(f"document {i} of {lengths[i]} rows does not fit in {starts[i]}:{starts[i + 1]}")
            used += max(lengths[i] - shift, 0)
        if starts[self.n] * self.row != total:
            raise ValueError(f"{total} items are not {starts[self.n]} rows of {self.row}")
        if used < starts[self.n]:
            item = np.full(1, pad, descr)
            fill = <const char *> cnp.PyArray_DATA(item)
        if total * itemsize < WITHOUT_GIL:
            write_all(to, starts, self.rows, lengths, self.n, self.row, itemsize, self.dtype.itemsize, num, fill, shift)
        else:
            with nogil:
                write_all(
                    to, starts, self.rows, lengths, self.n, self.row, itemsize, self.dtype.itemsize, num, fill, shift)


cdef void write_all(char *to, const int64_t *starts, const char **rows, const int64_t *lengths, Py_ssize_t n,
                    Py_ssize_t row, Py_ssize_t itemsize, Py_ssize_t source, int num, const char *fill,
                    bint shift) noexcept nogil:
    cdef Py_ssize_t i, items, j
    cdef char *at
    for i in range(n):
        if i + 1 < n:
            for j in range(0, min(AHEAD, lengths[i + 1] * row * source), 64):
                prefetch(rows[i + 1] + j)
        items = max(lengths[i] - shift, 0) * row
        at = to + starts[i] * row * itemsize
        if not items:
            pass
        elif num < 0:
            memcpy(at, rows[i] + shift * row * source, items * itemsize)
        else:
            widen_any(rows[i] + shift * row * source, <int64_t *> at, items, num)
        repeat(at + items * itemsize, fill, itemsize, (starts[i + 1] - starts[i]) * row - items)


cdef void widen(const token *values, int64_t *to, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        to[i] = values[i]


cdef void widen_any(const char *values, int64_t *to, Py_ssize_t n, int num) noexcept nogil:
    if num == cnp.NPY_INT:
        widen(<const int32_t *> values, to, n)
    elif num == cnp.NPY_USHORT:
        widen(<const uint16_t *> values, to, n)
    elif num == cnp.NPY_UINT:
        widen(<const uint32_t *> values, to, n)
    elif num == cnp.NPY_SHORT:
        widen(<const int16_t *> values, to, n)
    elif num == cnp.NPY_UBYTE:
        widen(<const uint8_t *> values, to, n)
    else:
        widen(<const int8_t *> values, to, n)


cdef void repeat(char *to, const char *item, Py_ssize_t itemsize, Py_ssize_t n) noexcept nogil:
    """Write `n` copies of an item."""
    cdef Py_ssize_t i, done
    cdef bint same = True
    if n <= 0:
        return
    for i in range(1, itemsize):
        same = same and item[i] == item[0]
    if same:
        memset(to, item[0], n * itemsize)
        return
    memcpy(to, item, itemsize)
    done = 1
    while done < n:
        memcpy(to + done * itemsize, to, min(done, n - done) * itemsize)
        done *= 2


# ---- sources


def from_samples(list samples not None, str field not None, where):
    """Return the `Documents` of a field of samples.

    Parameters
    ----------
    samples : list
        A mapping for each document; its value is an array, a tensor or a list.
    field : str
        The key.
    where : callable
        ``where(i)`` returns the name of a sample, for errors.
    """
    cdef Py_ssize_t i, n = len(samples), model = 0
    cdef cnp.ndarray array, first = None
    cdef list arrays = [None] * n
    cdef bint same = True
    for i in range(n):
        sample = samples[i]
        if type(sample) is not dict and not isinstance(sample, Mapping):
            hint = ". skip_none=True leaves out samples that are None" if sample is None else ""
            raise TypeError(
                f"{where(i)} is a {type(sample).__name__}, {where(0)} a {type(samples[0]).__name__}: all samples must "
                f"be dicts, or all arrays{hint}"
            )
        if field not in sample:
            raise ValueError(f"{where(i)} has no field {field!r}; it has {', '.join(map(shown, sample))}")
        value = sample[field]
        if type(value) is list and not value:  # it says nothing about the dtype and the shape of a row
            continue
        if type(value) is not np.ndarray:
            try:
                value = np.asarray(value)
            except Exception as error:
                raise TypeError(
                    f"field {field!r} of {where(i)} cannot become a numpy array: {error}. Convert it in the dataset, "
                    "or name the fields to collate in fields="
                ) from error
        array = <cnp.ndarray> value
        if first is None:
            first, model, same = array, i, not cnp.PyArray_ISBYTESWAPPED(array)
        if (cnp.PyArray_NDIM(array) == 0 or not is_fixed(<cnp.dtype> cnp.PyArray_DESCR(array))
                or cnp.PyArray_ISSTRING(array)):
            raise ValueError(
                f"field {field!r} of {where(i)} is a {type(sample[field]).__name__} of shape {value.shape} and "
                f"dtype {value.dtype}: the fields of a document must be arrays or lists of numbers, with a row for "
                "each token. Name the fields to collate in fields="
            )
        if cnp.PyArray_DESCR(array) is not cnp.PyArray_DESCR(first):
            same = same and cnp.PyArray_EquivTypes(
                <cnp.dtype> cnp.PyArray_DESCR(array), <cnp.dtype> cnp.PyArray_DESCR(first))
        if not same_rows(array, first):
            raise ValueError(
                f"field {field!r}: the rows of {where(model)} have shape {(<object> first).shape[1:]}, those of "
                f"{where(i)} {value.shape[1:]}; make them alike in the dataset"
            )
        arrays[i] = array
    if first is None:
        first = np.empty(0, np.int64)
    if not same:
        given = [part for part in arrays if part is not None]
        full = [part for part in given if len(part)]  # np.array([]) is of floats, whatever the others are
        dtype = np.result_type(*{part.dtype for part in full or given}).newbyteorder("=")
        first = np.empty((<object> first).shape, dtype)
    cdef Documents made = Documents.__new__(Documents, n, first, field)
    for i in range(n):
        if arrays[i] is None:
            made.set(i, NULL, 0)
            continue
        array = <cnp.ndarray> arrays[i]
        if not same or not cnp.PyArray_IS_C_CONTIGUOUS(array):
            array = arrays[i] = np.ascontiguousarray(array, made.dtype)
        made.set(i, <const char *> cnp.PyArray_DATA(array), cnp.PyArray_DIM(array, 0))
    made.owner = arrays
    return made


def are_numbers(indices):
    """Return whether the indices of a batch are plain numbers, all of them."""
    return type(indices) is list and all_of(<list> indices, int)


cdef bint same_rows(cnp.ndarray a, cnp.ndarray b) noexcept:
    """Return whether the rows of two arrays have the same shape."""
    cdef int d
    if cnp.PyArray_NDIM(a) != cnp.PyArray_NDIM(b):
        return False
    for d in range(1, cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, d) != cnp.PyArray_DIM(b, d):
            return False
    return True


def from_spans(flat, starts, stops, str field not None, Py_ssize_t documents):
    """Return the `Documents` of a field of a dataset's ``spans``.

    Parameters
    ----------
    flat : numpy.ndarray, or list of them
        The rows of all documents, C-contiguous and in native byte order. Those of several arrays are numbered on, and
        no document lies in two of them.
    starts, stops : numpy.ndarray
        The first row of each document, and the row after its last one.
    field : str
        Its name, for errors.
    documents : int
        Their number.
    """
    cdef list chunks = list(flat) if isinstance(flat, (list, tuple)) else [flat]
    cdef cnp.ndarray begins = np.ascontiguousarray(starts, np.int64), ends = np.ascontiguousarray(stops, np.int64)
    cdef const int64_t *first = <const int64_t *> cnp.PyArray_DATA(begins)
    cdef const int64_t *after = <const int64_t *> cnp.PyArray_DATA(ends)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(begins), last = len(chunks) - 1, rowbytes
    cdef int64_t start, stop, low = 0, high = 0, size = 0
    cdef cnp.ndarray array
    cdef list bounds = [0]
    if last < 0 or n != documents or cnp.PyArray_SIZE(ends) != n:
        raise ValueError(
            f"spans of field {field!r}: {n} starts, {cnp.PyArray_SIZE(ends)} stops, {len(chunks)} arrays for "
            f"{documents} indices: there must be a start and a stop for each index, in their order"
        )
    for i in range(last + 1):
        array = chunks[i] = np.asarray(chunks[i])
        if cnp.PyArray_NDIM(array) == 0 or not cnp.PyArray_ISCARRAY_RO(array) or not is_fixed(array.dtype):
            raise ValueError(
                f"spans of field {field!r}: an array of {array.dtype} and shape {(<object> array).shape} must have "
                "rows of numbers, C-contiguous and in native byte order"
            )
        if array.dtype != chunks[0].dtype or not same_rows(array, chunks[0]):
            raise ValueError(f"spans of field {field!r}: the arrays differ in dtype, or in the shape of a row")
        size += cnp.PyArray_DIM(array, 0)
        bounds.append(size)
    cdef Documents made = Documents.__new__(Documents, n, chunks[0], field)
    rowbytes = made.row * made.dtype.itemsize
    for i in range(n):
        start, stop = first[i], after[i]
        if not 0 <= start <= stop <= size:
            raise ValueError(f"spans of field {field!r}: {start}:{stop} is not a part of {size} rows")
        if not low <= start < high:
            chunk = min(bisect.bisect_right(bounds, start) - 1, last)
            low, high, array = bounds[chunk], bounds[chunk + 1], chunks[chunk]
        if stop > high:
            raise ValueError(f"spans of field {field!r}: {start}:{stop} lies in two arrays")
        made.set(i, <const char *> cnp.PyArray_DATA(array) + (start - low) * rowbytes, stop - start)
    made.owner = chunks
    return made


# ---- what an output says about its documents


cdef cnp.ndarray int64_array(cnp.npy_intp n):
    return cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT64, 0)


def starts_of(cnp.ndarray[cnp.int64_t, mode="c"] lengths not None, int64_t multiple=1):
    """Return where each document begins, and where the last one ends, if each takes a multiple of rows."""
    cdef cnp.ndarray[cnp.int64_t, mode="c"] starts = int64_array(lengths.shape[0] + 1)
    cdef Py_ssize_t i
    starts[0] = 0
    for i in range(lengths.shape[0]):
        starts[i + 1] = starts[i] + (lengths[i] + multiple - 1) // multiple * multiple
    return starts


def longest(cnp.ndarray[cnp.int64_t, mode="c"] bounds not None):
    """Return the length of the longest document: document *i* has rows ``bounds[i]:bounds[i + 1]``."""
    cdef int64_t most = 0
    cdef Py_ssize_t i
    for i in range(bounds.shape[0] - 1):
        most = max(most, bounds[i + 1] - bounds[i])
    return most


def count(cnp.ndarray[cnp.int64_t, mode="c"] out not None, cnp.ndarray[cnp.int64_t, mode="c"] bounds not None):
    """Number the rows of each document from 0."""
    cdef Py_ssize_t i, j
    check_bounds(bounds, out.shape[0])
    for i in range(bounds.shape[0] - 1):
        for j in range(bounds[i + 1] - bounds[i]):
            out[bounds[i] + j] = j


def number(cnp.ndarray[cnp.int32_t, mode="c"] out not None, cnp.ndarray[cnp.int64_t, mode="c"] bounds not None):
    """Write the number of its document to each row."""
    cdef Py_ssize_t i, j
    check_bounds(bounds, out.shape[0])
    for i in range(bounds.shape[0] - 1):
        for j in range(bounds[i], bounds[i + 1]):
            out[j] = <int32_t> i


def set_first(cnp.ndarray out not None, cnp.ndarray[cnp.int64_t, mode="c"] bounds not None, int64_t value):
    """Write `value` to the first row of each document, of an array of int64 with any number of dimensions."""
    cdef int64_t[:, ::1] rows = out.reshape(out.shape[0], -1 if out.size else 0)
    cdef Py_ssize_t i
    check_bounds(bounds, rows.shape[0])
    for i in range(bounds.shape[0] - 1):
        if bounds[i] < bounds[i + 1]:
            rows[bounds[i], :] = value


cdef int check_bounds(cnp.ndarray[cnp.int64_t, mode="c"] bounds, Py_ssize_t rows) except -1:
    cdef Py_ssize_t i, n = bounds.shape[0]
    for i in range(n - 1):
        if bounds[i] > bounds[i + 1]:
            raise ValueError("bounds must not decrease")
    if n == 0 or bounds[0] < 0 or bounds[n - 1] > rows:
        raise ValueError(f"bounds must be parts of {rows} rows")
    return 0
