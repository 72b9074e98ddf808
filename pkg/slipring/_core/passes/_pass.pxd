from libc.stdint cimport uint64_t

from slipring._core.passes._inflight cimport Position, Task
from slipring._core.passes._plan cimport StreamPlan
from slipring._core.passes._turnstile cimport Turnstile
from slipring._core.ring._order cimport Slices
from slipring._core.ring._ring cimport Ring
from slipring._core.ring._segment cimport Meter
from slipring._core.ring._slot cimport Lease


cdef class Pass(Turnstile):
    cdef object __weakref__
    cdef object _engine    # it makes the batches; None: the iteration is over
    cdef object options, on_end, rebuild, error
    cdef object _reason    # why it was closed: next() raises this text; None: next() raises StopIteration
    cdef object _next_pass  # begins the next pass in its argument, if this one ends without a batch; or None
    cdef public object finish_batch
    cdef object is_recorded, recording
    cdef readonly object before_return
    cdef uint64_t announced         # sequence number + 1 of the batch for which `before_return` was called last
    cdef readonly Ring ring         # None: the batches lie in no slot
    cdef Meter meter
    cdef Position _position
    cdef Task received             # the task whose batch has been received and not committed
    cdef Lease lease                # of its slot
    cdef object value               # its batch, or the exception in its place
    cdef object state      # the worker's state that came with it, or None
    cdef object uncommitted  # (task, state) of the batches that `Preloader` has, in order
    cdef dict indices      # sequence number -> the indices of a task in flight; None: no worker reads them again
    cdef object draw       # yields the next task
    cdef readonly StreamPlan streams  # the same object if workers make streams, else None
    cdef Slices slices     # the same object if slipring itself determines the order, else None
    cdef object would_wait  # returns whether the plan's next item must be waited for; None: never
    cdef object due        # an item of the plan that has not been dispatched
    cdef object plan_error  # raised after the batches that have been dispatched
    cdef object last_error  # raised at the end
    cdef uint64_t next_seq, look_next  # look_next: time of the next look() between two batches
    cdef set done          # sequence numbers that an earlier iteration has delivered
    cdef bint exhausted
    cdef bint at_end       # everything has been delivered
    cdef bint has_hooks    # other code must be called at each next()
    cdef bint is_plain     # workers, but neither streams nor states: a batch needs few steps
    cdef bint gives_way    # `receive` was interrupted by `restart`
    cdef bint dispatch_before_return
    cdef int begin_plan(self, options, plan, Position position) except -1
    cdef int check_process(self) except -1
    cdef int look(self) except -1
    cdef Task receive(self)
    cdef Task unpacked(self, Task task, int copy)
    cdef int dispatch(self, bint may_wait) except -1
    cpdef int raise_end(self, of=*) except -1
    cdef object next_here(self)
    cdef object next_batch(self)
    cdef Task receive_with_hooks(self)
    cpdef int announce(self, Task task) except -1
    cdef object commit(self, Task task)
    cdef int leave(self, Task task) except -1
    cdef int end_if_interrupted(self) except -1
    cdef int plan_next(self) except -1
    cdef object drawn(self)
    cdef void end_with(self, error)
