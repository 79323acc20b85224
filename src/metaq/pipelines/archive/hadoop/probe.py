"""Probe: whether a Hadoop file system can do what publishing a batch needs. It is tried, not looked up by scheme.

    1  exclusive create and rename: a file is created, or renamed to a name, only if there is none; one of several racers wins
    2  atomic rename: the new name appears at once, with the whole file, and the old one is gone
    3  consistent listings: a created file is in the next listing, a removed one is not
    4  durability: a file's bytes can be forced to disk (hsync)

An object store, whose rename is a copy, will do too if it declares exclusive creation of objects
(`fs.option.create.conditional.overwrite`, as S3A does since Hadoop 3.4.2): the manifest alone decides.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Final

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.spark.engine.hadoop import HadoopFiles

_COPYING: Final = frozenset(
    {"s3", "s3n", "s3a", "gs", "oss", "cos", "cosn", "obs", "swift", "wasb", "wasbs", "b2", "ks3"}
)
"""Schemes of stores whose rename is a copy. The probe cannot show it: copies of small files are quick."""
RUNNERS: Final = 4
ROUNDS: Final = 3


def probe(files: HadoopFiles, staging: str) -> None:
    """Create the output and its staging folder, and probe them.

    Args: staging: relative to the output. Raises: ConfigError: they cannot be created, or the file system lacks something.
    """
    mark = f"_probe-{SYSTEM.token()[:12]}"
    for folder, name in (("", "output"), (staging, "staging folder")):
        try:
            files.make_folder(folder)
            files.make_folder(f"{folder}/{mark}" if folder else mark)
        except OSError as fault:
            raise ConfigError(f"the {name} {files.at(folder)} cannot be written to: {fault.strerror}") from None
    try:
        _declared(files)
        _one_of_many(files, mark)
        _renamed(files, f"{staging}/{mark}", mark)
        _listed(files, mark)
    except OSError as fault:
        raise ConfigError(f"{files.root} cannot be used for an archive: {fault.strerror} ({fault.filename})") from None
    finally:
        for folder in (mark, f"{staging}/{mark}"):
            with contextlib.suppress(OSError):
                files.remove(folder)


def _declared(files: HadoopFiles) -> None:
    scheme = files.root.partition(":")[0].lower()
    if scheme in _COPYING and not files.is_conditional:
        raise _missing(
            files,
            "renames there are copies, and it does not declare that it makes an object only where there is none "
            "(fs.option.create.conditional.overwrite), so two runs could publish one batch. S3A of Hadoop 3.4.2 and newer does "
            "unless fs.s3a.create.conditional.enabled is false",
        )
    if files.lists_late:
        raise _missing(files, "its listings lag behind what was written, so published batches could be overlooked")


def _one_of_many(files: HadoopFiles, mark: str) -> None:
    for number in range(ROUNDS):
        path = f"{mark}/one-{number}"
        made = _race(functools.partial(files.create, path))
        if len(made) != 1 or files.read(path) != made[0]:
            raise _missing(
                files,
                f"of {RUNNERS} who made one file at once, {len(made)} were told that they did: two runs could publish one batch",
            )
        # Also long after the race.
        with contextlib.suppress(FileExistsError):
            files.create(path, b"late")
            raise _missing(files, "a file is made over one that is there, so two runs could publish one batch")


def _renamed(files: HadoopFiles, old: str, new: str) -> None:
    files.write(f"{old}/file", b"renamed")
    # An object is durable with its PUT, so a store of those need not know hsync.
    if not files.is_conditional and not files.syncs(f"{old}/sync"):
        raise _missing(
            files, "it cannot tell when a file is safe (hsync), so a batch could be lost after it was published"
        )
    try:
        files.rename(f"{old}/file", f"{new}/file")
    except OSError as fault:
        raise ConfigError(
            f"files cannot be published in {files.root} by renaming them out of the staging folder {files.at(old)}: "
            f"{fault.strerror}. Name a staging folder on the same file system, in the same encryption zone (--staging)"
        ) from None
    if files.exists(f"{old}/file") or files.read(f"{new}/file") != b"renamed":
        raise _missing(files, "a renamed file is not there at once and whole")
    files.write(f"{old}/other", b"other")
    with contextlib.suppress(FileExistsError):
        files.rename(f"{old}/other", f"{new}/file")
        raise _missing(files, "a file is renamed over one that is there, so a published file could be lost")
    if files.read(f"{new}/file") != b"renamed" or not files.exists(f"{old}/other"):
        raise _missing(files, "a rename that was refused has changed something")


def _listed(files: HadoopFiles, mark: str) -> None:
    for number in range(ROUNDS):
        files.create(f"{mark}/listed-{number}", b"")
        if f"listed-{number}" not in {entry.name for entry in files.entries(mark)}:
            raise _missing(
                files, "a file that was made is not in the next listing, so published batches could be overlooked"
            )
        files.remove(f"{mark}/listed-{number}")
        if f"listed-{number}" in {entry.name for entry in files.entries(mark)}:
            raise _missing(files, "a file that was removed is still in the next listing")


def _race(act: Callable[[bytes], None]) -> list[bytes]:
    """Run `act` in RUNNERS threads at once, each with its own name. Returns the names that succeeded. Raises a thread's fault."""
    won: list[bytes] = []
    faults: list[OSError] = []
    # All begin at once: one after the other they would show no race.
    gate = threading.Barrier(RUNNERS)

    def run(me: bytes) -> None:
        gate.wait()
        try:
            act(me)
            won.append(me)
        except FileExistsError:
            pass
        except OSError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(f"runner {number}".encode(),)) for number in range(RUNNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return won


def _missing(files: HadoopFiles, what: str) -> ConfigError:
    return ConfigError(f"{files.root} is on a file system that cannot hold an archive: {what}")
