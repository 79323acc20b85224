"""Protocol servers without their sockets: whatever bytes a peer sends, cut wherever, its session answers or breaks, and a neighbour is
answered as before. The same servers as processes: `fuzz.targets.processes`."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import random
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from fuzz.target import Feed, Target
from fuzz.targets.frames import stream
from tests.broker.support import open_broker
from tests.servers.ha import test_session, test_slave
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.servers.remoting.test_fuzz import SAMPLES
from tests.servers.support import Client, open_server
from tests.store.log.test_raw import raw_log
from tests.store.support import message

from fuzz import metaq1_commands, remoting_frames
from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.store.config_file import ConfigFile
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, encode
from metaq.wire.files import KV_CONFIG
from metaq.wire.ha import encode_head, encode_report

PYTHON_ERROR = re.compile(r"^\w+(Error|Exception|Interrupt): ")
"""How the servers word an exception that nobody foresaw."""
ROUNDS = 1000
"""Inputs to one server: then it is closed, and a new one opened, so that its folder stays small."""


def renewed(
    opened: Callable[[pathlib.Path], AbstractContextManager[Feed]], rounds: int = ROUNDS
) -> Callable[[], AbstractContextManager[Feed]]:
    """Opens a feed over a server in a folder of its own, that is opened anew after so many inputs."""

    @contextlib.contextmanager
    def made() -> Iterator[Feed]:
        with contextlib.ExitStack() as stack:
            inner = contextlib.ExitStack()
            stack.callback(inner.close)
            left, feed = 0, None

            def fed(data: bytes) -> None:
                nonlocal left, feed
                if feed is None or not left:
                    inner.close()
                    folder = inner.enter_context(tempfile.TemporaryDirectory())
                    feed, left = inner.enter_context(opened(pathlib.Path(folder))), rounds
                left -= 1
                feed(data)

            yield fed

    return made


def cuts(data: bytes) -> Iterator[bytes]:
    """The pieces in which these bytes arrive: the same ones for the same bytes."""
    chance = random.Random(zlib.crc32(data))
    while data:
        size = chance.choice((len(data), chance.randrange(1, len(data) + 1)))
        yield data[:size]
        data = data[size:]


# -- remoting


@contextlib.contextmanager
def broker(root: pathlib.Path) -> Iterator[Feed]:
    with open_server(root) as (_, server):
        neighbour = Client(server)
        neighbour.send("neighbours-own")

        def feed(data: bytes) -> None:
            client = Client(server)
            try:
                for piece in cuts(data):
                    if client.peer.closed:
                        break
                    client.feed(piece)
                    if client.peer.paused:
                        client.peer.go_on()
            finally:
                for answer in client.received():
                    assert not PYTHON_ERROR.match(answer.remark or ""), answer.remark
                client.leave()
            assert neighbour.send("neighbours-own").is_response, "the neighbour noticed"

        yield feed


def some_requests() -> list[bytes]:
    requests = [
        encode(Command(int(code), number, ext=dict(ext), body=body)) for number, (code, ext, body) in enumerate(SAMPLES)
    ]
    admin = [
        encode(
            Command(
                int(code), 1, ext={"topic": "orders", "queueId": "0", "offset": "0", "group": "G", "consumerGroup": "G"}
            )
        )
        for code in RequestCode
    ]
    return [*requests, *admin, b"".join(requests[:6])]


@contextlib.contextmanager
def name_server(root: pathlib.Path) -> Iterator[Feed]:
    clock = FakeClock()
    kv = KvTable(TableFile(ConfigFile(root / "kvConfig.json"), KV_CONFIG), clock)
    server = NamesrvServer(NameService(NamesrvOptions(), clock, kv))
    neighbour = remoting_frames.Client(server)
    expected = remoting_frames.neighbours_answers(neighbour)

    def feed(data: bytes) -> None:
        client, waiting = remoting_frames.Client(server), b""
        try:
            for piece in cuts(data):
                waiting += piece
                used = client.session.data_received(memoryview(waiting))
                waiting = waiting[used:]
        finally:
            for answer in client.answers():
                assert not PYTHON_ERROR.match(answer.remark or ""), answer.remark
            client.session.connection_lost("fuzzed")
        assert [code for code, _ in remoting_frames.neighbours_answers(neighbour)] == [code for code, _ in expected], (
            "the neighbour noticed"
        )

    yield feed


def some_registrations() -> list[bytes]:
    return [encode(command) for command in remoting_frames.corpus()]


# -- MetaQ 1.x


@contextlib.contextmanager
def text(root: pathlib.Path) -> Iterator[Feed]:
    options = {
        "max_transfer_size": metaq1_commands.FRAME_MAX,
        "unflush_threshold": 1 << 30,
        "flush_tx_log_at_commit": 0,
    }
    with open_metaq1_server(root, metaq1=settings({"test": 3}, **options)) as (_, server):
        neighbour = TextClient(server)

        def feed(data: bytes) -> None:
            client = TextClient(server)
            neighbour.feed(b"put test 0 5 0 1\r\nhe")
            for piece in cuts(data):
                client.feed(piece)
                client.go_on()
            client.answers()
            client.leave()
            neighbour.feed(b"llo")
            (answer,) = neighbour.answers()
            assert answer.code == 200, "the neighbour noticed"

        yield feed


def some_lines() -> list[bytes]:
    chance = random.Random(1)
    return [
        b"".join(metaq1_commands.encode(metaq1_commands.line(chance)) for _ in range(count))
        for count in (1, 1, 1, 1, 2, 3, 5, 8) * 4
    ]


def damaged_line(chance: random.Random, data: bytes) -> bytes:
    return metaq1_commands.damaged(chance, data) + metaq1_commands.encode(metaq1_commands.line(chance))


# -- replication


@contextlib.contextmanager
def master(root: pathlib.Path) -> Iterator[Feed]:
    with test_session.opened(root) as opened:
        opened.put(*(b"%d" % number * 300 for number in range(50)))

        async def conversation(data: bytes) -> None:  # in the loop: a piece of the log may have to be read first
            slave = test_session.Slave(opened)
            waiting = b""
            try:
                for piece in cuts(data):
                    waiting += piece
                    waiting = waiting[slave.session.data_received(memoryview(waiting)) :]
                    await asyncio.sleep(0)
                    slave.got()
                opened.pass_time(1.0)
            finally:
                slave.session.connection_lost("fuzzed")

        def feed(data: bytes) -> None:
            opened.loop.run_until_complete(conversation(data))

        yield feed


def some_reports() -> list[bytes]:
    return [encode_report(end) for end in (0, 1, 300, 1 << 62, -1)] + [
        encode_report(0) + encode_report(0) + encode_report(500)
    ]


@contextlib.contextmanager
def slave() -> Iterator[Feed]:
    """A slave for each input: what comes has to fit its log, which begins empty."""
    with tempfile.TemporaryDirectory() as name:
        loop, number = asyncio.new_event_loop(), 0

        def feed(data: bytes) -> None:
            nonlocal number
            number += 1
            with (
                tempfile.TemporaryDirectory(dir=name) as folder,
                open_broker(pathlib.Path(folder), FakeClock(), leading=False, broker_id=1) as broker,
            ):
                one = test_slave.Slave(broker, loop)
                waiting = b""
                for piece in cuts(data):
                    waiting += piece
                    waiting = waiting[one.get(waiting) :]
                one.pass_time(1.0)

        yield feed
        loop.close()


def some_chunks() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        with open_broker(pathlib.Path(folder), FakeClock()) as made:
            for number in range(3):
                made.appender.put([message("orders", 0, b"%d" % number * 20, tag="a", key="k")])
            end = made.store.log.end
        log = raw_log(pathlib.Path(folder), 0, end)
    return [
        encode_head(0, len(log)) + log,
        encode_head(0, 0),
        encode_head(0, 100) + log[:100] + encode_head(100, len(log) - 100) + log[100:],
        encode_head(7, 5) + b"hello",
    ]


TARGETS = [
    Target("broker", renewed(broker), some_requests, (RemoteProtocolError,), stream, stretched=False),
    Target(
        "name-server", renewed(name_server, 5000), some_registrations, (RemoteProtocolError,), stream, stretched=False
    ),
    Target("text", renewed(text), some_lines, (), damaged_line, stretched=False),
    Target("ha-master", renewed(master), some_reports, (RemoteProtocolError,), stretched=False),
    Target("ha-slave", slave, some_chunks, (RemoteProtocolError,), stretched=False, slow=True),
]
