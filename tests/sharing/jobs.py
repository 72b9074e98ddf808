"""Jobs of several ranks, for tests."""

import contextlib
import json
import os
import signal
import subprocess
import sys

from tests.support import warm
from tests.support.processes import LONG_S, ROOT


class Job:
    """The ranks of a scenario of `torch_ranks`, each in a process and session of its own.

    Use it as a context manager, which kills the ranks that still run.
    """

    def __init__(self, folder, scenario, ranks=3, **given):
        self.ranks = [_Rank(folder, scenario, number, ranks, given) for number in range(ranks)]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for rank in self.ranks:
            rank.kill()
            with rank.process:
                pass

    def __getitem__(self, number):
        return self.ranks[number]

    def say(self, *commands):
        """Send commands to all ranks, one after the other; return the answers to the last one."""
        answers = []
        for command in commands:
            for rank in self.ranks:
                rank.say(command)
            answers = [rank.line() for rank in self.ranks]
        return answers

    def results(self, without=()):
        """Wait until all ranks are done; return for each, but those that die, a dict of what it has said."""
        found = [rank.rest() for number, rank in enumerate(self.ranks) if number not in without]
        for rank in self.ranks:
            rank.process.stdin.close()
        return found


class _Rank:
    def __init__(self, folder, scenario, number, ranks, given):
        command = [sys.executable, "-m", "tests.sharing.torch_ranks", scenario, str(number), str(ranks)]
        self.process = warm.Program(
            [*command, str(folder), json.dumps(given)],
            cwd=ROOT,
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )

    @property
    def pid(self):
        return self.process.pid

    def say(self, command):
        """Send a line."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def ask(self, command):
        """Send a line, and return the answer."""
        self.say(command)
        return self.line()

    def line(self):
        """Return the next thing that the rank says."""
        line = self.process.stdout.readline()
        assert line, f"the rank has ended with {self.process.wait(LONG_S)}"
        return json.loads(line)

    def rest(self):
        """Return all that the rank says until it is done."""
        said = {}
        while not said.get("done"):
            said |= self.line()
        return said

    def kill(self):
        """Kill the rank and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_alone(self):
        """Kill the rank's own process."""
        os.kill(self.pid, signal.SIGKILL)
