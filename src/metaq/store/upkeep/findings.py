"""What a look at a store folder has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from metaq.store.offline.damage import Damage

KEPT_MAX: Final = 100
"""Damaged places of a kind that are kept; the others are counted."""


class Kind(Struct):
    """What was found of one kind of file."""

    name: str
    unit: str
    """What is counted: records, units, entries, ..."""
    checked: int = 0
    damaged: int = 0
    damage: list[Damage] = field(default_factory=list)
    """The first places, at most `KEPT_MAX`, in the order in which they were found."""

    def add(self, path: object, place: int, size: int, why: str) -> None:
        """Take note of a damaged place."""
        self.damaged += 1
        if len(self.damage) < KEPT_MAX:
            self.damage.append(Damage(str(path), place, size, why))


class Findings(Struct):
    """What `check` has found in a folder."""

    folder: str
    running: bool
    """A broker has the folder open: what it is still writing was not looked at."""
    in_order: bool
    """The last run ended in order. False also while a broker runs."""
    log_begin: int = 0
    log_end: int = 0
    """LogOffset up to which the log was looked at."""
    durable_end: int = 0
    """LogOffset up to which all is known to be durable: the other files were held against the log up to here. Behind it lies what a
    broker is writing; or what was killed, and its next start puts right."""
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic → queue id → max offset, by the log."""
    newest: tuple[int, int, int] = (-1, 0, 0)
    """LogOffset, size and store time of the newest record that is in a queue; -1: there is none."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What is no damage, and is worth knowing."""
    owed: list[str] = field(default_factory=list)
    """What is owed, and a RocketMQ that opens the folder would not act on."""

    def kind(self, name: str, unit: str) -> Kind:
        """The findings of a kind; made if there are none yet."""
        return self.kinds.setdefault(name, Kind(name, unit))

    @property
    def damaged(self) -> int:
        """Damaged places of all kinds."""
        return sum(kind.damaged for kind in self.kinds.values())


Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""


def silent(_done: int, _of: int) -> None:
    """Show no progress."""
