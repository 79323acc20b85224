"""The life of a server in the background, as its own process sees it: it holds the pid file, and tells who started it how far it is."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections.abc import Callable
from typing import Final

import msgspec

from metaq.app.background.places import Description, Ended, PidFile, Places
from metaq.app.runtime import Running
from metaq.clock import SYSTEM, Clock

log = logging.getLogger("metaq")

TAKEN: Final = b"taken\n"
"""Report: another process of this name runs."""
READY: Final = b"ready\n"
"""Report: clients are accepted."""


class BackgroundLife:
    """From the pid file's lock to the end of the process. Made by `begin`.

    Args:
        places: folder of the files.
        held: the pid file.
        description: what is known at the start.
        handler: gets the log.
        report: descriptor of a pipe to who started this, closed when it is ready; -1: nobody waits.
        clock: a test's, or the system's.
    """

    def __init__(
        self,
        places: Places,
        held: PidFile,
        description: Description,
        handler: logging.Handler,
        report: int,
        clock: Clock = SYSTEM,
    ) -> None:
        self._places, self._held, self._description, self._clock = places, held, description, clock
        self.handler = handler
        self._report = report

    @classmethod
    def begin(
        cls,
        places: Places,
        name: str,
        describe: Callable[[int], Description],
        make_handler: Callable[[], logging.Handler],
        report: int,
    ) -> BackgroundLife | None:
        """Take the pid file. Return None: another process has it, and the report says so. Raises OSError, ConfigError.

        Args: describe: makes the description, from this process's id. make_handler: opens the log, once the name is this process's.
        """
        if report >= 0:
            os.set_inheritable(report, False)
        held = PidFile.take(places.pid_file(name))
        if held is None:
            if report >= 0:
                _tell(report, TAKEN)
            return None
        description = describe(os.getpid())
        places.write(description)
        return cls(places, held, description, make_handler(), report)

    def know_data(self, folder: str) -> None:
        """Describe where this server has its data."""
        self._describe(
            msgspec.structs.replace(self._description, data=str(pathlib.Path(folder).expanduser().absolute()))
        )

    def tell_ready(self, service: Running) -> None:
        """Describe where this server listens, and tell who started it."""
        log.info("%s", service.ready)
        addresses = dict(service.addresses)
        self._describe(
            msgspec.structs.replace(self._description, addresses=addresses, ready_ms=self._clock.now_ms(), ended=None)
        )
        self._say(READY)

    def end(self, code: int) -> None:
        """Describe how this server ended; after a clean stop its pid file is gone."""
        self._describe(msgspec.structs.replace(self._description, ended=Ended(self._clock.now_ms(), code)))
        if code == 0:
            with contextlib.suppress(OSError):
                self._held.remove()

    def _describe(self, description: Description) -> None:
        self._description = description
        try:
            self._places.write(description)
        except OSError as fault:  # the server serves; `metaq status` alone knows less
            log.warning("`metaq status` will not know this: %s cannot be written to: %s", self._places.folder, fault)

    def _say(self, what: bytes) -> None:
        report, self._report = self._report, -1
        if report >= 0:
            _tell(report, what)


def _tell(report: int, what: bytes) -> None:
    with contextlib.suppress(OSError):  # who started this is gone
        os.write(report, what)
    os.close(report)
