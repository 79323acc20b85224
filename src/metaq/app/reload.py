"""Reload: a server's configuration is read again, at SIGHUP or at a client's request, and hot options are applied."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from metaq.app.config_files.sections import METAQ1
from metaq.app.configuration import Configuration
from metaq.app.role.pending import all_ended
from metaq.broker.process.reloading import Reloading, ended
from metaq.errors import ConfigError, Reason, Refused
from metaq.model.reload import ReloadedFile
from metaq.option_table import text_of
from metaq.options import Settings, camel
from metaq.saved import Pending

if TYPE_CHECKING:
    from metaq.broker.metaq1.settings import Metaq1Settings
    from metaq.model.metaq1.settings import PartitionRules

log = logging.getLogger(__name__)


class Reloadable(Protocol):
    """A service whose configuration can be reloaded."""

    @property
    def settings(self) -> Mapping[str, Settings]:
        """Its option tables, by section."""
        ...

    @property
    def metaq1(self) -> Metaq1Settings | None:
        """Its settings of MetaQ 1.x; None if it does not serve it."""
        ...

    @property
    def reloading(self) -> Reloading | None:
        """Reload requests of its clients; None if it takes none."""
        ...


class Reload:
    """Reads the configuration again and applies its changes since the last time.

    Options that are not hot keep their values until a restart, and are named at each reload until then. A configuration
    that is wrong anywhere changes nothing.

    Args:
        file: its name, for the log.
        load: reads everything again, flags and environment too; runs in another thread.
        loaded: the configuration at the start.
    """

    def __init__(self, file: str, load: Callable[[], Configuration], loaded: Configuration) -> None:
        self._file, self._load, self._loaded = file, load, loaded

    async def whenever(self, told: asyncio.Event, service: Reloadable) -> None:
        """Reload each time that `told` is set and for each request of a client, until cancelled."""
        reloading = service.reloading
        if reloading is not None:
            reloading.by(told.set)
        while True:
            await told.wait()
            # Before the file is read: a request that comes meanwhile causes another reload.
            told.clear()
            asked = reloading.begin() if reloading is not None else []
            try:
                # In a thread: reading files and checking filters may take long; applying is for the loop.
                found = await asyncio.to_thread(self._load)
                before = reloading.saves() if reloading is not None else []
                outcome = self.apply(found, service)
                if reloading is not None:
                    await self._saved([change for change in reloading.saves() if change not in before])
                ended(asked, outcome)
            except ConfigError as error:
                text = f"{self._file} is not applied, every option stays as it is: {error}"
                log.error("%s", text)  # noqa: TRY400  theirs, not ours
                ended(asked, Refused(Reason.INVALID, text))
            except Refused as error:
                log.error("%s", error)  # noqa: TRY400  as above
                ended(asked, error)
            except Exception as error:
                log.exception("%s could not be applied", self._file)
                ended(asked, Refused(Reason.NOT_STORED, f"{self._file} could not be applied: {error!r}"))

    async def _saved(self, changes: list[Pending]) -> None:
        """Return when changes of tables that follow from the options, such as more partitions, are in effect.

        Raises Refused: one cannot be saved, or not in time.
        """
        what = f"{self._file} was read again, and a change of topics that follows from it is not in effect"
        try:
            async with asyncio.timeout(Pending.wait_seconds):
                await all_ended(changes)
        except Refused as error:
            raise Refused(error.reason, f"{what} before the broker's next start: {error}") from None
        except TimeoutError:
            raise Refused(
                Reason.BUSY, f"{what} yet: it is not saved within {Pending.wait_seconds:g} s, see what the disk does"
            ) from None

    def apply(self, found: Configuration, service: Reloadable) -> ReloadedFile:
        """Apply the differences from the previous configuration; log and return the outcome.

        Raises ConfigError: nothing was changed.
        """
        rules = None
        if service.metaq1 is not None:
            # Before any option is changed: a configuration that is wrong changes nothing.
            rules = found.rules.keeping(service.metaq1.rules)
            service.metaq1.check(rules)
        changed, refused = list[str](), list[str]()
        for section, setting in service.settings.items():
            before, after = getattr(self._loaded, section), getattr(found, section)
            old = before.values()
            changes = {name: value for name, value in after.values().items() if value != old[name]}
            pinned = changes.keys() & setting.pinned
            refused += [f"{section}.{camel(name)}, which was changed over the wire" for name in sorted(pinned)]
            changes = {name: value for name, value in changes.items() if name not in pinned}
            applied = setting.change(changes, self._file)
            kept = {name: setting.origin(name) for name in applied.refused}
            others = {name: origin for name, origin in setting.origins.items() if name not in old}
            setting.origins = {**others, **found.origins.get(section, {}), **kept}
            others_wait = {name: value for name, value in setting.waiting.items() if name not in old}
            now_wait = {name: text_of(change.new) for name, change in applied.refused.items()}
            setting.waiting = {**others_wait, **now_wait}
            changed += [f"{section}.{change}" for change in applied.changed.values()]
            refused += [f"{section}.{change}" for change in applied.refused.values()]
            # What is not hot stays as it was in `_loaded`, and so is named again at the next reload.
            hot = {name: value for name, value in changes.items() if name in after.hot_names()}
            self._loaded = structs.replace(self._loaded, **{section: before.replace(**hot)})
        if service.metaq1 is not None and rules is not None:
            changed += differences(service.metaq1.rules, rules)
            refused += lasting(service.metaq1.rules, found.rules)
            service.metaq1.exchange(rules, found.server_ini)
        elif found.metaq1.enable and METAQ1 not in service.settings and service.reloading is not None:
            refused.append("metaq1.enable=true (it was false)")
        self._log(found.warnings, changed, refused)
        return ReloadedFile(self._file, tuple(changed), tuple(refused), found.warnings)

    def _log(self, warnings: tuple[str, ...], changed: list[str], refused: list[str]) -> None:
        for warning in warnings:
            log.warning("%s", warning)
        log.info("%s was read again: %s", self._file, ", ".join(changed) or "nothing changes")
        if refused:
            log.warning("%s: needs a restart and is not in force: %s", self._file, ", ".join(refused))


def differences(before: PartitionRules, after: PartitionRules) -> Iterator[str]:
    """Yield a text for each new or changed rule of a topic."""
    for name in sorted(after.topics):
        old, new = before.topics.get(name), after.topics[name]
        if old is None:
            yield f"topic {name} (numPartitions={new.num_partitions})"
        elif old != new:
            yield f"topic {name}: {', '.join(_changes(structs.asdict(old), structs.asdict(new)))}"
    yield from (f"topics {name}" for name in sorted(set(after.wildcards) - set(before.wildcards)))


def _changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for name, value in new.items():
        if value != old[name]:
            shown = (lambda text: str(text).lower()) if isinstance(value, bool) else str
            yield f"{camel(name.removesuffix('_ms'))}={shown(value)} (it was {shown(old[name])})"


def lasting(before: PartitionRules, wanted: PartitionRules) -> Iterator[str]:
    """Yield a text for each rule that a running broker keeps against the configuration: removed topics, fewer
    partitions."""
    for name in sorted(before.topics.keys() - wanted.topics.keys()):
        yield f"topic {name} has no section any more and stays in use until then"
    for name in sorted(set(before.wildcards) - set(wanted.wildcards)):
        yield f"topics {name} have no section any more and stay in use until then"
    for name, settings in sorted(wanted.topics.items()):
        old = before.topics.get(name)
        if old is not None and settings.num_partitions < old.num_partitions:
            yield (
                f"topic {name} keeps its {old.num_partitions} partitions: messages may lie in them, so there are never "
                f"fewer, not even then (numPartitions={settings.num_partitions})"
            )
