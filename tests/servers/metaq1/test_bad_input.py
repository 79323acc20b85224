"""What a peer of the MetaQ 1.x server may do wrong, over real sockets: its own connection ends, nobody else is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from metaq.app.broker import RunningBroker, start_broker
from metaq.options import BrokerOptions
from metaq.servers import slices
from metaq.wire.metaq1.commands import Line, QuitLine, Reader, ResultLine, TooLong
from metaq.wire.metaq1.frame import frames, with_attribute
from tests.broker.support import small_store
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.support import PATIENCE
from tests.wire.metaq1.test_commands import GOLDEN, MALFORMED

CONNECTIONS = 10_000


class Server:
    """A broker in a thread of its own."""

    def __init__(self, folder, *, text_options: dict[str, object] | None = None, **options: object) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        text = settings({"test": 3}, server_port=0, max_transfer_size=65_536, **text_options or {})
        table = BrokerOptions(listen_port=0, vip_port_enable=False, broker_name="broker-a", **options)
        self.running: RunningBroker = self.run(start_broker(table, small_store(folder), metaq1=text))
        host, port = self.running.addresses["metaq1"].rsplit(":", 1)
        self.place = host, int(port)

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def close(self) -> None:
        self.run(self.running.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)


class Talk:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(server.place, PATIENCE)
        self._reader, self._data = Reader(1 << 30), b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> Line | TooLong | None:
        """The next one; None: the server has ended the connection."""
        while True:
            line, start = self._reader.next(self._data)
            if line is not None:
                self._data = self._data[start:]
                return line
            try:
                more = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._data += more

    def ask(self, data: bytes) -> tuple[int, bytes]:
        self.send(data)
        answer = self.answer()
        assert answer is not None, "it is closed"
        return getattr(answer, "code", 0), answer.body

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("store"))
    yield running
    running.close()


@pytest.fixture
def talk(server) -> Iterator[Talk]:
    with contextlib.closing(Talk(server)) as opened:
        yield opened


@pytest.fixture(scope="module")
def neighbour(server) -> Iterator[Talk]:
    with contextlib.closing(Talk(server)) as opened:
        yield opened


@pytest.mark.parametrize("line", MALFORMED, ids=repr)
def test_a_malformed_line_closes_its_connection_without_a_word(server, neighbour, talk, line) -> None:
    """What came before it is answered; the neighbour's half of a put stays what it is."""
    neighbour.send(b"put test 1 5 0 1\r\nhe")
    talk.send(b"version 1\r\n" + line + b"version 2\r\n")
    answer = talk.answer()
    assert isinstance(answer, ResultLine)
    assert answer.opaque == 1
    assert talk.answer() is None
    assert neighbour.ask(b"llo")[0] == 200


@pytest.mark.parametrize("data", [data for data, _ in GOLDEN], ids=lambda data: repr(data)[2:40])
def test_a_command_that_is_half_received_just_waits(server, neighbour, talk, data) -> None:
    """Whatever is missing of it: its line's end, its body."""
    for cut in (1, len(data) - 1):
        with contextlib.closing(Talk(server)) as half:
            half.send(data[:cut])
            assert neighbour.ask(b"version 1\r\n")[0] == 200
            half.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                half.socket.recv(1)


def test_every_recorded_line_is_answered_or_passed_over(talk) -> None:
    """None of them closes the connection but `quit`; END and answers are answered by nothing."""
    for data, line in GOLDEN:
        if isinstance(line, QuitLine):
            continue
        talk.send(data + b"version 77\r\n")
        answers = []
        while not answers or answers[-1].opaque != 77:
            answers.append(talk.answer())
        assert len(answers) <= 2


@pytest.mark.parametrize(
    "line",
    [
        b"put test 0 2147483647 0 1\r\n", b"put test 0 1000000000 0 1\r\n", b"sync test 0 2147483647 0 1 1\r\n",
        b"result 200 2147483647 1\r\n", b"value 2147483647 1\r\n", b"put test 0 2147483647 1\r\n",
    ],
    ids=repr,
)  # fmt: skip
def test_hostile_lengths_take_no_memory(server, neighbour, line) -> None:
    """A hundred connections that promise 2 GiB each and send a megabyte of it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    talks = [Talk(server) for _ in range(100)]
    piece = bytes(1 << 20)
    for talk in talks:
        talk.send(line + piece)
    assert neighbour.ask(b"version 1\r\n")[0] == 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000
    for talk in talks:
        talk.close()


def test_a_line_without_end_closes_its_connection(server, talk) -> None:
    """At its limit, and none of it is kept."""
    with contextlib.suppress(ConnectionError):
        talk.send(b"get " + b"g" * 1_000_000)
    assert talk.answer() is None


@pytest.mark.parametrize("offset", [-1, -(2**63), 10**12, 2**63 - 2])
def test_a_negative_or_far_offset_is_answered_as_recorded(talk, offset) -> None:
    """Moved to the beginning, or not found; `offset` answers the nearest place."""
    talk.ask(b"put test 2 5 0 1\r\nhello")
    code, body = talk.ask(b"get test g 2 %d 100 1\r\n" % offset)
    assert (code, body) == ((301, b"0") if offset < 0 else (404, b"Could not find message at position %d" % offset))
    code, end = talk.ask(b"get test g 2 %d 100 1\r\n" % (2**63 - 1))
    assert code == 301
    assert talk.ask(b"offset test g 2 %d 1\r\n" % offset) == (200, b"0" if offset < 0 else end)


@pytest.mark.parametrize(
    "attribute",
    ["", "a b", "a\r\nb", "a||b", "\x01", "a\x02b", "é" * 1000, "x" * 60_000],
    ids=lambda text: repr(text[:10]),
)
def test_an_attribute_comes_back_unchanged_whatever_stands_in_it(talk, attribute) -> None:
    """Spaces, line ends, what RocketMQ's properties could not hold, and nearly 64 KiB."""
    body = with_attribute(attribute, b"payload")
    code, place = talk.ask(b"put test 0 %d 1 1\r\n%b" % (len(body), body))
    assert code == 200, place
    position = int(place.split()[2])
    talk.send(b"get test g 0 %d 70000 1\r\n" % position)
    value = talk.answer()
    assert next(frames(value.body)).body == body


@pytest.mark.parametrize(
    "topic", ["a" * 65_536, "../../etc", "a/b", "test\n", "tést", "%RETRY%g", "rmq_sys_METAQ_POSITIONS", "."]
)
def test_a_name_that_is_no_topic_is_refused_with_a_reason(talk, topic) -> None:
    """For a put; a get finds nothing there. The connection goes on."""
    code, body = talk.ask(b"put %b 0 1 0 1\r\nx" % topic.encode())
    assert (code, b"The server do not accept topic" in body) == (500, True)
    assert len(body) < 10_000
    assert talk.ask(b"get %b g 0 0 100 1\r\n" % topic.encode())[0] == 404
    assert talk.ask(b"get test %b 7 0 100 1\r\n" % (b"g" * 65_536))[0] == 404


def test_who_does_not_read_answers_gets_no_more_of_them_made(server, neighbour) -> None:
    """Ten peers ask for far more than fits anywhere: memory stays small, the neighbour is answered; then they get it all."""
    body = bytes(60_000)
    _, place = neighbour.ask(b"put test 0 60000 0 1\r\n" + body)
    position = int(place.split()[2])
    talks, before = [Talk(server) for _ in range(10)], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ask = b"get test g 0 %d 65536 7\r\n" % position
    for talk in talks:
        talk.send(ask * 1000)
    assert neighbour.ask(b"version 1\r\n")[0] == 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    for _ in range(1000):
        answer = talks[0].answer()
        assert (answer.opaque, next(frames(answer.body)).body) == (7, body)
    for talk in talks:
        talk.close()


def test_ten_thousand_connections_that_send_one_byte_each_harm_nobody(tmp_path) -> None:
    """As many as the limits of this machine allow; the neighbour puts meanwhile, and nothing of it is lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = 500 + len(list(Path("/proc/self/fd").iterdir()))  # what earlier tests of this process have left open, too
    if soft < 2 * CONNECTIONS + others:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * CONNECTIONS + others), hard))
    count = min(CONNECTIONS - 10, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - others) // 2)
    running = Server(tmp_path)
    chance, sockets = random.Random(1), []
    try:
        with contextlib.closing(Talk(running)) as neighbour:
            for number in range(count):
                sockets.append(socket.create_connection(running.place, PATIENCE))
                sockets[-1].sendall(chance.choice([b"p", b"g", b"\r", b"\xff", b"t", b"x"]))
                if not number % 500:
                    assert neighbour.ask(b"put test 0 5 0 1\r\nhello")[0] == 200
            puts = (count + 499) // 500
            neighbour.send(b"get test g 0 0 65536 1\r\n")
            assert len(list(frames(neighbour.answer().body))) == puts
            for each in sockets[::2]:
                each.close()
            with contextlib.closing(Talk(running)) as another:
                assert another.ask(b"get test g 0 %d 100 1\r\n" % (25 * puts))[0] == 404
            last = sockets[1]
            last.sendall(b"\r\n")
            assert not last.recv(1)
    finally:
        for each in sockets:
            each.close()
        running.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("slice_seconds", [60.0, 0.0])
def test_who_sends_no_more_gets_the_answers_that_are_yet_to_come(tmp_path, monkeypatch, slice_seconds) -> None:
    """As `nc` at the end of its input: the first put to a topic waits for it to be made, and all of them for the disk.

    Also where each command takes a turn of the loop of its own, as on a machine with other work.
    """
    monkeypatch.setattr(slices, "SLICE_SECONDS", slice_seconds)
    server = Server(tmp_path, text_options={"unflush_threshold": 1})
    with contextlib.closing(server), contextlib.closing(Talk(server)) as talk:
        talk.send(b"".join(b"put test %d 5 0 %d\r\nhello" % (number % 3, number) for number in range(50)))
        talk.socket.shutdown(socket.SHUT_WR)
        answers = [talk.answer() for _ in range(50)]
        assert [(answer.code, answer.opaque) for answer in answers] == [(200, number) for number in range(50)]
        assert talk.answer() is None


def test_slow_commands_are_handled_in_slices_and_all_connections_share_the_first_ones(tmp_path) -> None:
    """However many commands one read brings, others are served in between; many connections get no more together."""
    with open_metaq1_server(tmp_path) as (_, protocol_server):
        work, ticks = protocol_server._space.slow_work, itertools.count()
        work.now = lambda: next(ticks) * slices.SLICE_SECONDS / 4  # each look at the clock: a quarter of a slice
        greedy, modest = TextClient(protocol_server), TextClient(protocol_server)
        greedy._present(b"stats\r\n" * 100)
        answered, turns = len(greedy.answers()), 0
        assert 0 < answered < 10
        assert greedy.peer.paused
        assert modest.ask(b"version 1\r\n")[0] == 200
        while greedy.peer.jobs:
            greedy.peer.jobs.popleft()()
            answered, turns = answered + len(greedy.answers()), turns + 1
        assert answered == 100
        assert turns > 10
        work.now = lambda: 1000.0
        work.spend(slices.FIRST_SECONDS, 1000.0)  # the window is used up: the first slice waits for its turn, too
        modest._present(b"version 2\r\n")
        assert not modest.answers()
        modest.feed(b"")
        assert [answer.code for answer in modest.answers()] == [200]


def test_names_that_no_topic_can_have_are_not_kept_for_figures(tmp_path) -> None:
    """A line may be of 128 KiB, and the figures have room for 10 000 names."""
    with open_metaq1_server(tmp_path) as (_, protocol_server):
        client = TextClient(protocol_server)
        for name in (b"wild-x", b"wild-" + b"x" * 100_000):
            client.ask(b"get %b g 0 0 1024 1\r\n" % name)
        assert b"topic_realtime_get Count=1" in client.ask(b"stats wild-x 2\r\n")[1]
        told = client.ask(b"stats wild-%b 3\r\n" % (b"x" * 100_000))[1]
        assert b"topic_realtime_get Invalid" in told
        assert len(told) < 10_000
