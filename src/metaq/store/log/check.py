"""Checks the checksums of the log's records as they are on the disk, piece by piece."""

from __future__ import annotations

from metaq.store.log.broken import DamagedPlace, behind, place_of
from metaq.store.log.log_bytes import LogBytes, LogFile
from metaq.store.log.scan import WHY
from metaq.store.mapped_file import FileRun
from metaq.wire import hot


def check_records(run: FileRun, start: int, stop: int, budget: int) -> tuple[int, list[DamagedPlace]]:
    """Check records from `start` on, where one begins, to `stop`, until about `budget` bytes are read, or to the end of a log file.

    Returns where to go on, and the places that are damaged; what the disk cannot read counts as damaged to the end of its file.
    Retention may take the file meanwhile: then `start` comes back.
    """
    file = run.find(start)
    if file is None:
        return start, []
    places: list[DamagedPlace] = []
    limit, at = min(file.end, stop) - file.start, start - file.start
    until = min(limit, at + budget)
    try:
        with LogBytes(LogFile(file.start, str(file.path), file.size)) as source:
            while at < until:
                _, _, size, outcome = source.run(at, limit, limit, check_crc=True)
                at += size
                if outcome == hot.END_BLANK:
                    return file.end, places
                if outcome == hot.END_CLEAN and size:
                    continue
                if at >= limit or (outcome == hot.END_SHORT and limit < file.size):
                    return min(file.end, stop), places  # what is durable may end within a record
                end = min(behind(run, file.start + at, stop) or stop, file.end)
                places.append(place_of(run, file.start + at, end, WHY.get(outcome, "a broken record")))
                at = end - file.start
    except FileNotFoundError:
        return start, []
    except OSError as error:
        end = file.start + limit
        places.append(place_of(run, file.start + at, end, f"bytes that the disk cannot read ({error.strerror})"))
        return end, places
    return file.start + at, places
