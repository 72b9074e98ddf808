from libc.stdint cimport uint32_t, uint64_t

from slipring.ring._ring cimport Ring


cdef class Snapshots:
    cdef Ring ring
    cdef uint64_t run
    cdef object streams, tally
    cdef dict kept  # worker -> (run, batches, the mark behind them)
    cdef object keep(self, worker, uint64_t sequence, value)
    cdef object peek(self, uint32_t slot)
