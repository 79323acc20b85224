"""Puts and gets of MetaQ 1.x, on a real store."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.requests import ANY_QUEUE, FILTER, PullRequest, Send, Stage
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import Perm
from metaq.model.metaq1 import partition as values
from metaq.model.metaq1.partition import PartitionPut
from metaq.model.transactions.staging import Chunk
from metaq.options import Metaq1Options
from metaq.saved import Saving
from metaq.wire.hot import crc31
from metaq.wire.record import encode_batch
from tests.broker.metaq1.support import CHANNEL, Patient, get, put, refused, settings, settled
from tests.broker.support import BORN_HOST, SlowFile, open_broker


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[Broker]:
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=3)) as opened:
        yield opened


@pytest.fixture
def partitions(broker: Broker) -> Patient:
    return Patient(broker)


def test_a_put_is_answered_with_the_position_of_its_first_byte_and_read_back_as_the_same_frame(
    partitions: Patient,
) -> None:
    """As in the recorded transcripts: two frames of 25 bytes."""
    assert [put(partitions, b"hello"), put(partitions, b"\x00\x00\x00\x05attr1hi", flag=1)] == [0, 25]
    data = get(partitions, 0)
    assert isinstance(data, bytes)
    assert len(data) == 25 + 31
    assert data[:8] == (5).to_bytes(4, "big") + crc31(b"hello").to_bytes(4, "big")
    assert data[16:25] == bytes(4) + b"hello"
    assert data[25 + 16 :] == (1).to_bytes(4, "big") + b"\x00\x00\x00\x05attr1hi"


def test_gets_are_decided_as_by_the_original(partitions: Patient) -> None:
    """Section 1.4 of the notes, row by row."""
    put(partitions, b"hello")
    assert get(partitions, -1) == 0
    assert refused(Reason.INVALID, get, partitions, 0, 0) == "Bad request,invalid max size:0"
    assert refused(Reason.NOT_FOUND, get, partitions, 25) == "Could not find message at position 25"
    assert refused(Reason.NOT_FOUND, get, partitions, 26) == "Could not find message at position 26"
    assert get(partitions, values.POSITION_MAX) == 25
    assert (
        refused(Reason.NOT_FOUND, get, partitions, 0, partition=1) == "The topic `test` in partition `1` is not exists"
    )
    whole = get(partitions, 0)
    assert isinstance(whole, bytes)
    assert get(partitions, 3, 7) == whole[3:10]


def test_a_closed_partition_takes_and_gives_nothing_and_puts_to_any_go_to_an_open_one(partitions: Patient) -> None:
    partitions.all.close_partitions("test", 0, 1)
    assert refused(Reason.NO_PERMISSION, put, partitions, b"x") == "partition[7-0] has been closed"
    assert refused(Reason.NO_PERMISSION, get, partitions, 0) == "Partition[7-0] has been closed"
    wanted = PartitionPut(topic="test", partition=-1, body=b"x", born_host=BORN_HOST)
    assert {partitions.put(wanted, CHANNEL.caller).partition for _ in range(10)} == {2}
    partitions.all.close_partitions("test", 2, 5)
    assert refused(Reason.NO_PERMISSION, partitions.put, wanted, CHANNEL.caller)
    partitions.all.open_partitions("test")
    assert {partitions.put(wanted, CHANNEL.caller).partition for _ in range(50)} == {0, 1, 2}


def test_puts_that_cannot_be_stored_say_why(partitions: Patient) -> None:
    assert refused(Reason.NO_TOPIC, put, partitions, b"x", "other") == "The server do not accept topic other"
    assert refused(Reason.INVALID, put, partitions, b"x", partition=3) == "wrong partition 3"
    assert refused(Reason.INVALID, put, partitions, b"x", partition=-2) == "wrong partition -2"
    wrong = PartitionPut(topic="test", partition=0, body=b"x", checksum=5, born_host=BORN_HOST)
    assert "Checksum failure" in refused(Reason.ILLEGAL_MESSAGE, partitions.put, wrong, CHANNEL.caller)
    text = refused(Reason.ILLEGAL_MESSAGE, put, partitions, bytes((1 << 20) - 19))
    assert str(1 << 20) in text and str((1 << 20) + 1) in text


def test_topics_of_sections_are_there_from_the_start_and_grow_with_them(tmp_path: pathlib.Path) -> None:
    """A section with more partitions than its topic has adds some; who watches is told, also of wildcards' topics."""
    table = settings(test=3)
    with open_broker(tmp_path, FakeClock(), metaq1=table) as broker:
        partitions, told = Patient(broker), list[int]()
        assert partitions.all.published() == {"test": values.Published(3, publish=True, subscribe=True)}
        partitions.all.watch(lambda: told.append(1))
        table.exchange(settings(test=5).rules, b"")
        broker.topics.saved.close()  # waits for the save
        broker.tick()
        assert partitions.all.published()["test"].partitions == 5
        assert told


def test_topics_that_take_or_give_nothing_say_so(tmp_path: pathlib.Path) -> None:
    table = settings(test=1)
    with open_broker(tmp_path, FakeClock(), metaq1=table) as broker:
        partitions = Patient(broker)
        put(partitions, b"x")
        closed = structs.replace(table.rules.topics["test"], accept_publish=False, accept_subscribe=False)
        table.exchange(structs.replace(table.rules, topics={"test": closed}), b"")
        assert "acceptPublish" in refused(Reason.NO_PERMISSION, put, partitions, b"x")
        assert "acceptSubscribe" in refused(Reason.NO_PERMISSION, get, partitions, 0)
        assert partitions.all.published() == {"test": values.Published(1, publish=False, subscribe=False)}


def test_a_drained_broker_is_published_to_by_nobody_and_takes_what_comes(tmp_path: pathlib.Path) -> None:
    """Who watches is told: ZooKeeper has its topics to be subscribed to only."""
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=1)) as broker:
        partitions, told = Patient(broker), list[int]()
        partitions.all.watch(lambda: told.append(1))
        broker.settings.change({"draining": "true"})
        broker.topics.saved.close()  # waits for the save
        broker.tick()
        assert told
        assert partitions.all.published() == {"test": values.Published(1, publish=False, subscribe=True)}
        put(partitions, b"x")


def test_what_an_administrator_forbids_to_read_is_not_read_here_either(tmp_path: pathlib.Path) -> None:
    """The perm of the topic, and the broker's own."""
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=1)) as broker:
        partitions = Patient(broker)
        put(partitions, b"x")
        config = broker.topics.require("test")
        broker.topics.update(structs.replace(config, perm=Perm.WRITE))
        assert "topic test" in refused(Reason.NO_PERMISSION, get, partitions, 0)
        broker.topics.update(config)
        assert get(partitions, 0)
        broker.settings.change({"brokerPermission": int(Perm.WRITE)})
        assert "topic test" in refused(Reason.NO_PERMISSION, get, partitions, 0)


def send(broker: Broker, queue_id: int) -> int:
    wanted = Send(topic="test", body=b"x", born_ms=0, born_host=BORN_HOST, queue_id=queue_id)
    return broker.sends.send(wanted).queue_id


def test_a_closed_partition_is_closed_for_clients_of_rocketmq_too(broker: Broker, partitions: Patient) -> None:
    """Sends, staged messages and pulls are refused with its number; what may go anywhere goes elsewhere."""
    gate = broker.gates.of(CHANNEL.caller)
    assert gate.open(b"test")
    partitions.all.close_partitions("test", 1, 9)
    assert not gate.table
    assert not gate.open(b"test")
    assert "queue 2 of topic test is closed" in refused(Reason.NO_PERMISSION, send, broker, 2)
    assert {send(broker, ANY_QUEUE) for _ in range(10)} == {0}
    broker.groups.require("g")
    pull = PullRequest(b"g", b"test", 1, 0, 32, FILTER, subscription=b"*")
    assert "queue 1 of topic test is closed" in refused(
        Reason.NO_PERMISSION, broker.pulls.make, CHANNEL, CHANNEL.caller, pull, None
    )
    chunk = Chunk(part="p", number=0, topic="test", queue_id=1, body=encode_batch([(0, b"x", b"")]))
    stage = Stage(transaction="t@broker-a", chunks=(chunk,), born_ms=0, born_host=BORN_HOST)
    text = refused(Reason.NO_PERMISSION, broker.staging.stage, stage, CHANNEL.caller)
    assert "queue 1 of topic test is closed" in text
    partitions.all.open_partitions("test")
    assert send(broker, 2) == 2
    assert gate.open(b"test")


def test_a_topic_with_a_dot_is_made_by_a_put_and_read_and_registered_by_all_servers(tmp_path: pathlib.Path) -> None:
    """RocketMQ's clients would refuse its name themselves; a send of one that does not is refused here."""
    name = "wild-com.shop.orders"
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=1)) as broker:
        partitions = Patient(broker)
        assert put(partitions, b"x", name) == 0
        assert partitions.all.published()[name] == values.Published(1, publish=True, subscribe=True)
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=1)) as broker:
        assert name in broker.registration()[0]
        assert broker.lookup.max_offset(name, 0) == 1
        broker.groups.require("g")
        pull = broker.pulls.make(
            CHANNEL, CHANNEL.caller, PullRequest(b"g", name.encode(), 0, 0, 32, FILTER, subscription=b"*"), None
        )
        answer = broker.pulls.first(pull)  # From before the start: it may have to come from the disk.
        assert answer is not None
        assert answer.pulled.job is not None
        answer = broker.pulls.after_cold(pull, answer.pulled.job())
        assert answer is not None
        assert answer.pulled.count == 1
        wanted = Send(topic=name, body=b"x", born_ms=0, born_host=BORN_HOST, queue_id=0)
        assert "characters" in refused(Reason.INVALID, broker.sends.send, wanted)


@pytest.mark.parametrize(
    "name", ["wild-../x", "wild- ", "wild-\r\n", "wild-é", "wild-" + "x" * 130, "SCHEDULE_TOPIC_XXXX", "%RETRY%g"]
)
def test_no_put_makes_a_topic_that_no_folder_may_be_named_after_or_that_is_the_brokers_own(
    partitions: Patient, name: str
) -> None:
    with pytest.raises(Refused) as caught:
        put(partitions, b"x", name)
    assert caught.value.reason in {Reason.INVALID, Reason.NO_TOPIC}


def test_a_put_to_a_topic_that_is_being_made_waits_until_it_is_saved(tmp_path: pathlib.Path) -> None:
    file = SlowFile()
    file.slow = False
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=1), files={"topics.json": file}) as broker:
        partitions = Patient(broker)
        file.slow = True
        wanted = PartitionPut(topic="wild-1", partition=0, body=b"x", born_host=BORN_HOST)
        with pytest.raises(Saving):
            partitions.all.put(wanted, CHANNEL.caller)
        assert broker.store.reader.existing_queue("wild-1", 0) is None
        file.end()
        assert put(partitions, b"x", "wild-1") == 0
        file.slow = False


def test_a_put_to_any_partition_stays_with_the_one_that_it_waits_for(tmp_path: pathlib.Path) -> None:
    """Of a topic with many partitions that nobody has touched, each choice would have to be waited for."""
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=64)) as broker:
        assert broker.metaq1 is not None
        wanted = PartitionPut(topic="test", partition=-1, body=b"x", born_host=BORN_HOST)
        with pytest.raises(Saving) as waits:
            broker.metaq1.partitions.put(wanted, CHANNEL.caller)
        touched = [number for number in range(64) if broker.metaq1.bases.find("test", number)]
        assert waits.value.then is not None
        stored = settled(broker, waits.value.then)
        assert [stored.partition] == touched == [n for n in range(64) if broker.metaq1.bases.find("test", n)]


def test_puts_to_any_partition_wait_as_often_as_they_must_and_each_is_answered_once(tmp_path: pathlib.Path) -> None:
    """A first touch waits twice: for its base on the disk, and for the thread that opens its positions."""
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=32)) as broker:
        partitions = Patient(broker)
        wanted = PartitionPut(topic="test", partition=-1, body=b"x", born_host=BORN_HOST)
        stored = [partitions.put(wanted) for _ in range(100)]
        assert len({one.message_id for one in stored}) == len({(one.partition, one.position) for one in stored}) == 100
        assert partitions.all.messages("test") == 100


def test_topics_that_a_wildcard_admits_are_limited_as_those_that_sends_create(tmp_path: pathlib.Path) -> None:
    """Each is a line of topics.json, folders and three nodes in ZooKeeper, and its name is the client's. Sections are not counted."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=settings(test=1), auto_create_topics_per_minute=2) as broker:
        patient = Patient(broker)
        for name in ("wild-1", "wild-2"):
            put(patient, b"x", topic=name)
        wanted = PartitionPut(topic="wild-3", partition=0, body=b"x", born_host=BORN_HOST)
        text = refused(Reason.NO_TOPIC, patient.put, wanted)
        assert "autoCreateTopicsPerMinute" in text
        put(patient, b"x", topic="wild-1")
        put(patient, b"x", topic="test")
        clock.advance(31)
        put(patient, b"x", topic="wild-3")


def test_gets_end_where_the_slaves_of_a_sync_master_end(tmp_path: pathlib.Path) -> None:
    """As pulls do. What lies behind is not there yet, and who is there already is sent nowhere."""
    with open_broker(
        tmp_path, FakeClock(), metaq1=settings(Metaq1Options(broker_id=7, update_consumer_offsets=True), test=1),
        broker_role="SYNC_MASTER",
    ) as broker:  # fmt: skip
        partitions, slave = Patient(broker), broker.replicas.connect("slave:1")
        put(partitions, b"first")
        broker.replicas.report(slave, broker.store.log.end)
        put(partitions, b"hello")
        put(partitions, b"again")
        data = get(partitions, 0)
        assert isinstance(data, bytes)
        assert (len(data), data[-5:]) == (25, b"first")
        for position in (25, 50, 75):
            assert refused(Reason.NOT_FOUND, get, partitions, position)
        assert [get(partitions, position) for position in (76, values.POSITION_MAX)] == [25, 25]
        assert [partitions.offset("test", 0, position) for position in (0, 30, 80)] == [0, 25, 25]
        broker.replicas.report(slave, broker.store.log.end)
        assert [len(get(partitions, 25)), get(partitions, values.POSITION_MAX)] == [50, 75]
        assert partitions.offset("test", 0, 60) == 50
