"""Checks a store's folder: every record of the log, and every file against it. Changes nothing, and takes no lock.

What a broker that runs is still writing is left out: the look ends at what it has made durable (`config/metaqTails.json`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metaq.errors import StoreError, StoreForeign
from metaq.options import StoreOptions
from metaq.store.checkpoint import Checkpoint, IndexMark, Tails
from metaq.store.config_file import ConfigFile
from metaq.store.folder import StoreFolder, is_open
from metaq.store.log.log_bytes import LogBytes, LogFile
from metaq.store.log.sums import SumsFolder
from metaq.store.offline.log_pieces import Borders, find_end, find_log_files, hidden_below
from metaq.store.upkeep.check_index import IndexCheck, IndexSizes
from metaq.store.upkeep.check_owed import OwedCheck
from metaq.store.upkeep.check_positions import PositionsCheck
from metaq.store.upkeep.check_queues import Hidden, QueueCheck
from metaq.store.upkeep.check_tables import TailsCheck, check_hints, check_journals, check_tables
from metaq.store.upkeep.findings import Findings, Progress, silent
from metaq.store.upkeep.log_records import LogRecords
from metaq.wire import hot
from metaq.wire.files import DELETED_TOPICS

_DELAY_LEVELS: Final = StoreOptions().message_delay_level


def check(
    root: Path | str,
    *,
    progress: Progress = silent,
    index_sizes: IndexSizes | None = None,
    delay_levels: str | None = None,
) -> Findings:
    """Check a folder; also while a broker runs on it.

    Args:
        progress: told of bytes of the log.
        index_sizes: None: they are found by looking.
        delay_levels: `messageDelayLevel` of the broker; None: RocketMQ's.

    Raises: StoreForeign: there is no commit log. ConfigError: these are no delay levels.
    """
    folder = StoreFolder(StoreOptions(store_path_root_dir=str(root)))
    if not folder.commit_log.is_dir():
        raise StoreForeign(f"{folder.root} holds no commit log: name a store's folder")
    folder.refuse_later()
    running = is_open(folder.root)
    findings = Findings(str(folder.root), running, in_order=not running and folder.was_clean)
    tails = Tails.load(folder.tails)  # before the files that it speaks of
    for name, unit in (
        ("commit log", "records"),
        ("consume queues", "units"),
        ("index", "entries"),
        ("checkpoint", "files"),
    ):
        findings.kind(name, unit)
    files = find_log_files(folder.commit_log)
    for file in files[:-1]:
        if file.size != files[0].size:
            findings.kind("commit log", "records").add(
                file.path, 0, 0, f"{file.size} bytes, the oldest file has {files[0].size}"
            )
    found = TailsCheck(tails)
    end, believed = _end_of(files, folder, tails, findings)
    findings.in_order = findings.in_order and (tails is None or believed is not None)
    log_end = end
    if believed is not None and not running:
        log_end = max(end, find_end(files, Borders(folder.consume_queues)).place)
        if findings.in_order:
            # The tails end with the newest record that is in a queue: those behind it are of topics that were deleted.
            end = log_end
    findings.log_begin, findings.log_end, findings.durable_end = files[0].start if files else 0, log_end, end
    _walk(
        folder,
        findings,
        files,
        believed,
        found,
        progress,
        index_sizes,
        delay_levels or _DELAY_LEVELS,
        ours=tails is not None,
    )
    check_tables(folder, findings)
    check_journals(folder, findings)
    _check_sums(folder, findings)
    return findings


def _walk(
    folder: StoreFolder, findings: Findings, files: list[LogFile], tails: Tails | None, found: TailsCheck,
    progress: Progress, index_sizes: IndexSizes | None, delay_levels: str, *, ours: bool,
) -> None:  # fmt: skip
    records = LogRecords(files, findings.log_end, findings.kind("commit log", "records"), progress)
    hidden = Hidden(*_hidden(folder, findings.durable_end))
    # A RocketMQ puts units behind the log, and each queue by itself is copied: what is newer than its checkpoint it makes again.
    late = None if ours or findings.in_order else Checkpoint.load(folder.checkpoint).safe_ms
    queues = QueueCheck(folder.consume_queues, findings, records, hidden, delay_levels, ours=ours, made_again_ms=late)
    mark = None if findings.in_order else (tails.index if tails else None) or IndexMark((), (0, 0, 0, 0, 0, 0), 0)
    index = IndexCheck(folder.index, findings, records, mark, index_sizes)
    positions, owed = PositionsCheck(folder.positions, findings), OwedCheck(folder, findings)
    for seen in records:
        for each in (positions, owed, found):
            each.take(seen)
        if seen.head.log_offset < findings.durable_end:
            queues.take(seen)
            index.take(seen)
    queues.finish()
    index.finish()
    positions.finish()
    ends = findings.ends = queues.ends()
    found.finish(folder, findings)
    check_hints(folder, findings, tails, records, ends)
    owed.finish(ends)


def _check_sums(folder: StoreFolder, findings: Findings) -> None:
    """Hold files of checksums against their own; the log against them is a scrub's."""
    kind, sums = findings.kind("checksums", "files"), SumsFolder(folder.root, folder.disk)
    for start in sums.starts():
        kind.checked += 1
        try:
            sums.load(start)
        except (StoreError, OSError) as error:
            kind.add(sums.path(start), 0, 0, str(error))


def _hidden(folder: StoreFolder, end: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return deleted topics and floors; a damaged file of them is told by `check_tables`."""
    both = hidden_below(folder.root, end)
    try:
        text = ConfigFile(folder.config / DELETED_TOPICS.name).load()
        deleted = DELETED_TOPICS.parse(text)[1] if text else {}
    except Exception:  # noqa: BLE001  as above
        deleted = {}
    floors = {topic: place for topic, place in both.items() if place > deleted.get(topic, 0)}
    return deleted, floors


def _end_of(
    files: list[LogFile], folder: StoreFolder, tails: Tails | None, findings: Findings
) -> tuple[int, Tails | None]:
    """Return the LogOffset up to which all is looked at, and the tails if they are of this log."""
    if not files:
        return 0, tails
    if tails is None:
        place = find_end(files, Borders(folder.consume_queues)).place
        if findings.running:
            findings.notes.append(
                "a broker runs that tells nothing of what is durable: what it is writing may count as damage"
            )
        return place, None
    inside = files[0].start <= tails.log_end <= files[-1].end
    last = _head(files, tails.last_record)
    if inside and (
        tails.last_record < 0
        or (last and (last.size, last.store_ms) == (tails.log_end - tails.last_record, tails.last_store_ms))
    ):
        _tell_rest(tails.log_end, findings)
        return tails.log_end, tails
    end = find_end(files, Borders(folder.consume_queues)).place
    # Both are written at the same moments: else another broker has been here since, and the tails are of its past.
    if Checkpoint.load(folder.checkpoint).log_ms != tails.last_store_ms and (
        last is None or last.store_ms != tails.last_store_ms
    ):
        findings.notes.append(f"{folder.tails.path} is of another log: another broker has worked on the folder since")
        return end, None
    if last is not None and last.store_ms == tails.last_store_ms:
        return max(end, last.log_offset + last.size), tails
    return (max(end, tails.log_end) if inside else end), tails


def _tell_rest(end: int, findings: Findings) -> None:
    if findings.running:
        findings.notes.append(
            f"a broker has the folder open: looked at up to log offset {end}, which it has made durable"
        )
    elif not findings.in_order:
        findings.notes.append(
            f"the last run did not end in order: the next start fits the other files to what lies behind log offset {end}"
        )


def _head(files: list[LogFile], place: int) -> hot.RecordHead | None:
    for file in files:
        if file.start <= place < file.end:
            with LogBytes(file) as source:
                size = source.is_record(place - file.start, file.size, check_crc=False)
                heads, _, _ = hot.scan_records(
                    source.read(place - file.start, size), 0, size, place, 1, check_crc=False
                )
            return heads[0] if heads else None
    return None
