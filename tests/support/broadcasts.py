"""Readers of a broadcast in other processes: forked, spawned, or programs that have only the handle."""

import hashlib
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np

from slipring.errors import ShutDown, SlipringError
from tests.support.processes import ROOT

fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")


def message(number, size=1000):
    """Return a message that says its number, with an array that depends on it."""
    return {"number": number, "rows": np.full(size + number, number % 251, np.uint8), "name": f"message {number}"}


def digest(value):
    return value["number"], hashlib.sha256(value["rows"].tobytes() + value["name"].encode()).hexdigest()


def read_all(handle, keep=0, copy="auto"):
    """Read until the writer closes; return the digests. Up to `keep` messages are kept meanwhile, and read again."""
    seen, kept = [], []
    with handle.open(copy=copy) as reader:
        for value in reader:
            seen.append(digest(value))
            kept.append((value, seen[-1]))
            del value
            while len(kept) > keep:
                old, before = kept.pop(0)
                assert digest(old) == before
    return seen


def _send(pipe, function, *args):
    pipe.send(function(*args))
    pipe.close()


class Reading:
    """`read_all` in another process; `result` waits for its end."""

    def __init__(self, handle, way="fork", **options):
        self.way = way
        if way == "unrelated":
            command = [sys.executable, "-m", "tests.support.broadcasts", str(options.get("keep", 0))]
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.process.stdin.write(pickle.dumps(handle))
            self.process.stdin.close()
        else:
            self.pipe, sender = fork.Pipe(duplex=False)
            context = fork if way == "fork" else spawn
            args = (sender, read_all, handle, options.get("keep", 0))
            self.process = context.Process(target=_send, args=args)
            self.process.start()
            sender.close()

    def result(self):
        if self.way == "unrelated":
            with self.process as process:
                told = process.stdout.read()
            assert process.returncode == 0
            return pickle.loads(told)
        told = self.pipe.recv()
        self.pipe.close()
        self.process.join()
        return told


class Child:
    """A forked process that runs `part(tell, *args)`, and can be killed; `told` returns what it has told next."""

    def __init__(self, part, *args):
        self.pipe, sender = fork.Pipe(duplex=False)
        self.process = fork.Process(target=self._run, args=(sender, part, args))
        self.process.start()
        self.pid = self.process.pid
        sender.close()

    @staticmethod
    def _run(sender, part, args):
        part(sender.send, *args)

    def told(self):
        return self.pipe.recv()

    def end(self, kill=False):
        """Wait for its end, or kill it; return its exit code."""
        if kill:
            self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def get_all(tell, handle, **options):
    """Read until the end of the broadcast; tell each message's number, and at last how it ended."""
    with handle.open(**options) as reader:
        tell("joined")
        try:
            while True:
                tell(digest(reader.get())[0])
        except ShutDown:
            tell("shut down")
        except SlipringError as error:
            tell(type(error).__name__)


if __name__ == "__main__":
    opened = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(read_all(opened, int(sys.argv[1]))))
    sys.stdout.flush()
    os._exit(0)
