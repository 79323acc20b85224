"""The consumer for threads at a broker of this clone: order, failures, filters, batches, offsets."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from metaq.errors import ClientClosed, ClientError, ConfigError, InvalidMessage
from metaq.metaq1 import (
    MAX_OFFSET,
    NEVER_SKIP,
    ConsumerConfig,
    LruMessageIdCache,
    Message,
    MessageConsumer,
    MessageProducer,
    MetaClientConfig,
    MetaMessageSessionFactory,
    Partition,
    ReceivedMessage,
    StoredOffset,
)
from tests.metaq1.conftest import at
from tests.metaq1.consuming.conftest import quick
from tests.support import PATIENCE, eventually


class Heard:
    """A listener that keeps what it gets; `bad` bodies fail."""

    def __init__(self, bad: frozenset[bytes] = frozenset()) -> None:
        self.bad = bad
        self.messages: list[ReceivedMessage] = []
        self.failures: list[bytes] = []
        self.lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> None:
        with self.lock:
            if message.data in self.bad:
                self.failures.append(message.data)
                raise ValueError(message.data)
            self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        with self.lock:
            return [message.data for message in self.messages]


def consumer(factory: MetaMessageSessionFactory, topic: str, listener: object, **values: object) -> MessageConsumer:
    """One that has begun."""
    options = {
        name: values.pop(name) for name in ("message_filter", "executor", "auto_ack", "max_size") if name in values
    }
    made = {name: values.pop(name) for name in ("offset_storage", "recover", "message_ids") if name in values}
    one = factory.create_consumer(quick(**values), **made)
    one.subscribe(topic, options.pop("max_size", 1 << 20), listener, **options)
    one.complete_subscribe()
    return one


def send(producer: MessageProducer, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        producer.send_message(Message(topic, body))


def send_each(factory: MetaMessageSessionFactory, topic: str, *bodies: bytes) -> None:
    """One to each partition: a fixed server would choose by chance."""
    for number, body in enumerate(bodies):
        with factory.create_producer(at(number)) as producer:
            producer.publish(topic)
            send(producer, topic, body)


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def test_all_partitions_each_in_order(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str
) -> None:
    heard = Heard()
    send(producer, topic, *numbered(30))
    with consumer(factory, topic, heard) as one:
        eventually(lambda: len(heard.bodies) == 30)
        send(producer, topic, *numbered(60)[30:])
        eventually(lambda: len(heard.bodies) == 60)
        assert {partition for _, partition in one.partitions} == {Partition(0, number) for number in range(3)}
    by_partition = defaultdict(list)
    for message in heard.messages:
        by_partition[message.partition].append((message.offset, message.data))
    assert len(by_partition) == 3
    assert all(found == sorted(found) for found in by_partition.values())
    assert sorted(heard.bodies) == numbered(60)


def test_a_consumer_goes_on_where_its_group_has_stopped(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str, config: MetaClientConfig
) -> None:
    first, second = Heard(), Heard()
    send(producer, topic, *numbered(9))
    with consumer(factory, topic, first):
        eventually(lambda: len(first.bodies) == 9)
    send(producer, topic, b"new")
    with MetaMessageSessionFactory(config) as other, consumer(other, topic, second):  # with no ids of the first
        eventually(lambda: bool(second.bodies))
    assert second.bodies == [b"new"]


def test_offsets_are_saved_while_it_runs(
    factory: MetaMessageSessionFactory, topic: str, config: MetaClientConfig
) -> None:
    heard = Heard()
    send_each(factory, topic, *numbered(3))
    with consumer(factory, topic, heard):

        def saved() -> set[int]:
            path = Path(config.offsets_path)
            return {one["offset"] for one in json.loads(path.read_text())["g"]} if path.exists() else set()

        eventually(lambda: saved() == {23})


def test_a_message_that_fails_is_delivered_again_and_then_rejected(
    factory: MetaMessageSessionFactory, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A good one precedes it in its fetch: one time more. Those behind it wait for it."""
    heard = Heard(bad=frozenset({b"bad"}))
    rejected: list[tuple[ReceivedMessage, object]] = []
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, b"good", b"bad", b"behind")
    with consumer(
        factory, topic, heard, max_fetch_retries=1, recover=lambda message, one: rejected.append((message, one))
    ) as one:
        eventually(lambda: heard.bodies == [b"good", b"behind"])
        assert [(message.data, who) for message, who in rejected] == [(b"bad", one)]
    assert heard.failures == [b"bad"] * 3
    assert f"topic {topic}, partition 0-0" in caplog.text


@pytest.mark.parametrize(("retries", "deliveries"), [(0, 1), (1, 2), (5, 6)])
def test_deliveries_of_a_failing_message_at_the_front(
    factory: MetaMessageSessionFactory, topic: str, retries: int, deliveries: int
) -> None:
    """As measured of Java's client."""
    heard = Heard(bad=frozenset({b"bad"}))
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, b"bad", b"behind")
    with consumer(factory, topic, heard, max_fetch_retries=retries, max_delay_fetch_time=0.01, recover="drop"):
        eventually(lambda: heard.bodies == [b"behind"])
    assert heard.failures == [b"bad"] * deliveries


def test_never_skip(factory: MetaMessageSessionFactory, topic: str) -> None:
    heard = Heard(bad=frozenset({b"bad"}))
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, b"bad", b"behind")
    with consumer(factory, topic, heard, max_fetch_retries=NEVER_SKIP, max_delay_fetch_time=0.01, recover="drop"):
        eventually(lambda: len(heard.failures) > 20)
        heard.bad = frozenset()
        eventually(lambda: heard.bodies == [b"bad", b"behind"])


def test_a_reject_handler_that_fails_has_the_message_delivered_again(
    factory: MetaMessageSessionFactory, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(bad=frozenset({b"bad"}))
    calls: list[bytes] = []

    def handler(message: ReceivedMessage, one: object) -> None:
        calls.append(message.data)
        if len(calls) < 3:
            raise OSError("the disk is full")

    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, b"bad", b"behind")
    with consumer(factory, topic, heard, max_fetch_retries=0, max_delay_fetch_time=0.01, recover=handler):
        eventually(lambda: heard.bodies == [b"behind"])
    assert calls == [b"bad"] * 3
    assert "the disk is full" in caplog.text


def test_rejected_messages_wait_in_a_file_and_come_again(
    factory: MetaMessageSessionFactory, topic: str, config: MetaClientConfig
) -> None:
    heard = Heard(bad=frozenset({b"bad", b"worse"}))
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        producer.send_message(Message(topic, b"bad", "an attribute"))
        send(producer, topic, b"worse", b"good")
    with consumer(factory, topic, heard, max_fetch_retries=0, max_delay_fetch_time=0.01):
        eventually(lambda: heard.bodies == [b"good"])
    before = len(heard.failures)
    assert list(Path(config.recover_path).glob("*.sqlite"))
    with consumer(factory, topic, heard):  # another life of the group
        eventually(lambda: len(heard.failures) > before)
        heard.bad = frozenset({b"worse"})  # one that fails keeps no other from coming
        eventually(lambda: heard.bodies == [b"good", b"bad"])
        heard.bad = frozenset()
        eventually(lambda: heard.bodies == [b"good", b"bad", b"worse"])
        assert heard.messages[1].attribute == "an attribute"
        assert heard.messages[1].message_id > 0
    again = Heard()
    with consumer(factory, topic, again, recover="drop") as one:
        eventually(lambda: bool(one.partitions))
        send(producer_of(factory, topic), topic, b"end")
        eventually(lambda: again.bodies == [b"end"])


def producer_of(factory: MetaMessageSessionFactory, topic: str) -> MessageProducer:
    producer = factory.create_producer()
    producer.publish(topic)
    return producer


def test_filter_and_rollback_only(factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str) -> None:
    seen: list[bytes] = []

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.data)
        if seen.count(message.data) == 1:
            message.set_rollback_only()

    for body, attribute in ((b"a", "yes"), (b"b", "no"), (b"c", None)):
        producer.send_message(Message(topic, body, attribute))
    with consumer(
        factory, topic, listener, message_filter=lambda group, message: group == "g" and message.attribute != "no"
    ):
        eventually(lambda: sorted(seen) == [b"a", b"a", b"c", b"c"])


def test_listener_objects_with_executors(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str
) -> None:
    names: set[str] = set()

    class Listener:
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="own")

        def receive_messages(self, message: ReceivedMessage) -> None:
            names.add(threading.current_thread().name)

    send(producer, topic, *numbered(9))
    with consumer(factory, topic, Listener()):
        eventually(lambda: bool(names))
    assert names == {"own_0"}
    Listener.executor.shutdown()


def test_an_executor_that_takes_nothing_loses_nothing(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(concurrent.futures.ThreadPoolExecutor):
        refusals = 5

        def submit(self, *arguments: object, **values: object) -> concurrent.futures.Future:
            if self.refusals > 3:
                self.refusals -= 1
                raise RuntimeError("too much to do")
            future = super().submit(*arguments, **values) if not self.refusals else concurrent.futures.Future()
            if self.refusals:
                self.refusals -= 1
                future.cancel()
                future.set_running_or_notify_cancel()
            return future

    heard = Heard()
    send(producer, topic, *numbered(9))
    with Full(2) as executor, consumer(factory, topic, heard, executor=executor):
        eventually(lambda: sorted(heard.bodies) == numbered(9))
    assert "too much to do" in caplog.text


def test_one_thread_for_all_or_several_at_once(factory: MetaMessageSessionFactory, topic: str) -> None:
    """D15: with one runner no two calls are at the same time; with three, one of each partition."""
    for _ in range(5):
        send_each(factory, topic, *numbered(3))
    for most in (1, 3):
        crowd = Crowd(most)
        with consumer(factory, topic, crowd, group=f"g{most}", fetch_runner_count=most):
            eventually(lambda crowd=crowd: crowd.seen == 15)
        assert max(crowd.peaks) == most


class Crowd:
    """A listener whose first calls wait for those of other partitions."""

    def __init__(self, most: int) -> None:
        self._lock, self._meeting = threading.Lock(), threading.Barrier(most)
        self._running, self._met = set[Partition](), set[Partition]()
        self.peaks: list[int] = []
        self.seen = 0

    def __call__(self, message: ReceivedMessage) -> None:
        with self._lock:
            assert message.partition not in self._running
            self._running.add(message.partition)
            self.peaks.append(len(self._running))
            meets = message.partition not in self._met
            self._met.add(message.partition)
        if meets:
            self._meeting.wait(PATIENCE)
        with self._lock:
            self._running.discard(message.partition)
            self.seen += 1


def test_a_batch_is_acknowledged_as_a_whole(factory: MetaMessageSessionFactory, topic: str) -> None:
    """4.7: what was acknowledged never comes again, what was rolled back does, from the last acknowledged one on."""
    got: list[bytes] = []
    rolled: list[bool] = []
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, *numbered(6))

    def listener(message: ReceivedMessage) -> None:
        got.append(message.data)
        if message.data == b"002":
            message.ack()
        elif message.data == b"004" and not rolled:
            rolled.append(True)
            message.rollback()
        elif message.data == b"005":
            message.ack()

    with consumer(factory, topic, listener, auto_ack=False):
        eventually(lambda: got[-1:] == [b"005"])
    assert got == [b"000", b"001", b"002", b"003", b"004", b"003", b"004", b"005"]


def test_an_open_batch_comes_again_after_a_restart(
    factory: MetaMessageSessionFactory, topic: str, config: MetaClientConfig
) -> None:
    first, second = Heard(), Heard()
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, *numbered(4))

    def listener(message: ReceivedMessage) -> None:
        first(message)
        if message.data == b"001":
            message.ack()

    with consumer(factory, topic, listener, auto_ack=False):
        eventually(lambda: len(first.bodies) == 4)
    with MetaMessageSessionFactory(config) as other, consumer(other, topic, second, auto_ack=False):
        eventually(lambda: len(second.bodies) == 2)
    assert second.bodies == [b"002", b"003"]


def test_where_a_group_begins(factory: MetaMessageSessionFactory, topic: str) -> None:
    """`offset`, the end where nothing is stored, and the end always."""
    with factory.create_producer(at(0)) as producer:
        producer.publish(topic)
        send(producer, topic, *numbered(3))
        at_offset, at_end, always = Heard(), Heard(), Heard()

        def heard_new(heard: Heard) -> bool:
            send(producer, topic, b"new")
            return bool(heard.bodies)

        with consumer(factory, topic, at_offset, group="o", offset=23):
            eventually(lambda: at_offset.bodies == [b"001", b"002"])
        with consumer(factory, topic, at_end, group="e", consume_from_max_offset=True):
            eventually(lambda: heard_new(at_end))
        assert set(at_end.bodies) == {b"new"}
        send(producer, topic, b"between")
        with consumer(factory, topic, at_end, group="e", consume_from_max_offset=True):
            eventually(lambda: b"between" in at_end.bodies)
        with consumer(factory, topic, always, group="o", always_consume_from_max_offset=True):
            eventually(lambda: heard_new(always))
        assert set(always.bodies) == {b"new"}
    assert ConsumerConfig("g", consume_from_max_offset=True).first_offset == MAX_OFFSET


def test_a_message_larger_than_a_fetch_arrives(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str
) -> None:
    heard = Heard()
    send(producer, topic, bytes(5000))
    with consumer(factory, topic, heard, max_size=100, max_increase_fetch_data_retries=1, max_delay_fetch_time=0.01):
        eventually(lambda: heard.bodies == [bytes(5000)])
    assert not heard.failures


def test_repetitions_are_left_out_by_ids(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str
) -> None:
    class Nothing:
        """A storage without memory."""

        closed = 0

        def commit_offset(self, group: str, offsets: object) -> None: ...

        def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None: ...

        def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None: ...

        def close(self) -> None:
            self.closed += 1

    storage, ids, first, second, third = Nothing(), LruMessageIdCache(), Heard(), Heard(), Heard()
    send(producer, topic, *numbered(6))
    with consumer(factory, topic, first, offset_storage=storage, message_ids=ids):
        eventually(lambda: len(first.bodies) == 6)
    with consumer(factory, topic, second, offset_storage=storage, message_ids=ids):
        send(producer, topic, b"new")
        eventually(lambda: second.bodies == [b"new"])
    with consumer(factory, topic, third, offset_storage=storage, message_ids=LruMessageIdCache()):
        eventually(lambda: len(third.bodies) == 7)
    assert storage.closed == 3


def test_several_topics_with_a_listener_each(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str
) -> None:
    heard = {name: Heard() for name in (topic, topic[::-1], "t0")}
    one = factory.create_consumer(quick())
    for name, listener in heard.items():
        if name in (topic, "t0"):
            one.subscribe(name, 1 << 20, listener)
    assert one.subscribed == {topic, "t0"}
    one.complete_subscribe()
    send(producer, topic, b"x")
    eventually(lambda: heard[topic].bodies == [b"x"])
    one.shutdown()
    assert one.is_closed


def test_rules_of_subscribing(factory: MetaMessageSessionFactory, topic: str) -> None:
    """D14."""
    one = factory.create_consumer(quick())
    with pytest.raises(ClientError, match="subscribe to a topic first"):
        one.complete_subscribe()
    one.subscribe(topic, 1 << 20, print)
    with pytest.raises(ClientError, match="subscribed to by this consumer"):
        one.subscribe(topic, 1 << 20, print)
    one.complete_subscribe()
    with pytest.raises(ClientError, match="called already"):
        one.complete_subscribe()
    with pytest.raises(ClientError, match="comes after complete_subscribe"):
        one.subscribe("t1", 1 << 20, print)
    one.shutdown()
    one.shutdown()
    with pytest.raises(ClientClosed):
        one.subscribe("t2", 1 << 20, print)


def test_arguments_are_checked(factory: MetaMessageSessionFactory, topic: str) -> None:
    one = factory.create_consumer(quick())

    async def coroutine(message: ReceivedMessage) -> None: ...

    for error, match, call in (
        (TypeError, "listener", lambda: one.subscribe(topic)),
        (TypeError, "coroutine function", lambda: one.subscribe(topic, 1 << 20, coroutine)),
        (ConfigError, "max_size", lambda: one.subscribe(topic, 20, print)),
        (TypeError, "message_filter", lambda: one.subscribe(topic, 1 << 20, print, message_filter="x")),
        (TypeError, "executor", lambda: one.subscribe(topic, 1 << 20, print, executor="x")),
        (InvalidMessage, "blank", lambda: one.subscribe(" ", 1 << 20, print)),
        (TypeError, "config", lambda: factory.create_consumer("g")),
        (TypeError, "offset_storage", lambda: factory.create_consumer(quick(), object())),
        (ConfigError, "recover", lambda: factory.create_consumer(quick(), recover="what")),
        (ConfigError, "max_size", lambda: one.get(topic, "0-0", 0, 0)),
        (InvalidMessage, "names no partition", lambda: one.get(topic, "zero", 0)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_get_and_browse(factory: MetaMessageSessionFactory, topic: str) -> None:
    with factory.create_producer(at(1)) as producer:
        producer.publish(topic)
        send(producer, topic, *numbered(5))
    with factory.create_producer(at(2)) as producer:
        producer.publish(topic)
        producer.send_message(Message(topic, bytes(3000), "large"))
    one = factory.create_consumer(quick())
    found = one.get(topic, "0-1", 0, 60)
    assert found is not None
    assert [message.data for message in found] == numbered(2)
    assert found.offset == 46
    rest = one.get(topic, Partition(0, 1), found.offset)
    assert rest is not None
    assert [(message.data, message.offset) for message in rest] == [(b"002", 46), (b"003", 69), (b"004", 92)]
    assert one.get(topic, "0-1", 115) is None
    assert one.get(topic, "0-0", 0) is None
    browsed = [
        (message.partition.partition, message.data, message.attribute)
        for message in factory.create_topic_browser(topic, 100)
    ]
    assert browsed == [*((1, body, None) for body in numbered(5)), (2, bytes(3000), "large")]


def test_a_listener_that_ends_its_thread_ends_nothing_else(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def listener(message: ReceivedMessage) -> None:
        if message.data == b"exit" and not heard.failures:
            heard.failures.append(message.data)
            raise SystemExit
        heard(message)

    send(producer, topic, b"exit", *numbered(5))
    with consumer(factory, topic, listener, fetch_runner_count=1):
        eventually(lambda: len(heard.bodies) == 6)
    assert "SystemExit" in caplog.text


def test_a_listener_that_never_returns_holds_up_no_end(
    factory: MetaMessageSessionFactory, producer: MessageProducer, topic: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from metaq.metaq1.rebalance import fixed

    monkeypatch.setattr(fixed, "STOP_SECONDS", 0.1)
    stuck, free = threading.Event(), threading.Event()

    def listener(message: ReceivedMessage) -> None:
        stuck.set()
        free.wait(PATIENCE)

    send(producer, topic, b"x")
    one = consumer(factory, topic, listener)
    assert stuck.wait(PATIENCE)
    one.shutdown()
    assert "listeners have not returned" in caplog.text
    heard = Heard()
    with consumer(factory, topic, heard):  # it was not acknowledged
        eventually(lambda: heard.bodies == [b"x"])
    free.set()


def test_the_end_of_the_factory_saves_offsets(config: MetaClientConfig, topic: str) -> None:
    heard = Heard()
    with MetaMessageSessionFactory(config) as factory:
        send_each(factory, topic, *numbered(3))
        consumer(factory, topic, heard, commit_offset_period=1000.0)
        eventually(lambda: len(heard.bodies) == 3)
    assert {one["offset"] for one in json.loads(Path(config.offsets_path).read_text())["g"]} == {23}


class Away:
    """An offset storage that is away for a while."""

    def __init__(self) -> None:
        self.away = False
        self.saved: dict[tuple[str, Partition], StoredOffset] = {}

    def _ask(self) -> None:
        if self.away:
            raise ConnectionError("the database is away")

    def commit_offset(self, group: str, offsets: object) -> None:
        self._ask()
        self.saved |= {(one.topic, one.partition): one for one in offsets}

    def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None:
        self._ask()
        return self.saved.get((topic, partition))

    def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None:
        self._ask()

    def close(self) -> None: ...


def test_a_storage_that_is_away_stops_no_messages(
    factory: MetaMessageSessionFactory, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again each period, said once, and gets what it has missed."""
    caplog.set_level(logging.INFO)
    storage, heard = Away(), Heard()
    send_each(factory, topic, *numbered(3))
    with consumer(factory, topic, heard, offset_storage=storage, commit_offset_period=0.01):
        eventually(lambda: len(storage.saved) == 3)
        storage.away = True
        send_each(factory, topic, *numbered(6)[3:])
        eventually(lambda: len(heard.bodies) == 6)
        eventually(lambda: "the database is away" in caplog.text)
        storage.away = False
        eventually(lambda: {one.offset for one in storage.saved.values()} == {46})
    assert caplog.text.count("offsets of group g in") == 1
    assert "saved again" in caplog.text


def test_a_consumer_whose_storage_does_not_answer_says_what_it_waits_for(
    factory: MetaMessageSessionFactory, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a database that takes connections and is silent: soon and again, and all goes on when it answers."""
    monkeypatch.setattr("metaq.worker.AGAIN_SECONDS", 0.1)
    answers = threading.Event()

    class Silent(Away):
        def __repr__(self) -> str:
            return "Silent(somewhere)"

        def load(self, *args: object) -> None:
            assert answers.wait(PATIENCE)

    heard = Heard()
    send_each(factory, topic, b"one")

    def told() -> bool:
        text = "in Silent(somewhere): these are not fetched before"
        return len([line for line in caplog.messages if line.startswith("group g waits") and line.endswith(text)]) >= 2

    def begin() -> None:
        with consumer(factory, topic, heard, offset_storage=Silent()):
            assert ended.wait(PATIENCE)

    ended = threading.Event()
    thread = threading.Thread(target=begin)
    thread.start()
    try:
        eventually(told)
        assert not heard.bodies
        answers.set()
        eventually(lambda: heard.bodies == [b"one"])
    finally:
        answers.set()
        ended.set()
        thread.join(PATIENCE)
