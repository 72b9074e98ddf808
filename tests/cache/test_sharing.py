"""One cache for several processes: forked, spawned, or unrelated ones that know its name; and their deaths."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import slipring
from slipring.errors import CacheMismatch
from tests.support import inside, warm
from tests.support.inside import find, label_of
from tests.support.leaks import read
from tests.support.processes import ROOT, in_child, state, until, wait_dead

FLUSHED = "import functools; print = functools.partial(print, flush=True)\n"
fork = multiprocessing.get_context("fork")


@pytest.fixture
def name():
    return f"test-{os.getpid()}-{os.urandom(4).hex()}"


class Program:
    """A Python program that answers line by line, and is killed at the end."""

    def __init__(self, text):
        command = [sys.executable, "-c", FLUSHED + textwrap.dedent(text)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = warm.Program(command, cwd=ROOT, **pipes)
        self.pid = self.process.pid

    def say(self, line=""):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, line):
        self.say(line)
        return self.hear()

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


# Opens a cache and evaluates Python expressions, one per line.
OPENED = """
    import os, sys
    import numpy as np
    import slipring
    cache = slipring.Cache("64MiB", name={name!r})
    print("open")
    for line in sys.stdin:
        print(eval(line))
"""


@pytest.fixture
def program(name):
    made = []

    def start(text=OPENED):
        made.append(Program(text.replace("{name!r}", repr(name))))
        return made[-1]

    yield start
    for one in made:
        one.end()


def has_connected(pid):
    return read(f"/proc/{pid}/syscall").split()[:1] in ([b"45"], [b"42"], [b"207"], [b"203"], [b"7"], [b"73"])


def test_a_parent_finds_the_entries_of_its_forked_child():
    with slipring.Cache("1MiB") as cache:
        assert in_child(lambda: cache.put(1, np.arange(5))) and cache.get(1).tolist() == [0, 1, 2, 3, 4]
        cache.put(2, "parent's")
        assert in_child(lambda: cache.get(2)) == "parent's"


def put_and_get(cache, key):
    found = cache.get(key)
    cache.put(key + 1, [found.sum()])


def test_a_started_process_gets_it_as_an_argument():
    context = multiprocessing.get_context("spawn")
    with slipring.Cache("1MiB") as cache:
        cache.put(1, np.arange(5))
        child = context.Process(target=put_and_get, args=(cache, 1))
        child.start()
        child.join()
        assert child.exitcode == 0 and cache.get(2) == [10]


def test_a_fork_in_the_middle_of_a_put_leaves_the_entry_to_the_parent():
    with slipring.Cache("1MiB") as cache:

        def make():
            pid = os.fork()
            if pid == 0:
                return "child's"
            assert os.waitpid(pid, 0)[1] == 0
            return "parent's"

        before = os.getpid()
        made = cache.get_or_make(1, make)
        if os.getpid() != before:
            os._exit(0 if made == "child's" and 1 not in cache else 1)
        assert made == "parent's" and cache.get(1) == "parent's"


def test_the_first_ones_budget_and_dataset_count(name):
    with slipring.Cache("2MiB", name=name) as first, slipring.Cache("1MiB", name=name) as second:
        first.bind("cats", "1", 10)
        second.bind("cats", b"1", 10)
        with pytest.raises(CacheMismatch, match="holds cats; this is dogs"):
            second.bind("dogs", "2", 10)
        with pytest.raises(TypeError, match="fingerprint must be a str or bytes"):
            second.bind("cats", 1 << 31)
        with socket.socket(socket.AF_UNIX) as occupied:  # the socket is gone when the cache has been opened
            occupied.bind(f"\0slipring-cache:{os.geteuid()}:{name}")
        first.put(1, "x")
        assert second.get(1) == "x" and second.stats().budget == 2 << 20


def test_processes_that_start_at_once_end_with_one_cache(name, program):
    programs = [program() for _ in range(4)]
    assert {one.hear() for one in programs} == {"open"}
    for number, one in enumerate(programs):
        assert one.ask(f"cache.put({number}, np.arange({number}))") == "True"
    for one in programs:
        assert one.ask("[cache.get(i).tolist() for i in range(4)]") == "[[], [0], [0, 1], [0, 1, 2]]"


def test_a_cache_outlives_its_maker_and_leaves_nothing(name, program):
    maker, other = program(), None
    assert maker.hear() == "open" and maker.ask("cache.put(1, 'kept')") == "True"
    other = program()
    assert other.hear() == "open"
    maker.process.kill()
    wait_dead(maker.pid)
    with slipring.Cache("1MiB", name=name) as third:
        assert third.get(1) == "kept"
    other.process.kill()
    wait_dead(other.pid)
    assert find(label_of(name)) is None
    assert not [entry for entry in os.listdir("/dev/shm") if name in entry]
    with slipring.Cache("1MiB", name=name) as reopened:
        assert 1 not in reopened


def test_a_cache_whose_holder_is_stopped_is_found(name, program):
    holder = program()
    assert holder.hear() == "open" and holder.ask("cache.put(1, 'kept')") == "True"
    os.kill(holder.pid, signal.SIGSTOP)
    until(lambda: state(holder.pid) == "T", "it stops")
    with slipring.Cache("1MiB", name=name) as cache:
        assert cache.get(1) == "kept"


def test_a_process_that_dies_while_it_opens_a_cache_blocks_no_other(name, program):
    dying = program("""
        import time
        from tests.support.inside import cache_names
        with cache_names._turn({name!r}):
            print("in turn")
            time.sleep(1000)
    """)
    assert dying.hear() == "in turn"
    waiting = program()
    until(lambda: has_connected(waiting.pid), "it waits")
    dying.process.kill()
    assert waiting.hear() == "open"


def test_a_process_that_is_stopped_while_it_opens_a_cache_is_named(name, program, monkeypatch):
    stopped = program("""
        import os, signal
        from tests.support.inside import cache_names
        with cache_names._turn({name!r}):
            print("in turn")
            os.kill(os.getpid(), signal.SIGSTOP)
    """)
    assert stopped.hear() == "in turn"
    until(lambda: state(stopped.pid) == "T", "it stops")
    monkeypatch.setattr(inside.cache_names, "_PATIENCE", 0.2)
    with pytest.raises(TimeoutError, match=f"opening the cache '{name}'"):
        slipring.Cache("1MiB", name=name)


def test_a_fork_while_a_cache_is_opened_does_not_keep_the_name(name, program):
    opener = program("""
        import os, sys, time
        from tests.support.inside import cache_names
        with cache_names._turn({name!r}):
            if os.fork() == 0:
                sys.stdin.read()
                os._exit(0)
        print("opened")
        sys.stdin.read()
    """)
    assert opener.hear() == "opened"
    slipring.Cache("1MiB", name=name).close()


def test_a_pool_gets_a_named_cache_by_its_name(name):
    with slipring.Cache("1MiB", name=name) as cache, fork.Pool(1) as pool:
        assert pool.apply(put_and_tell, (cache, 3)) and cache.get(3) == "pool's"


def put_and_tell(cache, key):
    return cache.put(key, "pool's")


@pytest.mark.parametrize("bad", ["", "a/b", "x" * 101, "-x", "naïve", 5])
def test_a_name_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="name must be"):
        slipring.Cache("1MiB", name=bad)
    with pytest.raises(ValueError, match="leave backing out"):
        slipring.Cache("1MiB", name="x", backing="shm")  # a name is not a file


def test_something_else_with_the_label_is_no_cache(name):
    fd = os.memfd_create(label_of(name))
    os.write(fd, b"not a cache at all" * 1000)
    try:
        with pytest.raises(slipring.errors.CorruptBatch, match="not a slipring cache of this version"):
            slipring.Cache("1MiB", name=name)
    finally:
        os.close(fd)


# A process that has changed its user cannot read this user's modules.
AS_ANOTHER = OPENED.replace("    cache =", "    os.setgid(65534); os.setuid(65534)\n    cache =")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@needs_root
def test_another_users_cache_of_the_same_name_is_another_one(name, program):
    theirs = program(AS_ANOTHER)
    assert theirs.hear() == "open" and theirs.ask("cache.put(1, 'theirs')") == "True"
    with slipring.Cache("1MiB", name=name) as ours:
        assert 1 not in ours and ours.put(1, "ours")
        assert theirs.ask("cache.get(1)") == "theirs"


@needs_root
def test_another_users_descriptor_is_refused(name, program):
    theirs = program(AS_ANOTHER)
    assert theirs.hear() == "open"
    fd = os.open(f"/proc/{theirs.pid}/fd/{theirs.ask('cache._fd')}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError, match=r"another user's \(uid 65534\)"):
            slipring.Cache("1MiB")._attach(fd)
    finally:
        os.close(fd)


@needs_root
def test_another_user_in_the_names_place_is_named(name, program):
    squatter = program("""
        import os, socket, sys
        os.setuid(65534)
        place = socket.socket(socket.AF_UNIX)
        place.bind("\\0slipring-cache:0:" + {name!r})
        place.listen()
        print("there")
        sys.stdin.read()
    """)
    assert squatter.hear() == "there"
    with pytest.raises(PermissionError, match=f"process {squatter.pid} of another user"):
        slipring.Cache("1MiB", name=name)


def test_an_entry_of_a_killed_maker_is_made_by_another(name, program):
    with slipring.Cache("1MiB", name=name) as cache:
        dying = program("""
            import time
            import slipring
            cache = slipring.Cache("1MiB", name={name!r})
            def make():
                print("making")
                time.sleep(1000)
            cache.get_or_make(7, make)
        """)
        assert dying.hear() == "making"
        dying.process.kill()
        wait_dead(dying.pid)
        assert cache.get_or_make(7, lambda: "mine") == "mine" and cache.get(7) == "mine"
        assert cache.stats().recovered == 1
