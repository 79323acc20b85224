"""Ledger of a redrive: after any crash its files show for each message whether it was sent.

    FOLDER/_redrive.json                    head: the topic, the name of the coordinator's row, and the coordinator
    FOLDER/_steps/0000000007.planned.json   messages about to be sent, as transaction number 7
    FOLDER/_steps/0000000007.sent.json      they were sent; the same file renamed
    FOLDER/_steps/0000000007.void.json      they were not, and never will be under this number
    FOLDER/_redriven.json                   all steps up to a number, merged: the messages sent by them

A step's plan is durable before any of it is sent. A run that finds a plan without a result asks the coordinator
(`metaq.pipelines.redrive.fence`), which remembers the last number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from metaq.durable import make_folder, sync_folder, write_whole
from metaq.errors import ConfigError, StoreCorrupt
from metaq.pipelines.redrive.offset_ranges import Place, Range, Ranges, count, joined

_Kind = TypeVar("_Kind", bound=msgspec.Struct)

HEAD, STEPS, MERGED = "_redrive.json", "_steps", "_redriven.json"
PLANNED, SENT, VOID = "planned", "sent", "void"
MERGE_FILES: Final = 100
"""Steps that are merged into one file."""


class Witness(NamedTuple):
    """A sent message: if another log offset is found at its queue offset later, the topic was deleted and made anew."""

    offset: int
    log_offset: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a folder."""

    v: int = 1
    ledger: str
    """Unique name: the `txnAppId` of its transactions."""
    topic: str
    """Topic that is read."""
    coordinator: str
    """Broker that decides its transactions."""


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one transaction; in a merged file, all that were sent so far."""

    v: int = 1
    number: int
    run: str = ""
    """Run that planned it; in a merged file, the last one."""
    run_rows: int = 0
    """In a merged file: number of messages that this run had sent."""
    queues: dict[str, dict[str, list[Range]]]
    """Broker → queue id → ranges of queue offsets."""
    last: dict[str, dict[str, Witness]] = {}
    """The message with the largest offset of each queue."""

    @property
    def ranges(self) -> Ranges:
        return {
            (broker, int(queue_id)): [(start, end) for start, end in some]
            for broker, queues in self.queues.items()
            for queue_id, some in queues.items()
        }

    @property
    def witnesses(self) -> dict[Place, Witness]:
        return {
            (broker, int(queue_id)): one for broker, queues in self.last.items() for queue_id, one in queues.items()
        }

    @property
    def rows(self) -> int:
        return count(self.ranges)


def step_of(number: int, run: str, ranges: Ranges, witnesses: dict[Place, Witness]) -> PlannedStep:
    """Return a step for its file."""
    queues: dict[str, dict[str, list[Range]]] = {}
    last: dict[str, dict[str, Witness]] = {}
    for (broker, queue_id), some in sorted(ranges.items()):
        queues.setdefault(broker, {})[str(queue_id)] = some
    for (broker, queue_id), one in sorted(witnesses.items()):
        last.setdefault(broker, {})[str(queue_id)] = one
    return PlannedStep(number=number, run=run, queues=queues, last=last)


class Ledger:
    """The files of one folder, for the run that has its lease. Raises, from every method: StoreCorrupt: a file is damaged.
    StoreFull, StoreFailed: the disk.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.head: Head | None = self._read(place / HEAD, Head) if (place / HEAD).exists() else None
        self.sent: Ranges = {}
        """Ranges that were sent."""
        self.witnesses: dict[Place, Witness] = {}
        self.planned: PlannedStep | None = None
        """Step whose end is not recorded."""
        self.number = 0
        """Number of the newest step; 0: there was none."""
        self._files: list[Path] = []
        self._by_run: dict[str, int] = {}
        self._load()

    def sent_by(self, run: str) -> int:
        """Return the number of messages that a run has sent, of steps that are not merged yet."""
        return self._by_run.get(run, 0)

    def begin(self, head: Head) -> None:
        """Write the head, which binds the folder to its topic. Raises ConfigError: it is of another."""
        if self.head is None:
            self._write(self.place / HEAD, head)
            self.head = head
        self.check_topic(head.topic)

    def check_topic(self, topic: str) -> None:
        """Raise ConfigError if the folder is of another topic."""
        if self.head is not None and self.head.topic != topic:
            raise ConfigError(
                f"the folder {self.place} is of {self.head.topic}, not of {topic}: give each topic a folder of its own"
            )

    def plan(self, run: str, ranges: Ranges, witnesses: dict[Place, Witness]) -> PlannedStep:
        """Record the next step; only then may it be sent, under its number."""
        assert self.planned is None, "the step before has no end yet"
        step = step_of(self.number + 1, run, ranges, witnesses)
        self._write(self._path(step.number, PLANNED), step)
        self.number, self.planned = step.number, step
        return step

    def end(self, *, sent: bool) -> None:
        """Record how the planned step ended. A crash before this leaves it planned."""
        step = self.planned
        assert step is not None
        final = self._path(step.number, SENT if sent else VOID)
        with _disk_faults(final):
            # A rename: the step is in one file at any moment, planned or ended.
            self._path(step.number, PLANNED).rename(final)
            sync_folder(final.parent)
        self._files.append(final)
        if sent:
            self._count(step)
        self.planned = None
        if len(self._files) >= MERGE_FILES:
            self._merge()

    def _count(self, step: PlannedStep) -> None:
        for place, some in step.ranges.items():
            self.sent[place] = joined(self.sent.get(place, ()), some)
        for place, one in step.witnesses.items():
            if place not in self.witnesses or one.offset > self.witnesses[place].offset:
                self.witnesses[place] = one
        self._by_run[step.run] = self._by_run.get(step.run, 0) + (step.run_rows or step.rows)

    def _merge(self) -> None:
        run = next(reversed(self._by_run), "")
        merged = step_of(self.number, run, self.sent, self.witnesses)
        # Merged and durable first, then the steps in it are removed.
        self._write(self.place / MERGED, msgspec.structs.replace(merged, run_rows=self._by_run.get(run, 0)))
        for path in self._files:
            # Not synced: a file that is back after a power cut is skipped.
            path.unlink(missing_ok=True)
        self._files = []

    def _load(self) -> None:
        merged = self._read(self.place / MERGED, PlannedStep) if (self.place / MERGED).exists() else None
        if merged is not None:
            self._count(merged)
            self.number = merged.number
        through = self.number
        for path, number, state in self._step_files():
            if number <= through:
                # In the merged file: a crash came before it was removed.
                path.unlink(missing_ok=True)
                continue
            step = self._read(path, PlannedStep)
            if step.number != number or (state == PLANNED and self.planned is not None):
                raise StoreCorrupt(f"the file {path} does not fit the others in its folder: somebody has changed them")
            self.number = max(self.number, number)
            if state == PLANNED:
                self.planned = step
                continue
            self._files.append(path)
            if state == SENT:
                self._count(step)
        if self.planned is not None and self.planned.number != self.number:
            raise StoreCorrupt(
                f"{self._path(self.planned.number, PLANNED)} is older than other steps: somebody put it there"
            )

    def _step_files(self) -> Iterator[tuple[Path, int, str]]:
        for path in sorted((self.place / STEPS).glob("*.json")):
            number, _, state = path.name.removesuffix(".json").partition(".")
            if not number.isdecimal() or state not in (PLANNED, SENT, VOID):
                raise StoreCorrupt(f"{path} is no file of a redrive: take it away")
            yield path, int(number), state

    def _path(self, number: int, state: str) -> Path:
        return self.place / STEPS / f"{number:010d}.{state}.json"

    def _write(self, path: Path, value: msgspec.Struct) -> None:
        with _disk_faults(path):
            make_folder(path.parent)
            write_whole(path, msgspec.json.encode(value))

    def _read(self, path: Path, kind: type[_Kind]) -> _Kind:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (msgspec.DecodeError, OSError) as fault:
            raise StoreCorrupt(
                f"{path} cannot be read ({fault}): what was sent is not known without it. Bring it back, or begin in a new folder "
                "with checkTarget"
            ) from None


@contextlib.contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    """Raise StoreFull or StoreFailed for an OSError of writing `path`."""
    try:
        yield
    except OSError as fault:
        from metaq.durable import disk_fault  # Lazily: it loads pyarrow and Spark.

        raise disk_fault(fault, f"{path} could not be written, which says what is sent") from fault
