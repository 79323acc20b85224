"""The files of access control: found, read together, and read again when one of them has changed."""

from __future__ import annotations

import logging
import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from metaq.app.configuration import ACL_FILE
from metaq.broker.acl import AccessControl
from metaq.errors import ConfigError
from metaq.model.acl.accounts import AclRules, reading_order
from metaq.model.acl.secret import Credentials
from metaq.options import MIB, BrokerOptions
from metaq.wire.acl import reading

log = logging.getLogger(__name__)

FOLDER: Final = "acl"
"""Beside the main file: whatever ends like an ACL file in it and below it is read, too."""
SUFFIXES: Final = (".yml", ".yaml")
FILE_BYTES_MAX: Final = 8 * MIB
FILES_MAX: Final = 1000
LOOK_SECONDS: Final = 0.5
"""As often as RocketMQ looks."""

Marks: TypeAlias = Mapping[str, tuple[int, int, int]]
"""Path → what tells that a file is another one: time of its change in ns, size, inode."""


class AclFiles:
    """The files of one server.

    Args:
        main: path of the main file, which must be there.
    """

    def __init__(self, main: pathlib.Path) -> None:
        self._main, self._folder = main, main.parent / FOLDER

    def marks(self) -> Marks:
        """Return what is there now. Raises ConfigError: it cannot be looked at."""
        try:
            others = [path for path in self._folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
            if len(others) > FILES_MAX:
                raise ConfigError(f"{self._folder} has {len(others)} ACL files, the limit is {FILES_MAX}")
            main = [self._main] if self._main.is_file() else []
            stats = [(str(path), path.stat()) for path in (*main, *others)]
        except OSError as error:
            raise ConfigError(f"the ACL files in {self._main.parent} cannot be looked at: {error}") from None
        return {path: (stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in stats}

    def read(self, marks: Marks) -> AclRules:
        """Read the files that `marks` found. Raises ConfigError: file, line and reason."""
        main = str(self._main)
        if main not in marks:
            raise ConfigError(
                f"aclEnable=true needs a file of accounts, and there is none at {main}: put RocketMQ's {ACL_FILE} there, or name "
                "another path in aclPath"
            )
        return AclRules({path: reading.read(_content(path), path) for path in reading_order(main, marks)})


def _content(path: str) -> bytes:
    try:
        with pathlib.Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return data


class AclWatch:
    """Puts changed files in force. What cannot be read changes nothing, and the log says file, line and reason.

    Args:
        files: the files.
        call_soon: brings a call from another thread to the event loop, where the rules are changed.
    Raises:
        ConfigError: the files cannot be read as they are at the start.
    """

    def __init__(self, files: AclFiles, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._files, self._call_soon = files, call_soon
        self._marks: Marks | None = files.marks()
        self._why = ""
        self.access: Final = AccessControl(files.read(self._marks))
        _warn(self.access.rules)
        log.info("access control is on: %d accounts of %s", len(self.access.rules.accounts), ", ".join(self._marks))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="metaq-acl", daemon=True)

    def start(self) -> None:
        """Look from now on, in a thread: a file may be on a slow disk, and long."""
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def look(self) -> None:
        """Read the files again if one has changed since the last look."""
        marks: Marks | None = None
        try:
            marks = self._files.marks()
            if marks == self._marks:
                return
            rules = self._files.read(marks)
        except ConfigError as error:
            # Once for each state of the files, not twice a second.
            if marks is not None or str(error) != self._why:
                log.error("the accounts in force stay as they were: %s", error)  # noqa: TRY400  theirs, not ours
            self._marks, self._why = marks, str(error)
            return
        self._marks, self._why = marks, ""
        self._call_soon(lambda: self._take(rules))

    def _take(self, rules: AclRules) -> None:
        self.access.take(rules)
        _warn(rules)
        log.info("the ACL files were read again: %d accounts are in force", len(rules.accounts))

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                if self._ended.is_set():  # the loop is closed, and nobody is asked any more
                    return
                log.exception("looking for changes of the ACL files failed; it is tried again")


def _warn(rules: AclRules) -> None:
    for warning in rules.warnings:
        log.warning("%s", warning)


def acl_watch(options: BrokerOptions, call_soon: Callable[[Callable[[], None]], None]) -> AclWatch:
    """Return the access control that the options ask for. Raises ConfigError."""
    if not options.acl_path:
        raise ConfigError(f"aclEnable=true needs aclPath, the path of a {ACL_FILE}")
    return AclWatch(AclFiles(pathlib.Path(options.acl_path).expanduser()), call_soon)


def credentials_of(options: BrokerOptions) -> Credentials | None:
    """Return what the broker signs its requests to other brokers with; None: it does not. Raises ConfigError."""
    if not options.acl_credentials:
        return None
    path = str(pathlib.Path(options.acl_credentials).expanduser())
    return reading.read_credentials(_content(path), path)
