"""`metaq` commands and servers as forks of a process that has imported them: each a process of its own, without its imports.

A test worker starts that process (`python -m tests.forked`) for its first command and hands it, per command, a file with the
arguments and what is to be its standard input, output and errors. It ends with the worker.

A command is watched by a process that tells the worker how it has ended. A server is a child of the worker, as one that it starts
itself: signals, exit codes and what is left of it are the same.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from metaq.testing.process import ServerProcess

IMPORTED = (
    "metaq.cli.main", "metaq.cli.messages.send", "metaq.cli.messages.consume", "metaq.cli.topics.topic",
    "metaq.cli.topics.group", "metaq.admin", "metaq.client", "metaq.aio",
)  # fmt: skip
EXIT_TRACEBACK = 1
READ_AT_IMPORT = ("PYTHON", "METAQ_HOT", "ROCKETMQ_HOME", "LD_")
"""How variables begin that Python itself, an import or the dynamic linker reads: clocks of libfaketime come by LD_PRELOAD."""
FDS = 5  # the request, the command's three, and where its process id and its end are told


class Server(subprocess.Popen[str]):
    """A server as `subprocess.Popen` has it, forked where that would execute a new Python."""

    def __init__(self, forks: Forks, command: Sequence[str], **options: Any) -> None:
        self._forks = forks
        super().__init__(command, **options)

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:  # type: ignore[override]
        environment, pipes = given[5], given[9:15]
        self.pid = self._forks.begin(args[2:], environment, (pipes[0], pipes[3], pipes[5]))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class Forks:
    """The test worker's end."""

    _sending = threading.Lock()
    """One for all: whether this process takes orphans is of the whole process, and who waits for one must not be stopped by another."""

    def __init__(self, folder: pathlib.Path, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._environment, self._folder = dict(environment), folder

    def imported_under(self, environment: Mapping[str, str]) -> bool:
        """Whether a new Python with these variables beside ours would import the same."""
        read = {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}
        paths = {*self._environment["PYTHONPATH"].split(os.pathsep), str(self._folder), ""}
        same = set(read.pop("PYTHONPATH", "").split(os.pathsep)) <= paths
        return same and all(self._environment.get(name) == value for name, value in read.items())

    def begin(self, args: Sequence[str], environment: Mapping[str, str], standard: Sequence[int]) -> int:
        """Fork `python -m ARGS` with these standard input, output and errors. Returns the id of the process, a child of this one."""
        with tempfile.TemporaryFile("w+") as request, self._sending:
            asked = {"args": args, "environment": dict(environment), "folder": str(pathlib.Path.cwd()), "child": True}
            json.dump(asked, request)
            request.flush()
            told, tell = os.pipe()
            with os.fdopen(told, "rb") as said:
                # Whoever is left by its parent becomes a child of this process, as long as it wants that.
                _take_orphans(True)
                try:
                    socket.send_fds(self._control, [b"r"], [request.fileno(), *standard, tell])
                    os.close(tell)
                    process = int(said.readline())
                    while _parent(process) != os.getpid():
                        time.sleep(0.0002)
                finally:
                    _take_orphans(False)
            return process

    def run(
        self, args: Sequence[str], environment: Mapping[str, str], stdin: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of `metaq ARGS` with captured text. Raises TimeoutExpired: it was killed."""
        with contextlib.ExitStack() as files:
            request, out, err = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
            json.dump(
                {
                    "args": ["metaq", *map(os.fsdecode, args)],
                    "environment": dict(environment),
                    "folder": str(pathlib.Path.cwd()),
                },
                request,
            )
            request.flush()
            told, tell = os.pipe()
            told_file = files.enter_context(os.fdopen(told, "rb", 0))
            source, feed = (0, None) if stdin is None else os.pipe()
            try:
                given = [request.fileno(), source, out.fileno(), err.fileno(), tell]
                with self._sending:
                    socket.send_fds(self._control, [b"r"], given)
            finally:
                os.close(tell)
                if feed is not None:
                    os.close(source)
            if feed is not None:
                threading.Thread(target=_feed, args=(feed, stdin), daemon=True).start()
            code = _end(told_file, args, timeout)
            return subprocess.CompletedProcess(["metaq", *args], code, _text(out), _text(err))


PR_SET_CHILD_SUBREAPER: Final = 36


def _take_orphans(takes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(takes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _parent(process: int) -> int:
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _feed(feed: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(feed, "w") as pipe:
        pipe.write(text)


def _end(told: IO[bytes], args: Sequence[str], timeout: float) -> int:
    """The exit code; -N of a process that signal N ended."""
    deadline = time.monotonic() + timeout
    said = b""
    while said.count(b"\n") < 2:
        poll = select.poll()  # not `select`, which knows no descriptor above 1023
        poll.register(told, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            if b"\n" in said:
                os.kill(int(said.split()[0]), signal.SIGKILL)
            raise subprocess.TimeoutExpired(["metaq", *args], timeout)
        more = told.read(64)
        if not more:
            raise RuntimeError(f"the process that forks the commands ended under metaq {args}")
        said += more
    return int(said.split()[1])


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


_making = threading.Lock()


def forks(hot: str | None) -> Forks:
    """This worker's, begun at the first call. From any thread."""
    with _making:
        return _forks(hot)


@functools.cache
def _forks(hot: str | None) -> Forks:  # chosen at import: a process for each
    from tests.support import ROOT, environment

    return Forks(ROOT, environment())


def _serve(control: socket.socket) -> tuple[dict, list[int]]:
    """Returns in each command's process only, with its request and its three files."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, fds, _, _ = socket.recv_fds(control, 16, FDS)
        if not word:
            os._exit(0)  # the test worker has ended
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request_fd, *standard, tell = fds
    with os.fdopen(request_fd, "r") as file:
        file.seek(0)
        request = json.load(file)
    command = os.fork()
    if command:
        for fd in standard:
            os.close(fd)
        os.write(tell, b"%d\n" % command)
        if request.get("child"):
            os._exit(0)  # leaves it to the test worker
        # This process stays, to tell how the command ends.
        _, status = os.waitpid(command, 0)
        os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(tell)
    return request, standard


def begin_server(
    self: ServerProcess, command: Sequence[str], environment: Mapping[str, str], log: IO[str]
) -> subprocess.Popen[str]:
    """In place of `ServerProcess._begin`: a fork where one is as good as a new Python."""
    options: dict[str, Any] = {
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True, "env": environment,
    }  # fmt: skip
    # No others that tests have; a ZooKeeper is no Python.
    if command[0] == sys.executable and self.program in {"metaq", "tests.crash.mortal_broker"}:
        made = forks(os.environ.get("METAQ_HOT"))
        if made.imported_under(self._environment):
            return Server(made, command, **options)
    return subprocess.Popen(command, **options)


def main() -> None:
    """Import what commands import, then become each of them in turn."""
    from metaq.cli import commands
    from metaq.clock import SYSTEM

    # Those of servers are named here, where CI's import graph takes them for what is loaded on demand.
    servers = ("metaq.cli.servers.serve", "metaq.app.up", "metaq.app.broker", "metaq.app.namesrv", "uvloop")
    for name in (*IMPORTED, *servers):
        importlib.import_module(name)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        commands.run(["store", "dump", "/no such file"])  # loads what parses options and prints errors
    if threading.active_count() > 1 or (
        sys.platform == "linux" and len(list(pathlib.Path("/proc/self/task").iterdir())) > 1
    ):
        raise RuntimeError("an import has started a thread, which no fork would have")
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    request, standard = _serve(socket.socket(fileno=int(sys.argv[1])))
    for target, fd in enumerate(standard):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    program, *sys.argv[1:] = request["args"]
    sys.orig_argv = [sys.executable, "-m", *request["args"]]  # with which a broker executes itself anew
    SYSTEM._random.seed()  # that of the whole process, made at its import: no two servers spread their load alike
    code = EXIT_TRACEBACK
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)  # as `python -m metaq`
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else EXIT_TRACEBACK
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)  # what else ends a Python takes all its modules apart: a fifth of a second


if __name__ == "__main__":
    main()
