"""The process of a server: event loop, signals, memory settings, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from metaq.app.log_levels import set_log_levels
from metaq.app.reload import Reload, Reloadable
from metaq.app.supervision.service_manager import ServiceManager
from metaq.broker.process.restarting import Restarting
from metaq.errors import ConfigError, MetaqError
from metaq.log import when_dead
from metaq.option_table import Origins
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.store.disk import keep_freed_memory, raise_file_limit, return_freed_memory

log = logging.getLogger(__name__)

SWITCH_SECONDS: Final = 0.0005
"""Most seconds that the loop waits for the interpreter when a thread of the store works: at each system call, so the 5 ms of
Python's default would be 10 ms a request."""
STOP_WITH_STDIN: Final = "METAQ_STOP_WITH_STDIN"
"""Variable of the environment: 1 has a server end with its standard input."""
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
RESTART_PAUSE_SECONDS: Final = 0.2
"""Between the answer to a request for a restart, and the restart."""
ANEW: Final = -1
"""Stands for an exit code: the process does not end, it is replaced."""
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class Running(Reloadable, Protocol):
    """A running service."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Protocol server → `host:port`."""
        ...

    @property
    def ready(self) -> str:
        """Line for standard output, beginning with `ready`."""
        ...

    failure: asyncio.Future[str]
    """Gets a reason when the service cannot go on; the process then stops, with exit code 1."""

    @property
    def again(self) -> asyncio.Future[str] | None:
        """Gets a reason when the service is to be closed and started again in this process; None: never."""
        ...

    @property
    def stopped(self) -> asyncio.Future[str] | None:
        """Gets a reason when the process is to stop, with exit code 0; None: never."""
        ...

    @property
    def restarting(self) -> Restarting | None:
        """Requests of its clients to replace the process; None: it takes none."""
        ...

    async def close(self) -> None:
        """Stop cleanly: unregister, close connections, flush, mark the store as closed. To be called once."""
        ...


def print_ready(service: Running) -> None:
    """Print the line that says that it is."""
    print(service.ready, flush=True)  # noqa: T201  who started us waits for this line


def run(
    start: Callable[[], Awaitable[Running]],
    reload: Reload | None = None,
    tell_ready: Callable[[Running], None] = print_ready,
    manager: ServiceManager | None = None,
    words: Sequence[str] | None = None,
) -> int:
    """Run one service until SIGTERM, Ctrl-C or its own failure. Returns the exit code.

    `tell_ready`: called when it accepts clients. `manager`: is told, too; None: nobody has started it that wants to know.
    `words`: the command line of a process that takes the place of this one when a client asks for a restart; None: none does.

    SIGHUP reloads the configuration by `reload`. Without one there is nothing to read, and SIGHUP stops the service:
    its terminal was closed. A failure to start (ConfigError, StoreLocked, a taken port) is one line on standard error.
    """
    gc.enable()  # cli.main turns the collector off during imports
    keep_freed_memory()
    raise_file_limit()  # each queue in use holds files, each client a socket
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(_serve(start, reload, tell_ready, manager, replaced=words is not None))
        return code if code != ANEW or words is None else _replace(words, manager)
    except MetaqError as error:
        print(f"metaq: {error}", file=sys.stderr)  # noqa: T201  the one line that the user sees
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


async def _serve(
    start: Callable[[], Awaitable[Running]],
    reload: Reload | None,
    tell_ready: Callable[[Running], None],
    manager: ServiceManager | None,
    *,
    replaced: bool,
) -> int:
    """Args: replaced: whether the process can be replaced. Returns the exit code, or ANEW."""
    loop = asyncio.get_running_loop()
    stop, hung_up = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set if reload else stop.set)
    if os.environ.get(STOP_WITH_STDIN) == "1":  # metaq.testing: the child goes when its parent is gone
        loop.add_reader(0, _stop_at_end, loop, stop)
    stopping = asyncio.ensure_future(stop.wait())
    if manager is not None:
        manager.start()
    try:
        while True:
            ended = await _serve_once(start, stopping, hung_up, reload, tell_ready, manager, replaced=replaced)
            if ended is not None:
                return ended
    finally:
        stopping.cancel()
        if manager is not None:
            manager.close()


async def _serve_once(
    start: Callable[[], Awaitable[Running]],
    stopping: asyncio.Future[Any],
    hung_up: asyncio.Event,
    reload: Reload | None,
    tell_ready: Callable[[Running], None],
    manager: ServiceManager | None,
    *,
    replaced: bool,
) -> int | None:
    """Run the service until it ends. Returns the exit code, or ANEW; None: it is to be started again."""
    starting = asyncio.ensure_future(start())
    reloading: asyncio.Future[None] | None = None
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # a signal during the start, for example while waiting for a name server
            if manager is not None:
                manager.stopping("stopping: the start is given up")
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return EXIT_OK
        service = starting.result()
        follow_log_level(service)
        if reload is not None:
            reloading = asyncio.ensure_future(reload.whenever(hung_up, service))
            reloading.add_done_callback(when_dead(log, "the configuration is not read again any more, until a restart"))
        tell_ready(service)
        if manager is not None:
            manager.ready(service.ready)
        # Objects of the start live as long as the process: frozen, they are not walked in every full collection.
        gc.collect()
        gc.freeze()
        return_freed_memory()
        again: asyncio.Future[str] = service.again or asyncio.get_running_loop().create_future()
        anew = _restart_requests(service if replaced else None)
        ends: set[asyncio.Future[Any]] = {service.failure, stopping, again, anew}
        if (stopped := service.stopped) is not None:
            ends.add(stopped)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        failure = service.failure.result() if service.failure.done() else ""
        asked = stopped.result() if stopped is not None and stopped.done() else ""
        goes_on = not (stopping.done() or failure or asked) and (again.done() or anew.done())
        is_replaced = goes_on and anew.done()
        if failure:
            log.critical("stopping: %s", failure)
        elif goes_on:
            log.warning("%s", f"restarting: {anew.result()}" if is_replaced else again.result())
        else:
            log.info("stopping%s", f": {asked}" if asked else "")
        if manager is not None and is_replaced:
            manager.restarting(f"restarting: {anew.result()}")
        elif manager is not None and goes_on:
            manager.starting(again.result())
        elif manager is not None:
            why = failure or asked
            manager.stopping(f"stopping: {why}" if why else "stopping")
        await service.close()
        if is_replaced:
            return ANEW
        if goes_on:
            gc.unfreeze()  # its objects are garbage now
            return None
        return EXIT_FAILED if failure else EXIT_OK
    finally:
        if reloading is not None:
            reloading.cancel()


def _restart_requests(service: Running | None) -> asyncio.Future[str]:
    """Return what gets a reason when a client of the service has its process replaced; None: nobody can."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[str] = loop.create_future()

    def restart(why: str) -> None:
        if not asked.done():
            asked.set_result(why)

    if service is not None and service.restarting is not None:
        # Not in this turn: whoever has asked for it is answered first.
        def restart_soon(why: str) -> None:
            loop.call_later(RESTART_PAUSE_SECONDS, restart, why)

        service.restarting.by(restart_soon)
    return asked


def _replace(words: Sequence[str], manager: ServiceManager | None) -> int:
    """Execute the program anew in this process, as it is installed now. Returns the exit code if that cannot be done."""
    # Ignored until the new program has its own handler: a reload that comes meanwhile has nothing to read again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    environment = {**os.environ, **(manager.environment if manager is not None else {})}
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    logging.shutdown()
    try:
        os.execve(sys.executable, list(words), environment)  # noqa: S606  its own command line
    except OSError as error:
        print(f"metaq: {sys.executable} cannot be executed anew: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED


def own_words() -> list[str]:
    """Return the command line of this process, with its interpreter and the interpreter's flags."""
    return [sys.executable, *sys.orig_argv[1:]]


def _stop_at_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        stop.set()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the maker of uvloop's loop (15 % less CPU per unpipelined request), else of asyncio's.

    METAQ_UVLOOP=0 takes asyncio's in any case.
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
    """Return which loop `run` takes, in words."""
    if os.environ.get("METAQ_UVLOOP", "1") == "0":
        return "asyncio's own, because METAQ_UVLOOP=0"
    return "asyncio's own, because uvloop is not installed" if loop_factory() is asyncio.new_event_loop else "uvloop"


def with_origins(
    start: Callable[[], Awaitable[Running]], origins: Mapping[str, Origins]
) -> Callable[[], Awaitable[Running]]:
    """Return a `start` after which the server knows where its options come from (section → field name → origin)."""
    from metaq.app.foreign.passed_over import REASONS

    async def begin() -> Running:
        service = await start()
        for section, settings in service.settings.items():
            settings.without_effect = REASONS
            settings.origins = {**settings.origins, **origins.get(section, {})}
        return service

    return begin


def follow_log_level(service: Reloadable) -> None:
    """Change how much is logged when `logLevel` or `logLevels` is changed; with a broker in the process, when its is."""
    settings = service.settings.get("broker") or service.settings["namesrv"]
    options = next(table for table in settings.tables if isinstance(table, BrokerOptions | NamesrvOptions))
    levels = ""

    def changed(names: frozenset[str]) -> None:
        if "log_level" in names:
            logging.getLogger().setLevel(options.log_level.upper())
        if "log_levels" in names:
            nonlocal levels
            levels, before = options.log_levels, levels
            set_log_levels(levels, before)

    settings.watch(changed)
    changed(settings.pinned | {"log_levels"})  # it may have been changed over the wire, before this start


def set_up_logging(level: str, handler: logging.Handler | None = None) -> None:
    """Log to `handler`, or to standard error, one line per event. Standard output carries only the `ready` line then."""
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
