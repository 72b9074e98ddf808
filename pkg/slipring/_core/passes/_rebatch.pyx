"""Rebatching: take blocks of any number of rows, make batches of an exact size in a slot.

A block is released as soon as its last row is copied. This module is compiled for two reasons: for a small batch, the
steps around the copy cost as much as the copy; and no signal handler can run between a row and its count.
"""

import bisect

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF
from slipring._core.codec._codec cimport copy_in, copy_rows
from slipring._core.ring._slot cimport current_writer

import numpy as np

from slipring._core.codec._codec import empty
from slipring._core.ring._check import from_handler
from slipring.errors import BlockError

cdef extern from "numpy/arrayobject.h":
    # numpy's own .pxd lacks it.
    object PyArray_Empty(int nd, cnp.npy_intp *dims, cnp.dtype descr, int fortran)

cnp.import_array()

cdef object NOTHING = object()  # in place of a block; a source may yield None


@cython.final
@cython.auto_pickle(False)
cdef class Block:
    """Rows that have all columns: arrays, and a record batch of the columns that have no rows of a fixed size.

    `arrays` have `rows` rows each, in the columns' order. `rest` has ``slice(at, n)`` and `rows` rows, or is None.
    `writes`: some of the arrays are `slipring.streams._blocks.Written`.
    """

    def __init__(self, list arrays not None, rest, Py_ssize_t rows, bint writes=False):
        self.arrays, self.rest, self.rows, self.writes = arrays, rest, rows, writes


cdef class Rebatcher:
    """Batches of an exact size, made of blocks of any size.

    An exception ends nothing: rows that were already copied are kept in memory of their own, and begin the next batch.

    `source` yields what `reader` reads. ``reader.read(given, number, batch)`` returns a `Block`, None for one without
    rows, or a list of items to read in its place. If it raises, except in a signal handler, the block is skipped.
    `batch` is the number of the batch that needs the block. ``reader.own(rest)`` copies what lies in a block,
    ``reader.joined(list of rests)`` makes one of several, and ``reader.named(arrays, rest)`` makes a batch. A batch has
    `batch_size` rows; `drop_last` drops a last one that is not full.

    `made` counts rows that were delivered, skipped, or passed over because they could not be made. `batches` counts the
    same in batches. `raised` counts blocks up to the last one that raised an error. If a resumed pass sets it, these
    blocks are skipped silently.
    """

    def __init__(self, source, reader, Py_ssize_t batch_size, bint drop_last=False):
        self.source, self.reader, self.batch_size, self.drop_last = iter(source), reader, batch_size, drop_last
        self.given, self.pushed_back, self.parts = NOTHING, [], []

    def __iter__(self):
        return self

    cdef Block drawn_block(self):
        """Return the source's next block with rows in it; None at the end.

        No Python code runs between the source and `given`, so a signal handler costs no block.
        """
        while True:
            if self.given is NOTHING:
                self.given = self.parts.pop() if self.parts else next(self.source, NOTHING)
                if self.given is NOTHING:
                    return None
            try:
                block = self.reader.read(self.given, self.number, self.batches)
            except Exception as error:
                if not from_handler(error):
                    self.given = NOTHING
                    self.number += 1
                    if self.number <= self.raised:
                        continue
                    self.raised = self.number
                raise
            self.given = NOTHING
            if isinstance(block, list):
                block.reverse()
                self.parts = <list> block
                continue
            self.number += 1
            if block is not None:
                return <Block?> block

    cdef bint advance(self) except -1:
        """Make sure that there is a block with unused rows; return False at the end."""
        if self.block is not None:
            return True
        self.block = <Block> self.pushed_back.pop() if self.pushed_back else self.drawn_block()
        return self.block is not None

    cdef int used(self, Py_ssize_t n) except -1:
        self.block.at += n
        if self.block.at >= self.block.rows:
            self.block = None  # before the next block is requested
        return 0

    def skip(self, int64_t rows):
        """Let `catch_up` pass over `rows` rows."""
        self.rows_to_skip += rows

    def catch_up(self):
        """Pass over the rows to skip; return by how many rows the stream is too short.

        An exception of the reader costs no row: call it again.
        """
        cdef Py_ssize_t n
        while self.rows_to_skip > 0:
            if not self.advance():
                return self.rows_to_skip
            n = min(self.rows_to_skip, self.block.rows - self.block.at)
            self.used(n)
            self.rows_to_skip -= n
            self.made += n
        self.batches = self.made // self.batch_size
        return 0

    def __next__(self):
        cdef list out = None, rests = []
        cdef Py_ssize_t filled = 0, n, wanted
        cdef Block block
        try:
            while filled < self.batch_size:
                if not self.advance():
                    break
                block = self.block
                if out is None:
                    out = room_for(block.arrays, self.batch_size)
                n = wanted = min(self.batch_size - filled, block.rows - block.at)
                error = None
                if block.writes:
                    n, error = written(out, filled, block.arrays, block.at, n)
                put(out, filled, block.arrays, block.at, n)
                if n and block.rest is not None:
                    rest = block.rest.slice(block.at, n)
                    # A block that ends within a batch must be released now, not with the batch.
                    rests.append(rest if filled + n == self.batch_size else self.reader.own(rest))
                    rest = None
                filled += n
                self.used(n if n == wanted else n + 1)
                block = None
                if n < wanted:
                    self.passed += 1
                    if error is not None:
                        raise error
            if filled == 0 or (filled < self.batch_size and self.drop_last):
                raise StopIteration
            batch = self.reader.named(
                out if filled == self.batch_size else [array[:filled] for array in out],
                self.reader.joined(rests) if rests else None,
            )
        except StopIteration:
            raise
        except BaseException:
            if filled:
                copied = Block([np.array(array[:filled]) for array in out],
                               self.reader.joined([self.reader.own(rest) for rest in rests]) if rests else None, filled)
                if self.block is not None:
                    self.pushed_back.append(self.block)
                self.block = copied
            raise
        self.made += filled + self.passed
        self.passed = 0
        self.batches += 1
        return batch


cdef class Shuffler(Rebatcher):
    """The rows of a `Rebatcher` in a random order, drawn from a buffer of rows.

    Each batch is drawn without replacement from `size` rows (at the end: from the rows that are left). The next rows
    take their positions. Blocks are copied to the buffer as they come. `size` is at least `batch_size`. In addition to
    the methods for `Rebatcher`, ``reader.pool(size)`` makes the object that keeps rests by position in the buffer.
    """

    cdef Py_ssize_t size, count
    cdef Py_ssize_t drawn  # rows drawn for a batch that could not be returned
    cdef object rng, pool
    cdef list room      # an array of `size` rows for each column; None before the first row
    cdef object order   # a permutation of the buffer's positions; the first `count` are taken
    cdef int64_t[::1] positions

    def __init__(self, source, reader, Py_ssize_t batch_size, bint drop_last, Py_ssize_t size, rng):
        Rebatcher.__init__(self, source, reader, batch_size, drop_last)
        self.size, self.rng = size, rng
        self.order = np.arange(size, dtype=np.int64)
        self.positions = self.order

    cdef int fill(self) except -1:
        """Fill the buffer, at the end with all rows that are left."""
        cdef Py_ssize_t n, i, wanted
        cdef Block block
        while self.drawn == 0 and self.count < self.size and self.advance():
            block = self.block
            if self.room is None:
                # Ordinary memory: the buffer outlives the slot.
                self.room = [np.empty((self.size, *array.shape[1:]), array.dtype) for array in block.arrays]
                self.pool = None if block.rest is None else self.reader.pool(self.size)
            n = wanted = min(self.size - self.count, block.rows - block.at)
            error, arrays, first = None, block.arrays, block.at
            if block.writes:
                arrays, first = [room_for_one(array, n) for array in arrays], 0
                n, error = written(arrays, 0, block.arrays, block.at, n)
                put(arrays, 0, block.arrays, block.at, n)
            if n and block.rest is not None:
                self.pool.put(self.order[self.count:self.count + n], block.rest.slice(block.at, n),
                              self.order[:self.count])
            for i in range(len(arrays)):
                scatter(self.room[i], &self.positions[self.count], arrays[i], first, n)
            self.count += n
            self.used(n if n == wanted else n + 1)
            block = arrays = None
            if error is not None:
                raise error
        return 0

    cdef int draw(self, Py_ssize_t n) except -1:
        """Move `n` positions, drawn at random, to the end of those that are taken (a Fisher-Yates shuffle)."""
        cdef Py_ssize_t i, last
        cdef const int64_t[::1] drawn = self.rng.integers(0, np.arange(self.count, self.count - n, -1))
        for i in range(n):
            last = self.count - 1 - i
            self.positions[drawn[i]], self.positions[last] = self.positions[last], self.positions[drawn[i]]
        return 0

    def catch_up(self):
        cdef Py_ssize_t n
        while self.rows_to_skip > 0:
            self.fill()
            n = min(self.batch_size, self.count)
            if n == 0:
                return self.rows_to_skip
            self.draw(n)
            self.count -= n
            self.rows_to_skip -= n
            self.made += n
            self.batches += 1
        return 0

    def __next__(self):
        cdef list out
        cdef Py_ssize_t n, i
        self.fill()
        n = min(self.batch_size, self.count)
        if n == 0 or (n < self.batch_size and self.drop_last):
            raise StopIteration
        out = room_for(self.room, n)
        if self.drawn == 0:
            self.draw(n)
            self.drawn = n
        for i in range(len(out)):
            gather(out[i], self.room[i], &self.positions[self.count - n], n)
        rest = None if self.pool is None else self.pool.take(self.order[self.count - n:self.count])
        batch = self.reader.named(out, rest)
        self.count -= self.drawn
        self.drawn = 0
        self.made += n
        self.batches += 1
        return batch


cdef class BlockReading:
    """An iterator over the batches of a `Rebatcher` that a subclass makes at the first request."""

    cdef public object made  # the Rebatcher, or None; ``open()`` of the subclass sets it
    cdef public int64_t rows_to_skip  # the first rows; ``catch_up()`` of the subclass skips them, and sets it to 0
    cdef bint running  # in next()

    def __iter__(self):
        return self

    def __next__(self):
        with cython.critical_section(self):
            if self.running:
                raise ValueError("next() of this iterator is running: threads can share a loader's iterator instead")
            self.running = True
        try:
            if self.made is None:
                self.open()
            if self.rows_to_skip:
                self.catch_up()
            return next(self.made)
        finally:
            self.running = False


cdef list room_for(list arrays, Py_ssize_t rows):
    """Return arrays for so many rows, in the slot that is being filled."""
    if current_writer() is None:
        return [room_for_one(array, rows) for array in arrays]
    return [empty((rows, *(<object> array).shape[1:]), (<object> array).dtype) for array in arrays]


cdef object room_for_one(array, Py_ssize_t rows):
    """Return an array for so many rows of a column, in ordinary memory."""
    cdef cnp.npy_intp dims[64]  # as many as numpy has
    cdef cnp.ndarray like
    if not isinstance(array, np.ndarray):
        return np.empty((rows, *array.shape[1:]), array.dtype)
    like = array
    dims[0] = rows
    memcpy(dims + 1, cnp.PyArray_DIMS(like) + 1, (cnp.PyArray_NDIM(like) - 1) * sizeof(cnp.npy_intp))
    Py_INCREF(like.descr)  # the call steals a reference
    return PyArray_Empty(cnp.PyArray_NDIM(like), dims, like.descr, 0)


cdef tuple written(list to, Py_ssize_t at, list source, Py_ssize_t first, Py_ssize_t n):
    """Let columns write their rows to ``to[...][at:at + n]``; return (rows that all could write, error of the next)."""
    cdef Py_ssize_t i
    error = None
    for i in range(len(to)):
        if not isinstance(source[i], np.ndarray):
            made, why = source[i].write((<object> to[i])[at:at + n], first)
            if made < n:
                n, error = made, why
    return n, error


cdef cnp.npy_intp row_size(cnp.ndarray array) noexcept:
    """Return the bytes of a row."""
    cdef cnp.npy_intp size = cnp.PyArray_ITEMSIZE(array)
    cdef int d
    for d in range(1, cnp.PyArray_NDIM(array)):
        size *= cnp.PyArray_DIM(array, d)
    return size


cdef int put(list to, Py_ssize_t at, list source, Py_ssize_t first, Py_ssize_t n) except -1:
    """Copy rows of each column to ``to[...][at:at + n]``."""
    cdef Py_ssize_t i
    cdef cnp.npy_intp row
    cdef cnp.ndarray there, here
    for i in range(len(to)):
        if not isinstance(source[i], np.ndarray):
            continue  # it has been written
        there, here = to[i], source[i]
        if cnp.PyArray_IS_C_CONTIGUOUS(here):
            row = row_size(there)
            copy_in(<char *> cnp.PyArray_DATA(there) + at * row, <char *> cnp.PyArray_DATA(here) + first * row, n * row)
        else:
            (<object> there)[at:at + n] = (<object> here)[first:first + n]
    return 0


cdef int scatter(cnp.ndarray to, const int64_t *rows, cnp.ndarray source, Py_ssize_t first, Py_ssize_t n) except -1:
    """Copy rows to these rows of `to`."""
    cdef Py_ssize_t i
    cdef cnp.npy_intp row = row_size(to)
    cdef char *there = <char *> cnp.PyArray_DATA(to)
    cdef const char *here
    if not cnp.PyArray_IS_C_CONTIGUOUS(source):
        source = np.ascontiguousarray((<object> source)[first:first + n])
        first = 0
    here = <const char *> cnp.PyArray_DATA(source) + first * row
    with nogil:
        for i in range(n):
            memcpy(there + rows[i] * row, here + i * row, row)
    return 0


cdef int gather(cnp.ndarray to, cnp.ndarray source, const int64_t *positions, Py_ssize_t n) except -1:
    """Copy the numbered rows, one after the other."""
    cdef Py_ssize_t i
    cdef cnp.npy_intp row = row_size(to)
    cdef const char **rows = <const char **> PyMem_Malloc(n * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    for i in range(n):
        rows[i] = <const char *> cnp.PyArray_DATA(source) + positions[i] * row
    copy_rows(<char *> cnp.PyArray_DATA(to), rows, n, row)
    PyMem_Free(rows)
    return 0


# ---- shards: it is known where in a shard the delivered rows end


@cython.final
@cython.auto_pickle(False)
cdef class OpenedShard:
    """The blocks of a shard, and whether its source has failed: a generator that has raised is at its end."""

    cdef object blocks
    cdef bint failed

    def __init__(self, blocks):
        self.blocks = iter(blocks)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.blocks)
        except StopIteration:
            raise
        except BaseException:
            self.failed = True
            raise


cdef int64_t SURELY_ALL = 1 << 60  # blocks of a piece


cdef class ShardRebatcher(Rebatcher):
    """A `Rebatcher` of pieces of shards, one after the other. It knows where in a shard the delivered rows end.

    If the source of a shard has raised, the shard is opened again at the next request, and continues at the row that it
    had reached. ``open(number)`` returns an iterable of what `reader` reads of it. A piece is [shard number,
    first row to deliver].
    """

    cdef object open
    cdef list pieces
    cdef list ends  # for each finished piece, the number of rows drawn up to its end
    cdef int64_t drawn
    cdef int64_t before  # rows of the open shard to pass over first
    cdef int64_t first  # the number of its first block
    cdef public tuple bad  # (piece, its blocks up to the last that raised an error); earlier errors are not repeated

    def __init__(self, open, reader, Py_ssize_t batch_size, bint drop_last, list pieces not None):
        Rebatcher.__init__(self, (), reader, batch_size, drop_last)
        self.source = None
        self.open, self.pieces, self.ends, self.bad = open, pieces, [], (-1, 0)

    cdef int64_t begun(self, Py_ssize_t piece) except -1:
        """Return how many rows had been drawn when a piece began."""
        return <int64_t> self.ends[piece - 1] if piece else 0

    cdef Block drawn_block(self):
        cdef Block block
        cdef Py_ssize_t n, at
        while True:
            if self.source is not None and (<OpenedShard?> self.source).failed:
                self.source = None
            if self.source is None:
                at = len(self.ends)
                if at == len(self.pieces):
                    return None
                number, first = self.pieces[at]
                self.before = <int64_t> first + self.drawn - self.begun(at)
                self.source = OpenedShard(self.open(number))
                piece, bad = self.bad
                self.first = self.number
                self.raised = self.number + (SURELY_ALL if at < piece else <int64_t> bad if at == piece else 0)
            try:
                block = Rebatcher.drawn_block(self)
            except BlockError:
                if self.before and self.given is NOTHING and not (<OpenedShard?> self.source).failed:
                    continue  # it was raised when these rows were first delivered
                if self.given is NOTHING:
                    self.bad = len(self.ends), self.number - self.first
                raise
            if block is None:
                if self.before:
                    self.source = None
                    number, first = self.pieces[len(self.ends)]
                    raise ValueError(
                        f"shard {number} is read from row {first} on, but has {self.before} rows too few for that: "
                        "resume with the shards that the states were taken of"
                    )
                self.ends.append(self.drawn)
                self.source = None
                continue
            n = min(self.before, block.rows)
            block.at = n
            self.before -= n
            self.drawn += block.rows - n
            if n < block.rows:
                return block

    def position(self):
        """Return (number of pieces that were delivered, next row in the shard of the piece after them)."""
        at = bisect.bisect_right(self.ends, self.made)
        return (at, self.pieces[at][1] + self.made - self.begun(at)) if at < len(self.pieces) else (at, 0)
