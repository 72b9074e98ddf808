"""What a pass with workers checks between batches and in long waits, at most ten times a second."""

from slipring._core.ring._segment import now
from slipring._core.workers.deaths import log_replay
from slipring._core.workers.stateful import attempt

SECOND = 10**9  # ns
SOON = SECOND // 10  # ns, until the next look while workers come or go
FOREVER = (1 << 64) - 1


class Supervisor:
    """The checks of one pass: deaths of workers, their number, their memory, and long waits.

    The methods take the `Iteration`, because a reference to it would keep it alive.
    """

    def __init__(self, engine, options, tuner):
        self.options, self.tuner = options, tuner
        self.memory, self.memory_at = engine.memory, 0  # watches the growth of the workers' memory; or None
        self.resized = None  # options with another number of workers, until they have been applied

    def look(self, iteration, engine, exhausted):
        """Look at memory and workers between two batches; return the time of the next look, in ns."""
        then = FOREVER
        if self.resized is not None:
            self.change_workers(iteration, engine)
        if self.tuner is not None:
            options = self.tuner.look(engine, self.options, exhausted)
            if options is not None:
                self.resized = options
                self.change_workers(iteration, engine)
            then = self.tuner.look_next
        if self.memory is not None:
            if now() >= self.memory_at:
                self.memory_at = now() + int(min(self.memory.look(iteration.ring), 1e9) * SECOND)
            then = min(then, self.memory_at)
        if engine.pool.resizing:
            engine.pool.reconcile()
            then = min(then, now() + SOON)
        return then if self.resized is None else 0

    def change_workers(self, iteration, engine):
        """Adapt workers and tasks in flight to the options in `resized`, or leave that to the next iteration."""
        options, self.resized = self.resized, None
        if options is None or engine.by_turns or options.num_workers > engine.worker_capacity:
            return
        iteration.prefetch_depth = options.prefetch_depth
        engine.resize(options.num_workers)  # if a signal handler raises in it, the pool itself continues

    def check(self, iteration, engine, respawns):
        """Replace dead workers or raise `WorkerDied`."""
        self.change_workers(iteration, engine)
        engine.pool.check((lambda number: state_for(iteration, number)) if respawns else None)

    def log_wait(self, ring, seq, waited):
        """Log that the loop has waited so many seconds for a batch. If that fails, no batch is lost."""
        from slipring._core.passes import reporting  # most programs never need it

        attempt(reporting.log_wait, ring, seq, waited)

    def end(self, at):
        """End the tuner's measurement at a time in ns; the program's later activity is unknown."""
        if self.tuner is not None:
            self.tuner.end(at)


def state_for(iteration, number):
    """Return the position from which a dead worker's replacement continues; see `Worker.inherited`.

    It is the newest state that the worker has published in this iteration, delivered or not. The replacement reads the
    later samples again.
    """
    worker, streams = iteration.position.workers[number], iteration.streams
    at, state = worker.at, worker.state if worker.at >= 0 else None
    due = streams.sequence[number] if number in streams.rotation else None
    # The tasks of a worker in the order of their sequence: those that have left their slots come before the others.
    received = [(task, later) for task, later in iteration.left() if task.worker == number]
    for task, later in received:
        if later is not None:
            state, at = later, task.sequence + 1
    for task in iteration.tasks.all():
        if task.worker != number:
            continue
        if not iteration.is_ready(task):
            due = task.sequence
            break
        later = iteration.state_at(task.slot)
        if later is not None:
            state, at = later, task.sequence + 1
    at = max(at, 0)
    if due:
        iteration.engine.counters.goes_on(state is not None, due - at)
        log_replay(number, due - at, state is not None)
    return iteration.iteration, at, state
