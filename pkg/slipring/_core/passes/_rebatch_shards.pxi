# Part of _rebatch.pyx: batches of an exact size from shards. It knows where in a shard the delivered rows end.

import bisect

cimport cython
from libc.stdint cimport int64_t


from slipring.errors import BlockError


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
    had reached. ``open(number)`` returns an iterable of what `feed` reads for a shard. A piece is [number of the shard,
    its first row to deliver].
    """

    cdef object open
    cdef list pieces
    cdef list ends  # for each finished piece, the number of rows drawn up to its end
    cdef int64_t drawn
    cdef int64_t before  # rows of the open shard to pass over first
    cdef int64_t first  # the number of its first block
    cdef public tuple bad  # (piece, its blocks up to the last that raised an error); earlier errors are not repeated

    def __init__(self, open, feed, Py_ssize_t batch_size, bint drop_last, list pieces not None):
        Rebatcher.__init__(self, (), feed, batch_size, drop_last)
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

    def place(self):
        """Return (number of pieces that were delivered, next row in the shard of the piece after them)."""
        at = bisect.bisect_right(self.ends, self.made)
        return (at, self.pieces[at][1] + self.made - self.begun(at)) if at < len(self.pieces) else (at, 0)
