"""Start Python programs by fork, so that they need not import numpy and slipring, which takes longer than they run.

Each test process has a server that has imported them. For each program the server forks a process that behaves like one
that was started by exec: it has its own session if requested, its own standard streams, arguments, directory, main
module and environment, a normal exit of the interpreter, and the test process as its parent.

Differences: `/proc/PID/cmdline` and `environ` are those of the server. All programs of a test process have the same
hash seed. Signal mask, limits, umask and affinity are those that the server was started with. A program that needs
other interpreter options, or other values of variables that are read at the start, is started by exec.
"""

import contextlib
import ctypes
import gc
import io
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# Variables that are read when an interpreter begins or a library is imported.
READ_AT_START = (
    "PYTHON",
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "SLIPRING_",
    "TORCH_",
    "COVERAGE_",
    "LANG",
    "LC_",
    "TZ",
)
ROOT = Path(__file__).parents[2]
servers = {}  # whether it has imported torch -> Server
starting = threading.Lock()
adopted = set()  # pids of orphans that were reparented to this process


class Program(subprocess.Popen):
    """``subprocess.Popen([sys.executable, ...])``; it forks the server if that makes no difference."""

    def _execute_child(self, args, *rest):
        executable, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell = rest[:9]
        pipes, (restore_signals, gid, gids, uid, umask, new_session, *group) = rest[9:15], rest[15:]
        args = [os.fspath(arg) for arg in args]
        environment = os.environ if env is None else env
        plain = (
            close_fds
            and restore_signals
            and not (executable or preexec_fn or pass_fds or shell)
            and gid is gids is uid is None
            and umask < 0
            and group in ([], [-1], [None])
            and args[0] == sys.executable
            and (args[1:2] in (["-c"], ["-m"]) or not args[1].startswith("-"))
        )
        server = serving(environment, args) if plain else None
        if server is None:
            return super()._execute_child(args, *rest)
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        streams = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        asked = {
            "args": args[1:],
            "environment": dict(environment),
            "cwd": os.fspath(cwd or os.getcwd()),
            "new_session": bool(new_session),
        }
        self.pid = server.start(asked, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run(command, *, capture_output=False, check=False, timeout=None, **options):
    """``subprocess.run`` of a `Program`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Program(command, **options) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(command, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def serving(environment, args):
    """Return the server for a program, or None if the program needs an interpreter of its own."""
    with_torch = any("torch" in arg for arg in args)
    if with_torch not in servers or servers[with_torch].owner != os.getpid():
        servers[with_torch] = Server(with_torch)
    server = servers[with_torch]
    return server if at_start(environment) == at_start(server.environment) else None


def at_start(environment):
    """Return the part of an environment that a server cannot change afterwards."""
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


class Server:
    """The server, as seen by the process that starts programs."""

    def __init__(self, with_torch):
        self.owner, self.with_torch = os.getpid(), with_torch
        self.environment = dict(os.environ)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())]
            command += ["torch"] if with_torch else []
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT)

    def start(self, asked, streams):
        """Start a program as a child of this process; return its pid."""
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        with starting:
            before = children()
            # The program's own parent ends at once, and this process takes its place.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self.socket, [json.dumps(asked).encode()], streams)
                pid = int(self.socket.recv(64))
            except BaseException:
                # Otherwise the next request would get this reply.
                servers.pop(self.with_torch, None)
                self.end()
                raise
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)
            known = {pid, *(child.pid for child in multiprocessing.active_children())}
            adopted.update(children() - before - known)
        return pid

    def end(self):
        """End the server; a forked child may still hold a copy of the socket."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.process.wait()


def children():
    """Return all child processes of this process."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
                if int(stat[stat.rindex(b")") + 2 :].split()[1]) == os.getpid():
                    found.add(int(name))
    return found


def reap():
    """Wait for adopted orphans that have ended."""
    for pid in list(adopted):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        adopted.discard(pid)


def end():
    """End the servers of this process."""
    for server in servers.values():
        if server.owner == os.getpid():
            server.end()
    servers.clear()


def helper_pids():
    """Return the pids of this process's servers, which stay from test to test."""
    return {server.process.pid for server in servers.values() if server.owner == os.getpid()}


def helper_fds():
    """Return the file descriptors of the sockets to the servers."""
    return {server.socket.fileno() for server in servers.values() if server.owner == os.getpid()}


# ---- the server's side


def next_program(connection):
    """Serve requests until the client closes the socket. In the process of a program, return its request."""
    while True:
        message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                for fd in (connection.detach(), told, tell):
                    os.close(fd)
                return json.loads(message), streams
            os.write(tell, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for fd in (*streams, tell):
            os.close(fd)
        connection.send(os.read(told, 64))
        os.close(told)


def become(asked, streams):
    """Set up the session, streams, directory and environment of a new process."""
    if asked["new_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    for stream in streams:
        os.close(stream)
    os.chdir(asked["cwd"])
    multiprocessing.process.ORIGINAL_DIR = asked["cwd"]  # a spawned worker finds the main module from there
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    errors = os.fdopen(2, "wb", 0, closefd=False)
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(errors, errors="backslashreplace", write_through=True)


def run_main(args):
    """Run a program as the interpreter does with these arguments."""
    how, *rest = args
    if how == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if how == "-c":
        sys.argv, sys.path[0], code = ["-c", *rest[1:]], "", compile(rest[0], "<string>", "exec")
    else:
        with open(how, "rb") as file:
            sys.argv, sys.path[0], code = (
                args,
                os.path.dirname(os.path.abspath(how)),
                compile(file.read(), how, "exec"),
            )
        main.__file__ = how
    exec(code, main.__dict__)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    import slipring._cli.main

    if "torch" in sys.argv[2:]:
        with contextlib.suppress(ImportError):
            import slipring.torch  # noqa: F401
    gc.collect()
    gc.freeze()
    asked, streams = next_program(socket.socket(fileno=int(sys.argv[1])))
    become(asked, streams)
    run_main(asked["args"])
