"""Checks the small files of a folder: checkpoint and tails, tables, and their journals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from metaq.errors import BadRequest, MetaqError
from metaq.model import DataVersion
from metaq.saved_file import TableFile
from metaq.store.checkpoint import CHECKPOINT_BYTES, Checkpoint, Tails
from metaq.store.config_file import ConfigFile
from metaq.store.folder import StoreFolder
from metaq.store.journalled_file import JournalledFile
from metaq.store.offline.log_pieces import FLOORS
from metaq.store.sealed import is_sealed_file, unseal
from metaq.store.upkeep.findings import Findings
from metaq.store.upkeep.log_records import LogRecords, Seen
from metaq.wire import journal
from metaq.wire.files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    DELETED_TOPICS,
    GENERATIONS,
    GROUPS,
    LEADERSHIP,
    QUOTAS,
    TOPICS,
    Config,
    NamedConfigs,
)

_BYTE: Final = re.compile(r"byte (\d+)|position (\d+)|char (\d+)|at (\d+)")


class FloorsTable(msgspec.Struct):
    floors: dict[str, int]


def _tree(kind: Any) -> Callable[[str], object]:
    return lambda text: msgspec.json.decode(text, type=kind)


_FORMATS: Final[Mapping[str, Callable[[str], object]]] = {
    **{form.name: form.parse for form in (TOPICS, GROUPS, DELETED_TOPICS, GENERATIONS, QUOTAS)},
    **{form.name: form.parse for form in (CONSUMER_OFFSETS, DELAY_OFFSETS, CONSUMER_FILTERS, LEADERSHIP)},
    "metaqTails.json": _tree(Tails),
    FLOORS: _tree(FloorsTable),
    "metaqStore.json": _tree(dict[str, int]),
}
_HINTS: Final = frozenset({"metaqTails.json", "metaqStore.json"})
"""Files that a start or a repair makes anew."""
_JOURNALLED: Final[tuple[NamedConfigs[Any], ...]] = (TOPICS, GROUPS)


def check_tables(folder: StoreFolder, findings: Findings) -> None:
    """Parse each table, and the version of it before. Of a running broker's, one may be gone between two looks."""
    tables, hints = findings.kind("tables", "files"), findings.kind("checkpoint", "files")
    for name, parse in _FORMATS.items():
        kind = hints if name in _HINTS else tables
        for path in ConfigFile(folder.config / name).paths:
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                kind.add(path, 0, 0, f"it cannot be read: {error.strerror}")
                continue
            kind.checked += 1
            try:
                text = data.decode()
                if text.strip():  # RocketMQ does not sync before its rename: an empty file is passed over
                    parse(unseal(text, path.name) if is_sealed_file(name) else text)
            except UnicodeDecodeError as error:
                kind.add(path, error.start, 0, "bytes that are no UTF-8")
            except (MetaqError, msgspec.DecodeError, ValueError, RecursionError) as error:
                kind.add(path, _byte_of(str(error)), 0, f"it is not what belongs there: {error}")


def _byte_of(text: str) -> int:
    """Return the byte that an error of a parser names; 0: it names none."""
    found = _BYTE.search(text)
    return int(next(group for group in found.groups() if group)) if found else 0


def check_journals(folder: StoreFolder, findings: Findings) -> None:
    """Hold the lines of the journals against their checksums, and the journals against the table that they go on from."""
    kind = findings.kind("journals", "lines")
    for form in _JOURNALLED:
        paths = sorted(folder.config.glob(f"{form.name}.journal.*"))
        before = kind.damaged
        for path in paths:
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            _check_lines(path, data, findings)
        if not paths:
            continue
        findings.owed.append(
            f"{form.name} has a journal: a RocketMQ passes over what changed since; `metaq store fold {findings.folder}` writes it anew"
        )
        if kind.damaged > before or findings.running:
            continue
        try:
            read_table(Unsynced(folder.config / form.name), form)
        except MetaqError as error:
            kind.add(folder.config / form.name, 0, 0, str(error))


def read_table(file: JournalledFile, form: NamedConfigs[Config]) -> None:
    """Parse table and journals. Raises ConfigError: they do not fit."""
    TableFile(file, form, form).read(DataVersion())


class Unsynced(JournalledFile):
    """A table that is only read."""

    def _secure(self, path: Path) -> None:
        """A check relies on nothing, so it syncs nothing."""


def _check_lines(path: Path, data: bytes, findings: Findings) -> None:
    kind = findings.kind("journals", "lines")
    place, damaged = 0, -1
    for line in data.splitlines(keepends=True):
        try:
            whole = journal.lines(line)
        except BadRequest:
            whole = journal.Lines([], len(line))
        if whole.texts:
            kind.checked += 1
            if damaged >= 0:
                kind.add(
                    path, damaged, place - damaged, "a line that does not fit its checksum, and whole ones follow it"
                )
            damaged = -1
        elif damaged < 0:
            damaged = place
        place += len(line)
    if damaged < 0:
        return
    if findings.in_order:
        kind.add(path, damaged, place - damaged, "a last line that does not fit its checksum")
    else:
        findings.notes.append(
            f"{path}: {place - damaged} bytes at byte {damaged} are no whole line; the next start drops them"
        )


class TailsCheck:
    """Holds the newest record that the tails name against the log. Told of each record; then `finish`."""

    def __init__(self, tails: Tails | None) -> None:
        self._tails = tails
        self._at: dict[str, int] = {}
        """The record where they say that it begins."""
        self._ending: dict[str, int] = {}
        """The one that ends where they say."""

    def take(self, seen: Seen) -> None:
        """Take note of the record that the tails speak of."""
        tails, head = self._tails, seen.head
        if tails is None or not (head.log_offset == tails.last_record or head.log_offset + head.size == tails.log_end):
            return
        here = {"last_record": head.log_offset, "log_end": head.log_offset + head.size, "last_store_ms": head.store_ms}
        if head.log_offset == tails.last_record:
            self._at = here
        else:
            self._ending = here

    def finish(self, folder: StoreFolder, findings: Findings) -> None:
        """Tell of tails that are this log's and do not fit it: one of their numbers is another."""
        tails, known = self._tails, self._at or self._ending
        if tails is None or tails.last_record < 0 or not known:
            return
        wrong = [name for name, value in known.items() if getattr(tails, name) != value]
        if len(wrong) != 1:  # else it is another broker's log
            return
        path, (name,) = folder.tails.path, wrong
        why = f"{name} is {getattr(tails, name)}, by the log it is {known[name]}"
        findings.kind("checkpoint", "files").add(path, _place(path, name), 0, why)


def check_hints(
    folder: StoreFolder, findings: Findings, tails: Tails | None, records: LogRecords, ends: dict[str, dict[int, int]]
) -> None:
    """Hold checkpoint and tails against the log that was walked."""
    kind = findings.kind("checkpoint", "files")
    _check_checkpoint(folder, findings, tails, records)
    file = folder.tails.path
    if tails is None:
        return
    if findings.in_order:
        for topic, queues in ends.items():
            for queue_id, end in queues.items():
                counted = tails.queues.get(topic, {}).get(queue_id, 0)
                if counted != end:
                    kind.add(
                        file,
                        _place(file, f'"{topic}"'),
                        0,
                        f"it counts {counted} messages of {topic}:{queue_id}, there are {end}",
                    )
    for topic, counts in tails.queues.items():
        for queue_id, end in counts.items():
            if end > 0 and queue_id not in ends.get(topic, {}):
                kind.add(
                    file,
                    _place(file, f'"{topic}"'),
                    0,
                    f"it counts {end} messages of {topic}:{queue_id}, which has no files",
                )


def _place(path: Path, text: str) -> int:
    try:
        return max(0, path.read_bytes().find(text.encode()))
    except OSError:
        return 0


def _check_checkpoint(folder: StoreFolder, findings: Findings, tails: Tails | None, records: LogRecords) -> None:
    kind = findings.kind("checkpoint", "files")
    try:
        data = folder.checkpoint.read_bytes()
    except FileNotFoundError:
        return
    kind.checked += 1
    path = folder.checkpoint
    if len(data) != CHECKPOINT_BYTES:
        kind.add(path, 0, 0, f"{len(data)} bytes instead of {CHECKPOINT_BYTES}")
        return
    if rest := data[24:].strip(b"\0"):
        kind.add(path, data.find(rest[:1], 24), 0, "bytes where there are to be zeros")
    found = [int.from_bytes(data[place : place + 8], "big", signed=True) for place in (0, 8, 16)]
    if min(found) < 0:
        kind.add(path, found.index(min(found)) * 8, 8, f"the impossible time {min(found)}")
        return
    if findings.running or not records.newest_ms:
        return
    times, newest = Checkpoint(*found), {records.last_ms, records.newest_ms}
    for place, what, ms in ((0, "log", times.log_ms), (8, "queues", times.queues_ms), (16, "index", times.index_ms)):
        if findings.in_order and ms > max(newest):
            kind.add(path, place, 8, f"{what} up to {ms}, a time that no record has")
        elif findings.in_order and tails is not None and place < 16 and ms not in newest:
            kind.add(path, place, 8, f"{what} up to {ms}, and the newest record is of {records.last_ms}")
    if findings.in_order and tails is not None and tails.index is not None:
        wanted = {max(0, min(tails.index.header[1], ms - 1)) for ms in newest}
        if times.index_ms not in wanted:
            kind.add(path, 16, 8, f"index up to {times.index_ms}, and metaqTails.json says {min(wanted)}")
