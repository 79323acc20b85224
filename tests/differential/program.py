"""Unchanged foreign clients in processes of their own, steered by lines of JSON.

To the child, one object per line of its standard input:

    {"id": 7, "op": "send", ...}       do something; each in a thread of its own, so that one may wait while others go on
    {"reply": 3, "value": ...}         the answer to its question 3

From the child, one object per line of its output, in any order:

    {"id": 7, "result": ...}           what came of request 7
    {"id": 7, "error": {"class": ..., "text": ..., "code": ..., "cause": {...}}}      what it threw
    {"event": "queues", "name": "c1", ...}            something that its client `c1` was told
    {"event": "consume", "name": "c1", "ask": 3, ...} the same, and its user code waits for the reply 3

So listeners, transaction checks and strategies are decided by the test, and no program knows of any scenario.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support import PATIENCE

Event = dict[str, Any]
Handler = Callable[[Event], Any]

NEVER = object()
"""What a handler returns whose user code shall not come back."""
_HANDLERS_AT_ONCE = 64


class ForeignError(Exception):
    """The foreign client threw; `what` says class, text, code and cause."""

    def __init__(self, what: Event) -> None:
        super().__init__(f"{what.get('class')}: {what.get('text')}")
        self.what = what


class ForeignProgram:
    """A child process with any number of foreign clients in it; what it logs goes to `folder`."""

    def __init__(self, command: list[str], folder: Path, **env: str) -> None:
        self._folder = folder
        self._errors = (folder / "program.err").open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            env={**os.environ, "HOME": str(folder), **env},
        )
        self._writing = threading.Lock()
        self._changed = threading.Condition()
        self._waiting: dict[int, Future[Any]] = {}
        self._requests = 0
        self._events: list[Event] = []
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._threads = ThreadPoolExecutor(_HANDLERS_AT_ONCE, thread_name_prefix="handler")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, op: str, **arguments: Any) -> Future[Any]:
        """Begin an operation. Its result raises ForeignError with what the client threw."""
        answer: Future[Any] = Future()
        with self._changed:
            self._requests += 1
            number = self._requests
            self._waiting[number] = answer
        try:
            self._write({"id": number, "op": op, **arguments})
        except OSError:
            self._give_up()
        return answer

    def call(self, op: str, **arguments: Any) -> Any:
        """Do an operation."""
        return self.start(op, **arguments).result(PATIENCE)

    def when(self, name: str, event: str, handler: Handler) -> None:
        """Call `handler` with each such event of the client `name`; what it returns is the reply, if one is wanted."""
        self._handlers[name, event] = handler

    def forget(self, name: str) -> None:
        """Drop what the client `name` was told: another of that name begins."""
        with self._changed:
            self._events = [event for event in self._events if event["name"] != name]
        self._handlers = {key: handler for key, handler in self._handlers.items() if key[0] != name}

    def events(self, name: str, event: str) -> list[Event]:
        with self._changed:
            return [one for one in self._events if (one["name"], one["event"]) == (name, event)]

    def wait_for(self, probe: Callable[[], Any], what: Callable[[], str], timeout: float = PATIENCE) -> Any:
        """What `probe` returns as soon as it is true; it is asked again after each event."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (value := probe()):
                left = deadline - time.monotonic()
                if left <= 0 or not self.alive:
                    raise AssertionError(f"{what()}: not within {timeout} s")
                self._changed.wait(min(left, 1.0))
            return value

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.kill()
        self._process.wait()
        self._end()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end()

    def _end(self) -> None:
        self._reader.join()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._errors.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _write(self, line: Event) -> None:
        assert self._process.stdin is not None
        data = json.dumps(line).encode() + b"\n"
        with self._writing:
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            parsed = json.loads(line)
            if "event" in parsed:
                self._take(parsed)
                continue
            with self._changed:
                answer = self._waiting.pop(parsed["id"])
            if "error" in parsed:
                answer.set_exception(ForeignError(parsed["error"]))
            else:
                answer.set_result(parsed["result"])
        self._give_up()

    def _give_up(self) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, {}
            self._changed.notify_all()
        errors = self._folder / "program.err"
        for answer in waiting.values():
            answer.set_exception(ConnectionError(f"the program ended; {errors.read_text(errors='replace')[-1000:]}"))

    def _take(self, event: Event) -> None:
        handler = self._handlers.get((event["name"], event["event"]))
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
        if handler is not None:
            self._threads.submit(self._handle, handler, event)

    def _handle(self, handler: Handler, event: Event) -> None:
        try:
            value = handler(event)
        except Exception as error:  # the test that wrote it hears of it by the silence; say why
            with self._changed:
                self._events.append({"event": "handler failed", "name": event["name"], "error": repr(error)})
            raise
        if "ask" in event and value is not NEVER:
            with contextlib.suppress(OSError, ValueError):  # killed in the meantime
                self._write({"reply": event["ask"], "value": value})
