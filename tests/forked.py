"""`metaq` commands as forks of a process that has imported them: each a process of its own, without half a second of imports.

A test worker starts that process (`python -m tests.forked`) for its first command and hands it, per command, a file with the
arguments and what is to be its standard input, output and errors. It ends with the worker.
"""

from __future__ import annotations

import atexit
import contextlib
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
from typing import IO

IMPORTED = (
    "metaq.cli.main", "metaq.cli.messages.send", "metaq.cli.messages.consume", "metaq.cli.topics.topic",
    "metaq.cli.topics.group", "metaq.admin", "metaq.client", "metaq.aio",
)  # fmt: skip
EXIT_TRACEBACK = 1
FDS = 5  # the request, the command's three, and where its process id and its end are told


class Forks:
    """The test worker's end."""

    def __init__(self, folder: pathlib.Path, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._sending = threading.Lock()

    def run(
        self, args: Sequence[str], environment: Mapping[str, str], stdin: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of `metaq ARGS` with captured text. Raises TimeoutExpired: it was killed."""
        with contextlib.ExitStack() as files:
            request, out, err = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
            json.dump(
                {
                    "args": [os.fsdecode(word) for word in args],
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


@functools.cache
def forks(hot: str | None) -> Forks:  # chosen at import: a process for each
    """This worker's, begun at the first call."""
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
    request, *standard, tell = fds
    command = os.fork()
    if command:  # this process stays, to tell how the command ends
        for fd in (request, *standard):
            os.close(fd)
        os.write(tell, b"%d\n" % command)
        _, status = os.waitpid(command, 0)
        os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(tell)
    with os.fdopen(request, "r") as file:
        file.seek(0)
        return json.load(file), standard


def main() -> None:
    """Import what commands import, then become each of them in turn."""
    from metaq.cli import commands

    for name in IMPORTED:
        importlib.import_module(name)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        commands.run(["store", "dump", "/no such file"])  # loads what parses options and prints errors
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    request, standard = _serve(socket.socket(fileno=int(sys.argv[1])))
    for target, fd in enumerate(standard):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[1:] = request["args"]
    code = EXIT_TRACEBACK
    try:
        runpy.run_module("metaq", run_name="__main__", alter_sys=True)  # as `python -m metaq`
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
