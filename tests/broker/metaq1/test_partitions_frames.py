"""What 1.x clients and others see of each other's messages."""

from __future__ import annotations

import pathlib
import zlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from metaq.broker.broker import Broker
from metaq.broker.requests import EndTransaction, Send, SendBack
from metaq.clock import FakeClock
from metaq.errors import Reason
from metaq.model import TransactionOutcome
from metaq.model.metaq1.partition import Frames, Later, Moved, PartitionGet, PartitionPut, foreign_id
from metaq.options import Metaq1Options
from metaq.wire.metaq1.frame import Frame, frames, split_attribute, with_attribute
from metaq.wire.record import decode_record, encode_batch
from tests.broker.metaq1 import support
from tests.broker.metaq1.support import CHANNEL
from tests.broker.support import BORN_HOST, open_broker
from tests.effort import repeats

BROKER_ID = 7


of = support.Patient


def send(broker: Broker, body: bytes, queue_id: int = 0, **more: object) -> int:
    """LogOffset of a message that a RocketMQ client sends."""
    wanted = Send(topic="test", body=body, born_ms=0, born_host=BORN_HOST, queue_id=queue_id, **more)  # type: ignore[arg-type]
    return broker.sends.send(wanted).put.log_offset


def read(partitions: support.Patient, position: int = 0, size: int = 1 << 20, partition: int = 0) -> list[Frame]:
    data = support.get(partitions, position, size, partition)
    assert isinstance(data, bytes), f"moved to {data}"
    return list(frames(data))


def record(broker: Broker, number: int, queue_id: int = 0):
    """A stored record, as a RocketMQ client gets it."""
    unit = broker.store.reader.queue("test", queue_id).units(number, 1)[0]
    data = broker.store.reader.record_at(unit.log_offset)
    assert data is not None
    return decode_record(data)


# ---------------------------------------------------------------------- 1.x and 1.x


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        (b"paid", {"TAGS": "paid"}),
        ("größe".encode(), {"TAGS": "größe"}),
        (b" two words ", {"METAQ_ATTRIBUTE": " two words "}),
        (b"line\r\nend ", {"METAQ_ATTRIBUTE": "line\r\nend "}),
        (b"a || b", {"METAQ_ATTRIBUTE": "a || b"}),
        (b"*", {"METAQ_ATTRIBUTE": "*"}),
        (b"x" * 32_000, {"TAGS": "x" * 32_000}),
        (b"x" * 65_536, {"METAQ_BLOCK": "1"}),
        (b"", {"METAQ_BLOCK": "1"}),
        (b"a\x01b", {"METAQ_BLOCK": "1"}),
        (b"a\x02", {"METAQ_BLOCK": "1"}),
        (b"\xff\xfe", {"METAQ_BLOCK": "1"}),
    ],
)
def test_an_attribute_comes_back_as_it_was_sent_and_is_the_tag_where_it_can_be_one(
    tmp_path: pathlib.Path, attribute: bytes, told: dict[str, str]
) -> None:
    """Where it cannot, a property of its own has it, and where none can, the body."""
    body = len(attribute).to_bytes(4, "big") + attribute + b"payload"
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1)) as broker:
        support.put(of(broker), body, flag=1)
        [found] = read(of(broker))
        assert (found.flag, found.body) == (1, body)
        seen = record(broker, 0)
        assert {name: seen.properties.get(name) for name in told} == told
        assert seen.body == (body if "METAQ_BLOCK" in told else b"payload")
        assert seen.flag == 0


@settings(max_examples=repeats(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=60)), min_size=1, max_size=5))
@example([(1, b"")])
@example([(1, b"\x00\x00\x00")])
@example([(1, b"\xff\xff\xff\xff"), (1, b"\x7f\xff\xff\xff"), (1, b"\x00\x00\x00\x05abcd")])
@example([(-1, b"\x00\x00\x00\x01ab")])
def test_every_flag_and_body_comes_back_unchanged_with_the_id_that_was_told(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[int, bytes]]
) -> None:
    """Also a block that says more than the body has: the original never looks inside."""
    with open_broker(tmp_path_factory.mktemp("b"), FakeClock(), metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        told = [
            partitions.put(
                PartitionPut(topic="test", partition=0, body=body, flag=flag, born_host=BORN_HOST), CHANNEL.caller
            )
            for flag, body in messages
        ]
        found = read(partitions)
        assert [(one.flag, one.body) for one in found] == messages
        assert [one.message_id for one in found] == [one.message_id for one in told]
        position = 0
        for one, where in zip(found, told, strict=True):
            assert where.position == position
            position += one.size


@pytest.mark.parametrize(("position", "size"), [(0, 1), (0, 24), (1, 30), (24, 26), (25, 24), (60, 1000), (74, 1)])
def test_a_get_begins_and_ends_wherever_it_is_asked_to(tmp_path: pathlib.Path, position: int, size: int) -> None:
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1)) as broker:
        for body in (b"hello", b"world", b"again"):
            support.put(of(broker), body)
        whole = support.get(of(broker), 0)
        assert isinstance(whole, bytes)
        assert support.get(of(broker), position, size) == whole[position : position + size]


def test_an_offset_is_the_beginning_of_the_frame_that_holds_it(tmp_path: pathlib.Path) -> None:
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1)) as broker:
        for body in (b"hello", b"world!"):
            support.put(of(broker), body)
        asked = [-5, 0, 7, 24, 25, 26, 50, 51, 5000]
        assert [of(broker).offset("test", 0, position) for position in asked] == [0, 0, 0, 0, 25, 25, 25, 51, 51]


# ---------------------------------------------------------------------- 1.x and others


def test_messages_of_rocketmq_clients_have_an_id_that_lasts_and_their_tag_for_an_attribute(
    tmp_path: pathlib.Path,
) -> None:
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        place = send(broker, b"one", properties="TAGS\x01paid\x02KEYS\x01k", flag=9)
        send(broker, b"two")
        first = read(of(broker))
        assert [split_attribute(one.flag, one.body) for one in first] == [(b"paid", b"one"), (None, b"two")]
        assert first[0].flag == 9
        assert first[0].message_id == foreign_id(BROKER_ID, place) > 0
        assert len({one.message_id for one in first}) == 2
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        assert read(of(broker)) == first


def test_bodies_that_a_sender_compressed_are_counted_and_handed_out_as_they_were_before(tmp_path: pathlib.Path) -> None:
    """In another thread. One that cannot be expanded is handed out as it is."""
    body = b"x" * 5000
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        send(broker, zlib.compress(body), sys_flag=1, properties="TAGS\x01t")
        send(broker, b"no zlib", sys_flag=1)
        support.put(partitions, b"plain")
        wanted = PartitionGet(topic="test", group="g", partition=0, position=0, size_max=1 << 20)
        got = partitions.get(wanted, CHANNEL)
        assert isinstance(got, Later)
        data = got.finish(got.job())
        assert isinstance(data, Frames)
        found = list(frames(bytes(data.body)))
        assert [one.body for one in found] == [with_attribute("t", body), b"no zlib", b"plain"]
        end = 20 + 5 + 5000 + 27 + 25
        assert partitions.offset("test", 0, 1 << 40) == end
        assert support.get(partitions, end - 25) == bytes(data.body)[-25:]


def test_batches_delayed_messages_and_those_of_transactions_appear_once_each(tmp_path: pathlib.Path) -> None:
    """A delayed one when it is due, one of a transaction when it is committed, and never what is rolled back."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        send(broker, encode_batch([(0, b"a", b"TAGS\x01t"), (0, b"b", b"")]), batch=True)
        send(broker, b"late", properties="DELAY\x011\x02TAGS\x01d")
        half = "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01"
        sent = [
            broker.sends.send(
                Send(topic="test", body=body, born_ms=0, born_host=BORN_HOST, queue_id=0, properties=half + name)
            )
            for body, name in ((b"kept", "K"), (b"dropped", "D"))
        ]
        for one, outcome in zip(sent, (TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK), strict=True):
            ending = EndTransaction(
                producer_group="g", slot=one.put.queue_offset, log_offset=one.put.log_offset, outcome=outcome
            )
            broker.transactions.end(ending, CHANNEL.caller)
        assert [one.body for one in read(partitions)] == [with_attribute("t", b"a"), b"b", b"kept"]
        clock.advance(2)
        broker.tick()
        broker.deliver()
        found = read(partitions)
        assert [one.body for one in found][3:] == [with_attribute("d", b"late")]
        assert len({one.message_id for one in found}) == 4


def test_a_rocketmq_client_sees_what_a_1_x_client_put_as_any_message(tmp_path: pathlib.Path) -> None:
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1)) as broker:
        told = of(broker).put(
            PartitionPut(topic="test", partition=0, body=with_attribute("paid", b"x"), flag=5, born_host=BORN_HOST),
            CHANNEL,
        )
        seen = record(broker, 0)
        assert (seen.body, seen.flag, seen.tag, seen.queue_offset) == (b"x", 4, "paid", 0)
        assert seen.properties["METAQ_ID"] == str(told.message_id)
        assert seen.born_host_raw == BORN_HOST


# ---------------------------------------------------------------------- old ones, large ones, lost ones


def test_old_messages_are_read_in_another_thread(tmp_path: pathlib.Path) -> None:
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1), store={"hot_bytes": 0}) as broker:
        for number in range(20):
            support.put(of(broker), b"%d" % number)
        wanted = PartitionGet(topic="test", group="g", partition=0, position=5, size_max=100)
        got = of(broker).get(wanted, CHANNEL)
        assert isinstance(got, Later)
        answer = got.finish(got.job())
        assert isinstance(answer, Frames)
        assert bytes(answer.body) == support.get(of(broker), 0)[5:105]  # type: ignore[index]


def test_no_get_hands_out_more_than_max_transfer_size_but_all_of_a_frame_that_is_larger(tmp_path: pathlib.Path) -> None:
    """Such a frame comes from another server. Who asks for enough gets it; in the original it could never be read."""
    options = Metaq1Options(broker_id=BROKER_ID, max_transfer_size=2048)
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(options, test=1)) as broker:
        partitions = of(broker)
        send(broker, bytes(5000))
        for _ in range(100):
            support.put(partitions, bytes(80))
        assert len(support.get(partitions, 0, 1 << 20)) == 5020  # type: ignore[arg-type]
        assert len(support.get(partitions, 0, 4000)) == 4000  # type: ignore[arg-type]
        assert len(support.get(partitions, 5020, 1 << 20)) == 2048  # type: ignore[arg-type]


def test_a_get_before_messages_that_are_lost_is_moved_behind_them(tmp_path: pathlib.Path) -> None:
    """Those that retention let go of."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        for _ in range(6):
            support.put(partitions, b"hello")
        whole = read(partitions)
        broker.store.reader.queue("test", 0).min_offset = 2
        assert support.get(partitions, 10) == 50
        assert isinstance(partitions.get(_get(49), CHANNEL), Moved)
        assert read(partitions, 50) == whole[2:]


def test_a_message_that_the_disk_has_damaged_is_passed_over_once_that_is_known(tmp_path: pathlib.Path) -> None:
    """Until then there is nothing at its place; the frames around it stay where they are."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        for number in range(5):
            support.put(partitions, b"body%d" % number)
        whole = read(partitions)
        log_offset = broker.store.reader.queue("test", 0).units(2, 1)[0].log_offset
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(log_offset)
        data = file.read(400)
        file.seek(log_offset + data.index(b"body2"))
        file.write(b"BODY2")
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        assert read(partitions) == whole[:2]
        assert "position 50" in support.refused(Reason.NOT_FOUND, support.get, partitions, 50)
        broker.store.reader.repairs.step()
        assert support.get(partitions, 55) == 75
        assert read(partitions, 75) == whole[3:]


def test_a_consumer_goes_on_past_a_message_that_was_lost_before_it_had_a_position(tmp_path: pathlib.Path) -> None:
    """It takes no room, so the message behind it is where the get before it has ended."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        for number in range(5):
            send(broker, b"body%d" % number)
        log_offset = broker.store.reader.queue("test", 0).units(2, 1)[0].log_offset
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(log_offset + 4)
        file.write(b"XXXX")
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        position, found = 0, list[bytes]()
        for _ in range(4):
            got = support.get(partitions, position)
            if isinstance(got, int):
                position = got
            else:
                position += len(got)
                found += [one.body for one in frames(got)]
            if len(found) == 4:
                break
        assert found == [b"body0", b"body1", b"body3", b"body4"]


def test_consumers_pass_over_a_message_whose_frame_is_not_as_long_any_more_as_was_told(tmp_path: pathlib.Path) -> None:
    """No checksum covers a record's properties: one that lost its tag there would move all positions behind it."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        for number in range(30):
            support.put(partitions, with_attribute("paid", b"%02d" % number), flag=1)
        log_offset = broker.store.reader.queue("test", 0).units(12, 1)[0].log_offset
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(log_offset)
        place = log_offset + file.read(400).index(b"TAGS")
        file.seek(place)
        file.write(b"UAGS")
    with open_broker(tmp_path, clock, metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        assert "looked into" in support.refused(Reason.UNAVAILABLE, support.get, partitions, 0)
        broker.deliver()
        frame = 20 + 4 + 4 + 2
        assert [one.body[-2:] for one in read(partitions)] == [b"%02d" % number for number in range(12)]
        assert support.get(partitions, 12 * frame) == 13 * frame
        assert support.get(partitions, 12 * frame + 5) == 13 * frame
        assert [one.body[-2:] for one in read(partitions, 13 * frame)] == [b"%02d" % number for number in range(13, 30)]


def test_a_message_that_a_consumer_gave_back_appears_once_and_its_copy_for_the_group_has_its_id(
    tmp_path: pathlib.Path,
) -> None:
    """The copy lies in the group's retry topic, which 1.x clients do not see."""
    with open_broker(tmp_path, FakeClock(), metaq1=support.settings(test=1)) as broker:
        partitions = of(broker)
        told = partitions.put(
            PartitionPut(topic="test", partition=0, body=with_attribute("t", b"x"), flag=1, born_host=BORN_HOST)
        )
        broker.groups.require("g")
        place = broker.store.reader.queue("test", 0).units(0, 1)[0].log_offset
        broker.retries.send_back(SendBack(group="g", log_offset=place, delay_level=-1))
        assert [one.message_id for one in read(partitions)] == [told.message_id]
        [unit] = broker.store.reader.queue("%DLQ%g", 0).units(0, 10)
        copy = decode_record(broker.store.reader.record_at(unit.log_offset))
        assert (copy.body, copy.tag, copy.properties["METAQ_ID"]) == (b"x", "t", str(told.message_id))
        text = support.refused(
            Reason.NOT_FOUND,
            partitions.get,
            PartitionGet(topic="%DLQ%g", group="g", partition=0, position=0, size_max=100),
        )
        assert "is not exists" in text


def _get(position: int) -> PartitionGet:
    return PartitionGet(topic="test", group="g", partition=0, position=position, size_max=100)
