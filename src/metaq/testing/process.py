"""One server of ours as a child process: started, stopped, killed, paused, and missed when it ends by itself."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Final

from metaq.clock import SYSTEM
from metaq.errors import MetaqError

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 120.0
TAIL_LINES: Final = 30
HALT_SECONDS: Final = 10.0


class ServerDied(MetaqError):
    """A server did not start, did not stop, or ended by itself. The text has its exit code and its last log lines."""


class ServerProcess:
    """A `metaq` command that serves, run by this interpreter as a child that ends with its parent.

    A subclass says which command and what its `ready` line means. All signals go to the child by its own id.

    Args:
        name: what errors call it.
        log: file for what it writes to standard error, over all its lives.
        environment: variables of the child beside ours.
        timeout: seconds that a start may take.
    """

    program = "metaq"
    """The module that is run as the command: a test may have one of its own, which does more than `metaq`."""

    def __init__(
        self, name: str, log: pathlib.Path, environment: Mapping[str, str] | None = None, timeout: float = START_SECONDS
    ) -> None:
        self.name = name
        self.log = log
        self._environment = dict(environment or {})
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self.ready = False
        """Whether it has said that it accepts connections, and runs."""
        self.paused = False
        """Whether it was told to pause, and not to go on."""

    stopped_codes: Sequence[int] = (0,)
    """Exit codes after a clean stop."""

    def _command(self) -> Sequence[str]:
        """The whole command line."""
        return [sys.executable, "-m", self.program, *self._arguments()]

    def _arguments(self) -> Sequence[str]:
        """What follows `metaq` on the command line."""
        raise NotImplementedError

    def _is_ready(self, line: str) -> None:
        """Called with the `ready` line; the addresses are in it."""

    def launch(self) -> None:
        """Make the process and return; `wait_ready` must follow. So several can start beside each other.

        Raises ServerDied: it runs already, or has ended by itself and nobody has noticed.
        """
        if self._process is not None:
            raise ServerDied(self.death or f"{self.name} runs already")
        with self.log.open("a", encoding="utf-8") as log:
            self._process = self._begin(
                self._command(),
                {**os.environ, "METAQ_STOP_WITH_STDIN": "1", **_paths(), **self._environment},
                log,
            )

    def _begin(self, command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603  our own command
            command,
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )

    def wait_ready(self) -> None:
        """Return when it accepts connections. Raises ServerDied: it ended, or was not ready in time and was killed."""
        process = self._launched()
        # The read below has no timeout; the end of the killed process ends it.
        timer = threading.Timer(self._timeout, process.kill)
        timer.start()
        assert process.stdout is not None
        try:
            # What others print there, for example a sitecustomize of the user's, is passed over.
            ready = next((line for line in process.stdout if line.startswith("ready")), None)
            code = process.wait() if ready is None else None
        finally:
            timer.cancel()
        if ready is None:
            self._release()
            raise ServerDied(f"{self.name} did not get ready, exit code {code}:\n{self.log_tail()}")
        self.ready = True
        self._is_ready(ready)

    @property
    def pid(self) -> int:
        """Process id. Raises ServerDied if it is not running."""
        return self._running().pid

    @property
    def launched(self) -> bool:
        """Whether it was launched and nobody has ended it since; it may have ended by itself."""
        return self._process is not None

    @property
    def alive(self) -> bool:
        """Whether it was launched and runs."""
        process = self._process  # one look: another thread may end it
        return process is not None and process.poll() is None

    @property
    def death(self) -> str:
        """How it ended though nobody told it to, with its last log lines; empty if it runs or was ended by a call."""
        process = self._process
        code = process.poll() if process is not None else None
        return "" if code is None else f"{self.name} ended by itself, exit code {code}:\n{self.log_tail()}"

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop cleanly (SIGTERM). Raises ServerDied if that fails or takes longer than `timeout` (120) seconds."""
        self.ask_to_stop()
        self.wait_stopped(timeout)

    def ask_to_stop(self) -> None:
        """The first half of `stop`, so that several can stop beside each other. Raises ServerDied if it does not run."""
        process = self._running()
        # A paused process would get SIGTERM only when it goes on.
        process.send_signal(signal.SIGCONT)
        self.paused = False
        process.terminate()

    def wait_stopped(self, timeout: float = STOP_SECONDS) -> None:
        """The other half of `stop`. Raises ServerDied: it takes longer than `timeout` (120) seconds, and was killed; or its exit
        code is that of a failure."""
        process = self._launched()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerDied(f"{self.name} did not stop within {timeout} s:\n{self.log_tail()}") from None
        finally:
            self._release()
        if code not in self.stopped_codes:
            raise ServerDied(f"{self.name} stopped with exit code {code}:\n{self.log_tail()}")

    def kill(self) -> None:
        """kill -9: what a crash leaves. A start recovers the data. Raises ServerDied if it does not run."""
        process = self._running()
        process.kill()
        process.wait()
        self._release()

    def wait_ended(self, timeout: float = STOP_SECONDS) -> int:
        """Wait until it ends by itself, where that is what should happen. Returns its exit code.

        Raises ServerDied: it is not running, or still runs after `timeout` seconds.
        """
        process = self._launched()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerDied(f"{self.name} did not end within {timeout} s:\n{self.log_tail()}") from None
        self._release()
        return code

    def pause(self) -> None:
        """Halt it where it is (SIGSTOP), as a machine that hangs: connections stay open, nothing is answered. Returns when it stands."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        self.paused = True
        wait_halted(process.pid)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)
        self.paused = False

    def log_text(self) -> str:
        """All that it has logged, over all its lives."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last `lines` (30) lines that it logged, as one text."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def end(self) -> None:
        """Kill it if it runs, whatever its state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._release()

    def _launched(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ServerDied(f"{self.name} is not running")
        return self._process

    def _running(self) -> subprocess.Popen[str]:
        process = self._launched()
        if death := self.death:
            raise ServerDied(death)
        return process

    def _release(self) -> None:
        process, self._process = self._process, None
        self.paused = self.ready = False
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def wait_halted(pid: int, seconds: float = HALT_SECONDS) -> None:
    """Wait until a child that was sent SIGSTOP stands, with all its threads, or has ended: until then it may go on to answer.

    Returns after `seconds` whatever its state: another thread may have sent it SIGCONT meanwhile.
    """
    deadline = SYSTEM.monotonic() + seconds
    pause = threading.Event()
    with contextlib.suppress(ChildProcessError):
        # WNOWAIT: its exit code stays for its `subprocess.Popen`.
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if pause.wait(0.001) or SYSTEM.monotonic() > deadline:
                return


def option_flags(options: Mapping[str, object]) -> list[str]:
    """Options as flags of a server's command line."""
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def _paths() -> dict[str, str]:
    # The child imports the metaq that we are, installed or not.
    ours = str(pathlib.Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))}
