"""The dashboard that `metaq up` starts beside itself, once it is ready: a process of its own, so that pages cost the broker's loop nothing.

The process ends with `metaq up`, however that ends. That it cannot start keeps nothing else from starting.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from metaq.app.addressing.told import from_here
from metaq.app.runtime import STOP_WITH_STDIN, Running
from metaq.dashboard_options import DashboardOptions

log = logging.getLogger(__name__)

PACKAGES: Final = ("starlette", "uvicorn", "httptools", "jinja2")
"""What the extra `dashboard` brings."""
PORT_DEFAULT: Final = 8121
END_SECONDS: Final = 5.0
"""Longest wait for its end; then it is killed."""


class DashboardBeside:
    """That dashboard. All is called in the thread of `metaq up`'s event loop, or around its life."""

    def __init__(self, options: DashboardOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def told(self, tell_ready: Callable[[Running], None]) -> Iterator[Callable[[Running], None]]:
        """Yield a `tell_ready` that starts the dashboard, too; it is ended with the context."""

        def tell(service: Running) -> None:
            tell_ready(service)
            self.start(service.addresses)

        try:
            yield tell
        finally:
            self.end()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def wanted(self) -> bool:
        """Return whether there is to be one. That packages are missing is logged."""
        asked = self._options.dashboard_enable
        if asked is None and self._options.dashboard_port is not None:
            asked = True
        # In a terminal there is somebody who reads where it is; a service, and a test, have asked for a broker.
        if not (sys.stdout.isatty() if asked is None else asked):
            return False
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            tell = log.warning if asked else log.info
            tell("no dashboard: it needs %s: pip install 'pymetaq[dashboard]'", " and ".join(missing))
        return not missing

    def start(self, addresses: Mapping[str, str]) -> None:
        """Start it, if it is wanted; again after `metaq up` has started its servers again. Args: addresses: of protocol servers, by name."""
        self.end()
        if not self.wanted():
            return
        options = self._options
        asked = {
            "namesrv": from_here(addresses["namesrv remoting"]), "port": options.dashboard_port if options.dashboard_port is not None else PORT_DEFAULT,
            "allow_changes": options.dashboard_allow_changes, "pipelines": options.dashboard_pipelines,
            "zookeeper": options.dashboard_zookeeper,
        }  # fmt: skip
        # -P: a module in the working directory must not stand in for one of ours.
        command = [sys.executable, "-P", "-m", "metaq.cli.servers.dashboard_child", msgspec.json.encode(asked).decode()]
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                command,
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                env={**os.environ, STOP_WITH_STDIN: "1"},
                start_new_session=True,  # Ctrl-C is for us alone, who end it
            )
        except OSError as fault:
            log.warning("no dashboard: its process cannot be started: %s", fault)
            return
        threading.Thread(target=self._watch, args=(self._process,), name="metaq-dashboard", daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if process is self._process:
            log.warning(
                "the dashboard has ended with exit code %d; its last lines above say why. Broker and name server go on without it",
                code,
            )

    def end(self) -> None:
        """End it, if it runs, and wait for that."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None, "it has one"
        process.stdin.close()
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
