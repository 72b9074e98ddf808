"""The main function of a worker's process or thread, from its start to its end."""

import dataclasses
import gc
import os
import signal
import sys

from slipring._core import error_record
from slipring._core._codec import END, ERROR
from slipring._core._ring import FINISH, TASK_NEXT
from slipring._core.read_counts import count_process_in

FUNCTIONS = (
    "collate_fn",
    "worker_init_fn",
)  # options that are the program's, as its dataset is, and may be large
PARTS = ("dataset", *FUNCTIONS)


def parts_of(job):
    """Return what `PARTS` names of a job."""
    return (job.dataset, *(getattr(job.options, name) for name in FUNCTIONS))


class SentJob:
    """Arrives in a worker's process as the job itself.

    Parameters
    ----------
    job : Job
    shared : SharedPickle
        Of `parts_of` the job.
    """

    def __init__(self, job, shared):
        options = dataclasses.replace(job.options, **dict.fromkeys(FUNCTIONS))
        self.rest, self.shared = dataclasses.replace(job, dataset=None, options=options), shared

    def __reduce__(self):
        return _arrived, (self.rest, self.shared)


def _arrived(rest, parts):
    dataset, *functions = parts
    options = dataclasses.replace(rest.options, **dict(zip(FUNCTIONS, functions, strict=True)))
    return dataclasses.replace(rest, dataset=dataset, options=options)


def _ignore(signum, frame):
    """What reaches the consumer too is its business; it ends the workers. (SIG_IGN passes to children.)"""


def _leave_signals_to_consumer():
    """Undo the handlers that a worker has from its parent: a checkpoint is not for it to write.

    Ctrl-C, and what a job's scheduler sends, goes to all processes. A signal that Python does not handle
    does what it did.
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
        The signal mask to go back to: SIGINT has been blocked around the start.
    inherited : tuple, optional
        See `Worker`.
    collects : bool
        Whether the garbage collector is to run.
    """
    # What a fork has brought along is the parent's to collect. The end of a tensor on a device, whose use by
    # streams has been recorded, is a call of CUDA's, which fails in a forked process: torch would abort.
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
    run(job.worker(ring, number, "process", inherited), base_seed)


def run(worker, base_seed):
    """Live a worker's life, in its process or thread."""
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
        if fill.kind == TASK_NEXT and fill.sequence > 0:
            worker.encoder.publish(fill, [None], END)
            continue
        described = error_record.record(error, worker.number, fill.seq, None)
        if fill.range not in (None, FINISH):
            if not worker.encoder.stage(fill, [described], ERROR):
                continue
        worker.encoder.publish(fill, [described], ERROR)


def one_thread():
    """Workers are the parallelism: torch and OpenMP get one thread in each."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)
