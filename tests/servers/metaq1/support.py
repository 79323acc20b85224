"""A client at the MetaQ 1.x server, without sockets: lines go in as bytes, answers are read back as values."""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from metaq.broker.broker import Broker
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.model.access import Caller
from metaq.model.metaq1.settings import PartitionRules, PartitionSettings
from metaq.options import Metaq1Options
from metaq.saved_file import SavedText
from metaq.servers.metaq1.server import Metaq1Server
from metaq.servers.metaq1.space import Transactions
from metaq.servers.metaq1.transactions import TransactionSteps
from metaq.servers.metaq1_stats import StatsBodies
from metaq.store.disk import Disk
from metaq.wire.metaq1.commands import Line, Reader, put_place
from tests.broker.metaq1.support import settled
from tests.broker.support import open_broker

VERSION = "1.2.3"


def settings(topics: Mapping[str, int] | None = None, text: bytes = b"", **options: object) -> Metaq1Settings:
    """Sections with so many partitions each, for `test` alone by default; all topics are counted."""
    table = Metaq1Options(broker_id=7, stat=True, **options)
    default = PartitionSettings.of(table)
    sections = {
        name: PartitionSettings.of(table.replace(num_partitions=count))
        for name, count in (topics or {"test": 3}).items()
    }
    return Metaq1Settings(table, PartitionRules(default, sections, ("wild-*",), sections=True), text)


class TextPeer:
    """The transport side of a connection: keeps what is written."""

    turn_is_free = True

    def __init__(self, port: int) -> None:
        self.address, self.local, self.plain = ("127.0.0.1", port), ("127.0.0.1", 8123), True
        self.on_writable = self.on_written = None
        self.swept = False
        self.congested = self.closed = self.paused = False
        self.why = ""
        self.writes: list[bytes] = []
        self.wants_more = False
        self.jobs: deque[Callable[[], int | None]] = deque()
        self.present: Callable[[], object] = lambda: None
        """Presents what the session left; set by the client."""
        self.kept = 0
        """Bytes that the session keeps."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:  # as a real one
            self.writes.append(bytes(data))

    def keep(self, more: int) -> None:
        self.kept += more

    def may_keep(self, more: int) -> bool:
        return True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused, self.wants_more = False, True

    def when_its_turn(self, job: Callable[[], int | None], cost: int = 0, *, beyond: bool = False) -> bool:
        self.jobs.append(job)
        return True

    def go_on(self) -> None:
        if self.paused:
            self.paused = False
            self.present()

    def close(self, why: str = "") -> None:
        self.closed, self.why = True, why


class TextClient:
    """One connection to the MetaQ 1.x server."""

    _ports = itertools.count(40000)

    def __init__(self, protocol_server: Metaq1Server) -> None:
        self.peer = TextPeer(next(self._ports))
        self.session = protocol_server.session(self.peer)
        self._rest, self._inbox, self._reader = b"", b"", Reader(1 << 30)
        self.peer.present = lambda: self._present(b"")

    def feed(self, data: bytes) -> int:
        """Bytes of one read event, behind what was left of the last. Returns the bytes not taken."""
        self._present(data)
        while self.peer.jobs:  # their turns, as the loop would give them
            self.peer.jobs.popleft()()
        return len(self._rest)

    def _present(self, data: bytes) -> None:
        self._rest += data
        if not self.peer.closed and not self.peer.paused:
            try:
                with memoryview(self._rest) as view:
                    used = self.session.data_received(view)
                self._rest = self._rest[used:]
            except RemoteProtocolError as error:
                self.peer.close(str(error))
                self._rest = b""

    def go_on(self) -> None:
        """What a connection does in the next turn of the loop after `resume`."""
        if self.peer.wants_more:
            self.peer.wants_more = False
            self.feed(b"")

    def raw(self) -> bytes:
        """What was written since the last call."""
        data, self.peer.writes = b"".join(self.peer.writes), []
        return data

    def answers(self) -> list[Line]:
        """All answers since the last call."""
        self._inbox += self.raw()
        found, start = [], 0
        while True:
            line, start = self._reader.next(self._inbox, start)
            if line is None:
                self._inbox = self._inbox[start:]
                return found
            assert not isinstance(line, tuple)
            found.append(line)

    def ask(self, data: bytes) -> tuple[int, bytes]:
        """Send one command; code and body of its one answer, 0 for a value."""
        self.feed(data)
        (answer,) = self.answers()
        return getattr(answer, "code", 0), bytes(answer.body)

    def put(self, body: bytes, topic: str = "test", partition: int = 0, flag: int = 0) -> tuple[int, int, int]:
        """Id, partition, position."""
        code, text = self.ask(b"put %b %d %d %d 1\r\n%b" % (topic.encode(), partition, len(body), flag, body))
        assert code == 200, text
        return put_place(text)

    def leave(self) -> None:
        self.peer.closed = True
        self.session.connection_lost("")


@contextmanager
def open_metaq1_server(
    root: pathlib.Path,
    clock: FakeClock | None = None,
    metaq1: Metaq1Settings | None = None,
    transactions: Transactions | None = None,
    store: dict[str, object] | None = None,
    disk: Disk | None = None,
    files: Mapping[str, SavedText] | None = None,
    identify: Callable[[Caller], Caller] | None = None,
    **options: object,
) -> Iterator[tuple[Broker, Metaq1Server]]:
    """A broker and its MetaQ 1.x server; `call_soon` calls at once, so a flush answers from the flush thread.

    Partitions of sections are touched: what else waits for their positions is the tests' of `broker.metaq1.bases`.
    """
    metaq1 = metaq1 or settings()
    with open_broker(root, clock, store, disk, files, metaq1=metaq1, **options) as broker:
        place = "10.0.0.5", 8123
        assert broker.metaq1 is not None
        for topic in metaq1.rules.topics:
            for partition in range(metaq1.rules.settings(topic).num_partitions):
                settled(broker, functools.partial(broker.metaq1.bases.touch, topic, partition))
        protocol_server = Metaq1Server(
            broker,
            metaq1,
            transactions or TransactionSteps(broker.metaq1.transactions),
            lambda act: act(),
            place,
            VERSION,
            StatsBodies(broker.metaq1, broker.clock, VERSION),
            identify=identify,
        )
        yield broker, protocol_server
        protocol_server.close()
