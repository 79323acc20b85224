"""Transactions in both paths: whichever a request takes, the store, the answers and what is still open are the same."""

from __future__ import annotations

import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.model import properties as props
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC
from metaq.testing.faults import FaultyDisk
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType
from metaq.wire.record import decode_record, offset_id
from tests.effort import repeats
from tests.servers.support import Client, SlowDisk, open_server, send_header, tick
from tests.support import eventually

UNIQUE_ID = "7F00000100002A9F0000000000000001"
HALF = {
    props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: "PG", props.TAGS: "paid", props.KEYS: "k1 k2",
}  # fmt: skip


def anybody(who, action, resource):
    """Everything is allowed, but must be asked for: then all ends of transactions go the slow way."""


def slow_server(root, clock, **more):
    return open_server(root, clock, authorise=anybody, **more)


def half_header(queue_id=1, properties=HALF, **more):
    return send_header("orders", queue_id, sys_flag=4, properties=properties, **more)


def end_header(slot, log_offset, outcome=8, group="PG", message_id=""):
    return headers.EndTransactionHeader(
        producer_group=group, half_queue_offset=slot, log_offset=log_offset, outcome=outcome, message_id=message_id
    )


def half(client, **more):
    """A half message. Returns (slot, log offset)."""
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, half_header(**more), b"hello")
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)


def end(client, place, outcome=8, **more):
    return client.ask(RequestCode.END_TRANSACTION, end_header(*place, outcome, **more))


def warm(client):
    """A send and a transaction, so that topic, half queue and op queue are there, and their gates open."""
    client.send("orders", b"first", 0)
    end(client, half(client))
    client.send("orders", b"second", 0)


def end_of(broker, topic, queue_id=0):
    queue = broker.store.reader.existing_queue(topic, queue_id)
    return queue.max_offset if queue else 0


class CountingEnds:
    """Counts the ends that one broker takes in its slow path."""

    def __init__(self, broker, monkeypatch):
        self.count = 0
        taken = broker.transactions.end

        def counted(*args):
            self.count += 1
            return taken(*args)

        monkeypatch.setattr(broker.transactions, "end", counted)


@pytest.mark.parametrize("outcome", [8, 12])
def test_a_second_transaction_takes_the_fast_path_from_end_to_end(tmp_path, monkeypatch, outcome):
    """The first makes the queues; the repeated end of the second is told by the slow path."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        warm(client)
        slow = CountingEnds(broker, monkeypatch)
        place = half(client)
        assert broker.transactions.progress.is_open(place[0])
        done = end(client, place, outcome)
        assert (done.code, done.remark, done.ext, slow.count) == (0, None, {}, 0)
        assert not broker.transactions.progress.is_open(place[0])
        assert "ended before" in end(client, place, outcome).remark
        assert slow.count == 1
        assert [end_of(broker, topic) for topic in (HALF_TOPIC, OP_TOPIC)] == [2, 2]
        assert end_of(broker, "orders", 1) == 1 + (outcome == 8)


def test_a_restart_knows_what_the_fast_path_ended(tmp_path):
    """The op records that it wrote are those that a start reads."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        warm(client)
        places = [half(client) for _ in range(4)]
        assert end(client, places[2]).code == 0
        assert end(client, places[0], 12).code == 0
        broker.store.flusher.flush()
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        open_still = [broker.transactions.progress.is_open(slot) for slot, _ in places]
        assert open_still == [False, True, False, True]
        assert "ended before" in end(client, places[2]).remark
        assert end(client, places[1]).remark is None
        assert end_of(broker, "orders", 1) == 3


def test_a_half_message_of_a_log_file_that_is_full_is_ended_by_the_slow_path(tmp_path, monkeypatch):
    """It is not in the file that the compiled extension writes to."""
    with open_server(tmp_path, store={"mapped_file_size_commit_log": 65536}) as (broker, server):
        client = Client(server)
        warm(client)
        slow = CountingEnds(broker, monkeypatch)
        place = half(client)
        while broker.store.log.end < 70_000:
            client.send("orders", b"x" * 5000, 0)
        assert end(client, place).remark is None
        assert (slow.count, end_of(broker, "orders", 1)) == (1, 2)
        for _ in range(400):  # across the ends of files
            place = half(client)
            assert end(client, place).remark is None
        assert end_of(broker, "orders", 1) == 402
        assert slow.count < 20
        assert broker.transactions.progress.first_open == end_of(broker, HALF_TOPIC)


def test_refusing_half_messages_takes_effect_at_once_and_ends_are_taken_still(tmp_path):
    """rejectTransactionMessage, changed while the broker runs."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        warm(client)
        place = half(client)
        broker.settings.change({"rejectTransactionMessage": "true"})
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, half_header(), b"hello")
        assert "rejectTransactionMessage" in answer.remark
        assert end(client, place).remark is None
        broker.settings.change({"rejectTransactionMessage": "false"})
        half(client)


def test_a_topic_that_is_gone_keeps_its_half_messages_open(tmp_path):
    """The gate closes with the topic; the slow path says why the end is refused."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        warm(client)
        place = half(client)
        broker.delete_topic("orders")
        client.feed(client.frame(RequestCode.END_TRANSACTION, end_header(*place)))
        (answer,) = eventually(client.received)
        assert "not exist" in answer.remark
        assert broker.transactions.progress.is_open(place[0])
        broker.topics.ensure("orders", 4)
        client.send("orders", b"new", 0)
        assert end(client, place).remark is None
        assert end_of(broker, "orders", 1) == 1


def test_op_records_that_are_owed_come_first(tmp_path):
    """While the disk refuses them, ends go the slow way, and no op record overtakes another."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        warm(client)
        first, second = half(client), half(client)
        broker.transactions.progress.finish(first[0])
        broker.transactions.progress.owed.append(first[0])
        assert end(client, second).remark is None
        bodies = [
            decode_record(broker.store.reader.record_at(unit.log_offset)).body
            for unit in broker.store.reader.existing_queue(OP_TOPIC, 0).units(1, 10)
        ]
        assert bodies == [b"%d" % first[0], b"%d" % second[0]]


def test_a_held_pull_is_answered_by_a_commit_in_either_path(tmp_path):
    """A consumer waits on the topic's queue, another on the op queue."""
    for name, opened in (("fast", open_server), ("slow", slow_server)):
        with opened(tmp_path / name, FakeClock()) as (_, server):
            client, consumer = Client(server), Client(server)
            warm(client)
            place = half(client)
            assert consumer.pull("orders", 1, 1, sys_flag=6, suspend_ms=15000) == []
            assert end(client, place).remark is None
            (answer,) = consumer.received()
            assert decode_record(answer.body).body == b"hello"


@pytest.mark.parametrize("opened", [open_server, slow_server])
@pytest.mark.parametrize("outcome", [8, 12])
def test_the_answer_to_an_end_waits_for_the_disk(tmp_path, opened, outcome):
    """With SYNC_FLUSH, as the answer to a send does; the repeated end's, too."""
    disk = SlowDisk()
    with opened(tmp_path, FakeClock(), store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk) as (_, server):
        client = Client(server)
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, half_header(), b"warm"))
        eventually(lambda: client.peer.writes)
        (answer,) = client.received()
        place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)
        disk.may_sync.clear()
        for _ in range(2):
            client.feed(client.frame(RequestCode.END_TRANSACTION, end_header(*place, outcome)))
        assert client.received() == []
        disk.may_sync.set()
        answers = []
        eventually(lambda: answers.extend(client.received()) or len(answers) == 2)
        assert [bool(answer.remark) for answer in answers] == [False, True]


def test_an_end_that_has_waited_too_long_for_the_disk_is_answered_with_success(tmp_path):
    """As RocketMQ does it: only sends have codes for what they lack."""
    disk, clock = SlowDisk(), FakeClock()
    with open_server(tmp_path, clock, store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk) as (_, server):
        client = Client(server)
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, half_header(), b"warm"))
        (answer,) = eventually(client.received)
        place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)
        disk.may_sync.clear()
        client.feed(client.frame(RequestCode.END_TRANSACTION, end_header(*place)))
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, half_header(), b"warm"))
        clock.advance(6)
        tick(server)
        assert [answer.code for answer in client.received()] == [0, ResponseCode.FLUSH_DISK_TIMEOUT]
        disk.may_sync.set()


def test_without_room_nothing_is_ended(tmp_path):
    """On a full disk the slow path refuses, and the transaction stays open until there is room."""
    disk = FaultyDisk()
    with open_server(tmp_path, store={"mapped_file_size_commit_log": 65536}, disk=disk) as (broker, server):
        client = Client(server)
        warm(client)
        disk.room = 0
        while (answer := client.ask(RequestCode.SEND_MESSAGE_V2, half_header(), b"hello")).code == 0:
            place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)
        assert end(client, place).code != 0
        assert broker.transactions.progress.is_open(place[0])
        disk.room = None
        assert end(client, place).remark is None
        assert not broker.transactions.progress.is_open(place[0])


# ---------------------------------------------------------------------- any interleaving

properties = st.sampled_from((
    HALF, HALF, {**HALF, props.WAIT: "false"}, {**HALF, props.DELAY: "1"}, {**HALF, props.CHECK_IMMUNITY: "60"},
    {**HALF, props.PRODUCER_GROUP: "others"}, {**HALF, props.REAL_TOPIC: "elsewhere"}, {**HALF, props.CLUSTER: "c"},
    {name: value for name, value in HALF.items() if name != props.PRODUCER_GROUP}, {**HALF, props.CHECK_TIMES: "9"},
    {**HALF, props.TRANSACTION_PREPARED: "false"}, {**HALF, "a": "\N{SNOWMAN}", props.KEYS: " x  y "}, {}, {props.KEYS: "k"},
))  # fmt: skip
sends = st.tuples(
    st.just("send"), properties, st.integers(-1, 4), st.sampled_from((0, 1, 4, 4, 5, 8, 12)), st.sampled_from((b"x", b"body" * 30)),
    st.booleans(),
)  # fmt: skip
ends = st.tuples(
    st.just("end"), st.integers(0, 30), st.sampled_from((8, 8, 12, 0, 4)), st.sampled_from(("PG", "PG", "others", "")),
    st.sampled_from((0, 0, 0, 0, 1)), st.sampled_from((0, 0, 0, 0, 1)), st.booleans(),
    st.sampled_from((UNIQUE_ID, UNIQUE_ID, "", "another", "offset id")),
)  # fmt: skip
steps = st.one_of(
    sends, sends, ends, ends, st.tuples(st.just("event")), st.tuples(st.just("event")), st.tuples(st.just("tick"))
)


class Played:
    """One broker that is asked the same as another."""

    def __init__(self, broker, server, serialize):
        self.broker, self.server, self.client = broker, server, Client(server, serialize)
        self.client._opaque = iter(range(1, 1 << 30))
        self.client.peer.address = ("127.0.0.1", 50000)
        self.client.session.born_host = bytes.fromhex("7f0000010000c350")
        self.gathered, self.answers = b"", {}

    def play(self, step, places):
        match step:
            case ("send", pairs, queue_id, sys_flag, body, oneway):
                header = send_header("orders", queue_id, sys_flag=sys_flag, properties=pairs)
                self.gathered += self.client.frame(RequestCode.SEND_MESSAGE_V2, header, body, oneway=oneway)
            case ("end", number, outcome, group, slot_off, log_off, oneway, message_id):
                slot, place = places[number % len(places)] if places else (0, 0)
                if message_id == "offset id":
                    message_id = offset_id(self.broker.environment.store_host, place)
                header = end_header(slot + slot_off, place + log_off, outcome, group, message_id)
                self.gathered += self.client.frame(RequestCode.END_TRANSACTION, header, oneway=oneway)
            case ("event",):
                self.client.feed(self.gathered)
                self.gathered = b""
                for answer in self.client.received():
                    self.answers[answer.opaque] = (answer.code, answer.remark, answer.ext)
            case ("tick",):
                self.broker.clock.advance(1)
                self.broker.store.flusher.flush()
                tick(self.server)

    def places(self):
        queue = self.broker.store.reader.existing_queue(HALF_TOPIC, 0)
        return [(number, unit.log_offset) for number, unit in enumerate(queue.units(0, 1000))] if queue else []

    def state(self):
        store, progress = self.broker.store, self.broker.transactions.progress
        root = pathlib.Path(store.folder.root)
        files = {
            str(path.relative_to(root)): path.read_bytes()
            for part in ("commitlog", "consumequeue", "index")
            for path in sorted((root / part).rglob("*"))
            if path.is_file()
        }
        half_end = end_of(self.broker, HALF_TOPIC)
        stats = self.broker.stats
        return (
            store.log.end, files, self.answers, [progress.is_open(slot) for slot in range(half_end)], progress.first_open,
            list(progress.owed), self.broker.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0),
            self.broker.offsets.get("CID_RMQ_SYS_TRANS", OP_TOPIC, 0), stats.put_messages, stats.put_bytes,
            stats.put_failures,
        )  # fmt: skip


@settings(max_examples=repeats(60), deadline=None)
@given(script=st.lists(steps, max_size=40), serialize=st.sampled_from(SerializeType))
def test_both_paths_do_the_same(script, serialize):
    """Bytes of log, queues and index, answers, what is open, positions and figures: for any interleaving."""
    with tempfile.TemporaryDirectory() as root:
        fast_root, slow_root = pathlib.Path(root, "fast"), pathlib.Path(root, "slow")
        with open_server(fast_root, FakeClock()) as one, slow_server(slow_root, FakeClock()) as two:
            played = [Played(broker, server, serialize) for broker, server in (one, two)]
            for player in played:
                for step in (("send", {}, 0, 0, b"first", False), ("send", HALF, 1, 4, b"half", False), ("event",)):
                    player.play(step, [])
                for step in (
                    ("end", 0, 8, "PG", 0, 0, False, UNIQUE_ID),
                    ("send", {}, 0, 0, b"second", False),
                    ("event",),
                ):
                    player.play(step, player.places())
            for step in (*script, ("event",), ("tick",), ("tick",), ("tick",)):
                places = played[0].places()
                assert places == played[1].places()
                for player in played:
                    player.play(step, places)
            assert played[0].state() == played[1].state()
