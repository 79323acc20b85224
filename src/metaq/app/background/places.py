"""The files of servers in the background: for each name a pid file, a description and a log, in one folder.

The pid file is for other programs to read. Which process is that server, its lock says: it is held for as long as the process
lives, so that the number of a process that came later is never taken for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import stat
from collections.abc import Mapping
from typing import Final

import msgspec

from metaq import record_lock
from metaq.errors import ConfigError

RUN_DIR_VARIABLE: Final = "METAQ_RUN_DIR"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Ended(msgspec.Struct, frozen=True):
    """How a process ended, as it told itself, or as who ended it did."""

    ms: int
    """When, since 1970."""
    code: int
    """Exit code; negative: the signal that it was killed with."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A server that was started in the background. Written by its process; read by anybody."""

    name: str
    server: str
    """namesrv, broker or up."""
    pid: int
    since_ms: int
    """When it was started, since 1970."""
    folder: str
    """Working directory."""
    arguments: list[str]
    """What follows the server's name on the command line."""
    log: str
    """Path of the log file."""
    log_bytes: int = 64 << 20
    """Size at which a new log file is begun; 0: never."""
    log_files: int = 9
    """Older log files that are kept."""
    data: str = ""
    """Folder of the store; a name server's: of its KV configuration."""
    addresses: dict[str, str] = {}
    """Protocol server → `host:port`; empty until it is ready."""
    ready_ms: int | None = None
    ended: Ended | None = None


class Found(msgspec.Struct, frozen=True):
    """A server as its files have it now."""

    name: str
    pid: int | None
    """Process that has the lock; None: the server does not run. 0: it runs in another container."""
    left: bool
    """Whether a pid file is there."""
    description: Description | None
    """None: it cannot be read, or the process has only just begun."""

    @property
    def server(self) -> str:
        return self.description.server if self.description is not None else "server"


def run_folder(given: str | None, environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder of the files: `given`, else METAQ_RUN_DIR, else metaq/servers in XDG_STATE_HOME (~/.local/state)."""
    if chosen := given or environ.get(RUN_DIR_VARIABLE):
        return pathlib.Path(chosen).expanduser().absolute()
    base = environ.get("XDG_STATE_HOME", "")
    # As its specification says: a relative path counts as none.
    home = pathlib.Path(base) if base.startswith("/") else pathlib.Path("~/.local/state").expanduser()
    return home / "metaq" / "servers"


class Places:
    """The files of all names in one folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Make the folder, for its owner only. Raises ConfigError: it cannot be made, or others may write into it."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = self.folder.stat()
        except OSError as fault:
            raise ConfigError(
                f"the folder of pid files {self.folder} cannot be made: {fault.strerror}; name another with --run-dir"
            ) from None
        # Whoever writes here chooses which process `metaq stop` ends.
        if facts.st_mode & 0o022 or facts.st_uid not in {os.geteuid(), 0}:
            raise ConfigError(
                f"others than you may write into {self.folder}, and so choose what `metaq stop` ends: chmod 700 it, or name another folder "
                "with --run-dir"
            )

    def pid_file(self, name: str) -> pathlib.Path:
        return self.folder / f"{_checked(name)}.pid"

    def log(self, name: str) -> pathlib.Path:
        return self.folder / f"{_checked(name)}.log"

    def _description(self, name: str) -> pathlib.Path:
        return self.folder / f"{_checked(name)}.json"

    def names(self) -> list[str]:
        """Return all names that a server was started by. Raises ConfigError: the folder cannot be read."""
        try:
            files = list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise ConfigError(f"{self.folder} cannot be read: {fault.strerror}") from None
        return sorted(
            {file.stem for file in files if file.suffix in {".pid", ".json"} and _NAME.fullmatch(file.stem) is not None}
        )

    def find(self, name: str) -> Found:
        """Return what there is of a name. Raises ConfigError: its files cannot be read."""
        path = self.pid_file(name)
        try:
            pid = _holder(path)
        except FileNotFoundError:
            return Found(name, None, False, self._read(name))
        except OSError as fault:
            raise ConfigError(
                f"the pid file {path} cannot be read: {fault.strerror}; it may be another user's"
            ) from None
        description = self._read(name)
        # One of a life before, while the process that has the lock now has not written its own.
        if pid and description is not None and description.pid != pid:
            description = None
        return Found(name, pid, True, description)

    def _read(self, name: str) -> Description | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(self._description(name).read_bytes(), type=Description)
        return None

    def write(self, description: Description) -> None:
        """Replace the description of a server. Not synced: after a crash of the machine the lock is gone anyway. Raises OSError."""
        path = self._description(description.name)
        making = path.with_suffix(".json.tmp")
        making.write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2) + b"\n")
        making.replace(path)

    def forget(self, name: str, code: int, now_ms: int) -> None:
        """Note how a server ended that could not do it itself, and remove its pid file, unless another runs by now. Raises OSError."""
        held = PidFile.take(self.pid_file(name))
        if held is None:
            return
        description = self._read(name)
        if description is not None and description.ended is None:
            self.write(msgspec.structs.replace(description, ended=Ended(now_ms, code)))
        held.remove()


class PidFile:
    """A pid file whose lock this process has. Made by `take`."""

    def __init__(self, path: pathlib.Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    @classmethod
    def take(cls, path: pathlib.Path) -> PidFile | None:
        """Lock the file and write this process's id. Return None: another process has it. Raises OSError."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not record_lock.take(descriptor):
                os.close(descriptor)
                return None
            # Its last holder may have removed it between our two calls: then the lock is on a file that nobody finds.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    break
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return cls(path, descriptor)

    def remove(self) -> None:
        """Remove the file, and give up the lock. Raises OSError."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _holder(path: pathlib.Path) -> int | None:
    """Return the process that has the lock of a pid file. Raises OSError: there is no such file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return record_lock.holder(descriptor)
    finally:
        os.close(descriptor)


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name[:80]!r} cannot name a server in the background: letters, digits, '.', '_' and '-', at most 64; --as gives it another name"
        )
    return name
