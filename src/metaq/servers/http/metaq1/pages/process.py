"""Pages about the process: `/`, `/dashboard`, `/logging`, `/java-properties` (Python's) and `/thread-dump`."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import locale
import os
import pathlib
import platform
import resource
import sys
import threading
import traceback
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.metaq1.service import Metaq1Service
from metaq.model.access import Action
from metaq.servers.http.metaq1.pages.answers import ANY_JSON, Guarded, either
from metaq.servers.http.metaq1.pages.html import Inner, element, link, pairs
from metaq.servers.http.operations import JSON, Content, Operation
from metaq.servers.log_lines import LastLines
from metaq.servers.metaq1_stats import StatsBodies

LINES: Final = 20
"""Lines of the log that are shown, as in the original."""
REFRESH_SECONDS: Final = "2"
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


class ProcessPages:
    """The pages. Args: guarded: lets callers in. stats: has the address of the text protocol's server. log: of the process."""

    def __init__(
        self, broker: Broker, metaq1: Metaq1Service, guarded: Guarded, stats: StatsBodies, log: LastLines, version: str
    ) -> None:
        self._broker, self._options, self._guarded, self._stats, self._version = (
            broker, metaq1.settings.options, guarded, stats, version,
        )  # fmt: skip
        self._started_ms = broker.clock.now_ms()
        self._log = log

    def operations(self) -> list[Operation]:
        """Return the operations."""
        told = {200: Content(JSON, ANY_JSON)}
        open_to, deep = self._guarded.page, Action.ADMINISTER
        return [
            Operation(name="metaq1Index", method="GET", path="/", text="Tell what this is.", run=open_to(self._index), answers=told),
            Operation(
                name="metaq1Dashboard", method="GET", path="/dashboard", text="Tell about the process, as MetaQ 1.x does.",
                run=open_to(self._dashboard), answers=told,
            ),
            Operation(
                name="metaq1Logging", method="GET", path="/logging", text="Show the last lines of the log.",
                run=open_to(self._logging, deep), answers=told,
            ),
            Operation(
                name="metaq1Properties", method="GET", path="/java-properties", text="Tell about Python and the machine.",
                run=open_to(self._properties, deep), answers=told,
            ),
            Operation(
                name="metaq1Threads", method="GET", path="/thread-dump", text="Show where each thread is.",
                run=open_to(self._threads, deep), answers=told,
            ),
        ]  # fmt: skip

    async def _index(self, request: Request) -> Response:
        value: dict[str, Inner] = {"broker_id": self._options.broker_id, "version": self._version}

        def show() -> tuple[Inner, ...]:
            also = (
                "Health is at ",
                link("/health", "/health"),
                ", figures at ",
                link("/metrics", "/metrics"),
                ", all operations at ",
            )
            return (pairs(value.items()), element("p", *also, link("/openapi.json", "/openapi.json"), "."))

        return either(request, value, f"MetaQ broker {self._options.broker_id}", show)

    async def _dashboard(self, request: Request) -> Response:
        options = self._options
        value: dict[str, dict[str, Inner]] = {
            "instance": {
                "start": f"{(self._broker.clock.now_ms() - self._started_ms) // 1000} s ago", "host": self._stats.place[0], "data": options.data_path,
                "data_log": options.data_log_path or options.data_path, "cwd": str(pathlib.Path.cwd()),
            },
            "version": {"metaq": self._version, "id": options.broker_id, "uri": self._stats.url},
            "jvm": {
                "runtime": f"{platform.python_implementation()} {platform.python_version()}", "processors": os.cpu_count(),
                "args": " ".join(sys.warnoptions),
            },
            "system": _system(),
        }  # fmt: skip

        def show() -> tuple[Inner, ...]:
            return tuple(part for name, one in value.items() for part in (element("h2", name), pairs(one.items())))

        return either(request, value, "Dashboard", show)

    async def _logging(self, request: Request) -> Response:
        lines = [f"{_written(line.at_ms)} {line.level} {line.logger} {line.text}" for line in self._log.last(LINES)]
        answer = either(request, {"logs": lines}, "Log", lambda: (element("pre", "\n".join(lines)),))
        answer.headers["refresh"] = REFRESH_SECONDS
        return answer

    async def _properties(self, request: Request) -> Response:
        found = _properties()
        return either(request, {"props": found}, "Properties of Python", lambda: (pairs(found.items()),))

    async def _threads(self, request: Request) -> Response:
        found = _threads()
        return either(request, {"threads": found}, "Threads", lambda: tuple(element("pre", one) for one in found))


def _written(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S,") + f"{at_ms % 1000:03}"


def readable(size: int) -> str:
    """Return bytes in words: `1.5 MB`."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def _system() -> dict[str, Inner]:
    size = os.sysconf("SC_PAGE_SIZE")
    try:
        pages = os.sysconf("SC_PHYS_PAGES")
        free = os.sysconf("SC_AVPHYS_PAGES")
    except ValueError:  # not on macOS
        pages = free = 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    try:
        descriptors: int | str = sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir())
    except OSError:
        descriptors = "unknown"
    return {
        "sys_memory": readable(pages * size),
        "sys_memory_used": readable((pages - free) * size),
        "process_memory_max": readable(peak),
        "fdc": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "fdc_used": descriptors,
    }


def _properties() -> dict[str, str]:
    found = {
        "python.version": sys.version.replace("\n", " "),
        "python.implementation": platform.python_implementation(),
        "python.executable": sys.executable,
        "python.prefix": sys.prefix,
        "file.encoding": sys.getfilesystemencoding(),
        "user.language": locale.getlocale()[0] or "C",
        "os.name": platform.system(),
        "os.version": platform.release(),
        "os.arch": platform.machine(),
    }
    for name in ("pymetaq", "msgspec", "uvloop", "starlette", "uvicorn", "httptools", "kazoo"):
        try:
            found[f"package.{name}"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[f"package.{name}"] = "not installed"
    return found


def _threads() -> list[str]:
    frames, found = sys._current_frames(), list[str]()  # noqa: SLF001  it has no other name
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        found.append(f'"{thread.name}" id={thread.ident} daemon={str(thread.daemon).lower()}\n{stack}')
    return found
