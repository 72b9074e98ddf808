"""The stop points of a `steps` build (tests/steps): their names, and orders to hit a process at one of them.

Call `load` before anything imports slipring: then its C ring is the one with the points.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig
from collections import Counter

ROOT = pathlib.Path(__file__).parents[2]
STRIKES, MOST_STEPS = 4, 1024  # as in tests/steps/steps.c
MODULE = "slipring._core.ring._segment"
ANY_WORKER = -1
CONSUMER = 0


def build():
    """Build the C ring with its points outside the package; return the module's path."""
    tag = sysconfig.get_config_var("EXT_SUFFIX")
    lib = ROOT / "build" / "steps" / "lib"
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", os.fspath(lib)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "SLIPRING_BUILD": "steps"}
    )
    if done.returncode != 0:
        raise RuntimeError(f"the steps build failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    return lib / "slipring" / "_core" / "ring" / f"_segment{tag}"


class _Finder:
    """Finds one module: the build with the points."""

    def __init__(self, path):
        self.path = os.fspath(path)

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, self.path)
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)


class _Step(ctypes.Structure):
    _fields_ = (*((field, ctypes.c_char_p) for field in ("file", "function", "what", "word")), ("line", ctypes.c_int))


class Strike(ctypes.Structure):
    """One order: which process is hit, where and how, and the outcome; see tests/steps/steps.c."""

    _fields_ = tuple(
        (field, ctypes.c_int32) for field in ("step", "participant", "how", "times", "left", "done", "pid", "worker")
    )


class _Board(ctypes.Structure):
    _fields_ = (("strikes", Strike * STRIKES), ("hits", (ctypes.c_uint32 * MOST_STEPS) * 2))


class Points:
    """The points of the loaded build.

    Attributes
    ----------
    names : list of str
        "function: before cas &s->state"; "(2)" and so on if a function has several of them. Points of the cache begin
        with "cache, ".
    """

    def __init__(self, path):
        library = ctypes.CDLL(os.fspath(path))
        library.sr_steps_at.restype = ctypes.POINTER(_Step)
        library.sr_steps_board.restype = ctypes.POINTER(_Board)
        steps = [library.sr_steps_at(i).contents for i in range(library.sr_steps_count())]
        if not 0 < len(steps) <= MOST_STEPS:
            raise RuntimeError(f"{len(steps)} points, room for {MOST_STEPS}: raise MOST_STEPS")
        texts = [f"{s.function.decode()}: {s.what.decode()} {s.word.decode()}" for s in steps]
        texts = [f"cache, {text}" if b"cache" in s.file else text for text, s in zip(texts, steps, strict=True)]
        seen, self.names = Counter(), [""] * len(steps)
        for i in sorted(range(len(steps)), key=lambda i: (steps[i].file, steps[i].line)):
            seen[texts[i]] += 1
            self.names[i] = texts[i] + (f" ({seen[texts[i]]})" if seen[texts[i]] > 1 else "")
        self._library, self._board = library, library.sr_steps_board().contents

    def hits(self, workers):
        """Return the Counter of points that workers (or the consumer) have passed since `forget`."""
        counts = self._board.hits[1 if workers else 0]
        return Counter({name: counts[i] for i, name in enumerate(self.names) if counts[i]})

    def become(self, participant):
        """Count and hit this process as `participant`, whatever its number in a segment is."""
        self._library.sr_steps_be(participant)

    def strikes(self):
        """Return all orders."""
        return list(self._board.strikes)

    def forget(self):
        """Delete all orders and counts."""
        ctypes.memset(ctypes.byref(self._board), 0, ctypes.sizeof(self._board))
        for strike in self._board.strikes:
            strike.step = -1

    def order(self, name, how, skip=0, participant=ANY_WORKER, times=1, slot=0):
        """Order a hit on the next process that passes a point, after `skip` others; return the order.

        Parameters
        ----------
        how : int
            A signal; 0 for _exit(3).
        """
        strike = self._board.strikes[slot]
        strike.step = -1
        strike.participant, strike.how, strike.times, strike.left, strike.done = (participant, int(how), times, skip, 0)
        strike.step = self.names.index(name)
        return strike


def load(path):
    """Let slipring use the build at `path` in this process; return its `Points`."""
    if "slipring" in sys.modules:
        raise RuntimeError("slipring has been imported already: load the points before")
    sys.meta_path.insert(0, _Finder(path))
    points = Points(path)
    import slipring._core.ring._segment

    if slipring._core.ring._segment.__file__ != os.fspath(path):
        raise RuntimeError(f"{MODULE} came from {slipring._core.ring._segment.__file__}, not from {path}")
    return points
