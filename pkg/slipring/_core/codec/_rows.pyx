"""Collation row by row: each sample is copied into its row of the batch as soon as it is read.

The first sample determines the layout. If a later sample does not match it, the writer reads the copied samples back
from their rows and collates the list. docs/architecture.md says why.
"""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Mapping

cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_Size
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject, PyObject_GetItem
from libc.stdint cimport int64_t, uint8_t, uint64_t

from slipring._core.codec._codec cimport STREAMING, array_over, copy_row, is_fixed, is_foreign_array, tensor_class
from slipring._core.codec._collate cimport as_tensor, collate, collate_torch, filled, has_tensor, native, within
from slipring._core.codec._dlpack cimport DLApi, DLTensor, describe, exchange, is_ambiguous, single_float
from slipring._core.ring._segment cimport SR_LEAF_ALIGN, clock
from slipring._core.ring._slot cimport SlotWriter, current_writer, has_slow_samples

import numpy as np

from slipring._core.codec import _codec, pytree
from slipring._core.codec._collate import UNSUPPORTED
from slipring._core.codec.samples import listed_samples
from slipring._core.ring._check import from_handler
from slipring._core.ring.sample_marks import failed_at
from slipring.errors import BatchTooLarge, DescriptorClosed, SegmentFull, SlipringError

cnp.import_array()

cdef extern from "Python.h":
    PyObject *PyIter_Next(object iterator) except? NULL
    void Py_DECREF(PyObject *thing)

cdef enum:
    # How samples become a batch: a list for a user's collate_fn, slipring's rules, torch's rules, or no batch at all.
    AS_LIST = 0
    AS_NUMPY = 1
    AS_TORCH = 2
    NOT_KEPT = 3

LIST, NUMPY, TORCH, DROP = AS_LIST, AS_NUMPY, AS_TORCH, NOT_KEPT
NO_SAMPLES = object()  # in place of a batch, if `skip_none` leaves no sample; the loader goes on to the next batch

cdef object unsupported = UNSUPPORTED
cdef int MAX_DEPTH = pytree.MAX_DEPTH
cdef int MAX_DIMS = 16  # arrays with as many dimensions have no rows
cdef Py_ssize_t TIMED = 16  # one of this many fast copies is timed
cdef object ARRAYS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


@cython.final
@cython.auto_pickle(False)
cdef class Column:
    """A node of the samples' tree: the rows of a leaf, or the children of a container.

    Codes of leaves: [a]rray, another library's array ([j]ax), [m]emmap, numpy [s]calar, [i]nt, [f]loat, [b]ool,
    [t]ensor, and [k]ept, which has no rows.
    Codes of containers: [d]ict, [(] tuple, [[] list, [n]amedtuple, data[c]lass, other [M]apping.
    """

    cdef char code
    cdef object kind          # the type that this node has in every sample
    # a leaf with rows
    cdef char *data           # row 0
    cdef object owner         # the array that owns the rows; None: the slot
    cdef bint large           # the rows together exceed the CPU's caches
    cdef Py_ssize_t nbytes    # per row
    cdef cnp.dtype descr      # in native byte order
    cdef int ndim
    cdef cnp.npy_intp dims[16]
    cdef tuple strides        # of the first sample's array, if it is not C-contiguous
    cdef object dtype         # the tensors' dtype
    cdef object like          # a meta tensor with the strides of the first one, if it is not contiguous
    cdef bint carried         # numpy lacks the tensors' dtype: the rows have integers of the same size
    cdef const DLApi *api     # NULL: torch copies
    cdef uint8_t type_code, type_bits
    cdef bint ambiguous       # several dtypes have that code and these bits
    # a leaf without rows
    cdef list kept
    # a container
    cdef list parts
    cdef object names         # a mapping's keys or a dataclass's fields
    cdef object first         # a shallow copy of the container in the first sample
    cdef list values          # its values, until the second sample: a mapping may compute them at each access

    cdef tuple shape(self):
        cdef list dims = [self.dims[i] for i in range(self.ndim)]
        return tuple(dims)

    cdef char *row(self, Py_ssize_t i) noexcept:
        return self.data + i * self.nbytes

    cdef cnp.ndarray row_array(self, Py_ssize_t i):
        """Return a row as an array that does not own it."""
        return array_over(self.row(i), self.ndim, self.dims, NULL, self.descr, None)


# ---- the layout


cdef Column column_of(value, int rules, int depth):
    """Return the column for a node of the first sample; None if such samples must be collated as a list."""
    cdef Column column = Column.__new__(Column)
    kind = type(value)
    if depth > MAX_DEPTH:
        return None
    column.kind = kind
    column.code = b"k"
    if kind is np.ndarray or kind is np.memmap:
        if rules == AS_TORCH and not can_be_tensor(<cnp.ndarray> value):
            return None
        if cnp.PyArray_NDIM(<cnp.ndarray> value) < MAX_DIMS and is_fixed(<cnp.dtype> value.dtype):
            lie_as(column, b"a" if kind is np.ndarray else b"m", value.shape, value.dtype)
            if rules == AS_TORCH and not value.flags.c_contiguous:
                column.strides = value.strides  # torch's own collation may keep the order of dimensions
        return column
    if kind is int or kind is float or kind is bool:
        lie_as(column, b"i" if kind is int else b"f" if kind is float else b"b", (), ARRAYS[kind])
        return column
    if kind is str or kind is bytes:
        return column
    if kind is dict or (rules == AS_NUMPY and kind is OrderedDict):
        return container_of(column, b"d", list(value), list(value.values()), rules, depth)
    if kind is tuple or kind is list:
        return container_of(column, b"(" if kind is tuple else b"[", None, list(value), rules, depth)
    if isinstance(value, tuple) and pytree.is_namedtuple(kind):
        return container_of(column, b"n", None, list(value), rules, depth)
    if isinstance(value, np.generic):
        if rules == AS_TORCH and not has_tensor(<cnp.dtype> value.dtype):
            return None
        if kind is not value.dtype.type or not is_fixed(value.dtype):
            return column if rules == AS_NUMPY else None
        # np.float64 and np.complex128 are Python numbers too: torch converts their list to its default dtype.
        if rules == AS_NUMPY or not isinstance(value, (float, complex)):
            lie_as(column, b"s", (), value.dtype)
        return column
    if kind is tensor_class():
        return tensor_column(column, value, rules)
    if rules == AS_TORCH:
        return None
    if is_foreign_array(value):
        array = np.asarray(value)
        if array.ndim < MAX_DIMS and is_fixed(array.dtype):
            lie_as(column, b"j", array.shape, array.dtype)
        return column
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        column.first, column.values = copy.copy(value), [getattr(value, name) for name in names]
        return container_of(column, b"c", names, column.values, rules, depth)
    if isinstance(value, Mapping):
        names = list(value)
        column.first, column.values = copy.copy(value), [value[key] for key in names]
        return container_of(column, b"M", names, column.values, rules, depth)
    return column


cdef bint can_be_tensor(cnp.ndarray value) noexcept:
    """Return whether torch can make a tensor over an array's memory."""
    cdef int d
    for d in range(cnp.PyArray_NDIM(value)):
        if cnp.PyArray_STRIDE(value, d) < 0:
            return False
    return has_tensor(<cnp.dtype> cnp.PyArray_DESCR(value))


cdef Column container_of(Column column, char code, names, list values, int rules, int depth):
    column.code, column.names = code, names
    column.parts = [None] * len(values)
    for i in range(len(values)):
        part = column_of(values[i], rules, depth + 1)
        if part is None:
            return None
        column.parts[i] = part
    return column


cdef Column tensor_column(Column column, value, int rules):
    module = _codec.foreign_module("tensor")
    dtype = module.row_dtype(value)
    if dtype is None or value.dim() >= MAX_DIMS:
        return None if rules == AS_TORCH else column
    lie_as(column, b"t", tuple(value.shape), dtype)
    if not value.is_contiguous():
        column.like = module.without_memory(value)
    describe_as(column, value.dtype)
    return column


cdef int describe_as(Column column, dtype) except -1:
    cdef DLTensor found
    module = _codec.foreign_module("tensor")
    column.dtype = dtype
    column.carried = module.carrier_of(dtype) is not None
    column.api = exchange(column.kind)
    # DLPack does not report the conjugate flag of complex tensors.
    if column.api != NULL and not dtype.is_complex and describe(column.api, module.torch.empty(0, dtype=dtype), &found):
        column.type_code, column.type_bits = found.dtype.code, found.dtype.bits
        column.ambiguous = is_ambiguous(&found)
    else:
        column.api = NULL
    return 0


cdef int lie_as(Column column, char code, tuple shape, cnp.dtype descr) except -1:
    cdef int i
    column.code, column.descr, column.ndim = code, native(descr), <int> len(shape)
    column.nbytes = column.descr.itemsize
    for i in range(column.ndim):
        column.dims[i] = shape[i]
        column.nbytes *= column.dims[i]
    return 0


cdef uint64_t bytes_of(Column column) except? 0:
    """Return the bytes of a row."""
    if column.parts is None:
        return 0 if column.code == b"k" else column.nbytes
    return sum([bytes_of(<Column> part) for part in column.parts])


cdef bint allocate(Column column, Py_ssize_t n, SlotWriter writer) except -1:
    """Allocate `n` rows; return False if they exceed any slot."""
    if column.parts is not None:
        for part in column.parts:
            if not allocate(<Column> part, n, writer):
                return False
        return True
    if column.code == b"k":
        column.kept = []
        return True
    if column.nbytes and n > (<Py_ssize_t> 1 << 62) // column.nbytes:
        return False
    column.large = n * column.nbytes >= STREAMING
    if writer is None:
        column.owner = np.empty((n, *column.shape()), column.descr)
        column.data = <char *> cnp.PyArray_DATA(<cnp.ndarray> column.owner)
    else:
        column.data = writer.alloc(n * column.nbytes, SR_LEAF_ALIGN)
    return True


# ---- one sample


cdef bint write(Column column, value, Py_ssize_t i, Py_ssize_t at, int rules) except -1:
    """Copy a node of sample `i` to row `at`; return False if it does not match the first sample's."""
    cdef Py_ssize_t j
    cdef int overflow = 0
    cdef char code = column.code
    cdef double real
    if code == b"k":
        while len(column.kept) <= i:
            column.kept.append(None)
        column.kept[i] = value
        return True
    if code == b"j":
        return is_foreign_array(value) and write_array(column, np.asarray(value), at)
    if type(value) is not column.kind:
        return False
    if code == b"a" or code == b"m":
        if rules == AS_TORCH and not can_be_tensor(<cnp.ndarray> value):
            return False
        return write_array(column, <cnp.ndarray> value, at)
    if code == b"i":
        (<int64_t *> column.data)[at] = PyLong_AsLongLongAndOverflow(value, &overflow)
        return overflow == 0
    if code == b"f":
        real = value
        (<double *> column.data)[at] = real
        return True
    if code == b"b":
        column.data[at] = value is True
        return True
    if code == b"t":
        return write_tensor(column, value, at)
    if code == b"d":
        if rules == AS_NUMPY and PyDict_Size(value) != len(<list> column.names):
            return False
        for j in range(len(column.parts)):
            try:
                found = (<dict> value)[(<list> column.names)[j]]
            except KeyError:
                return False
            if not write(<Column> column.parts[j], found, i, at, rules):
                return False
        return True
    if code == b"s":
        if native(value.dtype) != column.descr:
            return False
        column.row_array(at)[()] = value
        return True
    if i:
        column.values = None
    if column.values is not None:
        value = column.values
    elif code == b"c":
        value = [getattr(value, name) for name in column.names]
    elif len(value) != len(column.parts):
        return False
    elif code == b"M":
        for key in column.names:
            if key not in value:
                return False
        value = [value[key] for key in column.names]
    for j in range(len(column.parts)):
        if not write(<Column> column.parts[j], value[j], i, at, rules):
            return False
    return True


cdef bint write_array(Column column, cnp.ndarray value, Py_ssize_t at) except -1:
    cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(value)
    cdef bint same = descr is column.descr or cnp.PyArray_EquivTypes(descr, column.descr)
    if not same and not cnp.PyArray_EquivTypes(native(descr), column.descr):
        return False
    if cnp.PyArray_NDIM(value) != column.ndim:
        return False
    if not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(value), column.dims, column.ndim):
        return False
    if same and cnp.PyArray_IS_C_CONTIGUOUS(value):
        copy_row(column.row(at), <const char *> cnp.PyArray_DATA(value), column.nbytes, column.large)
    else:
        column.row_array(at)[...] = value
    return True


cdef bint write_tensor(Column column, value, Py_ssize_t at) except -1:
    cdef DLTensor tensor
    cdef int d
    if column.api == NULL or not describe(column.api, value, &tensor) or value.requires_grad or (
            single_float(&tensor) and value.is_neg()):  # see torch_stack_tensors in _collate.pyx
        return _codec.foreign_module("tensor").write_row(column.row_array(at), value, column.dtype)
    if tensor.dtype.code != column.type_code or tensor.dtype.bits != column.type_bits or tensor.ndim != column.ndim:
        return False
    if column.ambiguous and value.dtype is not column.dtype:
        return False
    for d in range(column.ndim):
        if tensor.shape[d] != column.dims[d]:
            return False
    copy_row(column.row(at), tensor.data + tensor.byte_offset, column.nbytes, column.large)
    return True


cdef object read(Column column, Py_ssize_t i, Py_ssize_t at):
    """Return the node of sample `i` that was copied to row `at`, in its own memory and with its own type."""
    cdef char code = column.code
    if code == b"k":
        return column.kept[i]
    if code == b"i":
        return (<int64_t *> column.data)[at]
    if code == b"f":
        return (<double *> column.data)[at]
    if code == b"b":
        return column.data[at] != 0
    if column.parts is None:
        array = column.row_array(at)
        if code == b"t":
            return _codec.foreign_module("tensor").read_row(array, column.dtype, column.like)
        if code == b"s":
            return array.copy()[()]
        made = empty_like(column)
        made[...] = array
        return made.view(np.memmap) if code == b"m" else made
    cdef list parts = [None] * len(column.parts)
    for j in range(len(column.parts)):
        parts[j] = read(<Column> column.parts[j], i, at)
    return contain(column, parts)


cdef object empty_like(Column column):
    """Return an array with the order of dimensions that the first sample's has."""
    shape = column.shape()
    if column.strides is None:
        return np.empty(shape, column.descr)
    outwards = np.argsort([-abs(step) for step in column.strides], kind="stable")
    return np.empty([shape[d] for d in outwards], column.descr).transpose(np.argsort(outwards))


cdef object contain(Column column, list parts):
    """Return the container with these parts, for a sample or for the batch."""
    cdef char code = column.code
    if code == b"[":
        return parts
    if code == b"(":
        return tuple(parts)
    if code == b"n":
        return column.kind._make(parts)
    if code == b"c":
        made = copy.copy(column.first)
        for name, part in zip(column.names, parts):
            object.__setattr__(made, name, part)
        return made
    if code == b"M":
        return filled(column.first, dict(zip(column.names, parts)))
    return column.kind(zip(column.names, parts))


# ---- the batch


cdef object batch_of(Column column, Py_ssize_t n, SlotWriter writer, int rules, bint transposed, str path, int depth):
    """Return the node of the batch; `unsupported` if torch itself must collate it."""
    cdef list parts
    cdef Column part
    if column.parts is None:
        if column.code == b"k":
            kept = column.kept[:n]
            if rules == AS_TORCH and issubclass(column.kind, np.generic):
                return _codec.foreign_module("tensor").torch.as_tensor(kept)
            return collate(kept, path, depth) if rules == AS_NUMPY else collate_torch(kept, transposed, depth)
        array = rows_of(column, n, writer)
        if column.code == b"t" and (column.carried or writer is None):
            return _codec.foreign_module("tensor").over_rows(array, column.dtype)
        return as_tensor(array) if column.code == b"t" or rules == AS_TORCH else array
    parts = [None] * len(column.parts)
    for j in range(len(column.parts)):
        part = <Column> column.parts[j]
        inner = path
        if part.code == b"k" or part.parts is not None:  # an error message may need its path
            name = j if column.names is None else column.names[j]
            inner = f"{path}.{name}" if column.code == b"c" else within(path, name)
        made = batch_of(part, n, writer, rules, column.names is None, inner, depth + 1)
        if made is unsupported:
            return unsupported
        parts[j] = made
    return parts if column.code == b"(" and rules == AS_TORCH else contain(column, parts)


cdef object rows_of(Column column, Py_ssize_t n, SlotWriter writer):
    """Return the first `n` rows as one array."""
    cdef cnp.npy_intp dims[17]
    cdef int d
    if column.owner is not None:
        return column.owner if len(column.owner) == n else column.owner[:n]
    dims[0] = n
    for d in range(column.ndim):
        dims[d + 1] = column.dims[d]
    return array_over(column.data, column.ndim + 1, dims, NULL, column.descr, writer.slot_pin())


# ---- ranges: several workers write rows of one batch


cdef bint can_be_shared(Column column, bytearray codes) except *:
    """Return whether other workers can decode this layout from the slot; append the columns' codes."""
    codes.append(<uint8_t> column.code)
    if column.code == b"c" or column.code == b"M":
        return False
    if column.parts is not None:
        for part in column.parts:
            if not can_be_shared(<Column> part, codes):
                return False
    return True


cdef object skeleton_of(Column column, Py_ssize_t n, SlotWriter writer, int rules):
    """Return the batch over rows that are not written yet; leaves without rows are None."""
    if column.code == b"k":
        return None
    if column.parts is None:
        return batch_of(column, n, writer, rules, False, "", 0)
    parts = [skeleton_of(<Column> part, n, writer, rules) for part in column.parts]
    return parts if column.code == b"(" and rules == AS_TORCH else contain(column, parts)


cdef Column shared_column(value, codes, int rules):
    """Return the column for a node of a layout that another worker settled; `codes` is an iterator."""
    cdef Column column = Column.__new__(Column)
    column.code = <char> <int> next(codes)
    column.kind = type(value)
    cdef char code = column.code
    if code == b"d" or code == b"n" or code == b"[" or code == b"(":
        column.names = list(value) if code == b"d" else None
        column.parts = [shared_column(part, codes, rules) for part in (value.values() if code == b"d" else value)]
        if code == b"(":
            column.kind = tuple
        return column
    if code == b"k":
        column.kept = []
        return column
    if type(value) is not np.ndarray:
        if code == b"t":
            describe_as(column, value.dtype)
        value = _codec.foreign_module("tensor").array_of(value)
    lie_as(column, code, value.shape[1:], value.dtype)
    column.large = value.nbytes >= STREAMING
    column.owner = value
    column.data = <char *> cnp.PyArray_DATA(<cnp.ndarray> value)
    column.kind = {
        b"i": int, b"f": float, b"b": bool, b"a": np.ndarray, b"m": np.memmap, b"j": object, b"s": column.descr.type,
    }.get(bytes([code])) or tensor_class()
    return column


cdef object kept_of(Column column, Py_ssize_t n, list found):
    """Append the list of each leaf without rows to `found`, and return `found`."""
    if column.code == b"k":
        found.append(column.kept[:n])
    elif column.parts is not None:
        for part in column.parts:
            kept_of(<Column> part, n, found)
    return found


cdef int keep_all(Column column, columns) except -1:
    """Extend the leaves without rows by another worker's lists; `columns` is an iterator."""
    if column.code == b"k":
        column.kept.extend(next(columns))
    elif column.parts is not None:
        for part in column.parts:
            keep_all(<Column> part, columns)
    return 0


# ---- the writer


@cython.final
@cython.auto_pickle(False)
cdef class RowWriter:
    """Write the samples of rows ``first:end`` of a batch, and return the batch.

    The writer keeps no sample that has a row. An exception from a signal handler during `draw` loses no sample.

    Parameters
    ----------
    first, end : int
        For a whole batch, 0 and the largest number of samples.
    rules : {LIST, NUMPY, TORCH, DROP}
        How samples become a batch. LIST keeps them for a user's `collate_fn`; DROP only counts them.
    share : callable, optional
        For a range of a batch that several workers make. It is called with the writer after the first sample, and
        must call `reserve`, `adopt` or `give_up`.
    skip_none : bool
        Leave out samples that are None.

    Attributes
    ----------
    count : int
        Samples that have arrived, up to the first that is missing.
    """

    cdef readonly Py_ssize_t count
    cdef uint64_t copy_ns     # time spent on copying
    cdef bint slow            # samples are slow enough to time each copy
    cdef Py_ssize_t first, end
    cdef int rules
    cdef object share
    cdef bint skip_none
    cdef readonly SlotWriter writer
    cdef Column root
    cdef list samples         # instead of rows
    cdef object given         # the object that the dataset's __getitems__ returned
    cdef bint was_given
    cdef readonly bint is_made  # `given` is the batch itself
    cdef set beyond           # rows after `count` that have arrived
    cdef object model         # the sample that determines the layout, while `share` runs

    def __init__(self, Py_ssize_t first, Py_ssize_t end, int rules, share=None, bint skip_none=False):
        self.first, self.end, self.rules, self.share, self.skip_none = first, end, rules, share, skip_none
        self.writer, self.slow = current_writer(), has_slow_samples()
        if rules == AS_LIST:
            self.samples = []
        elif self.writer is not None and rules != NOT_KEPT:
            self.writer.by_rows = True

    # ---- samples

    cpdef put(self, Py_ssize_t row, sample):
        """Write the sample of a row. Row 0 must be the first."""
        cdef uint64_t begun = 0
        cdef Py_ssize_t stands_for = 1  # samples
        cdef bint fits
        if self.rules == NOT_KEPT:
            self.came(row)
            return
        if sample is None and self.skip_none and self.samples is None:  # the rows would have a gap
            if self.root is None:
                self.give_up()
            else:
                self.to_list()
        if self.samples is None:
            if row and not self.slow:
                stands_for = min(TIMED, self.end - self.first - row) if row % TIMED == 1 else 0
            if stands_for:
                begun = clock()
            if self.root is None:
                self.lay_out(sample)
            if self.root is not None:
                try:
                    fits = write(self.root, sample, row, self.first + row if self.share is not None else row,
                                 self.rules)
                except Exception as error:  # raised by a mapping or dataclass: collating the list raises it again
                    if from_handler(error):
                        raise
                    fits = False
                if fits:
                    self.came(row)
                    if stands_for:
                        self.copy_ns += stands_for * (clock() - begun)
                    return
                self.to_list()
        while len(self.samples) <= row:
            self.samples.append(None)
        self.samples[row] = sample
        self.came(row)

    def take(self, samples):
        """Take all samples at once. A user's `collate_fn` gets the same object."""
        if self.share is None:
            self.given, self.was_given = samples, True
            return
        samples = listed_samples(samples)
        if len(samples) != self.end - self.first:  # the caller raises an error; there are no rows for further samples
            self.samples, self.count = samples, len(samples)
            return
        for sample in samples:
            self.put(self.count, sample)

    def take_batch(self, batch):
        """Take a batch that the dataset itself made in the slot, in place of samples."""
        self.given, self.is_made = batch, True

    def fetched_at(self, uint64_t begun):
        """Return the time at which fetching would have ended without the copies, which count as collation."""
        cdef uint64_t now = clock()
        return now - min(self.copy_ns, now - begun)

    cdef int came(self, Py_ssize_t row) except -1:
        if row != self.count:
            if self.beyond is None:
                self.beyond = set()
            self.beyond.add(row)
            return 0
        self.count += 1
        while self.beyond and self.count in self.beyond:
            self.beyond.discard(self.count)
            self.count += 1
        return 0

    cdef int lay_out(self, sample) except -1:
        """Determine the layout from the first sample, or start a list."""
        if self.share is not None:
            self.model = sample
            self.share(self)
            self.model = None
        elif not self.make_rows(sample, self.end):
            self.give_up()
        return 0

    cdef bint make_rows(self, sample, Py_ssize_t n) except -1:
        """Lay out `n` rows; return False if the samples must be collated as a list."""
        cdef Column root
        try:
            root = column_of(sample, self.rules, 0)
            if root is None or not allocate(root, n, self.writer):
                return False
        except (SegmentFull, BatchTooLarge, DescriptorClosed):
            return False  # collating the list needs less memory, or raises the error again
        except Exception as error:
            if isinstance(error, SlipringError) or from_handler(error):
                raise
            return False  # raised by the sample's own code: collating the list raises it again
        self.root = root
        return True

    def give_up(self):
        """Start a list: the samples have no rows."""
        self.samples, self.root = [], None
        if self.share is None and self.writer is not None:
            self.writer.rewind()

    cdef int to_list(self) except -1:
        """Read the copied samples back from their rows, and continue with a list."""
        cdef Py_ssize_t row, last = max(self.beyond) + 1 if self.beyond else self.count
        cdef list samples = [None] * last
        for row in range(last):
            if row < self.count or row in self.beyond:
                samples[row] = read(self.root, row, self.first + row if self.share is not None else row)
        self.samples, self.root = samples, None
        if self.share is None and self.writer is not None:
            self.writer.rewind()
        return 0

    # ---- the batch

    def batch(self, collate_fn):
        """Return the batch, or `NO_SAMPLES`; without rows, `collate_fn` of the list."""
        if self.is_made:
            return self.given
        if self.writer is not None:
            self.writer.by_rows = False
        if self.root is not None:
            made = batch_of(self.root, self.count, self.writer, self.rules, False, "", 0)
            if made is not unsupported:
                return made
            self.to_list()
        samples = self.given if self.was_given else self.read_back()[:self.count]
        if self.skip_none:
            samples = [sample for sample in listed_samples(samples) if sample is not None]
            if not samples:
                return NO_SAMPLES
        return collate_fn(samples)

    # ---- ranges

    def reserve(self, Py_ssize_t rows):
        """Lay out all rows of the batch, in the layout of the first sample.

        Returns
        -------
        (value, bytes) or None
            The batch over its unwritten rows, and the columns' codes, for `adopt`. None: the samples have no rows.
        """
        codes = bytearray()
        if not self.make_rows(self.model, rows):
            return None
        if not can_be_shared(self.root, codes):
            self.root = None
            return None
        return skeleton_of(self.root, rows, self.writer, self.rules), bytes(codes)

    def adopt(self, value, codes):
        """Use the layout that another worker settled."""
        self.root = shared_column(value, iter(codes), self.rules)

    cdef int laid_out(self) except -1:
        if self.root is None:
            raise RuntimeError("the samples have no rows")
        return 0

    @property
    def in_place(self):
        """bool: whether all samples are in their rows."""
        return self.root is not None

    @property
    def nbytes(self):
        """int: bytes of the rows."""
        self.laid_out()
        return bytes_of(self.root) * self.count

    def kept(self):
        """Return a list for each leaf without rows."""
        self.laid_out()
        return kept_of(self.root, self.count, [])

    def keep(self, columns, Py_ssize_t rows):
        """Add the next range: `rows` samples that another worker wrote, and the lists that its `kept` returned."""
        self.laid_out()
        keep_all(self.root, iter(columns))
        self.count += rows

    def read_back(self):
        """Return the samples, in their own memory."""
        if self.was_given:
            return self.given
        if self.root is not None:
            self.to_list()
        elif self.samples is None:
            self.samples = []
        return self.samples


# ---- readers


def read_samples(dataset, list asked, RowWriter rows not None):
    """Read the samples at these indices in order; record for observers which one is being read.

    An exception has the position of its sample; see `slipring._core.ring.sample_marks`.

    Returns
    -------
    list or None
        Awaitables, if the dataset returns awaitables. None of them is in a row.
    """
    cdef SlotWriter writer = current_writer()
    cdef Py_ssize_t i = 0
    cdef list awaitables = None
    try:
        for i in range(len(asked)):
            if writer is not None:
                writer.begin_row(i, asked[i])
            sample = PyObject_GetItem(dataset, asked[i])
            if i == 0 and hasattr(type(sample), "__await__"):
                awaitables = []
            if awaitables is None:
                rows.put(i, sample)
            else:
                awaitables.append(sample)
            sample = None
    except Exception as error:
        failed_at(i, error)
        raise
    finally:
        if writer is not None:
            writer.end_rows()
    return awaitables


def draw(iterator, RowWriter rows not None, Py_ssize_t most):
    """Draw samples until `rows` has `most`; return False if the iterator ends earlier."""
    cdef PyObject *drawn
    while rows.count < most:
        drawn = PyIter_Next(iterator)
        if drawn == NULL:
            return False
        sample = <object> drawn
        Py_DECREF(drawn)
        if sample is not None or not rows.skip_none:
            rows.put(rows.count, sample)
        sample = None
    return True
