"""The main function of a worker's process or thread, from its start to its end."""

import dataclasses
import gc
import os
import signal
import sys

from slipring._core.codec._encode import END, ERROR
from slipring._core.ring._ring import FINISH, TASK_NEXT
from slipring._core.ring.sample_marks import count_process_in
from slipring._core.workers import error_record

FUNCTIONS = ("collate_fn", "worker_init_fn")  # options with the program's own objects, which may be large
PARTS = ("dataset", *FUNCTIONS)


def parts_of(job):
    """Return the parts of a job that `PARTS` names."""
    return (job.dataset, *(getattr(job.options, name) for name in FUNCTIONS))


class SentJob:
    """A job on its way to a worker's process, where it arrives as the `Job` itself.

    Parameters
    ----------
    job : Job
    shared : SharedPickle
        Of `parts_of` the job.
    """

    def __init__(self, job, shared):
        self.rest, self.shared = rest_of(job), shared

    def __reduce__(self):
        return job_of, (self.rest, self.shared)


def rest_of(job):
    """Return a job without `parts_of` it."""
    options = dataclasses.replace(job.options, **dict.fromkeys(FUNCTIONS))
    return dataclasses.replace(job, dataset=None, options=options)


def job_of(rest, parts):
    """Return the job whose `rest_of` and `parts_of` these are."""
    dataset, *functions = parts
    options = dataclasses.replace(rest.options, **dict(zip(FUNCTIONS, functions, strict=True)))
    return dataclasses.replace(rest, dataset=dataset, options=options)


def _ignore(signum, frame):
    """Ignore a signal: the consumer receives it, too, and ends the workers. (SIG_IGN would pass to children.)"""


def _leave_signals_to_consumer():
    """Replace the handlers that a worker has from its parent, so that it writes no checkpoint, for example.

    Ctrl-C and the signals of a job's scheduler go to all processes. A signal without a Python handler keeps its action.
    """
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, _ignore)
    signal.set_wakeup_fd(-1)  # the parent's: its event loop would take this process's signals for its own


def process_main(ring, number, job, base_seed, mask, inherited=None, collects=True):
    """Run in the worker's process: the target of `multiprocessing.Process`.

    Parameters
    ----------
    mask : set of signal.Signals
        The signal mask to restore: SIGINT is blocked during the start.
    inherited : tuple, optional
        See `Worker`.
    collects : bool
        Whether to run the garbage collector.
    """
    # Objects from before the fork are the parent's to collect. Freeing a device's tensor whose use by streams has been
    # recorded calls CUDA, which fails in a forked process: torch would abort.
    gc.freeze()
    if collects:
        gc.enable()
    _leave_signals_to_consumer()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ring.in_child()
    ring.join(number + 1)
    ring.watch_consumer()
    count_process_in(ring)
    one_thread()
    os.environ["WORKER"], os.environ["NUM_WORKERS"] = str(number), str(job.num_workers)
    run(job.worker_class(ring, number, job, True, inherited), base_seed)


def run(worker, base_seed):
    """Run a worker from its beginning to its end, in its process or thread."""
    try:
        try:
            worker.begin(base_seed)
        except Exception as error:
            serve_failure(worker, error)
        else:
            worker.serve()
    finally:
        worker.close()


def serve_failure(worker, error):
    """Answer every task (of a stream: the first) with the exception that `worker_init_fn` raised."""
    worker.ring.serve(worker.participant)
    while (fill := worker.ring.claim(worker.participant, -1)) is not None:
        answer_with_failure(worker, error, fill)


def answer_with_failure(worker, error, fill):
    """Answer a claimed task with the exception that `worker_init_fn` raised; see `serve_failure`."""
    if fill.kind == TASK_NEXT and fill.sequence > 0:
        worker.encoder.publish(fill, [None], END)
        return
    described = error_record.record(error, worker.number, fill.seq, None)
    if fill.range in (None, FINISH) or worker.encoder.stage(fill, [described], ERROR):
        worker.encoder.publish(fill, [described], ERROR)


def one_thread():
    """Give torch and OpenMP one thread: the workers are the parallelism."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)
