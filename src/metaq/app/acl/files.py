"""The files of access control: found, read together, and read again when one of them has changed."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from metaq.app.acl.place import ACL_FILE
from metaq.app.watched_files import Marks, WatchedFiles, marks_of
from metaq.broker.acl import AccessControl
from metaq.clock import SYSTEM, Clock
from metaq.durable import write_secret
from metaq.errors import ConfigError, Reason, Refused, shortage
from metaq.model.access import Action
from metaq.model.acl.accounts import AclFile, AclRules, reading_order
from metaq.model.acl.changes import AclChange, changed
from metaq.model.acl.secret import Credentials
from metaq.named_file import read_named
from metaq.options import MIB, BrokerOptions, NamesrvOptions
from metaq.saved import Pending
from metaq.wire.acl import reading, writing

log = logging.getLogger(__name__)

FOLDER: Final = "acl"
"""Beside the main file: whatever ends like an ACL file in it and below it is read, too."""
SUFFIXES: Final = (".yml", ".yaml")
FILE_BYTES_MAX: Final = 8 * MIB
FILES_MAX: Final = 1000
OPEN: Final = (
    "aclCompatible=true: every account may send batches and replies to every topic, read every message by its id, end every "
    "transaction, lock every queue, and read every group's positions, as in RocketMQ"
)
CHANGES_MAX: Final = 1000
"""Most changes that wait to be saved."""


class AclFiles:
    """The files of one server.

    Args:
        main: path of the main file, which must be there.
    """

    def __init__(self, main: pathlib.Path) -> None:
        self.main, self._folder = main, main.parent / FOLDER

    def marks(self) -> Marks:
        """Return what is there now. Raises ConfigError: it cannot be looked at."""
        try:
            others = [path for path in self._folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
            if len(others) > FILES_MAX:
                raise ConfigError(f"{self._folder} has {len(others)} ACL files, the limit is {FILES_MAX}")
            main = [self.main] if self.main.is_file() else []
        except OSError as error:
            raise ConfigError(f"the ACL files in {self.main.parent} cannot be looked at: {error}") from None
        return marks_of(map(str, (*main, *others)))

    def read(self, marks: Marks) -> AclRules:
        """Read the files that `marks` found. Raises ConfigError: file, line and reason."""
        main = str(self.main)
        if main not in marks:
            raise ConfigError(
                f"aclEnable=true needs a file of accounts, and there is none at {main}: put RocketMQ's {ACL_FILE} there, or name "
                "another path in aclPath"
            )
        return AclRules(
            {path: reading.read(read_named(path, FILE_BYTES_MAX), path) for path in reading_order(main, marks)}
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other servers of this machine that have the same files from changing them. Raises OSError."""
        folder = os.open(self.main.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def save(self, path: str, wanted: AclFile) -> None:
        """Put a file on the disk as it is wanted; what is not changed in its text stays. Raises ConfigError, OSError.

        Without a copy of the text before: it would keep the secrets of accounts that are gone.
        """
        made = writing.rewrite(read_named(path, FILE_BYTES_MAX), wanted, path)
        if not made.comments_kept:
            log.warning("%s is written anew, without its comments: its form cannot be changed in place", path)
        write_secret(pathlib.Path(path), made.data)


class AclWatch:
    """Puts changed files in force, and changes them. What cannot be read changes nothing, and the log says file, line and reason.

    The thread that looks changes them, too: changes are made in their order, and each on what the one before has left.

    Args:
        files: the files.
        call_soon: brings a call from another thread to the event loop, where the rules are changed.
        clock: of data versions.
        compatible: whether any account may what RocketMQ asks no right for.
        open_to_all: actions that need not even an account.
    Raises:
        ConfigError: the files cannot be read as they are at the start.
    """

    def __init__(
        self,
        files: AclFiles,
        call_soon: Callable[[Callable[[], None]], None],
        clock: Clock = SYSTEM,
        *,
        compatible: bool = False,
        open_to_all: Iterable[Action] = (),
    ) -> None:
        self._files, self._call_soon, self._clock = files, call_soon, clock
        marks = files.marks()
        self.access: Final = AccessControl(files.read(marks), self, compatible=compatible, open_to_all=open_to_all)
        _warn(self.access.rules)
        if compatible:
            log.warning("%s", OPEN)
        log.info("access control is on: %d accounts of %s", len(self.access.rules.accounts), ", ".join(marks))
        stays = "the accounts in force stay as they were"
        self._watched: Final = WatchedFiles(
            "accounts", stays, files.marks, files.read, self._take, call_soon, marks, clock
        )
        self._waiting = 0
        self._stopped = False

    @property
    def main(self) -> str:
        """Path of the main file."""
        return str(self._files.main)

    def notes(self) -> Iterator[str]:
        """Yield what an operator should know of the files."""
        if trouble := self._watched.trouble:
            yield trouble

    def start(self) -> None:
        """Look from now on."""
        self._watched.start()

    def tick(self) -> None:
        """Let time pass."""
        self._watched.tick()

    def look(self) -> None:
        """Read the files again if one has changed since the last look."""
        self._watched.look()

    def stop(self) -> None:
        """Take no more changes, and end. Those that were asked for are refused unless they are being saved."""
        self._stopped = True
        self._watched.stop()

    # -- changes (`metaq.broker.acl.AccountFiles`)
    def change(self, change: AclChange) -> Pending:
        """Save a change, then put it in force. Refused: by the rules of changes, or because the files are broken or cannot be saved."""
        pending = Pending()
        if self._stopped:
            pending.finish(_stopping())
        elif self._waiting >= CHANGES_MAX:
            pending.finish(Refused(Reason.BUSY, f"{CHANGES_MAX} changes of accounts wait already: ask again"))
        else:
            self._waiting += 1
            self._watched.do(functools.partial(self._make, change, pending))
        return pending

    def _make(self, change: AclChange, pending: Pending) -> None:
        """Make a change, in the thread."""
        if self._stopped:
            self._call_soon(functools.partial(pending.finish, _stopping()))
            return
        rules: AclRules | None = None
        error: Refused | None = None
        try:
            rules = self._saved(change)
        except Refused as refused:
            error = refused
        except ConfigError as broken:
            error = Refused(Reason.UNAVAILABLE, f"the files of accounts cannot be changed as they are: {broken}")
        except OSError as fault:
            why = shortage(fault) or fault.strerror or str(fault)
            error = Refused(
                Reason.UNAVAILABLE, f"the change could not be saved to {fault.filename or self.main}: {why}"
            )
        except Exception:
            log.exception("a change of accounts failed")
            error = Refused(Reason.UNAVAILABLE, "the change failed; the log of the server says why")
        self._call_soon(lambda: self._end(rules, pending, error))

    def _end(self, rules: AclRules | None, pending: Pending, error: Refused | None) -> None:
        self._waiting -= 1
        if rules is not None:
            self._take(rules)
        pending.finish(error)

    def _saved(self, change: AclChange) -> AclRules:
        """Save a change, and return the rules by all files then. Raises Refused, ConfigError and OSError: nothing is changed."""
        with self._files.locked():
            marks = self._files.marks()
            rules = self._files.read(marks)  # not those in force: a file may have been changed by hand since
            for path, wanted in changed(rules, self.main, change, self._clock.now_ms()).items():
                self._files.save(path, wanted)
            self._watched.seen = marks = self._files.marks()
            return self._files.read(marks)

    def _take(self, rules: AclRules) -> None:
        self.access.take(rules)
        _warn(rules)
        log.info("the ACL files were read again: %d accounts are in force", len(rules.accounts))


def _stopping() -> Refused:
    return Refused(Reason.UNAVAILABLE, "accounts take no change any more: the server is stopping")


def _warn(rules: AclRules) -> None:
    for warning in rules.warnings:
        log.warning("%s", warning)


def acl_watch(options: BrokerOptions | NamesrvOptions, call_soon: Callable[[Callable[[], None]], None]) -> AclWatch:
    """Return the access control that the options ask for. Raises ConfigError."""
    if not options.acl_path:
        raise ConfigError(f"aclEnable=true needs aclPath, the path of a {ACL_FILE}")
    files = AclFiles(pathlib.Path(options.acl_path).expanduser())
    if isinstance(options, BrokerOptions):
        return AclWatch(files, call_soon, compatible=options.acl_compatible)
    return AclWatch(files, call_soon, open_to_all=[Action.OBSERVE] if options.acl_lookups_open else [])


def credentials_of(options: BrokerOptions) -> Credentials | None:
    """Return what the broker signs its requests to other brokers with; None: it does not. Raises ConfigError."""
    if not options.acl_credentials:
        return None
    path = str(pathlib.Path(options.acl_credentials).expanduser())
    return reading.read_credentials(read_named(path, FILE_BYTES_MAX), path)
