"""A small folder with every kind of file, and what a look at it finds."""

from __future__ import annotations

import pathlib
from array import array

from metaq.clock import FakeClock, seeded
from metaq.model import DataVersion, TopicConfig
from metaq.saved import SavedTable
from metaq.saved_file import TableFile
from metaq.store.journalled_file import JournalledFile
from metaq.store.offline.damage import Damage
from metaq.store.upkeep.findings import Findings
from metaq.wire import hot
from metaq.wire.files import TOPICS
from tests.store.support import START_MS, message, open_store

MESSAGES = 500


def filled(root: pathlib.Path, *, close: bool = True, **changes: object) -> pathlib.Path:
    """A store of several log, queue and index files, of messages with tags and keys, ended in order."""
    clock = FakeClock(START_MS)
    store = open_store(root, clock, **changes)
    chance = seeded(7)
    for number in range(MESSAGES):
        clock.advance(0.5)
        body, tag = chance.randbytes(chance.randrange(500)), chance.choice(["", "red", "blue"])
        store.writer.put([message("orders", number % 2, body, tag=tag, key=f"k{number}")])
    if close:
        store.close()
    return root


def with_tables(root: pathlib.Path) -> None:
    """Add a table with a journal, and positions of a queue."""
    path = root / "config" / TOPICS.name
    table = SavedTable(TableFile(JournalledFile(path), TOPICS, TOPICS), {}, DataVersion(), clock=FakeClock(START_MS))
    for name in ("orders", "stock"):
        table.change(name, TopicConfig(name)).settle()
    folder = root / "positions" / "orders" / "0"
    folder.mkdir(parents=True)
    units, _ = hot.position_units(array("i", [30] * 50), 0, 0)
    (folder / f"{0:020d}").write_bytes(bytes(units).ljust(2 << 20, b"\0"))


def all_damage(findings: Findings) -> list[Damage]:
    """Of all kinds."""
    return [one for kind in findings.kinds.values() for one in kind.damage]
