"""Delayed sends, retries and what consumers give back, in both paths: the store, the answers and the deliveries are the same."""

from __future__ import annotations

import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.log.admit import GateTable
from metaq.clock import FakeClock
from metaq.model import GroupConfig
from metaq.model import properties as props
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.testing.faults import FaultyDisk
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import SerializeType
from metaq.wire.record import decode_record
from tests.effort import repeats
from tests.servers.support import Client, SlowDisk, open_server, send_header, tick
from tests.store.support import copy_running
from tests.support import eventually

RETRY, DEAD = "%RETRY%G", "%DLQ%G"
LEVELS = "1s 5s 10s 30s"


def slow_only(client):
    """Let this client's requests take the slow path, all of them."""
    client.session.gates = GateTable(lambda _: None)
    client.session._back = client.session._one
    client.server.broker.retries.give_back = lambda *_: False
    return client


def ready(broker, client):
    """A group, its retry topic, and a delayed message, so that gates and the queue of a level are there."""
    broker.groups.update(GroupConfig("G"))
    broker.topics.ensure(RETRY)
    client.send("orders", b"first", properties={props.DELAY: "3"})
    client.send("orders", b"second")


class Counting:
    """Counts the sends that a broker takes in its slow path, and the messages that come back the long way."""

    def __init__(self, broker, monkeypatch):
        self.sends = self.backs = 0
        send, load = broker.sends.send, broker.retries._load

        def counted_send(*args):
            self.sends += 1
            return send(*args)

        def counted_load(*args):
            self.backs += 1
            return load(*args)

        monkeypatch.setattr(broker.sends, "send", counted_send)
        monkeypatch.setattr(broker.retries, "_load", counted_load)


def send_place(client, topic="orders", body=b"hello", **more):
    """The LogOffset of a message that is sent."""
    answer = client.send(topic, body, **more)
    assert answer.code == 0, answer.remark
    return int(answer.ext["msgId"][-16:], 16)


def back(client, place, level=0, **more):
    facts = {
        "group": "G",
        "offset": place,
        "delay_level": level,
        "origin_topic": "orders",
        "max_reconsume_times": 16,
        **more,
    }
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendBackHeader(**facts))


def bodies_of(broker, topic, queue_id=0):
    queue = broker.store.reader.existing_queue(topic, queue_id)
    units = queue.units(0, 1000) if queue else []
    return [decode_record(broker.store.reader.record_at(unit.log_offset)).body for unit in units]


def test_delayed_sends_and_retries_take_the_fast_path_and_are_delivered(tmp_path, monkeypatch):
    """From the second of a level on; the level's queue is found again after a start."""
    clock = FakeClock()
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server)
        ready(broker, client)
        slow = Counting(broker, monkeypatch)
        for number in range(3):
            client.send("orders", b"%d" % number, properties={props.DELAY: "3"})
            client.send(RETRY, b"retry", properties={props.DELAY: "3", props.RETRY_TOPIC: "orders"}, reconsume_times=1)
        assert (slow.sends, bodies_of(broker, "orders")) == (0, [b"second"])
        client.send("orders", b"other level", properties={props.DELAY: "2"})
        assert slow.sends == 1
        clock.advance(10)
        tick(server)
        assert bodies_of(broker, "orders") == [b"second", b"other level", b"first", b"0", b"1", b"2"]
        assert bodies_of(broker, RETRY) == [b"retry"] * 3
    with open_server(tmp_path, clock) as (broker, server):
        slow = Counting(broker, monkeypatch)
        Client(server).send("orders", b"later", properties={props.DELAY: "3"})
        assert slow.sends == 0


def test_what_comes_back_takes_the_fast_path_once(tmp_path, monkeypatch):
    """Given back again while the first retry waits, it is known, and adds no second one."""
    clock = FakeClock()
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server)
        ready(broker, client)
        slow, place = Counting(broker, monkeypatch), send_place(client)
        done = back(client, place)
        assert (done.code, done.remark, done.ext, slow.backs) == (0, None, {}, 0)
        waiting = broker.store.reader.existing_queue(SCHEDULE_TOPIC, 2).max_offset
        assert back(client, place).code == 0
        assert (slow.backs, broker.store.reader.existing_queue(SCHEDULE_TOPIC, 2).max_offset) == (1, waiting)
        clock.advance(10)
        tick(server)
        assert bodies_of(broker, RETRY) == [b"hello"]


def test_what_came_back_in_the_fast_path_is_known_after_a_crash(tmp_path, monkeypatch):
    """Its record says of which message it is the retry: the client that asks again adds no second one."""
    with open_server(tmp_path / "one") as (broker, server):
        client = Client(server)
        ready(broker, client)
        place, slow = send_place(client), Counting(broker, monkeypatch)
        assert back(client, place).code == slow.backs == 0
        waiting = broker.store.reader.existing_queue(SCHEDULE_TOPIC, 2).max_offset
        copy_running(tmp_path / "one", tmp_path / "two")
    with open_server(tmp_path / "two") as (broker, server):
        assert back(Client(server), place, repeated=True).code == 0
        assert broker.store.reader.existing_queue(SCHEDULE_TOPIC, 2).max_offset == waiting


@pytest.mark.parametrize("fast_path", ["fast", "slow"])
def test_a_group_that_changes_changes_what_its_retry_topic_takes(tmp_path, fast_path):
    """retryMaxTimes lowered while the broker runs: the next send that was retried so often is a dead letter."""
    with open_server(tmp_path, auto_create_subscription_group=False) as (broker, server):
        client = Client(server)
        ready(broker, client)
        if fast_path == "slow":
            slow_only(client)
        facts = {"properties": {props.RETRY_TOPIC: "orders"}, "reconsume_times": 3}
        client.send(RETRY, b"again", **facts)
        broker.groups.update(GroupConfig("G", retry_max=3))
        client.send(RETRY, b"spent", **facts)
        place = send_place(client, RETRY, b"back", properties={}, reconsume_times=2)
        broker.groups.update(GroupConfig("G", retry_max=2))
        assert back(client, place, max_reconsume_times=None).code == 0
        assert (bodies_of(broker, RETRY), bodies_of(broker, DEAD)) == ([b"again", b"back"], [b"spent", b"back"])
        broker.groups.delete("G")
        answer = client.send(RETRY, b"nobody", **facts)
        assert "does not exist" in answer.remark
        assert "does not exist" in back(client, place).remark


@pytest.mark.parametrize("fast_path", ["fast", "slow"])
def test_refusals_are_told_alike(tmp_path, fast_path):
    """No such message, no retries wanted, a topic that may not be written, a broker that may not."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        ready(broker, client)
        if fast_path == "slow":
            slow_only(client)
        place = send_place(client)
        assert back(client, place + 1).remark == f"look message by offset failed, {place + 1}"
        broker.settings.change({"brokerPermission": "4"})
        assert "may not be written" in back(client, place).remark
        broker.settings.change({"brokerPermission": "6"})
        broker.groups.update(GroupConfig("G", retry_queues=0))
        end = broker.store.log.end
        assert back(client, place).code == 0
        assert broker.store.log.end == end
        client.feed(client.frame(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G", "offset": "1"}))
        (answer,) = client.received()
        assert "delayLevel" in answer.remark


def test_on_a_full_disk_nothing_comes_back(tmp_path):
    """It is refused and counted once, and taken when there is room."""
    disk = FaultyDisk()
    with open_server(tmp_path, store={"mapped_file_size_commit_log": 65536}, disk=disk) as (broker, server):
        client = Client(server)
        ready(broker, client)
        places = [send_place(client) for _ in range(600)]
        disk.room = 0
        done = 599
        while back(client, places[done]).code == 0:
            done -= 1
        assert broker.stats.put_failures == 1
        disk.room = None
        assert back(client, places[done]).code == 0
        answer = client.send("orders", b"late", properties={props.DELAY: "3"})
        assert answer.code == 0


@pytest.mark.parametrize("fast_path", ["fast", "slow"])
def test_the_answer_to_a_delayed_send_waits_for_the_disk(tmp_path, fast_path):
    """With SYNC_FLUSH, unless the sender does not want it to."""
    disk = SlowDisk()
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk) as (broker, server):
        client = Client(server)
        broker.topics.ensure("orders", 4)
        for _ in range(2):
            client.feed(
                client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", properties={props.DELAY: "3"}), b"warm")
            )
            eventually(client.received)
        if fast_path == "slow":
            slow_only(client)
        disk.may_sync.clear()
        for wait in ("true", "false"):
            pairs = {props.DELAY: "3", props.WAIT: wait}
            client.feed(
                client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", properties=pairs), wait.encode())
            )
        assert len(client.received()) == 1
        disk.may_sync.set()
        assert len(eventually(client.received)) == 1


def test_a_consumer_that_waits_on_a_level_is_woken(tmp_path):
    """Whoever pulls SCHEDULE_TOPIC_XXXX sees what the fast path puts there."""
    with open_server(tmp_path) as (broker, server):
        client, consumer = Client(server), Client(server)
        ready(broker, client)
        end = broker.store.reader.existing_queue(SCHEDULE_TOPIC, 2).max_offset
        for act in (
            lambda: client.send("orders", b"x", properties={props.DELAY: "3"}),
            lambda: back(client, send_place(client)),
        ):
            assert consumer.pull(SCHEDULE_TOPIC, 2, end, sys_flag=6, suspend_ms=15000) == []
            act()
            (answer,) = consumer.received()
            assert decode_record(answer.body).topic == SCHEDULE_TOPIC
            end += 1


# ---------------------------------------------------------------------- any interleaving

DELAYED = {props.DELAY: "2"}
pairs = st.sampled_from((
    DELAYED, {props.DELAY: "3", props.TAGS: "t", props.KEYS: "k1 k2"}, {props.DELAY: "9"}, {props.DELAY: "0"}, {props.DELAY: "x"},
    {**DELAYED, props.WAIT: "false"}, {**DELAYED, props.REAL_TOPIC: "elsewhere"}, {**DELAYED, props.CLUSTER: "c"},
    {**DELAYED, props.TRANSACTION_PREPARED: "true"}, {**DELAYED, "a": "\N{SNOWMAN}"}, {**DELAYED, props.RETRY_TOPIC: "orders"}, {},
    {**DELAYED, "b": "\0"}, {props.RETRY_TOPIC: "orders"}, {props.DELAY: "003"}, {props.MESSAGE_TYPE: "x", **DELAYED},
))  # fmt: skip
sends = st.tuples(
    st.just("send"), st.sampled_from(("orders", "orders", RETRY, "%RETRY%nobody")), pairs, st.integers(-1, 4),
    st.sampled_from((0, 0, 1, 4, 8)), st.sampled_from((0, 0, 1, 15, 16, 17)), st.sampled_from((None, None, 0, 1, 16, 99)), st.booleans(),
)  # fmt: skip
backs = st.tuples(
    st.just("back"), st.integers(0, 40), st.sampled_from(("G", "G", "G", "H", "%")), st.sampled_from((0, 0, 0, 1, 4, 9, -1)),
    st.sampled_from((None, 16, 16, 1, 0)), st.sampled_from((None, True, False)), st.sampled_from((0, 0, 0, 0, 1)), st.booleans(),
    st.sampled_from((409, 409, 100)),
)  # fmt: skip
others = st.one_of(
    st.just(("event",)), st.just(("event",)), st.tuples(st.just("tick"), st.sampled_from((0.1, 1, 5, 10))),
    st.tuples(st.just("group"), st.sampled_from((16, 1, -1)), st.sampled_from((1, 3, 0))), st.just(("flush",)),
)  # fmt: skip
steps = st.one_of(sends, sends, backs, backs, others)


class Played:
    """One broker that is asked the same as another."""

    def __init__(self, broker, server, serialize, *, slow):
        self.broker, self.server, self.client = broker, server, Client(server, serialize)
        self.client._opaque = iter(range(1, 1 << 30))
        self.client.peer.address = ("127.0.0.1", 50000)
        self.client.session.born_host = bytes.fromhex("7f0000010000c350")
        self.gathered, self.answers = b"", {}
        if slow:
            slow_only(self.client)

    def play(self, step, places):
        match step:
            case ("send", topic, found, queue_id, sys_flag, times, limit, oneway):
                header = send_header(
                    topic,
                    queue_id,
                    sys_flag=sys_flag,
                    properties=found,
                    reconsume_times=times,
                    max_reconsume_times=limit,
                )
                self.gathered += self.client.frame(RequestCode.SEND_MESSAGE_V2, header, b"body", oneway=oneway)
            case ("back", number, group, level, limit, repeated, off, oneway, version):
                place = places[number % len(places)] if places else 0
                header = headers.SendBackHeader(
                    offset=place + off, group=group, delay_level=level, max_reconsume_times=limit, repeated=repeated
                )
                code = RequestCode.CONSUMER_SEND_MSG_BACK
                self.gathered += self.client.frame(code, header, oneway=oneway, version=version)
            case ("event",):
                self.client.feed(self.gathered)
                self.gathered = b""
                for answer in self.client.received():
                    self.answers[answer.opaque] = (answer.code, answer.remark, answer.ext)
            case ("tick", seconds):
                self.settle()
                self.broker.clock.advance(seconds)
                tick(self.server)
            case ("group", retry_max, retry_queues):
                self.broker.groups.update(GroupConfig("G", retry_max=retry_max, retry_queues=retry_queues))
            case ("flush",):
                self.broker.store.flusher.flush()

    def settle(self):
        """Let the disk come up with what waits for it: else the time that a step lets pass may be too long for an answer."""
        self.broker.store.flusher.flush()
        eventually(lambda: not self.broker.acks.waiting_bytes)

    def places(self):
        """Of every message in a queue."""
        queues = sorted(self.broker.store.reader.queues().items())
        return sorted(unit.log_offset for _, queue in queues for unit in queue.units(0, 1000))

    def state(self):
        store = self.broker.store
        root = pathlib.Path(store.folder.root)
        files = {
            str(path.relative_to(root)): path.read_bytes()
            for part in ("commitlog", "consumequeue", "index")
            for path in sorted((root / part).rglob("*"))
            if path.is_file()
        }
        stats, schedule = self.broker.stats, self.broker.schedule
        taken = {
            key: (made.topic, made.queue_id, made.put, made.at) for key, made in self.broker.retries._taken.items()
        }
        return (
            store.log.end, files, self.answers, stats.put_messages, stats.put_bytes, stats.put_failures,
            schedule.positions.offsets, taken, sorted(self.broker.topics.table), sorted(self.broker.groups.table),
        )  # fmt: skip


@settings(max_examples=repeats(60), deadline=None)
@given(script=st.lists(steps, max_size=40), serialize=st.sampled_from(SerializeType), sync=st.booleans())
def test_both_paths_do_the_same(script, serialize, sync):
    """Bytes of log, queues and index, answers, deliveries, what is known to have come back, and figures: for any interleaving."""
    store = {"message_delay_level": LEVELS, "flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}
    with tempfile.TemporaryDirectory() as root:
        fast_root, slow_root = pathlib.Path(root, "fast"), pathlib.Path(root, "slow")
        with open_server(fast_root, FakeClock(), store) as one, open_server(slow_root, FakeClock(), store) as two:
            played = [Played(*pair, serialize, slow=slow) for pair, slow in ((one, False), (two, True))]
            for player in played:
                player.broker.groups.require("G")
                player.broker.topics.ensure(RETRY)
                for found in ({}, DELAYED, {props.DELAY: "3"}, {props.DELAY: "4"}):
                    player.play(("send", "orders", found, 0, 0, 0, None, False), [])
                player.play(("event",), [])
                player.broker.store.flusher.flush()
            for step in (*script, ("event",), ("tick", 5), ("tick", 30), ("flush",), ("tick", 0.1)):
                places = played[0].places()
                assert places == played[1].places()
                for player in played:
                    player.play(step, places)
            for player in played:
                player.settle()
                player.play(("event",), [])
            assert played[0].state() == played[1].state()
