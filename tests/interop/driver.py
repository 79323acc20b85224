"""Foreign clients in a process of their own, steered line by line.

One JSON request per line of the child's standard input, one JSON answer per line of its output, in order. Messages that
a push consumer receives stand between the answers as `{"event": "message", ...}`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.interop import maven, wheel
from tests.support import PATIENCE

HERE = Path(__file__).parent
Event = dict[str, Any]


class DriverError(Exception):
    """The foreign client threw; `code` is the broker's response code if it was the broker that refused."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class ForeignClient:
    """A child process with any number of foreign producers and push consumers in it; its errors and logs go to `folder`."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._errors = (folder / "client.err").open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
        )
        self._answers: Queue[Event] = Queue()
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._names: list[str] = []
        self._calling = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            parsed = json.loads(line)
            if "event" in parsed:
                with self._changed:
                    self._events.append(parsed)
                    self._changed.notify_all()
            else:
                self._answers.put(parsed)

    def call(self, op: str, **arguments: Any) -> Any:
        """Do one operation in the child, one at a time. Raises DriverError with what the client threw."""
        with self._calling:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            try:
                answer = self._answers.get(timeout=PATIENCE)
            except Empty:
                raise TimeoutError(f"the foreign client did not answer {op} within {PATIENCE} s") from None
        if "error" in answer:
            raise DriverError(answer["error"], answer.get("code"))
        return answer.get("result")

    def producer(self, name: str, namesrv: str | None, group: str | None = None, **options: Any) -> None:
        """Start a producer. `namesrv`: None: it finds the name servers otherwise."""
        self.call("producer", name=name, group=group or name, **_given(namesrv), **options)
        self._names.append(name)

    def consumer(self, name: str, namesrv: str | None, group: str, topics: dict[str, str], **options: Any) -> None:
        with self._changed:  # an earlier test's consumer may have had this name
            self._events = [event for event in self._events if event["consumer"] != name]
        self.call("consumer", name=name, group=group, **_given(namesrv), topics=topics, **options)
        self._names.append(name)

    def send(self, producer: str, topic: str, bodies: list[str], mode: str = "sync", **options: Any) -> list[Event]:
        receipts: list[Event] = self.call("send", producer=producer, topic=topic, bodies=bodies, mode=mode, **options)
        return receipts

    def shutdown(self, name: str) -> None:
        self._names.remove(name)
        self.call("shutdown", name=name)

    def shutdown_all(self) -> None:
        for name in reversed(self._names.copy()):
            self.shutdown(name)

    def received(self, consumer: str) -> list[Event]:
        with self._changed:
            return [event for event in self._events if event["consumer"] == consumer]

    def wait(
        self, consumer: str, enough: int | Callable[[list[Event]], bool], timeout: float = PATIENCE
    ) -> list[Event]:
        """What `consumer` has received, as soon as it is `enough` (a count or a predicate). Raises AssertionError late."""
        satisfied = enough if callable(enough) else lambda events: len(events) >= enough
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                events = [event for event in self._events if event["consumer"] == consumer]
                if satisfied(events):
                    return events
                left = deadline - time.monotonic()
                if left <= 0:
                    bodies = [event["body"] for event in events]
                    raise AssertionError(f"{consumer} received {len(events)} messages in {timeout} s: {bodies[:40]}")
                self._changed.wait(left)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._errors.close()


def _given(namesrv: str | None) -> dict[str, str]:
    return {"namesrv": namesrv} if namesrv is not None else {}


def java_client(folder: Path, *options: str) -> ForeignClient:
    """RocketMQ's Java client behind java/Driver.java, which is compiled into `folder`; `options` are the JVM's."""
    classpath = f"{maven.jars(*maven.CLIENT)}/*"
    compiler = [maven.java(compiler=True), "-XDsuppressNotes", "-cp", classpath, "-d", str(folder)]
    subprocess.run([*compiler, str(HERE / "java" / "Driver.java")], check=True, timeout=PATIENCE)
    command = [maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}", *options]
    command.append(f"-Dcom.rocketmq.remoting.client.connect.timeout={PATIENCE * 1000:.0f}")
    command += [f"-Drocketmq.client.localOffsetStoreDir={folder / 'offsets'}", "-cp", f"{folder}:{classpath}", "Driver"]
    return ForeignClient(command, folder)


def cpp_client(folder: Path) -> ForeignClient:
    """RocketMQ's C++ client behind cpp/driver.py, which loads it from its PyPI wheel."""
    return ForeignClient([sys.executable, str(HERE / "cpp" / "driver.py"), str(wheel.unpacked())], folder)
