"""Makes anew what is derived from the log: consume queues, index, checkpoint and tails. The log itself is left as it is.

What is damaged goes, the hints are written as the log says they should be, and a start, which rebuilds what is missing, does the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from metaq.clock import SYSTEM
from metaq.errors import StoreLocked
from metaq.options import StoreOptions
from metaq.store.checkpoint import Checkpoint, Tails
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder, is_open
from metaq.store.message_store import MessageStore
from metaq.store.offline.damage import Damage
from metaq.store.offline.sizes import sizes_found
from metaq.store.upkeep.check import check
from metaq.store.upkeep.check_index import sizes_of_index
from metaq.store.upkeep.findings import Findings, Progress, silent

_DELAY_LEVELS: Final = StoreOptions().message_delay_level
_DERIVED: Final = ("consume queues", "index", "checkpoint", "positions of 1.x", "checksums")
_NO_HOST: Final = bytes(8)
"""No record is written."""


class Repaired(Struct):
    """What a repair has done, or would do."""

    done: list[str] = field(default_factory=list)
    left: list[Damage] = field(default_factory=list)
    """Damage that is not derived from the log, and stays."""


def repair(
    root: Path | str,
    *,
    dry_run: bool = False,
    everything: bool = False,
    delay_levels: str | None = None,
    progress: Progress = silent,
    disk: Disk | None = None,
) -> Repaired:
    """Rebuild what is damaged of the derived files; `everything`: also what is whole. `dry_run`: only say what would be done.

    Args: delay_levels: `messageDelayLevel` of the broker: units of delayed messages say when these are due.

    Raises: StoreLocked: a broker runs on the folder. StoreForeign: it is no store. StoreFull, StoreCorrupt as a start's.
    """
    options = StoreOptions(store_path_root_dir=str(root))
    folder = StoreFolder(options, disk)
    if is_open(folder.root):
        raise StoreLocked(f"the store {folder.root} is open in another process: stop that broker first")
    findings = check(root, delay_levels=delay_levels, progress=progress)
    plan = _Plan(folder, findings, everything=everything)
    repaired = Repaired(
        plan.words(), [one for kind in findings.kinds.values() if kind.name not in _DERIVED for one in kind.damage]
    )
    if dry_run or not plan:
        return repaired
    sizes: dict[str, Any] = sizes_found(options)
    if found := sizes_of_index(sorted(folder.index.glob("*"))):
        sizes |= {"max_hash_slot_num": found.slots, "max_index_num": found.entries}
    with_index = folder.index.is_dir() and any(folder.index.iterdir())
    folder.open()
    try:
        plan.act(disk or Disk())
    finally:
        folder.close()
    opened = StoreOptions(
        store_path_root_dir=str(root),
        message_delay_level=delay_levels or _DELAY_LEVELS,
        message_index_enable=with_index or plan.index,
        **sizes,
    )
    MessageStore(opened, SYSTEM, _NO_HOST, "", disk=disk, threads=False).close()
    left = check(root, delay_levels=delay_levels)
    repaired.left = [one for kind in left.kinds.values() for one in kind.damage]
    return repaired


class _Plan:
    """What goes, so that a start makes it anew."""

    def __init__(self, folder: StoreFolder, findings: Findings, *, everything: bool) -> None:
        self._folder, self._findings = folder, findings
        self.queues = _folders(folder.consume_queues, findings, "consume queues", everything=everything)
        self.positions = _folders(folder.positions, findings, "positions of 1.x", everything=False)
        self.index = everything or findings.kind("index", "entries").damaged > 0
        self.hints = everything or findings.kind("checkpoint", "files").damaged > 0
        self.sums = [Path(one.path) for one in findings.kind("checksums", "files").damage]

    def __bool__(self) -> bool:
        return bool(self.queues or self.positions or self.index or self.hints or self.sums)

    def words(self) -> list[str]:
        """Say what is done."""
        said = [f"{queue}: rebuilt from the log" for queue in self.queues]
        if self.index:
            said.append(f"{self._folder.index}: made anew from the keys of the log's records")
        if self.hints:
            said.append(f"{self._folder.checkpoint} and {self._folder.tails.path}: written anew, as the log says")
        said += [f"{queue}: deleted; the next start of the broker computes these positions" for queue in self.positions]
        return said + [f"{path}: deleted; the next scrub makes these checksums" for path in self.sums]

    def act(self, disk: Disk) -> None:
        """Delete, and write the hints. Raises OSError, StoreError."""
        findings, folder = self._findings, self._folder
        if self.queues or self.index or self.hints:
            # Without them, or with those of a RocketMQ, a start would not know what it may believe: it might end the log at damage.
            place, size, ms = findings.newest
            if place >= 0:
                Checkpoint(ms, ms, 0).save(folder.checkpoint, disk)
                ends = {
                    topic: {queue: end for queue, end in queues.items() if end}
                    for topic, queues in findings.ends.items()
                }
                tails = Tails(place + size, place, ms, {topic: queues for topic, queues in ends.items() if queues})
                for _ in range(2):  # the version before must not be found either
                    tails.save(folder.tails)
            folder.mark_running()  # from here on a start recovers
        for path in (*self.queues, *self.positions):
            shutil.rmtree(path, ignore_errors=True)
        if self.index:
            for path in folder.index.glob("*"):
                path.unlink()
        for path in self.sums:
            path.unlink(missing_ok=True)
        for part in (folder.consume_queues, folder.index, folder.config):
            disk.sync_folder(part)


def _folders(root: Path, findings: Findings, name: str, *, everything: bool) -> list[Path]:
    """Return the folders of queues with damage, or of all queues."""
    found = {queue for topic in root.glob("*") for queue in topic.glob("*")} if everything and root.is_dir() else set()
    kind = findings.kinds.get(name)
    for one in kind.damage if kind else ():
        path = Path(one.path)
        found |= {place for place in (path, *path.parents) if place.parent.parent == root}
    if kind and kind.damaged > len(kind.damage):  # not all of them are kept: more queues may be damaged
        return sorted({queue for topic in root.glob("*") for queue in topic.glob("*")} | found)
    return sorted(found)
