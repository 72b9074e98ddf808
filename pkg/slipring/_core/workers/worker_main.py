"""The main function of a worker's process or thread, from its start to its end."""

import dataclasses
import gc
import os
import signal
import sys

from slipring._core.codec._encode import END, ERROR
from slipring._core.ring import numa
from slipring._core.ring._ring import FINISH, TASK_NEXT
from slipring._core.ring.sample_marks import count_process_in
from slipring._core.workers import error_record

FUNCTIONS = ("collate_fn", "worker_init_fn")  # options with the program's own objects, which may be large
PARTS = ("dataset", *FUNCTIONS)
DEVICE_FILES = "/dev/nvidia"  # tests put a path of their own there


def parts_of(job):
    """Return the parts of a job that `PARTS` names."""
    return (job.dataset, *(getattr(job.options, name) for name in FUNCTIONS))


class SentJob:
    """A job on its way to a worker's process, where it arrives as the `Job`; `shared` is a pickle of its `parts_of`."""

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


def _release_device_files():
    """Replace the descriptors of GPUs that a forked worker has inherited by descriptors of /dev/null.

    The worker cannot use them, but until it ends, the driver would keep the memory of a parent that was killed. The
    numbers stay in use, because the driver's libraries remember them.
    """
    paths = {number: _path_of(number) for number in map(int, os.listdir("/proc/self/fd"))}
    found = [number for number, path in paths.items() if path.startswith(DEVICE_FILES)]
    if found:
        null = os.open(os.devnull, os.O_RDWR)
        for number in found:
            os.dup2(null, number, inheritable=False)
        os.close(null)


def _path_of(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:  # the descriptor of the folder itself, which has been closed
        return ""


def process_main(ring, number, job, base_seed, mask, inherited=None, collects=True):
    """Run in the worker's process: the target of `multiprocessing.Process`.

    `mask` is the signal mask to restore: SIGINT is blocked during the start. `collects`: run the garbage collector.
    """
    # Objects from before the fork are the parent's to collect. Freeing a device's tensor whose use by streams has been
    # recorded calls CUDA, which fails in a forked process: torch would abort.
    gc.freeze()
    if collects:
        gc.enable()
    _leave_signals_to_consumer()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if ring.forked:
        _release_device_files()
    stay_near(job, number)
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


def stay_near(job, number):
    """Keep the worker of this thread near its slots, if they are on a node of their own."""
    if job.node is not None:
        numa.pin(job.node, number, always=job.options.workers.numa != "auto")


def serve_failure(worker, error):
    """Answer every task (of a stream: the first) with the exception that `worker_init_fn` raised."""
    worker.ring.serve(worker.participant)
    while (writer := worker.ring.claim(worker.participant, -1)) is not None:
        answer_with_failure(worker, error, writer)


def answer_with_failure(worker, error, writer):
    """Answer a claimed task with the exception that `worker_init_fn` raised; see `serve_failure`."""
    if writer.kind == TASK_NEXT and writer.sequence > 0:
        worker.encoder.publish(writer, [None], END)
        return
    described = error_record.record(error, worker.number, writer.seq, None)
    if writer.range in (None, FINISH) or worker.encoder.stage(writer, [described], ERROR):
        worker.encoder.publish(writer, [described], ERROR)


def one_thread():
    """Give torch and OpenMP one thread: the workers are the parallelism."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)
