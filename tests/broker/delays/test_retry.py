"""Messages that come back: later and later, and in the end to the dead letters."""

from __future__ import annotations

import pytest

from metaq.broker.log.records import put_record
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import GroupConfig
from metaq.model import properties as props
from metaq.servers.remoting.messages import send_back_of, send_of
from metaq.wire.headers import SendBackHeader
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, JAVA, open_broker
from tests.servers.support import send_header
from tests.store.support import copy_running

DAY = 86_400


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(tmp_path, clock):
    with open_broker(tmp_path, clock) as broker:
        broker.groups.require("G")
        yield broker


def newest(broker, topic, queue_id=0):
    queue = broker.store.reader.existing_queue(topic, queue_id)
    if queue is None or not queue.max_offset:
        return None
    return decode_record(broker.store.reader.record_at(queue.units(queue.max_offset - 1, 1)[0].log_offset))


def send(broker, body=b"bad", **more):
    sent = broker.sends.send(send_of(send_header("orders", 0, "paid", **more), body, BORN_HOST, JAVA))
    return sent.put.log_offset


def back(broker, log_offset, level=0, version=JAVA, **more):
    return broker.retries.send_back(
        send_back_of(SendBackHeader(offset=log_offset, group="G", delay_level=level, **more), version)
    )


def test_a_message_is_retried_16_times_ever_later_then_buried(broker, clock):
    """The levels: 10 s, 30 s, 1 m ... 2 h; the 17th failure goes to %DLQ%G and is not delivered again."""
    place, delays = send(broker), []
    for times in range(1, 17):
        back(broker, place)
        began = clock.now_ms()
        while (found := newest(broker, "%RETRY%G")) is None or found.reconsume_times < times:
            clock.advance(10)
            broker.tick()
        delays.append((clock.now_ms() - began) // 1000)
        assert (found.body, found.reconsume_times, found.properties[props.RETRY_TOPIC]) == (b"bad", times, "orders")
        place = found.log_offset
    assert delays == [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    back(broker, place)
    dead = newest(broker, "%DLQ%G")
    assert (dead.body, dead.reconsume_times, dead.properties[props.DELAY]) == (b"bad", 17, "0")
    retried = broker.store.reader.queue("%RETRY%G", 0).max_offset
    clock.advance(DAY)
    broker.tick()
    assert broker.store.reader.queue("%RETRY%G", 0).max_offset == retried
    assert broker.topics.require("%DLQ%G").readable


def test_the_copy_keeps_what_the_message_was(broker, clock):
    """Tag, keys, flag, birth and the first offset id come along through every retry."""
    first = send(broker, flag=5, properties={"KEYS": "42"})
    original = decode_record(broker.store.reader.record_at(first))
    for _ in range(2):
        back(broker, first)
        clock.advance(60)
        broker.tick()
        copy = newest(broker, "%RETRY%G")
        assert (copy.flag, copy.tag, copy.keys, copy.born_ms) == (5, "paid", ("42",), original.born_ms)
        assert copy.properties[props.ORIGIN_MESSAGE_ID] == original.offset_id
        assert copy.message_id == original.message_id
        first = copy.log_offset


@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (5, 60), (99, 7200)])
def test_a_consumer_may_name_the_level(broker, clock, level, seconds):
    """delayLevel above 0 is taken as it is, at most the highest."""
    back(broker, send(broker), level)
    clock.advance(seconds - 1)
    broker.tick()
    assert newest(broker, "%RETRY%G") is None
    clock.advance(1)
    broker.tick()
    assert newest(broker, "%RETRY%G").body == b"bad"


def test_a_negative_level_buries_at_once(broker):
    """delayLevel -1 means: never again."""
    back(broker, send(broker), -1)
    assert newest(broker, "%DLQ%G").body == b"bad"


@pytest.mark.parametrize(("version", "topic"), [(JAVA, "%DLQ%G"), (120, "SCHEDULE_TOPIC_XXXX")])
def test_a_clients_own_limit_counts_from_version_121_on(broker, version, topic):
    """maxReconsumeTimes of the request beats the group's, if the client is young enough to mean it."""
    back(broker, send(broker), max_reconsume_times=0, version=version)
    assert newest(broker, topic, 2 if topic.startswith("SCHEDULE") else 0) is not None


def test_the_groups_limit_counts_otherwise(broker):
    """retryMaxTimes=0 of the group buries the first failure."""
    broker.groups.update(GroupConfig("G", retry_max=0))
    back(broker, send(broker))
    assert newest(broker, "%DLQ%G").reconsume_times == 1


def test_a_group_without_retry_queues_wants_none(broker):
    """retryQueueNums=0: the request succeeds and nothing is stored."""
    broker.groups.update(GroupConfig("G", retry_queues=0))
    place = send(broker)
    end = broker.store.log.end
    assert back(broker, place) is None
    assert broker.store.log.end == end


@pytest.mark.parametrize("place", [-1, 7, 1 << 62])
def test_a_record_that_is_not_there_is_told(broker, place):
    """An offset where no record begins is answered 1 and named."""
    send(broker)
    with pytest.raises(Refused, match=str(place)):
        back(broker, place)


def test_an_unknown_group_is_made(broker):
    """As by a heartbeat, also by the send to its retry topic; so RocketMQ does."""
    place = send(broker)
    back = SendBackHeader(offset=place, group="new", delay_level=0)
    broker.retries.send_back(send_back_of(back, JAVA))
    broker.sends.send(send_of(send_header("%RETRY%newer", 0), b"again", BORN_HOST, JAVA))
    assert {"new", "newer"} <= broker.groups.table.keys()


def test_an_unknown_group_is_told_where_none_may_be_made(tmp_path, clock):
    """autoCreateSubscriptionGroup=false: giving back and sending to the retry topic are answered 26."""
    with open_broker(tmp_path, clock, auto_create_subscription_group=False) as broker:
        place = send(broker)
        back = SendBackHeader(offset=place, group="nobody", delay_level=0)
        header = send_header("%RETRY%nobody", 0)
        for wanted in (
            lambda: broker.retries.send_back(send_back_of(back, JAVA)),
            lambda: broker.sends.send(send_of(header, b"again", BORN_HOST, JAVA)),
        ):
            with pytest.raises(Refused) as caught:
                wanted()
            assert caught.value.reason is Reason.NO_GROUP


# -------------------------------------------------------------------- given back once more


def waiting(broker, level=3):
    queue = broker.store.reader.existing_queue("SCHEDULE_TOPIC_XXXX", level - 1)
    return queue.max_offset if queue else 0


def reopened(broker, root, clock):
    """The broker that starts after a kill -9 of this one."""
    copy_running(broker.store.folder.root, root)
    return open_broker(root, clock)


def test_a_message_given_back_twice_is_retried_once(broker, clock):
    """The client that lost an answer asks again: while the retry waits, the first one answers for it."""
    place = send(broker)
    first = back(broker, place)
    assert back(broker, place) == first
    assert waiting(broker) == 1
    clock.advance(10)
    broker.tick()
    back(broker, place)  # somebody has set the group back: the message has failed anew
    assert waiting(broker) == 2


def test_a_client_that_says_it_repeats_itself_is_answered_for_the_first_time(broker, tmp_path, clock):
    """The broker was away for longer than the first retry waits: it is delivered, and the repeat adds none. Only for a
    while, and only what was taken: what the first request did not bring is stored."""
    place, other = send(broker), send(broker, b"other")
    first = back(broker, place)
    with reopened(broker, tmp_path / "again", clock) as after:
        clock.advance(30)
        after.tick()
        assert newest(after, "%RETRY%G").body == b"bad"
        assert back(after, place, repeated=True) == first
        assert waiting(after) == 1
        back(after, other, repeated=True)
        assert waiting(after) == 2
        clock.advance(601)
        back(after, place, repeated=True)
        assert waiting(after) == 3


def test_groups_and_levels_are_told_apart(broker):
    """Each group has its own retries, and a wish for the dead letters is not one for a retry."""
    broker.groups.require("H")
    place = send(broker)
    back(broker, place)
    broker.retries.send_back(send_back_of(SendBackHeader(offset=place, group="H", delay_level=0), JAVA))
    back(broker, place, -1)
    assert waiting(broker) == 2
    assert newest(broker, "%DLQ%G").body == b"bad"


def test_a_dead_letter_is_filed_once(broker, clock):
    """For ten minutes; after that the same wish is a new one. A deleted topic holds nothing that could answer for it."""
    place = send(broker)
    for _ in range(3):
        back(broker, place, -1)
    assert broker.store.reader.queue("%DLQ%G", 0).max_offset == 1
    broker.store.flusher.flush()
    broker.delete_topic("%DLQ%G").settle()
    back(broker, place, -1)
    assert broker.store.reader.queue("%DLQ%G", 0).max_offset == 1
    clock.advance(601)
    back(broker, place, -1)
    assert broker.store.reader.queue("%DLQ%G", 0).max_offset == 2


def test_after_a_kill_a_repeated_send_back_adds_nothing(broker, tmp_path, clock):
    """The answer was lost with the broker: the next one finds the retry, or the dead letter, in the log."""
    retried, buried = send(broker), send(broker, b"worse")
    back(broker, retried)
    back(broker, buried, -1)
    with reopened(broker, tmp_path / "again", clock) as after:
        back(after, retried)
        back(after, buried, -1)
        assert (waiting(after), after.store.reader.queue("%DLQ%G", 0).max_offset) == (1, 1)


def test_kills_do_not_multiply_the_attempts(tmp_path, clock):
    """Three tries and a dead letter, with a kill after every step: each attempt and the dead letter are there once."""
    root, life = tmp_path / "0", 0
    with open_broker(root, clock) as broker:
        broker.groups.update(GroupConfig("G", retry_max=3))
        place = send(broker)
    for _ in range(4):
        for _ in range(2):  # the client asks twice, the second time the next broker
            with open_broker(root, clock) as broker:
                back(broker, place)
                life += 1
                copy_running(root, tmp_path / str(life))
            root = tmp_path / str(life)
        for _ in range(2):
            with open_broker(root, clock) as broker:
                clock.advance(61)
                broker.tick()
                found = newest(broker, "%RETRY%G")
                life += 1
                copy_running(root, tmp_path / str(life))
            root = tmp_path / str(life)
        place = found.log_offset
    with open_broker(root, clock) as broker:
        assert broker.store.reader.queue("%RETRY%G", 0).max_offset == 3
        assert broker.store.reader.queue("%DLQ%G", 0).max_offset == 1


# -------------------------------------------------------------------- sends to the retry topic


def test_a_client_may_send_to_its_retry_topic_itself(broker, clock):
    """When 36 fails, a client sends a new message to %RETRY%G; the delay that it asks for is kept."""
    header = send_header("%RETRY%G", 0, reconsume_times=1, properties={"DELAY": "3"}, max_reconsume_times=16)
    broker.sends.send(send_of(header, b"again", BORN_HOST, JAVA))
    assert newest(broker, "%RETRY%G") is None
    clock.advance(10)
    broker.tick()
    assert newest(broker, "%RETRY%G").reconsume_times == 1


@pytest.mark.parametrize(("times", "limit", "topic"), [(16, 16, "%DLQ%G"), (15, 16, "%RETRY%G"), (3, 2, "%DLQ%G")])
def test_sends_to_the_retry_topic_end_with_the_dead_letters(broker, times, limit, topic):
    """Tried often enough, the message is stored in %DLQ%G at once, whatever delay its properties name."""
    header = send_header("%RETRY%G", 0, reconsume_times=times, max_reconsume_times=limit)
    broker.sends.send(send_of(header, b"again", BORN_HOST, JAVA))
    assert newest(broker, topic).body == b"again"


def test_gos_limit_of_0_means_nothing_elsewhere(broker):
    """Go sends maxReconsumeTimes=0 with every message: it only counts for retry topics."""
    send(broker, max_reconsume_times=0)
    assert newest(broker, "orders").body == b"bad"


# ------------------------------------------------------------------ properties that leave no room

ROOMS = [0, 1, 20, 45, 70, 130, 200, 300]
"""Bytes between a stored message's properties and the format's limit."""


def filling(room):
    """Return the value of a property `big` with which the text, as it is stored, is `room` bytes short of the limit."""
    others = {props.UNIQUE_ID: "0" * 32, props.TAGS: "paid", "big": "", props.CLUSTER: "DefaultCluster"}
    return "x" * (props.PROPERTIES_BYTES_MAX - room - len(props.join(others)))


def send_large(broker, room, topic="orders", **more):
    """Send a message whose properties, as they are stored, are `room` bytes short of the limit."""
    big = filling(room)
    sent = broker.sends.send(
        send_of(send_header(topic, 0, "paid", properties={"big": big}, **more), b"bad", BORN_HOST, JAVA)
    )
    stored = decode_record(broker.store.reader.record_at(sent.put.log_offset))
    assert len(stored.properties_raw) == props.PROPERTIES_BYTES_MAX - room
    return sent.put.log_offset, big


@pytest.mark.parametrize("topic", ["orders", "long-" * 25])
@pytest.mark.parametrize("room", ROOMS)
def test_what_was_taken_can_be_given_back_however_long_its_properties(broker, clock, room, topic):
    """The sender's properties are whole in each retry and in the dead letter; the broker's own make room."""
    place, big = send_large(broker, room, topic)
    named = (topic,) if topic == "orders" or room >= 130 else (None, "%RETRY%G")
    for times in (1, 2, 3):
        back(broker, place, level=1)
        for _ in range(20):
            clock.advance(0.1)
            broker.tick()
        found = newest(broker, "%RETRY%G")
        assert (found.body, found.reconsume_times, found.properties["big"]) == (b"bad", times, big)
        assert found.properties.get(props.RETRY_TOPIC) in named
        place = found.log_offset
    back(broker, place, level=-1)
    dead = newest(broker, "%DLQ%G")
    assert (dead.body, dead.properties["big"]) == (b"bad", big)
    assert dead.properties.get(props.RETRY_TOPIC) in named


def test_without_room_for_the_delay_it_comes_at_once_and_the_log_says_so(broker, clock, caplog):
    place, _ = send_large(broker, 20)
    back(broker, place)
    assert newest(broker, "%RETRY%G").reconsume_times == 1
    assert "is delivered again at once" in caplog.text
    # Its group goes back to it, and it fails anew: another retry, unless the request is a repeated one.
    back(broker, place)
    assert broker.store.reader.queue("%RETRY%G", 0).max_offset == 2


def test_with_room_the_delay_stays(broker):
    place, _ = send_large(broker, 130)
    back(broker, place)
    assert newest(broker, "%RETRY%G") is None
    assert newest(broker, "SCHEDULE_TOPIC_XXXX", 2).properties[props.REAL_TOPIC] == "%RETRY%G"


def test_bytes_that_are_no_utf8_do_not_keep_a_message_from_being_given_back(broker, clock):
    """As RocketMQ's broker stores them: read as text, each is three bytes long."""
    text = b"big\x01" + b"\xff" * 20_000
    record = put_record("orders", 0, b"bad", {}, flag=0, sys_flag=0, born_ms=1, born_host=BORN_HOST)
    record.properties = text
    broker.topics.ensure("orders")
    place = broker.appender.put([record]).log_offset
    back(broker, place)
    assert newest(broker, "%RETRY%G").properties_raw == text
    back(broker, place, level=-1)
    assert newest(broker, "%DLQ%G").properties_raw == text


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("times", [1, 16])
def test_a_copy_sent_to_the_retry_topic_finds_room(broker, clock, room, times):
    """Consumers of all kinds send one when a message was not taken back, Java's for each orderly dead letter."""
    big = filling(room)
    pairs = {
        "big": big, props.RETRY_TOPIC: "orders", props.ORIGIN_MESSAGE_ID: "0" * 32, props.DELAY: "1",
        props.RECONSUME_TIME: str(times), props.MAX_RECONSUME_TIMES: "16",
    }  # fmt: skip
    header = send_header("%RETRY%G", 0, "paid", properties=pairs, reconsume_times=times)
    broker.sends.send(send_of(header, b"bad", BORN_HOST, JAVA))
    for _ in range(20):
        clock.advance(0.1)
        broker.tick()
    found = newest(broker, "%RETRY%G" if times == 1 else "%DLQ%G")
    assert (found.body, found.properties["big"]) == (b"bad", big)
