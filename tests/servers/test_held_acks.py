"""SYNC_FLUSH at the server: when answers go out, and what they say when the disk is late or broken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.log.acks import AckPolicy, Due, Lack
from metaq.clock import FakeClock
from metaq.servers.held_acks import HeldAcks
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command, encode
from tests.servers.support import Client, FakePeer, SlowDisk, open_server, tick
from tests.support import eventually


class FakeLog:
    """A log whose flushing the test does."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(flushed=0)
        self.asked = []
        self.log = SimpleNamespace(tail=SimpleNamespace(end=0))

    def when_flushed(self, log_end, done) -> None:
        self.asked.append((log_end, done))

    def flush(self, log_end: int, *, good: bool = True) -> None:
        self.state.flushed = log_end
        asked, self.asked = self.asked, []
        for end, done in asked:
            if end <= log_end or not good:
                done(good)
            else:
                self.asked.append((end, done))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def log():
    return FakeLog()


class Replica:
    """What a replica has of the log, as the test says."""

    required, available, enough, in_doubt, copied = True, True, True, False, 0

    def lacks(self, begin: int, end: int) -> bool:
        return False

    def __init__(self) -> None:
        self.asked = []

    def when_copied(self, log_end, done) -> None:
        self.asked.append((log_end, done))

    def copy(self, log_end: int) -> None:
        self.copied = log_end
        asked, self.asked = self.asked, []
        for end, done in asked:
            if end <= log_end:
                done()
            else:
                self.asked.append((end, done))


@pytest.fixture
def replica():
    return Replica()


def made(log, clock, replica, call_soon):
    store_options = SimpleNamespace(flush_disk_type="SYNC_FLUSH")
    policy = AckPolicy(SimpleNamespace(store=log, store_options=store_options), replica)
    return HeldAcks(policy, log, clock, call_soon, 5.0)


@pytest.fixture
def held(log, clock, replica):
    return made(log, clock, replica, lambda act: act())


def disk(log_end: int) -> Due:
    return Due(log_end, 0, promised=True)


def test_answers_wait_for_their_bytes(held, log):
    """What lies below the durable end goes out, in order; what lies above waits on."""
    peers = [FakePeer() for _ in range(3)]
    for n, peer in enumerate(peers):
        held.hold(peer, disk(100 * (n + 1)), b"")
    log.flush(200)
    assert [len(peer.writes) for peer in peers] == [1, 1, 0]
    log.flush(300)
    assert len(peers[2].writes) == 1
    assert len(held) == 0


def test_one_call_of_the_loop_serves_a_whole_group(log, clock, replica):
    """Each event asks, so that the next sync begins with all of them; they are released together."""
    calls = []
    held = made(log, clock, replica, calls.append)
    for n in range(50):
        held.hold(FakePeer(), disk(n + 1), b"")
    log.flush(30)
    log.flush(50)
    assert log.asked == []
    [release] = calls
    release()
    assert len(held) == 0
    held.hold(FakePeer(), disk(60), b"")
    log.flush(60)
    calls.pop()()
    assert len(held) == 0


def test_after_a_failed_flush_nobody_is_acknowledged(held, log):
    """A failed fsync leaves every waiting producer without an answer."""
    peers = [FakePeer() for _ in range(3)]
    for n, peer in enumerate(peers):
        held.hold(peer, disk(n + 1), b"")
    log.flush(0, good=False)
    assert [peer.writes for peer in peers] == [[], [], []]
    assert len(held) == 0


def test_answers_that_a_replica_must_have_wait_for_it_too(held, log, replica):
    """Whichever is later lets them go, and they keep their order."""
    peers = [FakePeer() for _ in range(3)]
    for peer, due in zip(peers, (Due(100, 100, True), Due(0, 200, True), disk(300)), strict=True):
        held.hold(peer, due, b"")
    log.flush(100)
    assert [len(peer.writes) for peer in peers] == [0, 0, 0]
    replica.copy(150)
    assert [len(peer.writes) for peer in peers] == [1, 0, 0]
    log.flush(300)
    assert [len(peer.writes) for peer in peers] == [1, 0, 0]
    replica.copy(200)
    assert [len(peer.writes) for peer in peers] == [1, 1, 1]


@pytest.mark.parametrize(
    ("due", "flushed", "seconds", "code"),
    [
        (Due(100, 0, promised=True), 0, 5, ResponseCode.FLUSH_DISK_TIMEOUT),
        (Due(0, 100, promised=True), 0, 3, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (Due(100, 100, promised=True), 100, 3, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (Due(100, 100, promised=True), 0, 5, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (Due(100, 0, promised=True, lack=Lack.NO_REPLICA), 0, 5, ResponseCode.SLAVE_NOT_AVAILABLE),
        (Due(100, 0, promised=False), 0, 5, ResponseCode.SUCCESS),
    ],
)
def test_an_answer_that_waited_too_long_tells_what_it_lacks_of_its_promise(
    held, log, clock, due, flushed, seconds, code
):
    """A replica has less time than the disk; who lacks both is told of the replica. One that promises nothing goes out as it is."""
    peer = FakePeer()
    held.hold(peer, due, encode(Command(0, 7, flag=1, ext={"msgId": "id"})))
    log.flush(flushed)
    clock.advance(seconds - 0.1)
    held.expire()
    assert peer.received() == []
    clock.advance(0.1)
    held.expire()
    assert [(answer.opaque, answer.code) for answer in peer.received()] == [(7, code)]


def test_in_doubt_every_answer_that_said_stored_becomes_an_error(held, log, clock, replica):
    """Of sends, and of the end of a transaction, which has no fields: who leads next may not have it. Failures stay what they are."""
    peer = FakePeer()
    frames = [
        encode(Command(0, 7, flag=1, ext={"msgId": "id"})), encode(Command(0, 8, flag=1)),
        encode(Command(14, 9, flag=1, remark="refused")),
    ]  # fmt: skip
    held.hold(peer, Due(0, 100, promised=True), b"".join(frames))
    replica.in_doubt = True
    clock.advance(3)
    held.expire()
    assert [(answer.opaque, answer.code, answer.remark) for answer in peer.received()] == [
        (7, ResponseCode.SYSTEM_ERROR, "[IN_DOUBT]" + Lack.DOUBT.value), (8, ResponseCode.SYSTEM_ERROR, "[IN_DOUBT]" + Lack.DOUBT.value), (9, 14, "refused"),
    ]  # fmt: skip


def test_an_answer_without_a_replica_says_so_as_soon_as_the_disk_has_its_message(held, log):
    """At once where it does not wait for the disk either, and failures stay failures."""
    peers = FakePeer(), FakePeer()
    frames = encode(Command(0, 7, flag=1, ext={"msgId": "id"})) + encode(Command(14, 8, flag=1, ext={"a": "b"}))
    held.hold(peers[0], Due(100, 0, promised=True, lack=Lack.NO_REPLICA), frames)
    assert peers[0].received() == []
    log.flush(100)
    assert [answer.code for answer in peers[0].received()] == [ResponseCode.SLAVE_NOT_AVAILABLE, 14]
    held.hold(peers[1], Due(0, 0, promised=True, lack=Lack.NO_REPLICA), frames)
    log.asked.pop()[1](True)  # the store's own flusher answers at once
    assert [answer.code for answer in peers[1].received()] == [ResponseCode.SLAVE_NOT_AVAILABLE, 14]


# -------------------------------------------------------------------- with a real store


def test_a_synchronous_send_is_answered_once_it_is_durable(tmp_path):
    """The answer comes from the flush, and the log is durable up to the record by then."""
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}) as (broker, server):
        client = Client(server)
        for n in range(3):  # the first in the slow path, the others in the fast one
            client.feed(_send(client))
            (answer,) = eventually(client.received)
            assert (answer.code, answer.ext["queueOffset"]) == (0, str(n))
            assert broker.store.state.flushed >= broker.store.log.end


def test_a_disk_that_is_late_is_told_per_message(tmp_path, monkeypatch):
    """After syncFlushTimeout each send of the event is answered FLUSH_DISK_TIMEOUT with its full header."""
    clock = FakeClock()
    with open_server(tmp_path, clock, {"flush_disk_type": "SYNC_FLUSH"}) as (broker, server):
        monkeypatch.setattr(broker.store.flusher, "when_flushed", lambda _end, _done: None)
        client = Client(server)
        client.feed(_send(client) + _send(client) + _send(client))
        assert client.received() == []
        clock.advance(5)
        tick(server)
        answers = client.received()
        assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 3
        assert [answer.ext["queueOffset"] for answer in answers] == ["0", "1", "2"]
        assert all(len(answer.ext["msgId"]) == 32 for answer in answers)


def test_who_does_not_want_to_wait_does_not(tmp_path, monkeypatch):
    """WAIT=false is answered at once, in either path, while others wait."""
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}) as (broker, server):
        monkeypatch.setattr(broker.store.flusher, "when_flushed", lambda _end, _done: None)
        client = Client(server)
        assert client.send("orders", properties={"WAIT": "false"}).code == 0
        client.feed(_send(client))
        assert client.received() == []
        assert client.send("orders", properties={"WAIT": "false"}).ext["queueOffset"] == "2"


def test_a_producer_that_outruns_the_disk_takes_its_pace(tmp_path):
    """With ASYNC_FLUSH, above half of unflushedBytesMax the answers wait until the disk has come near enough."""
    disk = SlowDisk()
    with open_server(tmp_path, disk=disk, unflushed_bytes_max=1 << 20) as (broker, server):
        client = Client(server)
        client.send("orders")
        broker.store.flusher.flush()
        disk.may_sync.clear()
        try:
            sent = answered = 0
            while answered == sent:
                client.feed(_send(client, b"x" * 50_000))
                sent, answered = sent + 1, answered + len(client.received())
            assert 10 <= sent <= 12
            assert client.pull("orders")[0].code == 0
        finally:
            disk.may_sync.set()
        assert [answer.code for answer in eventually(client.received)] == [0]


def test_acknowledgements_that_wait_are_bounded(tmp_path, monkeypatch):
    """Who sends on without an answer is refused as busy once too many answers wait: memory stays flat."""
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}, unanswered_bytes_max=1 << 16) as (
        broker,
        server,
    ):
        monkeypatch.setattr(broker.store.flusher, "when_flushed", lambda _end, _done: None)
        client = Client(server)
        for _ in range(400):
            client.feed(_send(client))
        answers = client.received()
        assert 1 << 16 < broker.acks.waiting_bytes < 1 << 17
        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
        assert 100 < len(answers) < 300
        server.broker.clock.advance(5)
        tick(server)
        assert broker.acks.waiting_bytes == 0
        assert len(client.received()) == 400 - len(answers)


def test_pulls_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    """Only acknowledgements wait; a pull in the same event is answered at once."""
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}) as (broker, server):
        monkeypatch.setattr(broker.store.flusher, "when_flushed", lambda _end, _done: None)
        client = Client(server)
        client.feed(_send(client))
        assert [answer.remark for answer in client.pull("orders")] == ["FOUND"]


def _send(client, body=b"x"):
    from metaq.wire.codes import RequestCode
    from tests.servers.support import send_header

    return client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), body)
