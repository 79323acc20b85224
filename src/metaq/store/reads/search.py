"""Finds the records of the log that have a word, for who follows the log: at the speed of a search for bytes, whatever lies between."""

from __future__ import annotations

from typing import Final

from metaq.store.log.commit_log import CommitLog
from metaq.wire import hot

_ALL: Final = 1 << 31


def records_with(log: CommitLog, word: bytes, place: int, bytes_max: int = 1 << 20) -> tuple[list[bytes], int]:
    """Return the records that have `word` anywhere, in their order, and the LogOffset at which to go on; `place`: there is no more yet.

    Args:
        place: LogOffset at which a record begins.
        bytes_max: of the log that are looked at, unless a record is longer.
    """
    place = max(place, log.min)
    data = log.read(place, bytes_max)
    _, stop, outcome = hot.record_run(data, 0, len(data), place, _ALL, len(data), check_crc=False)
    if not stop and outcome == hot.END_SHORT and len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        data = log.read(place, size)
        _, stop, outcome = hot.record_run(data, 0, len(data), place, _ALL, len(data), check_crc=False)
    found = list[bytes]()
    begin = 0
    while (at := data.find(word, begin, stop)) >= 0:
        rows, behind, _ = hot.record_run(data, begin, stop, place, _ALL, at + 1, check_crc=False)
        _, start, _ = (
            hot.record_run(data, begin, stop, place, rows - 1, stop, check_crc=False) if rows > 1 else (0, begin, 0)
        )
        found.append(data[start:behind])
        begin = behind
    if outcome in {hot.END_CLEAN, hot.END_SHORT}:
        return found, place + stop
    # The rest of a file that the next record did not fit into; or damage, which pulls and the upkeep tell.
    file = log.run.find(place)
    return found, min(log.end, file.end) if file is not None else log.end
