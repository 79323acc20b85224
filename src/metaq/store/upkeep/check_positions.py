"""Checks byte positions of MetaQ 1.x: each unit by its own check, by its neighbours, and by the bases in the log."""

from __future__ import annotations

from pathlib import Path

from metaq.errors import RemoteProtocolError
from metaq.model.topics.system import POSITIONS_TOPIC
from metaq.store.mapped_file import any_byte
from metaq.store.metaq1.position_bases import decode
from metaq.store.metaq1.position_files import UNIT_BYTES
from metaq.store.offline.log_pieces import is_log_name
from metaq.store.upkeep.findings import Findings
from metaq.store.upkeep.log_records import Seen
from metaq.wire import hot
from metaq.wire.record import decode_record

_TOPIC = POSITIONS_TOPIC.encode()
_STEP = 8192 * UNIT_BYTES


class PositionsCheck:
    """Told of each record of the log; then `finish`."""

    def __init__(self, root: Path, findings: Findings) -> None:
        self._root, self._findings = root, findings
        self._kind = findings.kind("positions of 1.x", "units")
        self._bases: dict[tuple[str, int], dict[int, int]] = {}
        """Queue → queue offset → position, as the log says it."""

    def take(self, seen: Seen) -> None:
        """Take note of what a record says of positions."""
        if seen.head.topic != _TOPIC:
            return
        try:
            told = decode(decode_record(seen.data).body)
        except (RemoteProtocolError, ValueError) as error:
            self._findings.kind("commit log", "records").add(seen.file.path, seen.place, seen.head.size, str(error))
            return
        if told is None:
            return
        for topic in told.topics:
            self._bases = {queue: known for queue, known in self._bases.items() if queue[0] != topic}
        for queue, (offset, position) in told.bases.items():
            self._bases.setdefault(queue, {})[offset] = position

    def finish(self) -> None:
        """Look at the files of all queues."""
        for topic in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if ".deleted-" in topic.name or not topic.is_dir():
                continue
            for queue in sorted(topic.iterdir()):
                if queue.is_dir() and queue.name.isdecimal():
                    self._check(queue, self._bases.get((topic.name, int(queue.name)), {}))

    def _check(self, folder: Path, bases: dict[int, int]) -> None:
        before = -1
        for path in sorted(folder.iterdir()):
            if not is_log_name(path.name):
                continue
            first, size = int(path.name) // UNIT_BYTES, path.stat().st_size
            with path.open("rb") as file:
                for start in range(0, size, _STEP):
                    data = file.read(_STEP)
                    if not any_byte(data):  # zeros say nothing
                        before = -1
                        continue
                    for at in range(0, len(data), UNIT_BYTES):
                        before = self._unit(
                            path,
                            start + at,
                            data[at : at + UNIT_BYTES],
                            (first + (start + at) // UNIT_BYTES),
                            before,
                            bases,
                        )

    def _unit(self, path: Path, place: int, unit: bytes, offset: int, before: int, bases: dict[int, int]) -> int:
        """Judge one unit. Returns its position; -1: it says nothing."""
        if not any_byte(unit):
            return -1
        self._kind.checked += 1
        position = hot.position_of(unit, offset)
        if position < 0:
            if not self._findings.running:  # a broker that runs may be writing it
                self._kind.add(path, place, UNIT_BYTES, f"the position of message {offset} does not fit its check")
        elif position < before:
            self._kind.add(path, place, UNIT_BYTES, f"message {offset} is at {position}, the one before it at {before}")
        elif bases.get(offset, position) != position:
            why = f"message {offset} is at {position}, and the log says {bases[offset]}"
            self._kind.add(path, place, UNIT_BYTES, why)
        return position
