"""A name server and a broker in a process of their own, with small files, on free ports."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from metaq.errors import MetaqError

SMALL: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
    # A developer's disk is often fuller than a server's may be.
    "diskMaxUsedSpaceRatio": 95,
    "cleanFileForciblyEnable": "false",
}
"""File sizes for tests: a few megabytes instead of gigabytes. A message must still fit into one file."""


class BrokerDied(MetaqError):
    """The embedded broker did not start, or ended by itself. The text has its exit code and its last log lines."""


class EmbeddedBroker:
    """`metaq up` as a child process: a real broker and name server, ready in about a second.

    Args: data: folder of the store; by default a temporary one that goes with the broker. options: any option of
          docs/configuration.md, over `SMALL`. host: address to listen on. environment: variables of the child beside
          ours, for example METAQ_HOT=0 for the plain twin. timeout: seconds that a start may take.

    A context manager; or call `start` and `stop`. It ends with its parent, however that ends.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> None:
        self._temporary = data is None
        self.data = pathlib.Path(data if data is not None else tempfile.mkdtemp(prefix="metaq-test-"))
        self.log = self.data.with_name(self.data.name + ".log")
        self.namesrv = ""
        """`host:port` of the name server, for clients."""
        self.broker = ""
        """`host:port` of the broker."""
        self._options = {**SMALL, **(options or {})}
        self._environment = dict(environment or {})
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start, and return when connections are accepted. After a stop or kill: on the same ports and data.

        Raises BrokerDied: it did not get ready.
        """
        if self._process is not None:
            raise BrokerDied("the embedded broker runs already")
        command = [sys.executable, "-m", "metaq", "up", "--data", str(self.data)]
        command += ["--port", self._port(self.broker), "--namesrv-port", self._port(self.namesrv)]
        for key, value in self._options.items():
            command += ["-o", f"{key}={value}"]
        with self.log.open("a", encoding="utf-8") as log:
            process = self._process = subprocess.Popen(  # noqa: S603  our own command
                command,
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "METAQ_STOP_WITH_STDIN": "1", **self._paths(), **self._environment},
            )
        timer = threading.Timer(self._timeout, process.kill)
        timer.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        timer.cancel()
        if not line.startswith("ready"):
            code = process.wait()
            self._release()
            raise BrokerDied(f"the embedded broker did not get ready, exit code {code}:\n{self.log_tail()}")
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.namesrv, self.broker = words["namesrv"], words["broker"]
        return self

    @staticmethod
    def _port(address: str) -> str:
        return address.rpartition(":")[2] or "0"

    @staticmethod
    def _paths() -> dict[str, str]:
        # The child imports the metaq that we are, installed or not.
        ours = str(pathlib.Path(__file__).parents[2])
        return {"PYTHONPATH": os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))}

    @property
    def pid(self) -> int:
        """Process id. Raises BrokerDied if it is not running."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout: float = 120.0) -> None:
        """Stop cleanly (SIGTERM). Raises BrokerDied if that fails or takes longer than `timeout` seconds."""
        process = self._running()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerDied(f"the embedded broker did not stop within {timeout} s:\n{self.log_tail()}") from None
        finally:
            self._release()
        if code != 0:
            raise BrokerDied(f"the embedded broker stopped with exit code {code}:\n{self.log_tail()}")

    def kill(self) -> None:
        """kill -9: what a crash leaves. `start` recovers the data."""
        process = self._running()
        process.kill()
        process.wait()
        self._release()

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP), as a machine that hangs: connections stay open, nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it whatever its state, and remove the data if it was temporary."""
        try:
            if self.alive:
                self.stop()
        finally:
            self._release()
            if self._temporary:
                shutil.rmtree(self.data, ignore_errors=True)
                self.log.unlink(missing_ok=True)

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that it logged."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise BrokerDied("the embedded broker is not running")
        return self._process

    def _release(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
