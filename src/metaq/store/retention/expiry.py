"""Which log files may go, and what goes with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from metaq.options import StoreOptions

log = logging.getLogger(__name__)
FILES_PER_RUN_MAX: Final = 10
FORCE_PERCENT: Final = 85
"""Above it the oldest files go though their time is not up (`cleanFileForciblyEnable`)."""
REFUSE_PERCENT: Final = 90
"""Above it no message is taken until there is room again. So nothing that is owed could be settled by waiting."""
_HOUR_MS: Final = 3_600_000


class FileAge(NamedTuple):
    """A log file and the store time of its newest record."""

    start: int
    end: int
    last_ms: int


class Owed(Protocol):
    """Who still has something to do with records of the log: to deliver those that are delayed, for one."""

    what: str
    """What is owed, for the log: "delayed messages"."""

    def oldest(self) -> int | None:
        """LogOffset of the oldest record that is still needed; None: none is.

        Called by the housekeeping thread before log files go. When it moves on, what has settled the debt is in the log.
        """

    def carry(self, before: int) -> None:
        """Write anew at the log's end, soon, what is owed of records below this LogOffset: their file is to go.

        Called by the housekeeping thread each time that a file stays for them. Returns at once; `oldest` tells when it is done.
        """


class Debt(NamedTuple):
    """The oldest record that is owed, and what it is."""

    log_offset: int
    what: str


def oldest_debt(owners: Sequence[Owed]) -> Debt | None:
    """The oldest record that any of them needs; None: none does."""
    debts = [Debt(place, owner.what) for owner in owners if (place := owner.oldest()) is not None]
    return min(debts, default=None)


class Expired(Struct, frozen=True):
    """Which log files go, and whether there is room for messages."""

    drop_before: int
    """Delete the log files that end at or below this LogOffset."""
    files: int
    why: str
    writable: bool
    held: int | None = None
    """Where the first file begins that would go, were nothing in it owed."""
    held_end: int = 0
    """Where that file ends."""
    given_up: bool = False
    """Something that is owed goes, because the store can take nothing that would settle it."""


def decide(
    files: Sequence[FileAge],
    *,
    used_percent: float,
    now_ms: int,
    options: StoreOptions,
    at_once: bool = False,
    owed: int | None = None,
    carrying: bool = False,
    kept_from: int | None = None,
) -> Expired:
    """Judge all log files, oldest first, except the newest, which always stays. Pure.

    A file's time is up `fileReservedTime` hours after its newest record; if topics have times of their own, when none of
    them keeps a message in it (the oldest that one keeps is at LogOffset `kept_from`), and then it goes at any hour. Else it goes in the hours of `deleteWhen`, at once
    if the disk is fuller than `diskMaxUsedSpaceRatio`, and above 85 percent even before its time. At most 10 go in one
    run, so that a mistake in the settings can be stopped. What holds a record from LogOffset `owed` on stays in any case.
    Only if the store can take nothing any more, and there is nothing else to delete, the oldest such file goes, unless what
    is owed in it is being written anew (`carrying`).
    """
    forced = used_percent > FORCE_PERCENT and options.clean_file_forcibly_enable
    if forced:
        why = f"the disk is {used_percent:.0f} percent full"
    elif used_percent > options.disk_max_used_space_ratio:
        why = f"their time is up and the disk is {used_percent:.0f} percent full"
    elif kept_from is not None:
        why = "no topic keeps a message in them"
    elif at_once or is_due(options.delete_when, now_ms):
        why = "their time is up"
    else:
        why = ""
    gone, held, held_end, given_up, writable = 0, None, 0, False, used_percent <= REFUSE_PERCENT
    if why:
        for file in files[:FILES_PER_RUN_MAX]:
            if kept_from is not None:
                is_up = file.end <= kept_from
            else:
                is_up = now_ms - file.last_ms >= options.file_reserved_time * _HOUR_MS
            if not forced and not is_up:
                break
            if owed is not None and owed < file.end:
                given_up = not writable and gone == 0 and not carrying
                held, held_end = (None, 0) if given_up else (file.start, file.end)
                gone += given_up
                break
            gone += 1
    drop_before = files[gone - 1].end if gone else (files[0].start if files else 0)
    return Expired(drop_before, gone, why if gone else "", writable, held, held_end, given_up)


def is_due(delete_when: str, now_ms: int) -> bool:
    """Whether it is one of the hours (local time) at which expired files are deleted: `04` or `04;16`."""
    hour = datetime.fromtimestamp(now_ms / 1000).hour  # noqa: DTZ006  an administrator means local time
    return any(part.strip().isdecimal() and int(part) == hour for part in delete_when.split(";"))
