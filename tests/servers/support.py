"""A client at the broker's server, without sockets: requests go in as bytes, answers are read back as commands."""

from __future__ import annotations

import itertools
import pathlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.model import ConsumerView, Heartbeat
from metaq.model import properties as props
from metaq.net.sweep import Sweep
from metaq.net.turns import Source
from metaq.saved_file import SavedText
from metaq.servers.remoting.server import RemotingServer
from metaq.store.disk import Disk
from metaq.testing.faults import FaultyDisk
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, SerializeType, encode, request
from metaq.wire.connection import Connection
from tests.broker.support import open_broker
from tests.support import PATIENCE


class FakePeer:
    """The transport side of a connection: keeps what is written."""

    def __init__(self, port: int = 50000, address: str = "127.0.0.1") -> None:
        self.address, self.local, self.plain = (address, port), ("127.0.0.1", 10911), True
        self.on_writable = self.on_written = None
        self.congested = self.closed = self.paused = False
        self.present: Callable[[], None] = lambda: None
        """Presents what the session left; set by the client."""
        self.why = ""
        self.kept = 0
        """Bytes that the session keeps."""
        self.writes: list[bytes] = []
        self.jobs: deque[Callable[[], None]] = deque()
        self._inbox = Connection()

    def write(self, data: bytes | memoryview) -> None:
        assert not self.closed, "a write on a closed connection"
        if self.on_written is not None:
            self.on_written(len(data))
        self.writes.append(bytes(data))
        self._inbox.receive_data(data)

    def write_now(self, data: bytes) -> None:
        self.write(data)

    turn_is_free = True
    busy = False

    def write_from(self, head: bytes, source: Source) -> None:
        self.write(head)
        while len(piece := source.take(lambda: None) or b""):
            self.write(piece)

    def when_its_turn(self, job: Callable[[], int | None], cost: int = 0, *, beyond: bool = False) -> bool:
        self.jobs.append(job)
        return True

    def keep(self, more: int) -> None:
        self.kept += more

    def may_keep(self, more: int) -> bool:
        return True

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        self.present()

    resume = go_on

    swept = False

    def join(self, sweep: Sweep, sender: object) -> bool:
        return False

    def leave(self) -> None: ...

    def close(self, why: str = "") -> None:
        self.closed, self.why = True, why

    def received(self) -> list[Command]:
        """All commands written since the last call."""
        return list(iter(self._inbox.next_command, None))


class Client:
    """One connection to the server."""

    _ports = itertools.count(40000)

    def __init__(
        self,
        protocol_server: RemotingServer,
        serialize: SerializeType = SerializeType.JSON,
        address: str = "127.0.0.1",
    ) -> None:
        self.peer = FakePeer(next(self._ports), address)
        self.server, self.serialize = protocol_server, serialize
        self.session = protocol_server.session(self.peer)
        self._opaque = itertools.count(1)
        self._rest = b""
        self.peer.present = self._present

    def feed(self, data: bytes) -> int:
        """Bytes of one read event, behind what was left of the last. Returns the bytes not taken."""
        self._rest += data
        if not self.peer.paused:
            self._present()
        while self.peer.jobs:  # their turns, as the loop would give them
            self.peer.jobs.popleft()()
        return len(self._rest)

    def _present(self) -> None:
        with memoryview(self._rest) as view:
            used = self.session.data_received(view)
        self._rest = self._rest[used:]

    def frame(
        self, code: int, header: headers.Header | dict[str, str] | None = None, body: bytes = b"", **more: object
    ) -> bytes:
        if isinstance(header, dict):
            command = Command(code, ext=header, body=body, serialize=self.serialize)
        else:
            command = request(code, header, body, serialize=self.serialize, oneway=bool(more.get("oneway")))
        command.opaque = int(more.get("opaque", 0) or next(self._opaque))
        command.version = int(more.get("version", 409))
        command.language = "JAVA"
        return encode(command)

    def ask(
        self, code: int, header: headers.Header | dict[str, str] | None = None, body: bytes = b"", **more: object
    ) -> Command:
        """Send one request and return its one answer; pushes are left for `received`."""
        self.feed(self.frame(code, header, body, **more))
        answers = [command for command in self.received() if command.is_response]
        assert len(answers) == 1, f"{len(answers)} answers"
        return answers[0]

    def tell(self, code: int, header: headers.Header | None = None, body: bytes = b"") -> list[Command]:
        """Send one request and return whatever comes."""
        self.feed(self.frame(code, header, body))
        return self.received()

    def received(self) -> list[Command]:
        return self.peer.received()

    def leave(self) -> None:
        self.peer.closed = True
        self.session.connection_lost("")

    # -- what most tests need
    def send(self, topic: str, body: bytes = b"hello", queue_id: int = 0, tag: str = "", **more: object) -> Command:
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, queue_id, tag, **more), body)

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **more: object) -> list[Command]:
        return self.tell(RequestCode.PULL_MESSAGE, pull_header(topic, queue_id, offset, **more))

    def beat(
        self, group: str = "G", topics: dict[str, str] | None = None, client_id: str = "c@1", **more: object
    ) -> Command:
        from metaq.model.filters.subscription import subscribe

        version = int(more.get("version", 1))
        subscriptions = {topic: subscribe(topic, text, version) for topic, text in (topics or {}).items()}
        consumer = ConsumerView(group, subscriptions, **{k: v for k, v in more.items() if k != "version"})
        body = bodies.heartbeat(Heartbeat(client_id, (consumer,), ("CLIENT_INNER_PRODUCER",)))
        return self.ask(RequestCode.HEART_BEAT, None, body)


def send_header(topic: str, queue_id: int = 0, tag: str = "", **more: object) -> headers.SendHeader:
    pairs = {props.UNIQUE_ID: "7F00000100002A9F0000000000000001", props.WAIT: "true"}
    if tag:
        pairs[props.TAGS] = tag
    pairs |= more.pop("properties", {})
    facts = {"producer_group": "PG", "born_ms": 1_700_000_000_000, **more}
    return headers.SendHeader(topic=topic, queue_id=queue_id, properties=props.join(pairs), **facts)


def pull_header(topic: str, queue_id: int = 0, offset: int = 0, **more: object) -> headers.PullHeader:
    facts = {
        "group": "G", "max_messages": 32, "sys_flag": 4, "suspend_ms": 0, "subscription": "*", "commit_offset": 0,
        "expression_type": "TAG",
    } | more  # fmt: skip
    return headers.PullHeader(topic=topic, queue_id=queue_id, queue_offset=offset, **facts)


class SlowDisk(FaultyDisk):
    """One whose syncs end when they may."""

    def __init__(self):
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def sync_range(self, mapped, start, size):
        assert self.may_sync.wait(PATIENCE)
        super().sync_range(mapped, start, size)


class Doubtful:
    """The in-sync set of a leader that does not know whether it still leads, and whose followers report nothing."""

    required = available = enough = in_doubt = lacks_for_now = True
    copied, lacking, carries_alone = 0, "", False

    def lacks(self, begin: int, end: int) -> bool:
        return False

    def refusal_of(self, topic: str) -> str | None:
        return None

    def when_copied(self, log_end: int, done: object) -> None: ...


@contextmanager
def open_server(
    root: pathlib.Path,
    clock: FakeClock | None = None,
    store: dict[str, object] | None = None,
    disk: Disk | None = None,
    files: Mapping[str, SavedText] | None = None,
    **options: object,
) -> Iterator[tuple[Broker, RemotingServer]]:
    """A broker and its server; `call_soon` calls at once, so a flush answers from the flush thread."""
    with open_broker(root, clock, store, disk, files, **options) as broker:
        protocol_server = RemotingServer(broker, lambda act: act())
        yield broker, protocol_server
        protocol_server.close()


def tick(protocol_server: RemotingServer) -> None:
    """Let time pass, as whoever runs a broker does."""
    protocol_server.broker.tick()
    protocol_server.tick()
