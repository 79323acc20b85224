"""One process: its event loop, its signals, its memory settings, its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from metaq.errors import ConfigError, MetaqError

log = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MALLOC: Final = {
    # A pull's answer of 1 MiB would by default be a fresh mapping each time: 256 page faults, three times the cost.
    _M_MMAP_THRESHOLD: 32 * 1024 * 1024,
    _M_TRIM_THRESHOLD: 16 * 1024 * 1024,
    # Few threads, and none of them allocates much: more arenas only spread the same memory.
    _M_ARENA_MAX: 2,
}


class Running(Protocol):
    """A service that accepts connections."""

    @property
    def ready(self) -> str:
        """The line for standard output, beginning with `ready`."""
        ...

    failure: asyncio.Future[str]
    """Gets a text when the service cannot go on; the process then stops and exits with 1."""

    async def close(self) -> None:
        """Stop cleanly: say good-bye to peers, flush, mark the store as closed. Safe to call once."""
        ...


def run(start: Callable[[], Awaitable[Running]]) -> int:
    """Run one service until SIGTERM, Ctrl-C or its own failure. Returns the exit code.

    A failure to start (ConfigError, StoreLocked, a taken port) is told in one line on standard error.
    """
    _tune_malloc()
    _raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(start))
    except MetaqError as error:
        print(f"metaq: {error}", file=sys.stderr)  # noqa: T201  the one line that the user sees
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


async def _serve(start: Callable[[], Awaitable[Running]]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.ensure_future(start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # told to stop while, for example, waiting for a name server
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return EXIT_OK
        service = starting.result()
        print(service.ready, flush=True)  # noqa: T201  who started us waits for this line
        # What lives now lives long: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        ends: set[asyncio.Future[Any]] = {service.failure, stopping}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        failure = service.failure.result() if service.failure.done() else ""
        if failure:
            log.critical("stopping: %s", failure)
        else:
            log.info("stopping")
        await service.close()
        return EXIT_FAILED if failure else EXIT_OK
    finally:
        stopping.cancel()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's loop where it is installed (15 % less CPU per unpipelined request), else asyncio's own.

    METAQ_UVLOOP=0 chooses asyncio's own in any case.
    """
    if os.environ.get("METAQ_UVLOOP", "1") != "0":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
            return make
    return asyncio.new_event_loop


def loop_name() -> str:
    """Which loop `run` takes, in words."""
    if os.environ.get("METAQ_UVLOOP", "1") == "0":
        return "asyncio's own, because METAQ_UVLOOP=0"
    return "asyncio's own, because uvloop is not installed" if loop_factory() is asyncio.new_event_loop else "uvloop"


def _tune_malloc() -> None:
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # no glibc: its defaults are as good as we know
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC.items():
            mallopt(parameter, value)


def _raise_file_limit() -> None:
    # Each queue and each connection takes a descriptor; the soft limit of 1024 is for programs that use select().
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def set_up_logging(level: str) -> None:
    """Log to standard error, one line per event. Standard output carries only the `ready` line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
