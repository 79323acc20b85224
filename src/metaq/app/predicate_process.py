"""A helper process and the thread that talks to it: the loop hands in a question, and is called when there is an answer."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from metaq.broker.predicates import MakeHelper, Told
from metaq.model.predicates import predicates_of
from metaq.options import BrokerOptions

log = logging.getLogger(__name__)

END_SECONDS = 2.0
_KILL = 9
"""SIGKILL."""


class HelperProcess:
    """One process. `ask`, `kill` and `close` are for the loop; the functions that it was given are called there.

    Args: told: called with (helper, answer), or with None and why there will be none: then the process is gone. The first
          answer is what the process says when it is ready.
    """

    def __init__(
        self,
        predicates: Mapping[str, str],
        *,
        path: str,
        memory: int,
        call_soon: Callable[[Callable[[], None]], None],
        told: Callable[[HelperProcess, bytes | None, str], None],
    ) -> None:
        self._call_soon, self._told = call_soon, told
        self._asked = msgspec.json.encode({"predicates": dict(predicates), "memory": memory}).decode()
        self._path = path
        self._questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = ""
        self._thread = threading.Thread(target=self._serve, name="metaq-predicates", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ask(self, question: bytes) -> None:
        self._questions.put(question)

    def kill(self, why: str) -> None:
        """End it at once, whatever it does; `why` is told."""
        with self._lock:
            self._killed = self._killed or why
            if self._process is not None:
                _kill(self._process)
        self._questions.put(None)

    def close(self) -> None:
        """The same, and wait for its end."""
        self.kill("the broker stops")
        self._thread.join(END_SECONDS)

    # -------------------------------------------------------------- the thread

    def _serve(self) -> None:
        why = ""
        try:
            process = self._started()
            if process is None:
                return
            while (answer := _read(process)) is not None:
                self._tell(answer, "")
                question = self._questions.get()
                if question is None:
                    break
                assert process.stdin is not None
                process.stdin.write(len(question).to_bytes(4, "big") + question)
                process.stdin.flush()
        except OSError as error:
            why = error.strerror or str(error)
        finally:
            code = self._ended()
            self._tell(None, self._killed or why or f"it ended with exit code {code}")

    def _started(self) -> subprocess.Popen[bytes] | None:
        paths = [*filter(None, self._path.split(os.pathsep)), *filter(None, sys.path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "metaq.app.predicate_helper", self._asked]
        process = subprocess.Popen(  # noqa: S603  our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        with self._lock:
            self._process = process
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
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody wants to know.
            self._call_soon(lambda: self._told(self, answer, why))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and what it has started, which may hold its ends of our pipes, so that we would never hear of its end."""
    if process.returncode is None:  # so the number is still its own
        with contextlib.suppress(OSError):
            os.killpg(process.pid, _KILL)


def _read(process: subprocess.Popen[bytes]) -> bytes | None:
    assert process.stdout is not None
    head = process.stdout.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    data = process.stdout.read(size)
    return data if len(data) == size else None


def predicate_helpers(options: BrokerOptions, call_soon: Callable[[Callable[[], None]], None]) -> MakeHelper:
    """How a broker with these options gets processes for its predicates."""

    def make(told: Told) -> HelperProcess:
        return HelperProcess(
            predicates_of(options.filter_predicates), path=options.filter_predicate_path,
            memory=options.filter_memory_limit, call_soon=call_soon, told=told,
        )  # fmt: skip

    return make
