"""A program that is watched from outside, and how a test starts it: ``python -m tests.support.watched SCENE OPTIONS``.

It prints a line of JSON when the test needs one, and reads a line when it waits for the test.
"""

import contextlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np

import slipring
from slipring._cli.main import main as command
from tests.support import warm
from tests.support.inside import SERVING, engine_of
from tests.support.options import grouped
from tests.support.processes import LONG_S, ROOT, until
from tests.support.scenes import Gate, Rows

# ---- the program


def say(**told):
    print(json.dumps({"pid": os.getpid(), **told}), flush=True)


def wait():
    """Return the test's next word; "" if the test has ended."""
    return sys.stdin.readline().strip()


def loader_of(n=1 << 20, gate=None, index=None, batch_size=4, photos=False, **options):
    on = {index: Gate(gate)} if gate else None
    data = photos_of(n) if photos else Rows(n, on=on)
    return slipring.Loader(data, batch_size, **grouped(**options))


def photos_of(n):
    """Return a dataset of images, with an operation and a function of its own in the list of transforms."""
    from slipring import images
    from tests.support.pictures import encoded, pixels

    class Photos(images.ImageDataset):
        def __len__(self):
            return n

        def read(self, index):
            return data, index

    data = encoded(pixels(20, 30))
    return Photos([images.Resize((24, 20)), images.Resize((40, 50)), np.negative])


def workers(loader):
    """Return the pids of all workers after the last one has started; an empty list without workers."""
    ring = engine_of(loader).ring

    def begun(number):
        pid, status = ring.participant(number)  # a worker that has only written its pid has not started
        return pid if status == SERVING else None

    numbers = range(1, loader.options.num_workers + 1)  # the segment has more entries
    return [until(lambda n=n: begun(n), f"worker {n - 1} has begun") for n in numbers]


def held(take=3, **options):
    """Take some batches, keep the last one, and wait; "close" closes the loader."""
    with loader_of(**options) as loader:
        batches = iter(loader)
        for _ in range(take):
            batch = next(batches)
        say(workers=workers(loader), kept=len(batch))
        if wait() == "close":
            del batch, batches
            loader.close()
            say(closed=True)
            wait()


def hung(**options):
    """Iterate; a worker hangs at the gate until the test opens it."""
    with loader_of(**options) as loader:
        say()
        for _ in loader:
            pass
    say(done=True)


def beginning(gate, **options):
    """Iterate; the workers hang at the gate while they start, until the test opens it."""
    with loader_of(8, worker_init_fn=lambda worker: Gate(gate)(), **options) as loader:
        say()
        for _ in loader:
            pass
    say(done=True)


def _unpickled(gate):
    Gate(gate)()
    return Rows(8)


class Unpickled:
    """A dataset that waits at a gate when a worker unpickles it."""

    def __init__(self, gate):
        self.gate = gate

    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise AssertionError("only the copy is read")

    def __reduce__(self):
        return _unpickled, (self.gate,)


def unpickling(gate):
    """Iterate; the worker hangs at the gate while it unpickles the dataset, until the test opens it."""
    with slipring.Loader(Unpickled(gate), num_workers=1, **grouped(start_method="spawn")) as loader:
        say()
        for _ in loader:
            pass
    say(done=True)


def collating(reads, collates):
    """Iterate; the worker hangs at a gate when it reads index 2, and at another when it collates that batch."""

    def collate(samples):
        Gate(collates)()
        return slipring.default_collate(samples)

    with loader_of(4, reads, 2, num_workers=1, collate_fn=collate, start_method="fork") as loader:
        say()
        for _ in loader:
            pass
    say(done=True)


def running(copies=False, **options):
    """Take batches until the test writes a line."""
    with loader_of(**options) as loader:
        for number, _ in enumerate(loader):
            if copies:
                engine_of(loader).ring.record_copy(0, 1e-4)
            if number == 20:
                say(workers=workers(loader))
            if select.select([sys.stdin], [], [], 0)[0]:
                say(took=number + 1)
                return


def asked(copies=False, **options):
    """Take as many batches as each line of the test says."""
    with loader_of(**options) as loader:
        batches = iter(loader)
        next(batches)
        say(workers=workers(loader))
        while more := wait():
            for _ in range(int(more)):
                next(batches)
                if copies:
                    engine_of(loader).ring.record_copy(0, 1e-4)
            say(took=more)


def several(n=2):
    """Use several loaders at the same time."""
    with contextlib.ExitStack() as stack:
        loaders = [stack.enter_context(loader_of(num_workers=1)) for _ in range(n)]
        its = [iter(loader) for loader in loaders]
        for it in its:
            next(it)
        say()
        wait()


def _put(queue, number, done):
    queue.put((number, np.arange(100)))
    done.wait()


class Sleeping:
    """Samples that take `seconds` each."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index


def ranked(file, reads):
    """Be a rank of a job whose steps end together, until the test says stop; a sample takes `reads[rank]` s."""
    import torch.distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    say()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    with slipring.Loader(Sleeping(reads[rank]), num_workers=1, **grouped(start_method="fork")) as loader:
        for number, _ in enumerate(loader):
            told = torch.tensor([float(bool(select.select([sys.stdin], [], [], 0)[0]))])
            torch.distributed.all_reduce(told)
            if number == 20:
                say()
            if told:
                break
    torch.distributed.destroy_process_group()


def queue(processes=3):
    """Hold a queue into which several processes have put messages; one message is left."""
    context = multiprocessing.get_context("fork")
    messages, done = slipring.Queue(8), context.Event()
    children = [context.Process(target=_put, args=(messages, n, done)) for n in range(processes)]
    for child in children:
        child.start()
    for _ in range(processes):
        messages.get()
    messages.put("last")
    say(children=[child.pid for child in children])
    wait()
    done.set()
    for child in children:
        child.join()


def opened(path):
    """Hold a file open for writing, without a loader."""
    with open(path, "r+b"):
        say()
        wait()


def nothing():
    """Wait without a loader."""
    say()
    wait()


SCENES = {
    each.__name__: each
    for each in (
        *(held, hung, beginning, unpickling, collating),
        *(running, asked, several, ranked, queue, opened, nothing),
    )
}


# ---- the test's side


class Watched:
    """The program, running.

    Attributes
    ----------
    told : dict
        The first line that the program has printed.
    """

    def __init__(self, scene, options, environment, start):
        self.process = start(
            [sys.executable, "-m", "tests.support.watched", scene, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        self.told = self.line()
        self.pid = self.told["pid"]

    def line(self):
        """Return the program's next line."""
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"the program has ended: {self.process.wait()}")
        return json.loads(line)

    def say(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def kill(self):
        """Kill the program, so that it cleans nothing up."""
        self.process.kill()
        self.process.wait()

    def end(self):
        """Let the program end; return its exit code."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(LONG_S)
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def watched(scene, environment=None, start=warm.Program, **options):
    """Run the program with a scene, from its first line until the block ends.

    With ``start=subprocess.Popen`` its command line in /proc is its own.
    """
    program = Watched(scene, options, environment or {}, start)
    try:
        yield program
    except BaseException:
        program.process.kill()
        raise
    finally:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGCONT)
        program.end()


def run(capsys, *arguments, columns=160):
    """Run a command in this process; return (exit code, output, errors)."""
    capsys.readouterr()
    with mock.patch.dict(os.environ, COLUMNS=str(columns)):
        code = command([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def fails(capsys, *arguments, code=1):
    """Run a command that must fail; return its one line."""
    found, out, err = run(capsys, *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1), (found, out, err)
    return err.strip()


if __name__ == "__main__":
    SCENES[sys.argv[1]](**json.loads(sys.argv[2]))
