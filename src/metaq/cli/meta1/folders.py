"""Partitions of a data folder of the original MetaQ 1.x server, moved to other numbers and deleted while no server runs.

A partition is a folder `TOPIC-N` in dataPath. A move writes what it is about to do into a file first, with the identity of each
folder, so that one that was interrupted is finished by the same call, and no folder is ever taken for another.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Final

import msgspec

from metaq.durable import sync_folder, write_whole
from metaq.errors import ConfigError, NotFound, StoreFailed

JOURNAL: Final = ".move-partitions.json"
"""Lies in the data folder while a move is under way. Without a hyphen and digits at its end no server takes it for a partition."""
_LEFT: Final = ".deleting_"
NUMBER_MAX: Final = (1 << 31) - 1
_OURS: Final = ("commitlog", "consumequeue")


class Step(msgspec.Struct, frozen=True):
    """One folder of a move."""

    source: int
    target: int
    inode: int
    """Of the folder: the same under either name."""


class Move(msgspec.Struct, frozen=True):
    """What a move is about to do, in this order."""

    topic: str
    first: int
    last: int
    offset: int
    steps: list[Step]


class Moved(msgspec.Struct, frozen=True):
    """What a move has done. `before`: pairs that an interrupted call had moved already."""

    moved: list[tuple[int, int]]
    before: list[tuple[int, int]]


def partitions_of(folder: pathlib.Path, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions in a data folder. Raises ConfigError: it cannot be read."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError as fault:
        raise ConfigError(f"the data folder {folder} cannot be read: {fault.strerror}") from None
    split = (name.rpartition("-") for name in names)
    return sorted(int(number) for before, _, number in split if before == topic and _is_number(number))


def move_partitions(folder: pathlib.Path, topic: str, first: int, last: int, offset: int) -> Moved:
    """Rename the folders `topic-N` to `topic-(N+offset)` for N from `first` to `last`, durably; numbers without a folder are left out.

    A move that was interrupted is finished when it is asked for with the same words, and refused with others.

    Raises:
        NotFound: there is no such partition. Nothing was changed.
        ConfigError: a wrong range, a folder in the way, a server that has the folder open, a folder of a MetaQ for Python,
            or an interrupted move of other partitions. Nothing was changed.
        StoreFailed: a folder could not be renamed; the same call goes on.
    """
    _check(folder, topic, first, last)
    if not offset:
        raise ConfigError("an offset of 0 moves nothing: partition N becomes N + offset")
    if first + offset < 0 or last + offset > NUMBER_MAX:
        raise ConfigError(f"partitions {first + offset} to {last + offset} cannot exist: numbers are 0 to {NUMBER_MAX}")
    journal = folder / JOURNAL
    move = _begun(journal)
    if move is None:
        move = _plan(folder, topic, first, last, offset)
        refuse_if_open(folder, topic)
        write_whole(journal, msgspec.json.encode(move))
    elif (move.topic, move.first, move.last, move.offset) != (topic, first, last, offset):
        raise ConfigError(
            f"a move of partitions {move.first} to {move.last} of {move.topic} by {move.offset} was interrupted in {folder}: finish it first, with "
            "the same arguments"
        )
    else:
        refuse_if_open(folder, topic)
    done = Moved([], [])
    for step in move.steps:
        pair = (step.source, step.target)
        (done.moved if _rename(folder, topic, step) else done.before).append(pair)
    sync_folder(folder)  # The new names are there before the file that knows of them goes.
    journal.unlink()
    sync_folder(folder)
    return done


def delete_partitions(folder: pathlib.Path, topic: str, first: int, last: int) -> list[int]:
    """Delete the folders `topic-N` for N from `first` to `last`, durably. Returns the numbers of those that there were.

    Each is renamed before its files go, so that a server never finds half a partition; what an interrupted call left is deleted, too.

    Raises NotFound, ConfigError as `move_partitions`; StoreFailed: a folder could not be deleted; the same call goes on.
    """
    found, left = check_delete(folder, topic, first, last)
    try:
        for number in left:
            shutil.rmtree(_doomed(folder, topic, number))
        for number in found:
            _partition(folder, topic, number).rename(_doomed(folder, topic, number))
        sync_folder(folder)
        for number in found:
            shutil.rmtree(_doomed(folder, topic, number))
        sync_folder(folder)
    except OSError as fault:
        raise StoreFailed(
            f"{fault.filename} cannot be deleted: {fault.strerror}; mend that, and the same command goes on"
        ) from None
    return sorted({*found, *left})


def check_delete(folder: pathlib.Path, topic: str, first: int, last: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the partitions that `delete_partitions` would delete, and of those that it has begun to. Raises as that."""
    _check(folder, topic, first, last)
    if (folder / JOURNAL).exists():
        raise ConfigError(f"a move of partitions was interrupted in {folder}: finish it first, with the same arguments")
    found = _within(partitions_of(folder, topic), first, last)
    left = [number for number in _left(folder, topic) if first <= number <= last]
    if not found and not left:
        raise _none(folder, topic, first, last)
    refuse_if_open(folder, topic)
    return found, left


def refuse_if_open(folder: pathlib.Path, topic: str) -> None:
    """Raise ConfigError if a process has files of the topic's partitions open, as a server that runs has.

    Of other users' processes and of other containers that cannot be known, unless one is root.
    """
    place = folder.resolve()
    for process in os.scandir("/proc"):
        if process.name.isdigit() and int(process.name) != os.getpid() and _has_open(process.path, place, topic):
            raise ConfigError(
                f"process {process.name} has partitions of {topic} in {folder} open: stop the server first, since it would write on into folders that "
                "are elsewhere by then"
            )


def _has_open(process: str, place: pathlib.Path, topic: str) -> bool:
    with contextlib.suppress(OSError):  # It has ended, or is another user's.
        for handle in os.scandir(f"{process}/fd"):
            with contextlib.suppress(OSError):
                held = pathlib.Path(os.readlink(handle.path))  # noqa: PTH115  a DirEntry's
                if place not in held.parents:
                    continue
                name, _, number = held.relative_to(place).parts[0].rpartition("-")
                if name == topic and _is_number(number):
                    return True
    return False


def _check(folder: pathlib.Path, topic: str, first: int, last: int) -> None:
    if not topic or "/" in topic or topic in {".", ".."} or "\0" in topic:
        raise ConfigError(f"{topic!r} is no name of a topic")
    if not 0 <= first <= last <= NUMBER_MAX:
        raise ConfigError(f"{first} to {last} is no range of partitions: 0 <= start <= end <= {NUMBER_MAX}")
    if not folder.is_dir():
        raise ConfigError(f"there is no data folder {folder}")
    if any((folder / name).is_dir() for name in _OURS):
        raise ConfigError(
            f"{folder} is a store of a broker of MetaQ for Python, where partitions are queues in one log, and not folders: `metaq topic update` gives a "
            "topic more of them, `metaq topic delete` deletes it, `metaq meta1 close-partitions` has some take and give nothing"
        )


def _plan(folder: pathlib.Path, topic: str, first: int, last: int, offset: int) -> Move:
    there = set(partitions_of(folder, topic))
    moving = _within(sorted(there), first, last)
    if not moving:
        raise _none(folder, topic, first, last)
    staying = there - set(moving)
    in_the_way = sorted({number + offset for number in moving} & staying)
    in_the_way += [number + offset for number in moving if number + offset not in there
                   and os.path.lexists(_partition(folder, topic, number + offset))]  # fmt: skip
    if in_the_way:
        raise ConfigError(
            f"{_partition(folder, topic, in_the_way[0])} is in the way of partition {in_the_way[0] - offset}: move or delete it first, or take another offset"
        )
    # Upwards the highest goes first, so that its name is free for one below it.
    ordered = sorted(moving, reverse=offset > 0)
    return Move(
        topic, first, last, offset,
        [Step(one, one + offset, _partition(folder, topic, one).stat().st_ino) for one in ordered],
    )  # fmt: skip


def _begun(journal: pathlib.Path) -> Move | None:
    try:
        return msgspec.json.decode(journal.read_bytes(), type=Move)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as fault:
        raise ConfigError(
            f"the file of an interrupted move {journal} cannot be read ({fault}): look which folders were moved, and delete it"
        ) from None


def _rename(folder: pathlib.Path, topic: str, step: Step) -> bool:
    """Return whether the folder was renamed now; False: it was before."""
    source, target = (_partition(folder, topic, number) for number in (step.source, step.target))
    if _inode(target) == step.inode:
        return False
    if _inode(source) != step.inode or _inode(target) is not None:
        raise StoreFailed(
            f"{source} is not the folder that an interrupted move wanted to rename to {target.name}: somebody has changed {folder} since. "
            f"{folder / JOURNAL} says what was to be moved; put it right by hand and delete that file"
        )
    try:
        source.rename(target)
    except OSError as fault:
        raise StoreFailed(
            f"{source} cannot be renamed to {target.name}: {fault.strerror}; mend that, and the same command goes on"
        ) from None
    return True


def _left(folder: pathlib.Path, topic: str) -> list[int]:
    """Return the numbers of the partitions that an interrupted call has renamed and not deleted."""
    start = _doomed(folder, topic, 0).name.removesuffix("0")
    names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(start)]
    return sorted(int(number) for number in (name.removeprefix(start) for name in names) if _is_number(number))


def _partition(folder: pathlib.Path, topic: str, number: int) -> pathlib.Path:
    return folder / f"{topic}-{number}"


def _doomed(folder: pathlib.Path, topic: str, number: int) -> pathlib.Path:
    # Hexadecimal, since a name with a hyphen in it would be a partition again.
    return folder / f"{_LEFT}{topic.encode().hex()}_{number}"


def _inode(path: pathlib.Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _within(numbers: Sequence[int], first: int, last: int) -> list[int]:
    return [number for number in numbers if first <= number <= last]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text


def _none(folder: pathlib.Path, topic: str, first: int, last: int) -> NotFound:
    have = ", ".join(map(str, partitions_of(folder, topic)))
    return NotFound(
        f"there is no partition {first} to {last} of {topic} in {folder}"
        + (f" (there are {have})" if have else ", and no other of it")
    )
