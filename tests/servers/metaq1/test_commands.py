"""The MetaQ 1.x server on a real broker: what the transcripts of the original say, and what becomes of what they do not."""

from __future__ import annotations

import re
from concurrent.futures import Future

import pytest

from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.access import Action
from metaq.model.metaq1.partition import Frames, Later
from metaq.saved import Pending, Saving
from metaq.servers.metaq1.answers import WAITING_BYTES_MAX_ALL
from metaq.servers.metaq1.session import LATE_GETS_MAX
from metaq.servers.waiting import ATTEMPTS_MAX, WAIT_SECONDS
from metaq.wire.metaq1.commands import NO_OPAQUE, Line, ResultLine, ValueLine
from metaq.wire.metaq1.frame import Frame, frames, with_attribute
from tests.broker.support import SlowFile
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.servers.support import Doubtful, SlowDisk
from tests.support import eventually


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def server(tmp_path, clock):
    with open_metaq1_server(tmp_path, clock, settings(max_transfer_size=4096, update_consumer_offsets=True)) as (
        _,
        server,
    ):
        yield server


@pytest.fixture
def client(server):
    return TextClient(server)


def masked(data: bytes) -> bytes:
    """Without ids, as their lengths depend on the clock."""
    return re.sub(rb"result 200 \d+ (-?\d+)\r\n\d+ (-?\d+ -?\d+)", rb"result 200 N \1\r\nID \2", data)


def test_the_recorded_conversation_goes_as_recorded(client) -> None:
    """Section by section in one connection: put, get, offset, version."""
    for line, answer in [
        (b"put test 0 5 0 1\r\nhello", b"result 200 N 1\r\nID 0 0"),
        (b"put test 0 5 0 907060870 2\r\nhello", b"result 200 N 2\r\nID 0 25"),
        (b"get test g 0 50 1024 10\r\n", b"result 404 37 10\r\nCould not find message at position 50"),
        (b"get test g 0 9223372036854775807 1024 12\r\n", b"result 301 2 12\r\n50"),
        (b"get test g 0 -1 1024 13\r\n", b"result 301 1 13\r\n0"),
        (b"get test g 0 0 0 13\r\n", b"result 400 30 13\r\nBad request,invalid max size:0"),
        (b"offset test g 0 7 17\r\n", b"result 200 1 17\r\n0"),
        (b"offset test g 0 30 17\r\n", b"result 200 2 17\r\n25"),
        (b"offset test g 0 5000 17\r\n", b"result 200 2 17\r\n50"),
        (b"offset test g 1 0 17\r\n", b"result 404 46 17\r\nThe topic `test` in partition `1` is not exists"),
        (b"version 5\r\n", b"result 200 5 5\r\n1.2.3"),
        (b"version\r\n", b"result 200 5 2147483647\r\n1.2.3"),
    ]:  # fmt: skip
        client.feed(line)
        found = masked(client.raw())
        assert re.sub(rb"^result 404 \d+", b"result 404 0", found) == re.sub(
            rb"^result 404 \d+", b"result 404 0", answer
        )


def test_a_get_hands_out_frames_as_they_were_put(client) -> None:
    """Id, flag, attribute and body; the opaque comes back, however odd."""
    body = with_attribute("attr1", b"hi")
    first, _, _ = client.put(b"hello", flag=6)
    client.feed(b"put test -1 11 1 1871851234 -2147483647\r\n" + body)
    (stored,) = client.answers()
    assert (stored.code, stored.opaque) == (200, -2147483647)
    message_id, partition, position = map(int, stored.body.split())
    (value,) = client.feed(b"get test g %d %d 1024 -2147483648\r\n" % (partition, position)) or client.answers()
    assert isinstance(value, ValueLine)
    assert (value.opaque, list(frames(value.body))) == (-2147483648, [Frame(message_id, 1, body)])
    assert list(frames(client.ask(b"get test g 0 0 25 1\r\n")[1])) == [Frame(first, 6, b"hello")]


def test_a_message_beyond_the_limit_is_refused_and_passed_over(client) -> None:
    """With its size and the limit; the connection goes on behind it, as does a whole stream of such."""
    fits, most = bytes(4076), bytes(4077)
    assert client.put(fits)[2] == 0
    client.feed(b"put test 0 4077 0 8\r\n" + most + b"put test 0 2147483647 0 9\r\n")
    first, second = client.answers()
    assert (first.code, first.opaque, second.opaque) == (500, 8, 9)
    assert b"a message of 4097 bytes for topic test, of which 20 are its header" in first.body
    assert b"the limit is 4096 (maxTransferSize)" in first.body
    assert client.feed(bytes(100_000)) == 0
    assert client.session.frame_needed() == 0


def test_lines_that_are_cut_and_joined_are_answered_in_their_order(client) -> None:
    """Byte by byte, and all at once."""
    data = b"version 1\r\nput test 0 2 0 2\r\nhiget test g 0 0 100 3\r\nresult 200 2 9\r\nokoffset test g 0 0 4\r\nstats help 5\r\nvalue 1 2\r\nxversion 6\r\n"
    for size in (1, 7, len(data)):
        for at in range(0, len(data), size):
            client.feed(data[at : at + size])
        assert [answer.opaque for answer in client.answers()] == [1, 2, 3, 4, 5, 6]


def test_quit_and_malformed_lines_end_their_connection_alone(client, server) -> None:
    """What came before is answered, what comes behind is not looked at; the neighbour notices nothing."""
    neighbour = TextClient(server)
    neighbour.feed(b"put test 0 5 0 1\r\nhel")
    client.feed(b"version 1\r\nquit\r\nversion 2\r\n")
    assert ([answer.opaque for answer in client.answers()], client.peer.closed) == ([1], True)
    other = TextClient(server)
    other.feed(b"version 1\r\nnonsense\r\nversion 2\r\n")
    assert ([answer.opaque for answer in other.answers()], other.peer.closed) == ([1], True)
    assert "the line 'nonsense' is malformed: there is no such command" in other.peer.why
    neighbour.feed(b"lo")
    assert [answer.code for answer in neighbour.answers()] == [200]


# -- waiting
def test_a_put_to_a_topic_that_is_being_made_keeps_its_place(tmp_path, clock) -> None:
    """What comes behind it on its connection waits too, unread; others go on. Then all is done in its order."""
    file = SlowFile()
    file.slow = False
    with open_metaq1_server(tmp_path, clock, files={"topics.json": file}) as (broker, server):
        file.slow = True
        client, other = TextClient(server), TextClient(server)
        client.feed(b"version 1\r\nput wild-a 0 2 0 2\r\nhiput wild-a 0 2 0 3\r\nhoversion 4\r\nget wild-a")
        assert [answer.opaque for answer in client.answers()] == [1]
        assert client.peer.paused
        assert other.ask(b"version 5\r\n")[0] == 200
        assert file.under_way
        while file.under_way:
            file.end()
        file.slow = False
        found = list[Line]()
        for _ in range(3):  # the topic; what its positions begin with; and the rest of what was read
            client.go_on()
            broker.store.flusher.flush()
            broker.deliver()
            found += client.answers()
        assert [(answer.opaque, answer.code) for answer in found] == [(2, 200), (3, 200), (4, 200)]
        client.feed(b" g 0 0 100 6\r\n")
        (value,) = client.answers()
        assert [frame.body for frame in frames(value.body)] == [b"hi", b"ho"]


def test_a_topic_that_cannot_be_saved_is_told_to_the_put_that_needs_it(tmp_path, clock) -> None:
    """The next put asks again."""
    file = SlowFile()
    file.slow = False
    with open_metaq1_server(tmp_path, clock, files={"topics.json": file}) as (_, server):
        file.slow = True
        client = TextClient(server)
        client.feed(b"put wild-a 0 2 0 2\r\nhiversion 3\r\n")
        file.end(OSError(28, "No space left on device"))
        client.go_on()
        refused, version = client.answers()
        assert (refused.opaque, refused.code, version.opaque) == (2, 503, 3)
        assert b"No space left on device" in refused.body
        file.slow = False
        while file.under_way:
            file.end()


def test_nobody_waits_for_ever(tmp_path, clock) -> None:
    """After some seconds the answer is that nothing was done; the connection goes on."""
    file = SlowFile()
    file.slow = False
    with open_metaq1_server(tmp_path, clock, files={"topics.json": file}) as (_, server):
        file.slow = True
        client = TextClient(server)
        client.feed(b"put wild-a 0 2 0 2\r\nhiversion 3\r\n")
        clock.advance(WAIT_SECONDS - 0.1)
        server.tick()
        assert client.answers() == []
        clock.advance(0.2)
        server.tick()
        client.go_on()
        refused, version = client.answers()
        assert (refused.opaque, refused.code, version.opaque) == (2, 503, 3)
        assert b"was not saved within 5 s. Nothing was done, try again" in refused.body
        client.feed(b"put wild-a 0 2 0 2\r\nhi")
        client.leave()
        clock.advance(100)
        server.tick()
        file.slow = False
        while file.under_way:
            file.end()


class Steps:
    """Transactions whose steps do what the test says."""

    def __init__(self) -> None:
        self.do = lambda: b""

    def step(self, line, session):
        return self.do()

    def put(self, line, put, session):
        return self.do()

    def due(self):
        return None


STEP = b"transaction TX:s:1 s COMMIT_ONE_PHASE 7\r\n"


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def transacting(tmp_path, clock, steps):
    with open_metaq1_server(tmp_path, clock, transactions=steps) as (_, server):
        yield TextClient(server)


def test_steps_of_transactions_are_answered_or_not_as_their_service_says(transacting, steps) -> None:
    """A body, none at all, a refusal with its own text."""
    assert transacting.ask(STEP) == (200, b"")
    steps.do = lambda: None
    transacting.feed(STEP)
    assert transacting.answers() == []

    def refuse():
        raise Refused(Reason.BUSY, "XAException:code=-4,msg=no such thing")

    steps.do = refuse
    assert transacting.ask(STEP) == (500, b"XAException:code=-4,msg=no such thing")
    assert transacting.ask(b"put test 0 1 0 5 TX:s:1 8\r\nx") == (500, b"XAException:code=-4,msg=no such thing")


def test_a_step_that_must_not_be_taken_twice_goes_on_where_it_waited(transacting, steps, clock) -> None:
    """`Saving.then`: the rest is done once, in its place; when time is up the answer says that it may still happen."""
    pending = Pending()

    def wait():
        raise Saving(pending, then=lambda: b"done")

    steps.do = wait
    transacting.feed(STEP + b"version 2\r\n")
    assert transacting.answers() == []
    pending.finish()
    transacting.go_on()
    assert [(answer.opaque, answer.body) for answer in transacting.answers()] == [(7, b"done"), (2, b"1.2.3")]
    pending = Pending()
    transacting.feed(STEP)
    clock.advance(WAIT_SECONDS + 1)
    transacting.session._space.parking.expire()
    (late,) = transacting.answers()
    assert (late.code, b"It may still take effect: look, and repeat it if it has not" in late.body) == (500, True)
    pending.finish()
    assert transacting.answers() == []


def test_what_never_becomes_ready_is_given_up(transacting, steps) -> None:
    """A change that is done and undone again and again."""
    done, tries = Pending(), []
    done.finish()

    def wait():
        tries.append(1)
        raise Saving(done)

    steps.do = wait
    assert transacting.ask(STEP) == (500, b"what it needs is deleted as often as it is made, try again")
    assert len(tries) == ATTEMPTS_MAX + 1
    steps.do = lambda: b"ok"
    assert transacting.ask(STEP) == (200, b"ok")


# -- a group with failover
def test_what_is_stored_in_doubt_is_answered_with_an_error(tmp_path, clock) -> None:
    """Which does not say that it is stored: who leads next may not have it. What was refused stays that."""
    with open_metaq1_server(tmp_path, clock, slave_timeout=1000) as (broker, server):
        broker.acks.wait_for(Doubtful())
        client = TextClient(server)
        client.feed(b"put test 0 2 0 1\r\nhi")
        client.feed(b"put test 0 2 0 2\r\nho")
        assert client.answers() == []
        clock.advance(1.5)
        server.tick()
        answers = client.answers()
        assert [(one.opaque, one.code) for one in answers] == [(1, 500), (2, 500)]
        assert all(b"whether the message is kept is not known" in one.body for one in answers)
        assert not any(b"is stored" in one.body for one in answers)


# -- the disk
def test_puts_wait_for_the_disk_and_what_follows_waits_behind_them(tmp_path, clock) -> None:
    """SYNC_FLUSH: the get that was asked later is answered later; a disk that is late is told in the put's answer."""
    disk = SlowDisk()
    store = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 1000}
    with open_metaq1_server(tmp_path, clock, store=store, disk=disk) as (_, server):
        client = TextClient(server)
        client.feed(b"put test 0 2 0 1\r\nhi")
        eventually(lambda: bool(client.peer.writes))
        client.raw()
        disk.may_sync.clear()
        client.feed(b"put test 0 2 0 2\r\nhiget test g 0 0 100 3\r\n")
        assert client.answers() == []
        clock.advance(1.5)
        server.tick()
        put, got = client.answers()
        assert (put.opaque, put.code, got.opaque) == (2, 500, 3)
        assert re.fullmatch(
            rb"the message is stored, but it is not known to be on this broker's disk: \d+ 0 22", put.body
        )
        disk.may_sync.set()
        client.feed(b"put test 0 2 0 4\r\nhiversion 5\r\n")
        eventually(lambda: len(client.peer.writes) > 0)
        assert [(answer.opaque, answer.code) for answer in client.answers()] == [(4, 200), (5, 200)]


def test_a_connection_that_ends_is_closed_when_its_puts_are_answered(tmp_path, clock) -> None:
    """`quit` right behind a put that waits for the disk does not cost its answer."""
    disk = SlowDisk()
    with open_metaq1_server(tmp_path, clock, store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk) as (_, server):
        client = TextClient(server)
        disk.may_sync.clear()
        client.feed(b"put test 0 2 0 1\r\nhiquit\r\nversion 2\r\n")
        assert not client.peer.closed
        disk.may_sync.set()
        eventually(lambda: client.peer.closed)
        assert [(answer.opaque, answer.code) for answer in client.answers()] == [(1, 200)]


def test_what_all_connections_wait_for_is_limited_and_those_that_stop_go_on(tmp_path, clock) -> None:
    """The get behind a put that waits for the disk is not even begun while the others have too much behind theirs."""
    disk = SlowDisk()
    with open_metaq1_server(tmp_path, clock, store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk) as (_, server):
        client, other = TextClient(server), TextClient(server)
        client.feed(b"put test 0 2 0 1\r\nhi")
        eventually(lambda: bool(client.peer.writes))
        client.raw()
        disk.may_sync.clear()
        others = other.session._answers
        others.later()
        others.say(memoryview(bytearray(WAITING_BYTES_MAX_ALL)))
        client.feed(b"put test 0 2 0 2\r\nhiget test g 0 0 100 3\r\n")
        assert client.peer.paused
        disk.may_sync.set()
        eventually(lambda: client.peer.wants_more)
        client.go_on()
        put, got = client.answers()
        assert (put.opaque, got.opaque, len(got.body)) == (2, 3, 44)
        other.leave()
        assert server._space.behind.bytes == 0


# -- old messages
class ColdReads:
    """Reads that end when the test says so."""

    def __init__(self) -> None:
        self.jobs = []
        self.room = True

    def read(self, connection, job, done) -> bool:
        if self.room:
            self.jobs.append((job, done))
        return self.room

    def forget(self, connection) -> None:
        self.jobs.clear()

    def end(self, at: int = 0) -> None:
        job, done = self.jobs.pop(at)
        future = Future()
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)
        done(future)


def test_what_was_trimmed_is_given_to_nobody(tmp_path) -> None:
    """A get below is sent to where the partition begins now; `offset` says that, and positions are what they were."""
    with open_metaq1_server(tmp_path) as (broker, server):
        client = TextClient(server)
        places = [client.put(b"message %d" % number)[2] for number in range(6)]
        queue, said = broker.store.reader.existing_queue("test", 0), []
        broker.store.keeper.trim({"test": queue.unit(3).log_offset}, said.append)
        eventually(lambda: (broker.store.flusher.flush(), broker.deliver(), said)[2])
        assert said == [True]
        assert client.ask(b"get test g 0 %d 1024 1\r\n" % places[1]) == (301, b"%d" % places[3])
        assert client.ask(b"offset test g 0 0 1\r\n") == (200, b"%d" % places[3])
        code, body = client.ask(b"get test g 0 %d 1024 1\r\n" % places[3])
        assert (code, b"message 3" in body, b"message 2" in body) == (0, True, False)


def test_gets_of_old_messages_are_answered_in_their_order_whatever_comes_first(client, monkeypatch) -> None:
    """Answers that are there wait behind; only so many are under way, then the connection is read no further."""
    space, reads = client.session._space, ColdReads()
    monkeypatch.setattr(space, "cold_reads", reads)
    answers = iter(range(100))

    def get(_wanted, _channel):
        number = next(answers)
        return Later(lambda: Frames(b"%d" % number), lambda found: found)

    monkeypatch.setattr(space.partitions, "get", get)
    data = b"".join(
        b"get test g 0 0 100 %d\r\nversion 9%d\r\n" % (number, number) for number in range(LATE_GETS_MAX + 2)
    )
    client.feed(data)
    assert client.peer.paused
    assert (client.answers(), len(reads.jobs)) == ([], LATE_GETS_MAX)
    reads.end(1)
    assert client.answers() == []
    reads.end(0)
    assert [answer.opaque for answer in client.answers()] == [0, 90, 1, 91]
    client.go_on()
    while reads.jobs:
        reads.end(len(reads.jobs) - 1)
        client.go_on()
    assert [answer.opaque for answer in client.answers()] == [2, 92, 3, 93, 4, 94, 5, 95]
    reads.room = False
    assert client.ask(b"get test g 0 0 100 1\r\n")[0] == 503
    reads.room = True

    def refused(_wanted, _channel):
        def job():
            raise Refused(Reason.NOT_FOUND, "Could not find message at position 5")

        return Later(job, lambda found: found)

    monkeypatch.setattr(space.partitions, "get", refused)
    client.feed(b"get test g 0 5 100 7\r\n")
    reads.end()
    assert client.answers() == [ResultLine(404, b"Could not find message at position 5", 7)]


def test_a_late_get_that_must_wait_once_more_goes_on_afterwards(client, monkeypatch) -> None:
    """Positions that are not known yet when its messages have been read; or never will be."""
    space, reads = client.session._space, ColdReads()
    monkeypatch.setattr(space, "cold_reads", reads)
    pending = Pending()

    def finish(_read):
        if not pending.done:
            raise Saving(pending)
        return Frames(b"found")

    monkeypatch.setattr(space.partitions, "get", lambda _wanted, _channel: Later(lambda: b"", finish))
    client.feed(b"get test g 0 5 100 7\r\nversion 8\r\n")
    reads.end()
    assert client.answers() == []
    pending.finish()
    assert [answer.opaque for answer in client.answers()] == [7, 8]
    pending = Pending()
    client.feed(b"get test g 0 5 100 7\r\n")
    reads.end()
    pending.finish(Refused(Reason.UNAVAILABLE, "it cannot be known"))
    assert client.answers() == [ResultLine(503, b"it cannot be known", 7)]


def test_answers_of_a_path_that_fails_never_reach_another_peer(client, server, monkeypatch) -> None:
    """The connection ends; the neighbour's puts are answered once each."""
    client.put(b"opens the gate")
    neighbour, space = TextClient(server), client.session._space

    def fail(_data, _start, _gates, _host, acks, _outcome):
        acks.extend(b"result 200 3 1\r\nold")
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(space.fast_path, "run", fail)
        with pytest.raises(MemoryError):
            client.feed(b"put test 0 1 0 1\r\nx")
    neighbour.feed(b"put test 0 1 0 2\r\nx")
    assert [answer.opaque for answer in neighbour.answers()] == [2]


# -- stats
def lines(client: TextClient, item: str = "") -> list[str]:
    code, body = client.ask(f"stats {item} 1\r\n".encode())
    assert code == 200
    text = body.decode()
    assert text.startswith("STATS\r\n")
    assert text.endswith("\r\nEND\r\n")
    return text.split("\r\n")[1:-2]


def test_stats_say_what_the_broker_has_done(client, clock) -> None:
    """In the order of the original, one word each."""
    clock.advance(12)
    client.put(b"hello")
    client.ask(b"put nobody 0 1 0 1\r\nx")
    client.ask(b"get test g 0 0 100 1\r\n")
    client.ask(b"get test g 0 25 100 1\r\n")
    client.ask(b"offset test g 0 0 1\r\n")
    found = dict(line.split(" ") for line in lines(client))
    assert list(found) == [
        "pid", "broker_id", "port", "uptime", "version", "slave", "curr_connections", "threads", "cmd_put", "cmd_get", "cmd_offset",
        "tx_begin", "tx_xa_begin", "tx_commit", "tx_rollback", "get_miss", "put_failed", "total_messages", "topics", "config_checksum",
    ]  # fmt: skip
    wanted = {
        "broker_id": "7", "port": "8123", "uptime": "12", "version": "1.2.3", "slave": "false", "curr_connections": "1",
        "cmd_put": "2", "cmd_get": "2", "cmd_offset": "1", "get_miss": "1", "put_failed": "1", "total_messages": "1", "topics": "1",
        "config_checksum": "0",
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted


def test_stats_of_topics_and_offsets_name_what_holds_messages(client) -> None:
    """And what holds none."""
    client.put(b"hello")
    client.put(b"hello!")
    client.put(b"x", partition=2)
    assert lines(client, "topics") == [
        "test partitions 2 message_count 3 message_bytes 72 accept_publish true accept_subscribe true"
    ]
    assert lines(client, "offsets") == [
        "test part 0 min_offset 0 max_offset 51", "test part 2 min_offset 0 max_offset 21",
    ]  # fmt: skip
    assert lines(client, "test")[:5] == ["test", "resultCode 0", "partitions 2", "message_count 3", "bytes 72"]


def test_an_unknown_item_is_a_topic_that_nobody_knows(tmp_path) -> None:
    """As recorded, 243 bytes for `stats 1`, where nothing was counted."""
    with open_metaq1_server(tmp_path) as (_, server):
        client = TextClient(server)
        client.feed(b"stats 1\r\n")
        (answer,) = client.answers()
        assert (answer.opaque, len(answer.body)) == (NO_OPAQUE, 243)
        assert answer.body.startswith(b"STATS\r\n1\r\nresultCode 1\r\n")
        assert b"\r\ntopic_realtime_message_size null\r\nEND\r\n" in answer.body


def test_counters_of_topics_are_told_with_their_rates(client, clock) -> None:
    """Begun anew by `reset` and after half an hour; other topics are not counted."""
    for _ in range(5):
        client.put(b"hello")
    clock.advance(58)
    count = "Count=5,Value=25,Value/Count=5,Count/Duration=0.09,Duration=58"
    assert lines(client, "realtime") == [
        "realtime_put Count=5,Value=5,Value/Count=1,Count/Duration=0.09,Duration=58", "realtime_get null",
        "realtime_offset null", "realtime_get_miss null", "realtime_put_failed null", f"realtime_message_size {count}",
    ]  # fmt: skip
    assert lines(client, "test")[-1] == f"topic_realtime_message_size {count}"
    assert lines(client, "other")[-1] == "topic_realtime_message_size Invalid keyTwo:other"
    assert lines(client, "reset") == ["reset ok"]
    client.put(b"x")
    assert (
        lines(client, "realtime")[0] == "realtime_put Count=1,Value=1,Value/Count=1,Count/Duration=invalid,Duration=0"
    )
    clock.advance(30 * 60)
    client.session._space.counters.tick()
    nothing = "Count=0,Value=0,Value/Count=invalid,Count/Duration=invalid,Duration=0"
    assert lines(client, "realtime")[0] == f"realtime_put {nothing}"
    assert lines(client, "test")[-1] == f"topic_realtime_message_size {nothing}"
    assert lines(client, "reset") == ["reset ok"]
    assert lines(client, "test")[-1] == "topic_realtime_message_size Invalid keyTwo:test"


def test_who_may_not_look_gets_no_statistics(tmp_path) -> None:
    """403, whatever the item; the version is everybody's."""

    def authorise(_who, action, resource):
        if action is Action.OBSERVE:
            raise Refused(Reason.NO_PERMISSION, f"figures{resource} are not yours")

    with open_metaq1_server(tmp_path, authorise=authorise) as (_, server):
        client = TextClient(server)
        assert client.ask(b"stats config 1\r\n") == (403, b"figures are not yours")
        assert client.ask(b"version 1\r\n")[0] == 200


def test_stats_tell_the_configuration_as_it_stands(tmp_path) -> None:
    """Raw; and help names every item."""
    text = "[system]\nbrokerId=7 ; é\n".encode()
    with open_metaq1_server(tmp_path, metaq1=settings(text=text)) as (_, server):
        client = TextClient(server)
        assert client.ask(b"stats config 1\r\n") == (200, text)
        assert [line.split(" ")[0] for line in lines(client, "help")] == [
            "*EMPTY*", "help", "topics", "offsets", "realtime", "config",
        ]  # fmt: skip
