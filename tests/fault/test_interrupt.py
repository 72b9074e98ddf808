"""Ctrl-C in a terminal reaches the consumer and its workers at the same time: one clean traceback, and all end."""

import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipring import Loader, Workers
from tests.support.inside import engine_of, no_interrupt
from tests.support.parts import slow
from tests.support.processes import Program, circulating, until, wait_dead, waits, worker_pids
from tests.support.scenes import Gate, Rows
from tests.support.signals import handling

pytestmark = pytest.mark.fault

TIMES = 6  # in each mode
# Seconds in which a program makes a loader, iterates two epochs and closes it.
ROUND_S = {"fork": 0.15, "spawn": 0.8, "forkserver": 0.8, "thread": 0.1}


@pytest.mark.parametrize(
    "arguments",
    [
        ("loop", "fork", "temporary", "stream"),
        slow(("loop", "spawn", "persistent", "map")),
        slow(("loop", "forkserver", "persistent", "map")),
        ("loop", "thread", "persistent", "map"),
        ("resizing", "fork"),
        ("resizing", "thread"),
        slow(("resizing", "spawn")),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_ctrl_c_at_a_random_instant_gives_one_traceback_and_ends_all(arguments):
    method, seed = arguments[1], os.environ.get("SLIPRING_TEST_SEED", "1")
    rng = random.Random(f"{' '.join(arguments)} {seed}")
    for _ in range(TIMES):
        with Program(*arguments) as program:
            assert "begun" in program.line()
            after = rng.random() * ROUND_S[method]
            threading.Event().wait(after)
            program.signal_all(signal.SIGINT)
            code, _, err = program.end()
            message = f"{after:.4f} s after its beginning:\n{err}"
            assert err.rstrip().endswith("KeyboardInterrupt"), message
            assert len(re.findall("Traceback", err)) == 1, message
            assert "Exception ignored" not in err, message
            # CPython loses the reason for its exit if another thread evaluates a string at that moment.
            assert code == -signal.SIGINT or (method, code) == ("thread", 1), message


@pytest.mark.parametrize("adapter", ["fork", slow("spawn"), "torch"])
def test_an_iteration_can_continue_after_ctrl_c_in_next(tmp_path, adapter):
    with Gate(tmp_path / "gate") as gate:
        data = Rows(40, on={9: gate})
        if adapter == "torch":
            loader = pytest.importorskip("slipring.torch").DataLoader(data, 8, num_workers=2)
        else:
            loader = Loader(data, 8, num_workers=2, workers=Workers(start_method=adapter))
        with loader:
            it = iter(loader)
            assert next(it)[1][0] == 0
            pids = [] if adapter == "torch" else worker_pids(loader).values()
            gate.arrived()
            for _ in range(3):
                interrupter = threading.Thread(target=interrupt_when_waiting, args=(pids,))
                interrupter.start()
                with pytest.raises(KeyboardInterrupt):
                    next(it)
                interrupter.join()
            gate.open()
            assert [b[1][0] for b in it] == [8, 16, 24, 32]
            if adapter != "torch":
                assert circulating(engine_of(loader).ring)[0] == loader.stats().slots


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_no_python_code_runs_when_an_iteration_goes_at_the_end_of_its_loop(method):
    """A handler's exception would be lost in it: Python cannot raise it to any caller."""
    called = []

    def note(frame, event, arg):
        if event == "call":
            called.append(frame.f_code)

    with Loader(Rows(8), 4, num_workers=2, persistent_workers=True, workers=Workers(start_method=method)) as loader:
        it = iter(loader)
        assert len(list(it)) == 2
        sys.setprofile(note)
        try:
            del it
        finally:
            sys.setprofile(None)
    assert called == []


def test_ctrl_c_while_the_pool_is_imported_comes_after_it():
    """Compiled modules that register classes at their import swallow a handler's exception there."""
    script = (
        "import abc, signal, sys\n"
        "from slipring import Loader\n"
        "register = abc.ABCMeta.register\n"
        "def interrupted(*args):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    return register(*args)\n"
        "abc.ABCMeta.register = interrupted\n"
        "try:\n"
        "    iter(Loader(range(8), 4, num_workers=1))\n"
        "except KeyboardInterrupt:\n"
        "    print('raised', 'slipring._core.workers.process_pool' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("raised True\n", "")


def test_the_programs_handlers_do_not_run_in_workers():
    """A scheduler ends a job by a signal to all its processes; one of them writes the checkpoint."""
    ran, told = os.pipe()
    with (
        handling(lambda *_: os.write(told, b"%d " % os.getpid()), signal.SIGTERM),
        Loader(Rows(40), 8, num_workers=2, workers=Workers(start_method="fork")) as loader,
    ):
        it = iter(loader)
        next(it)
        for pid in (*worker_pids(loader).values(), os.getpid()):
            os.kill(pid, signal.SIGTERM)
        assert len(list(it)) == 4
    os.close(told)
    with os.fdopen(ran, "rb") as said:
        assert said.read() == b"%d " % os.getpid()


def interrupt_when_waiting(pids):
    """Send SIGINT to the workers, which ignore it, and then to this process."""
    until(lambda: waits(os.getpid()), "the consumer waits")
    for pid in (*pids, os.getpid()):
        os.kill(pid, signal.SIGINT)


def test_a_close_that_ctrl_c_interrupted_can_be_done_again(tmp_path):
    with Gate(tmp_path / "gate") as gate:
        loader = Loader(
            Rows(40, on=dict.fromkeys(range(8, 40), gate)), 8, num_workers=2, workers=Workers(start_method="fork")
        )
        it = iter(loader)
        next(it)
        pids = [gate.arrived(), gate.arrived()]
        engine = engine_of(loader)
        interrupter = threading.Thread(target=interrupt_when_waiting, args=([],))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            loader.close()
        interrupter.join()
        gate.open(40)
        engine.shut_down()
        for pid in pids:
            wait_dead(pid)
        assert not engine.alive


@pytest.mark.parametrize("raises", [None, KeyError])
def test_signals_during_a_workers_start_are_handled_after_it_each_once(raises):
    """A handler that raises keeps no other handler from being called, and none from being restored.

    Another thread takes the signals: a mask is each thread's own, but handlers always run in the main thread.
    """
    seen = []

    def handler(number, frame):
        seen.append(number)
        if raises:
            raise raises(number)

    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    with handling(handler), handling(handler, signal.SIGUSR2):
        with (
            ThreadPoolExecutor(1) as executor,
            pytest.raises(raises) if raises else contextlib.nullcontext(),
        ):
            executor.submit(int).result()  # its thread begins with an open mask
            with no_interrupt(True):
                for number in numbers:
                    executor.submit(signal.raise_signal, number).result()
                during = list(seen)
        assert during == []
        assert sorted(seen) == sorted(numbers)
        assert [signal.getsignal(number) for number in numbers] == [handler, handler]


def test_system_calls_that_continue_after_a_signal_still_do_after_a_workers_start():
    def restarts():
        libc, act = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint64 * 32)()
        assert libc.sigaction(int(signal.SIGUSR1), None, act) == 0
        return bool(act[17] & 0x10000000)  # sa_flags follow the handler and 1024 bits of mask

    with handling(lambda *_: None):
        signal.siginterrupt(signal.SIGUSR1, False)
        assert restarts()
        with no_interrupt():
            pass
        assert restarts()
