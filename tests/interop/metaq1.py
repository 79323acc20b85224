"""The world of MetaQ 1.x as it comes from Maven Central: the server 1.4.6.2, its Java client, and a ZooKeeper.

    with Zookeeper(folder) as zookeeper, OriginalServer(folder, zookeeper) as server, metaq1_client(folder) as java:
        java.factory("f", zookeeper.address)
        java.publisher("p", "f", ["test"])
        java.send("p", "test", ["one", "two"])
        with TextConnection(server.text) as text:
            text.ask("get test g 0 0 1024 8")

`OurServer` takes the same arguments and runs the broker of this clone from the same server.ini; each has `text`, the
address of its MetaQ 1.x server, and ours `http`, the URL of its HTTP server; both outlive a restart.
"""

import contextlib
import functools
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tests.interop import maven
from tests.interop.driver import HERE, DriverError, Event, ForeignClient
from tests.interop.servers import Process, launch
from tests.support import PATIENCE, environment, eventually, kept_port, metaq_command

VERSION = "1.4.6.2"
GROUP = "com.taobao.metamorphosis"
BEANS = "org.springframework:spring-beans:3.2.3.RELEASE"
"""Which the jars need and do not declare."""
SERVER = (f"{GROUP}:metamorphosis-server:{VERSION}", BEANS)
CLIENT = (f"{GROUP}:metamorphosis-client:{VERSION}", f"{GROUP}:metamorphosis-client-extension:{VERSION}", BEANS)
ZOOKEEPER = ("org.apache.zookeeper:zookeeper:3.4.14",)

OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.nio", "sun.nio.ch")
]
"""What gecko and Hessian look into since Java 17 asks."""
TICK_MS = 200
"""ZooKeeper's: the shortest session is two of them, the longest twenty."""
SESSION_SECONDS_MAX = 60
"""So that a session of a test's own does not end while the machine is busy."""
LOG4J = """log4j.rootLogger={level}, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{{ISO8601}} %p %c{{1}} %m%n
"""


SMALL_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
"""Quick to start and modest, as tests want it."""


def java_command(
    folder: Path, artifacts: Sequence[str], jvm: Sequence[str] = SMALL_JVM, level: str = "INFO"
) -> list[str]:
    """`java` with the jars of `artifacts` on its class path, after `folder`, which is its home, too; `jvm` are its flags."""
    (folder / "log4j.properties").write_text(LOG4J.format(level=level))
    command = [maven.java(), *jvm, *OPENS, f"-Duser.home={folder}"]
    command += [f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}", "-Dfile.encoding=UTF-8"]
    return [*command, "-cp", f"{folder}:{maven.jars(*artifacts)}/*"]


class Running:
    """Something with start, stop and kill, as a block."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Zookeeper(Running):
    """One ZooKeeper of its own; the address and what it holds outlive a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "zookeeper"
        self._folder.mkdir(parents=True)
        self._process: Process | None = None
        self._port = kept_port(self)
        self.address = f"127.0.0.1:{self._port}"
        (self._folder / "zoo.cfg").write_text(
            f"tickTime={TICK_MS}\ndataDir={self._folder / 'data'}\nclientPort={self._port}\n"
            f"clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nmaxSessionTimeout={SESSION_SECONDS_MAX * 1000}\n"
        )

    def start(self) -> None:
        command = java_command(self._folder, ZOOKEEPER)
        command.insert(1, "-Dzookeeper.jmx.log4j.disable=true")
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(self._folder / "zoo.cfg")]
        self._process, _ = launch(command, self._folder / "log", r"binding to port")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def expire(self, session: tuple[int, bytes]) -> None:
        """End the session (id, password) of somebody else as if it had been silent for too long."""
        from kazoo.client import KazooClient

        ender = KazooClient(self.address, client_id=session)
        ender.start(PATIENCE)
        ender.stop()
        ender.close()

    @contextlib.contextmanager
    def nodes(self) -> Iterator["Nodes"]:
        """A connection of the test's own, to look at the nodes."""
        from kazoo.client import KazooClient

        client = KazooClient(self.address, timeout=SESSION_SECONDS_MAX)
        client.start(PATIENCE)
        try:
            yield Nodes(client)
        finally:
            client.stop()
            client.close()


class Node(NamedTuple):
    text: str | None
    ephemeral: bool


class Nodes:
    """What a ZooKeeper holds."""

    def __init__(self, client: "KazooClient") -> None:  # noqa: F821
        self.client = client

    def tree(self, root: str = "/meta") -> dict[str, Node]:
        """Every node under `root` with what it says; those that go while we look are left out."""
        from kazoo.exceptions import NoNodeError

        found: dict[str, Node] = {}
        waiting = [root]
        while waiting:
            path = waiting.pop()
            with contextlib.suppress(NoNodeError):
                data, stat = self.client.get(path)
                found[path] = Node(None if data is None else data.decode(), stat.ephemeralOwner != 0)
                waiting += [f"{path}/{name}" for name in self.client.get_children(path)]
        return found

    def text(self, path: str) -> str | None:
        """What the node says; None if there is none."""
        return found.text if (found := self.tree(path).get(path)) else None


Sections = Mapping[str, Mapping[str, object]]


def server_ini(system: Mapping[str, object], zookeeper: Mapping[str, object], topics: Sections) -> str:
    lines = ["[system]", *(f"{key}={value}" for key, value in system.items())]
    lines += ["[zookeeper]", *(f"{key}={value}" for key, value in zookeeper.items())]
    for topic, settings in topics.items():
        lines += [f"[topic={topic}]", *(f"{key}={value}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


class TextServer(Running):
    """A broker with a MetaQ 1.x server, started from a server.ini; `stop` and `start` again keep data and address.

    Args: zookeeper: None: it registers nowhere. topics: topic → keys of its section. system: more keys, which beat ours.
    registry: more keys of [zookeeper].
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: Zookeeper | None = None,
        topics: Sections | None = None,
        system: Mapping[str, object] | None = None,
        *,
        registry: Mapping[str, object] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.data, self.ini = folder, folder / "meta", folder / "conf" / "server.ini"
        self.ini.parent.mkdir(exist_ok=True)
        self.data.mkdir(exist_ok=True)
        self.log = folder / "log"
        self.port = kept_port(self)
        self.text = f"127.0.0.1:{self.port}"
        self.http = f"http://127.0.0.1:{kept_port(self)}"
        self._process: Process | None = None
        self.system = {
            "brokerId": 0,
            "hostName": "127.0.0.1",
            "serverPort": self.port,
            "dashboardHttpPort": self.http.rpartition(":")[2],
            "numPartitions": 1,
            "dataPath": self.data,
            "unflushThreshold": 0,
            "unflushInterval": 10000,
            "maxSegmentSize": 1 << 24,
            "maxTransferSize": 1 << 20,
            "deletePolicy": "delete,168",
            "deleteWhen": "0 0 6,18 * * ?",
            "updateConsumerOffsets": "true",
            "stat": "true",
            **(system or {}),
        }
        self.registry: dict[str, object] = {
            "zk.zkConnect": zookeeper.address if zookeeper else "127.0.0.1:1",
            "zk.zkEnable": "true" if zookeeper else "false",
            "zk.zkSessionTimeoutMs": 10_000,
            "zk.zkConnectionTimeoutMs": 30_000,
            "zk.zkSyncTimeMs": 200,
            **(registry or {}),
        }
        self.configure(topics if topics is not None else {"test": {}, "meta-test": {}})

    def configure(self, topics: Sections) -> None:
        """Write the file anew; a running server reads it when it is told to."""
        self.topics = topics
        self.ini.write_text(server_ini(self.system, self.registry, topics))

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class OriginalServer(TextServer):
    """The server 1.4.6.2 as its jars come. It cannot do without a ZooKeeper, not even with zk.zkEnable=false."""

    def start(self) -> None:
        command = java_command(self.folder, SERVER, self.jvm)
        command += [f"{GROUP}.server.MetamorphosisStartup", "-f", str(self.ini)]
        self._process, _ = launch(command, self.log, r"Start metamorphosis server successfully")

    jvm: Sequence[str] = SMALL_JVM


class OurServer(TextServer):
    """`metaq broker -c server.ini` of this clone."""

    def start(self) -> None:
        command = metaq_command("broker", "-c", str(self.ini), "--port", self.broker.rpartition(":")[2])
        command += [word for option in self.options for word in ("-o", option)]
        self._process, ready = launch(command, self.log, r"^ready broker \S+ (\S+)", environment())
        self.broker = ready.group(1)

    @functools.cached_property
    def broker(self) -> str:
        """`host:port` of its remoting server."""
        return f"127.0.0.1:{kept_port(self, -2, 1)}"

    options: Sequence[str] = ()


class Answer(NamedTuple):
    """One answer of a MetaQ 1.x server. `code` is that of a `result`, None for a `value`."""

    code: int | None
    body: bytes
    opaque: int

    @property
    def text(self) -> str:
        return self.body.decode()


class TextConnection:
    """A raw connection to a MetaQ 1.x server."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> Answer | None:
        """The next answer; None when the server has closed the connection."""
        try:
            line = self._stream.readline()
        except ConnectionResetError:  # SO_LINGER of the original is 0
            return None
        if not line:
            return None
        words = line.decode().removesuffix("\r\n").split(" ")
        assert line.endswith(b"\r\n"), line
        kind, code = words[0], int(words[1]) if words[0] == "result" else None
        assert (kind, len(words)) in {("result", 4), ("value", 3)}, line
        size = int(words[-2])
        body = self._stream.read(size)
        assert len(body) == size, line
        return Answer(code, body, int(words[-1]))

    def ask(self, line: str | bytes, body: bytes = b"") -> Answer | None:
        """Send one command, its CRLF added, and read the next answer."""
        self.write((line.encode() if isinstance(line, str) else line) + b"\r\n" + body)
        return self.read()

    def silent(self, seconds: float) -> bool:
        """Whether nothing at all comes within `seconds`, and the connection stays open."""
        self._socket.settimeout(seconds)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK)) and False
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False
        finally:
            self._socket.settimeout(PATIENCE)


class Metaq1Client(ForeignClient):
    """The Java client 1.4.6.2 behind java/Metaq1Driver.java: factories, and in them producers and consumers, by name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def factory(self, name: str, zookeeper: str = "", *, url: str = "", **options: object) -> None:
        """A session factory at a ZooKeeper or at one broker (`url`, meta://host:port).

        Options: kind: plain, xa or extension; root: zkRoot; sync_ms, recover_ms.
        """
        self.call("factory", name=name, **({"url": url} if url else {"zookeeper": zookeeper}), **options)
        self._names.append(name)

    def publisher(self, name: str, factory: str, topics: Sequence[str] = (), **options: object) -> None:
        """A producer that publishes `topics`. Of an xa factory it is an XA producer; option: qualifier (a prefix)."""
        self.call("producer", name=name, factory=factory, **options)
        self._names.append(name)
        for topic in topics:
            self.call("publish", producer=name, topic=topic)

    def subscriber(self, name: str, factory: str, group: str, topics: Mapping[str, int], **options: object) -> None:
        """A consumer with a listener: `topics` are topic → max size. What it gets is in `received` and `wait`.

        Options: id, from_max, offset, strategy (CONSIST), commit_ms, max_delay_ms, max_fetch_retries,
        broadcast (extension), recover (extension: DEFAULT or NOTIFY), fail: body → how many times the listener throws at it.
        A message that its reject handler gets is a `rejected` event.
        """
        with self._changed:  # an earlier test's consumer may have had this name
            self._events = [event for event in self._events if event["consumer"] != name]
        self.call("consumer", name=name, factory=factory, group=group, topics=topics, **options)
        self._names.append(name)

    def get(self, consumer: str, topic: str, partition: str, offset: int, max_size: int = 1 << 20) -> Event | None:
        """A consumer's get: `messages` and `parsed`, the bytes that they took; None for nothing or moved."""
        return self.call("get", consumer=consumer, topic=topic, partition=partition, offset=offset, max_size=max_size)  # type: ignore[no-any-return]

    def xa(self, producer: str, verb: str, branch: str = "", **options: object) -> object:
        """An XAResource's start, end, prepare, commit (one_phase), rollback, recover or forget for branch `branch`.

        Raises DriverError, whose `code` is the XAException's.
        """
        return self.call("xa", producer=producer, verb=verb, **({"branch": branch, "global": "g"} | options))


def metaq1_client(folder: Path, *options: str) -> Metaq1Client:
    """MetaQ's Java client behind java/Metaq1Driver.java, which is compiled into `folder`; `options` are the JVM's."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = [maven.java(compiler=True), "-Xlint:-deprecation", "-XDsuppressNotes", "-d", str(folder)]
    compiler += ["-cp", f"{maven.jars(*CLIENT)}/*", str(HERE / "java" / "Metaq1Driver.java")]
    subprocess.run(compiler, check=True, timeout=PATIENCE)
    command = java_command(folder, CLIENT, level="WARN")
    return Metaq1Client([*command[:-2], *options, *command[-2:], "Metaq1Driver"], folder)


def masked(text: str) -> str:
    """An answer without what differs from run to run: 1.x ids, which are the only numbers of over 15 digits."""
    return re.sub(r"-?\b\d{16,}\b", "<id>", text)


def bodies(events: list[Event]) -> list[str]:
    """Of the messages that a consumer got."""
    return [event["body"] for event in events if event["event"] == "message"]


def consumer(java: Metaq1Client, name: str, root: str, topics: dict[str, int], factory: str = "f") -> None:
    """One of a group named after the root: the Java client knows ids in the whole JVM, by group."""
    java.subscriber(name, factory, f"g{root.replace('/', '-')}", topics, max_delay_ms=50)


def sends(java: Metaq1Client, producer: str, topic: str, texts: list[str]) -> list[Event]:
    """Each, again and again until it is acknowledged."""

    def sent(text: str) -> Event | None:
        with contextlib.suppress(DriverError):  # no partition, no connection
            receipt = java.send(producer, topic, [text])[0]
            return receipt if receipt["ok"] else None
        return None

    found = []
    for text in texts:
        receipt = eventually(lambda text=text: sent(text))
        assert receipt is not None
        found.append(receipt)
    return found
