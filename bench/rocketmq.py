"""RocketMQ 4.9.7 beside us: its broker and name server as their jars come, for rows that compare with it in one run."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import processes

sys.path.insert(0, str(processes.ROOT))

OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""What 4.9 uses of Java's inside, and Java 17 keeps shut."""

LOGGING_OF_CONNECTIONS = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%msg%n</pattern></encoder></appender>
  <logger name="RocketmqRemoting" level="INFO"><appender-ref ref="out"/></logger>
  <root level="OFF"/>
</configuration>
"""
"""The broker says there whose TLS it uses."""


def classpath(*, client: bool = False) -> str:
    """Where the classes of its servers are, or of its client. Raises RuntimeError: they, or a Java, cannot be had here."""
    import pytest  # it comes with the tests, whose way to the jars this is
    from tests.interop import maven

    try:
        maven.java()
        return f"{maven.jars(*(maven.CLIENT if client else maven.SERVER))}/*"
    except pytest.skip.Exception as error:
        raise RuntimeError(f"no RocketMQ beside it: {error}") from None


@contextmanager
def running(disk: Path, **options: object) -> Iterator[processes.Server]:
    """A broker and its name server on a fresh folder of `disk`, with 1 GiB of heap and log files as ours has them.

    `options`: more keys of `broker.conf`. Raises RuntimeError: it cannot be had here, or does not start.
    """
    with _folder(disk) as folder:
        namesrv = f"127.0.0.1:{processes.free_port()}"
        (folder / "namesrv.properties").write_text(f"listenPort={namesrv.rpartition(':')[2]}\n")
        with _java(folder, "namesrv", "128m"), _broker(folder, namesrv, options) as server:
            yield server


@contextmanager
def running_with_tls(disk: Path, tcnative: str = "", **options: object) -> Iterator[tuple[processes.Server, bool]]:
    """The same, with a broker that takes TLS and plain text at one port and shows a certificate of P-256.

    `tcnative`: class path of netty's OpenSSL. Yields the server, and whether it uses that; otherwise it is the JDK's own TLS.
    """
    with _folder(disk) as folder:
        namesrv = f"127.0.0.1:{processes.free_port()}"
        (folder / "namesrv.properties").write_text(f"listenPort={namesrv.rpartition(':')[2]}\n")
        (folder / "conf" / "logback_broker.xml").write_text(LOGGING_OF_CONNECTIONS)
        jvm = (f"-Dtls.config.file={_tls_file(folder)}", "-Dtls.server.mode=permissive")
        with (
            _java(folder, "namesrv", "128m"),
            _broker(folder, namesrv, options, jvm=jvm, classes=tcnative) as server,
        ):
            told = re.search(r"^Using (OpenSSL|JDK SSL) provider$", (folder / "broker.out").read_text(), re.MULTILINE)
            if told is None:
                raise RuntimeError("RocketMQ's broker did not say whose TLS it uses")
            yield server, told.group(1) == "OpenSSL"


def _tls_file(folder: Path) -> Path:
    """A `tls.properties` with a certificate and its key beside it."""
    from tests.certificates import Authority

    shown, path = Authority(folder).issue("broker"), folder / "tls.properties"
    path.write_text(
        f"tls.test.mode.enable=false\ntls.server.certPath={shown.cert}\ntls.server.keyPath={shown.key}\n"
        "tls.server.need.client.auth=none\n"
    )
    return path


@contextmanager
def slave(disk: Path, namesrv: str, **options: object) -> Iterator[processes.Server]:
    """A slave of the master that `running` has registered at `namesrv`, likewise."""
    with _folder(disk) as folder, _broker(folder, namesrv, {"brokerRole": "SLAVE", "brokerId": 1, **options}) as server:
        yield server


@contextmanager
def _folder(disk: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rocketmq-", dir=disk))
    try:
        (folder / "conf").mkdir()
        for name in ("namesrv", "broker"):
            text = '<configuration><root level="OFF"/></configuration>'
            (folder / "conf" / f"logback_{name}.xml").write_text(text)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _broker(
    folder: Path, namesrv: str, options: Mapping[str, object], *, jvm: Sequence[str] = (), classes: str = ""
) -> Iterator[processes.Server]:
    port = processes.free_port(-2, 1)
    settings = {
        "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1", "listenPort": port, "namesrvAddr": namesrv, "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog", "mappedFileSizeCommitLog": processes.LOG_FILE_BYTES,
        **options,
    }  # fmt: skip
    (folder / "broker.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with _java(folder, "broker", "1g", jvm=jvm, classes=classes) as process:
        yield processes.Server(process, f"127.0.0.1:{port}", 0, namesrv)


@contextmanager
def _java(
    folder: Path, name: str, heap: str, *, jvm: Sequence[str] = (), classes: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """`classes`: more of them."""
    main = f"org.apache.rocketmq.{name}.{name.capitalize()}Startup"
    command = ["java", f"-Xmx{heap}", f"-Xms{heap}", f"-Duser.home={folder}", *OPENED, *jvm]
    command += ["-cp", ":".join(filter(None, (classpath(), classes)))]
    process = _started([*command, main, "-c", str(folder / f"{name}.properties")], folder, name)
    try:
        yield process
    finally:
        processes.stop(process)


def _started(command: list[str], folder: Path, name: str) -> subprocess.Popen[str]:
    log = folder / f"{name}.out"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env={**os.environ, "ROCKETMQ_HOME": str(folder)}
        )
    deadline = time.monotonic() + processes.READY_SECONDS
    while not re.search(r"boot success", log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise RuntimeError(f"RocketMQ's {name} did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)
    return process
