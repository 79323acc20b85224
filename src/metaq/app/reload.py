"""SIGHUP: a server's configuration is read again, and what may change while it runs does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec import structs

from metaq.app.configuration import Configuration
from metaq.errors import ConfigError
from metaq.options import Settings

log = logging.getLogger(__name__)


class Reload:
    """Reads the configuration again and applies what has changed in it since it was read last.

    Options that are not hot keep their values until a restart, and are named each time until then. A configuration that
    is wrong anywhere changes nothing.

    Args: file: its name, for the log. load: reads all again, flags and environment too; it runs in another thread.
          loaded: what the server was started with.
    """

    def __init__(self, file: str, load: Callable[[], Configuration], loaded: Configuration) -> None:
        self._file, self._load, self._loaded = file, load, loaded

    async def whenever(self, told: asyncio.Event, settings: Mapping[str, Settings]) -> None:
        """Do it each time that `told` is set, until cancelled. `settings`: by section of the configuration."""
        while True:
            await told.wait()
            told.clear()
            try:
                self.apply(await asyncio.to_thread(self._load), settings)
            except ConfigError as error:
                log.error("%s is not applied, every option stays as it is: %s", self._file, error)  # noqa: TRY400  theirs, not ours
            except Exception:
                log.exception("%s could not be applied", self._file)

    def apply(self, found: Configuration, settings: Mapping[str, Settings]) -> None:
        """Apply what differs from the configuration before, and log what became of it."""
        for warning in found.warnings:
            log.warning("%s", warning)
        changed, refused = list[str](), list[str]()
        for section, setting in settings.items():
            before, after = getattr(self._loaded, section), getattr(found, section)
            old = before.values()
            changes = {name: value for name, value in after.values().items() if value != old[name]}
            applied = setting.change(changes, self._file)
            changed += [f"{section}.{change}" for change in applied.changed.values()]
            refused += [f"{section}.{change}" for change in applied.refused.values()]
            hot = {name: value for name, value in changes.items() if name in after.hot_names()}
            self._loaded = structs.replace(self._loaded, **{section: before.replace(**hot)})
        log.info("%s was read again: %s", self._file, ", ".join(changed) or "nothing changes")
        if refused:
            log.warning("%s: needs a restart and is not in force: %s", self._file, ", ".join(refused))
