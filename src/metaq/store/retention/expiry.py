"""Which log files may go, and what goes with them."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from metaq.options import StoreOptions

log = logging.getLogger(__name__)
FILES_PER_RUN_MAX: Final = 10
_HOUR_MS: Final = 3_600_000


class DiskStep(enum.StrEnum):
    """What a full disk has come to. Each step includes those before it, as far as the options allow."""

    OK = "ok"
    WARN = "warn"
    """Fuller than `diskMaxUsedSpaceRatio`: expired files go at once, at whatever hour."""
    CLEAN = "clean"
    """Fuller than `diskSpaceCleanForciblyRatio`: the oldest files go though their time is not up (`cleanFileForciblyEnable`)."""
    REFUSE = "refuse"
    """Fuller than `diskSpaceWarningLevelRatio`: no message is taken until there is room again."""


def disk_step(used_percent: float, options: StoreOptions) -> DiskStep:
    """Return the step of a disk that is so full. Pure."""
    if used_percent > 100 * options.disk_space_warning_level_ratio:
        return DiskStep.REFUSE
    if options.clean_file_forcibly_enable and used_percent > 100 * options.disk_space_clean_forcibly_ratio:
        return DiskStep.CLEAN
    return DiskStep.WARN if used_percent > options.disk_max_used_space_ratio else DiskStep.OK


class FileAge(NamedTuple):
    """A log file and the store time of its newest record."""

    start: int
    end: int
    last_ms: int


class Owed(Protocol):
    """A service that still needs records of the log, and keeps their files from being deleted: to deliver delayed ones, say."""

    what: str
    """What the records are, for the broker's log: "delayed messages"."""

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest record that is needed; None: none is.

        Called by the housekeeping thread before log files go. It may move on only when its replacement is in the log.
        """

    def carry(self, before: int) -> None:
        """Write the needed records below this LogOffset anew at the log's end, soon, so that their file can go.

        Called by the housekeeping thread each time that a file stays for them. Returns at once; `oldest` tells when it is done.
        """


class Debt(NamedTuple):
    """The oldest record that an owner needs, and what it is."""

    log_offset: int
    what: str


def oldest_debt(owners: Sequence[Owed]) -> Debt | None:
    """Return the oldest record that any owner needs; None: none does."""
    debts = [Debt(place, owner.what) for owner in owners if (place := owner.oldest()) is not None]
    return min(debts, default=None)


class Expired(Struct, frozen=True):
    """The decision of one run: which log files go, and whether messages are taken."""

    drop_before: int
    """Delete the log files that end at or below this LogOffset."""
    files: int
    why: str
    writable: bool
    held: int | None = None
    """LogOffset at which the first file begins that stays only for records that are needed; None: there is none."""
    held_end: int = 0
    """LogOffset at which that file ends."""
    given_up: bool = False
    """A file goes with records that are needed: the disk is full, so they cannot be written anew."""


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
    """Decide which log files go; `files` are all but the newest, oldest first. Pure.

    A file expires `fileReservedTime` hours after its newest record. It then goes in the hours of `deleteWhen`, at once if the
    disk is fuller than `diskMaxUsedSpaceRatio`, and above `diskSpaceCleanForciblyRatio` even before it expires: RocketMQ's rules.

    Args:
        owed: LogOffset of the oldest record that is still needed; files from there on stay.
        carrying: such records are being written anew, so there is hope that their file can go later.
        kept_from: with topics that have a time of their own, LogOffset of the oldest message that any topic keeps. Files below
            it have expired, and go at any hour.
    """
    # Measured once a look: the ten files of one run may free more than is needed, as in RocketMQ.
    forced = options.clean_file_forcibly_enable and used_percent > 100 * options.disk_space_clean_forcibly_ratio
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
    gone, held, held_end, given_up = 0, None, 0, False
    writable = disk_step(used_percent, options) is not DiskStep.REFUSE
    if why:
        # Ten in a run, as in RocketMQ: a mistake in the settings can be stopped before everything is gone.
        for file in files[:FILES_PER_RUN_MAX]:
            if kept_from is not None:
                is_up = file.end <= kept_from
            else:
                # By store time and not by the file's modification time, which RocketMQ takes and a copy of the folder
                # loses.
                is_up = now_ms - file.last_ms >= options.file_reserved_time * _HOUR_MS
            if not forced and not is_up:
                # Oldest first, and no gap: a file that stays keeps all behind it.
                break
            if owed is not None and owed < file.end:
                # On a full disk nothing can be written anew, so waiting would be for ever: the oldest such file goes, alone.
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
