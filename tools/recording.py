"""Draw docs/recording.svg, a recorded session in a terminal: `python -m tools.recording > docs/recording.svg`.

The commands run for real, one after the other; the picture shows each with what it has printed, at the time it took. Drawings that
do not move (print, reduced motion) show all of it at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tools.terminal_picture import svg_of

COLUMNS: Final = 100
TYPING_SECONDS: Final = 1.2
"""From one command's last line to the next command, for a reader to follow."""
READY_SECONDS: Final = 30.0
UP: Final = "metaq up"
COMMANDS: Final = (
    UP,
    "metaq send orders '{\"id\": 42}' --tag paid --key 42",
    "metaq consume orders --group mailer --count 1",
    "kill -9 $(pgrep -f 'metaq up')",
    UP,
    "metaq message query orders --key 42",
)
"""In this order. What is acknowledged survives the kill."""


class Servers:
    """`metaq up` in a folder of its own, as often as it is wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def up(self) -> str:
        """Start it. Returns what it has printed when it is ready. Raises RuntimeError: it ended."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "metaq", "up"], cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"metaq up has printed {line!r}; is another one running at its ports?")
        return line

    def kill(self) -> str:
        """End it as a crash does. Returns what a shell says."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(READY_SECONDS)
        self._process = None
        return "Killed                  metaq up\n"

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(READY_SECONDS)


@contextlib.contextmanager
def _servers() -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="metaq-recording-") as folder:
        servers = Servers(Path(folder))
        try:
            yield servers
        finally:
            servers.stop()


def recorded(run: Callable[[str], str], clock: Callable[[], float] = time.monotonic) -> list[tuple[str, str, float]]:
    """Run the commands. Returns each with what it has printed, and the seconds that it took."""
    found = []
    for command in COMMANDS:
        began = clock()
        printed = run(command)
        found.append((command, printed, clock() - began))
    return found


def _run(servers: Servers, command: str) -> str:
    if command == UP:
        return servers.up()
    if command.startswith("kill "):
        return servers.kill()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    words = command.replace("metaq", f"{sys.executable} -m metaq", 1)
    done = subprocess.run(words, shell=True, env=environment, capture_output=True, text=True, check=True, timeout=60)  # noqa: S602  a constant of ours
    return done.stdout


def drawn(session: list[tuple[str, str, float]]) -> str:
    """Return the picture of a session, as SVG."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    appears: list[float] = []
    at = 0.5
    for command, printed, seconds in session:
        background = " &" if command == UP else ""
        for text, after in ((Text.assemble(("$ ", "green"), (command + background, "bold")), seconds), (Text.from_ansi(printed.rstrip()), TYPING_SECONDS)):  # fmt: skip
            lines = text.wrap(console, COLUMNS)
            for line in lines:
                console.print(line)
            appears += [at] * len(lines)
            at += after
    svg = svg_of(console, "metaq", "recording")
    svg = re.sub(
        r'clip-path="url\(#recording-line-(\d+)\)"',
        lambda found: f'{found[0]} style="animation-delay:{appears[min(int(found[1]), len(appears) - 1)]:.2f}s"',
        svg,
    )
    moving = (
        "@media (prefers-reduced-motion: no-preference) { .recording-matrix text { animation: appear 0.01s linear both } }\n"
        "    @keyframes appear { from { visibility: hidden } to { visibility: visible } }\n    </style>"
    )
    return svg.replace("</style>", moving, 1)


def main() -> None:
    with _servers() as servers:
        sys.stdout.write(drawn(recorded(lambda command: _run(servers, command))))


if __name__ == "__main__":
    main()
