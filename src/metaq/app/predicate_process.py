"""A helper process and the thread that talks to it: the loop hands in questions, and is called with the answers."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from metaq.broker.pulls.predicates import MakeHelper, OnHelperAnswer
from metaq.model.filters.predicates import predicates_of
from metaq.options import BrokerOptions, Metaq1Options

if TYPE_CHECKING:
    from metaq.broker.metaq1.filters import MakeFilterHelper

log = logging.getLogger(__name__)

END_SECONDS = 2.0
"""Longest wait for the end of a process or its thread."""
LOOK_MS = 50
"""Interval at which a process that does not answer is checked for being alive."""
BACK_NICENESS = 10
"""Niceness of a helper of slow groups: a tenth of the processor time that others get who want it too."""
_KILL = 9
"""SIGKILL."""


class HelperProcess:
    """One helper process. `ask`, `kill` and `close` are for the loop, where `told` is called too.

    Args:
        predicates: name → `module:function`.
        path: folders in which modules are looked for first.
        memory: bytes that predicates may use.
        filters: the predicates are filters of MetaQ 1.x.
        call_soon: brings a call from another thread to the event loop.
        told: called with (helper, answer), or with None and a reason once the process is gone. The first answer is its
            report that it is ready.
    """

    def __init__(
        self,
        predicates: Mapping[str, str],
        *,
        path: str,
        memory: int,
        filters: bool = False,
        call_soon: Callable[[Callable[[], None]], None],
        told: Callable[[HelperProcess, bytes | None, str], None],
    ) -> None:
        self._call_soon, self._told = call_soon, told
        self._asked = msgspec.json.encode(
            {"predicates": dict(predicates), "memory": memory, "filters": filters}
        ).decode()
        self._path = path
        # `put` never blocks: the event loop hands in questions.
        self._questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = ""
        self._back = False
        self._thread = threading.Thread(target=self._serve, name="metaq-predicates", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ask(self, question: bytes) -> None:
        self._questions.put(question)

    def step_back(self) -> None:
        """Have the process, and what it starts, run behind all others."""
        with self._lock:
            self._back = True
            if self._process is not None:
                _step_back(self._process)

    def kill(self, why: str) -> None:
        """Kill the process at once; `why` is the reason that is reported."""
        with self._lock:
            self._killed = self._killed or why
            if self._process is not None:
                _kill(self._process)
        self._questions.put(None)

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill("the broker stops")
        self._thread.join(END_SECONDS)

    # -------------------------------------------------------------- the thread

    def _serve(self) -> None:
        why = ""
        try:
            process = self._started()
            if process is None:
                return
            pipes = _Pipes(process, self._lock)
            while (answer := pipes.answer()) is not None:
                self._tell(answer, "")
                question = self._questions.get()
                if question is None:
                    break
                pipes.ask(question)
        except OSError as error:
            why = error.strerror or str(error)
        finally:
            code = self._ended()
            self._tell(None, self._killed or why or f"it ended with exit code {code}")

    def _started(self) -> subprocess.Popen[bytes] | None:
        command, environment = program(self._path, self._asked)
        # A session of its own: Ctrl-C at the broker's terminal must not end it, and `killpg` reaches what it starts.
        process = subprocess.Popen(  # noqa: S603  our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        with self._lock:
            self._process = process
            if self._back:
                _step_back(process)
            # Killed while it was being started: `kill` found no process.
            if self._killed:
                _kill(process)
                return None
        return process

    def _ended(self) -> int | None:
        process = self._process
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            return process.wait()

    def _tell(self, answer: bytes | None, why: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._call_soon(lambda: self._told(self, answer, why))


def _step_back(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, process.pid, BACK_NICENESS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with what it has started: that may hold the other ends of our pipes, and we would never see them
    close."""
    if process.returncode is None:  # not reaped yet, so its pid and group are still its own
        with contextlib.suppress(OSError):
            os.killpg(process.pid, _KILL)


class _Pipes:
    """The pipes of a process, used only while it lives: what it has started may outlive it, and hold the other ends."""

    def __init__(self, process: subprocess.Popen[bytes], lock: threading.Lock) -> None:
        assert process.stdin is not None, "it was started so"
        assert process.stdout is not None, "it was started so"
        self._process, self._lock = process, lock
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)

    def ask(self, question: bytes) -> None:
        """Write a question. Raises BrokenPipeError: the process has ended."""
        data = memoryview(len(question).to_bytes(4, "big") + question)
        while data:
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                if not self._lives(self._to, select.POLLOUT):
                    raise BrokenPipeError from None

    def answer(self) -> bytes | None:
        """Read an answer. Return None if the process has ended."""
        head = self._read(4)
        return None if head is None else self._read(int.from_bytes(head, "big"))

    def _read(self, size: int) -> bytes | None:
        data, lives = bytearray(), True
        while len(data) < size:
            try:
                piece = os.read(self._from, size - len(data))
            except BlockingIOError:
                if not lives:  # what it wrote before its end is read by now
                    return None
                lives = self._lives(self._from, select.POLLIN)
                continue
            if not piece:
                return None
            data += piece
        return bytes(data)

    def _lives(self, pipe: int, event: int) -> bool:
        """Wait for a pipe. Return False if the process has ended."""
        poll = select.poll()
        poll.register(pipe, event)
        while not poll.poll(LOOK_MS):
            with self._lock:
                if self._process.returncode is not None or _has_ended(self._process.pid):
                    _kill(self._process)  # what it has left behind in its group
                    return False
        return True


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended, without reaping it: its pid stays its own until then."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return True


def program(path: str, asked: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of a helper process that looks for modules in the folders of `path` first."""
    paths = [*filter(None, path.split(os.pathsep)), *filter(None, sys.path)]
    # No caches of compiled code: one written within the same second as an edit would hide the edit from a reload.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    return [sys.executable, "-m", "metaq.app.predicate_helper", asked], environment


def filter_helpers(
    options: BrokerOptions, metaq1: Metaq1Options, call_soon: Callable[[Callable[[], None]], None]
) -> MakeFilterHelper:
    """Return what makes the processes for filters of MetaQ 1.x."""

    def make_for(names: Mapping[str, str]) -> MakeHelper:
        def make(told: OnHelperAnswer) -> HelperProcess:
            return HelperProcess(
                names, path=metaq1.app_class_path or "", memory=options.filter_memory_limit, filters=True,
                call_soon=call_soon, told=told,
            )  # fmt: skip

        return make

    return make_for


def predicate_helpers(options: BrokerOptions, call_soon: Callable[[Callable[[], None]], None]) -> MakeHelper:
    """Return what makes the processes for predicates."""

    def make(told: OnHelperAnswer) -> HelperProcess:
        return HelperProcess(
            predicates_of(options.filter_predicates), path=options.filter_predicate_path,
            memory=options.filter_memory_limit, call_soon=call_soon, told=told,
        )  # fmt: skip

    return make
