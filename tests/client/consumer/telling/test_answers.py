"""What running consumers answer to administrators, through a real broker: 221, 307, 309."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Iterator

import pytest

import metaq
import metaq.aio
from metaq import Later, Pause, Reject
from metaq.admin import Admin
from metaq.admin.groups import GroupNotFound
from metaq.admin.members import MemberNotFound
from metaq.admin.messages import MessageNotFound
from metaq.errors import BrokerError, ConfigError
from metaq.model.inspection import ConsumeVerdict
from metaq.testing.embedded import EmbeddedBroker
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker):
    with Admin(broker.namesrv) as made:
        yield made


@pytest.fixture(scope="module")
def producer(broker):
    with metaq.Producer(broker.namesrv) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"answers_{os.getpid()}_{next(_names)}"


@contextlib.contextmanager
def running(consumer: metaq.Consumer, handler: object, **options: object) -> Iterator[metaq.Consumer]:
    """A consumer whose `run` is under way in a thread."""
    thread = threading.Thread(target=consumer.run, args=(handler,), kwargs=options)
    with consumer:
        thread.start()
        eventually(lambda: consumer._member.direct.newest, what="the start of run")
        yield consumer
        consumer.stop()
        thread.join(PATIENCE)


def member_of(admin: Admin, group: str) -> str:
    """The client id of a group's only member, when the broker knows it."""

    def look() -> str | None:
        with contextlib.suppress(metaq.MetaqError):
            return next((one.client_id for one in admin.group_progress(group).members), None)
        return None

    return eventually(look, what=f"a member of {group}")


OPTIONS = {
    "instance_name": "teller", "pull_count": 17, "queue_messages_max": 321, "consume_timeout": 120.0, "commit_interval": 7.0,
    "start": "earliest",
}  # fmt: skip


def test_the_state_of_a_consumer(broker, admin, producer, topic):
    """Options by RocketMQ's names, subscriptions, queues, rates; stacks only if asked for."""
    producer.send(topic, b"1")
    consumer = metaq.Consumer(broker.namesrv, group=topic, topics={topic: "a || b", f"{topic}_2": "*"}, **OPTIONS)
    producer.send(topic, b"2", tag="a")
    got: list[bytes] = []
    with running(consumer, lambda message: got.append(message.body), threads=3):
        eventually(lambda: got == [b"2"], what="the message")
        client = member_of(admin, topic)
        eventually(lambda: admin.consumer_running_info(topic, client).state.rates[topic].consumed > 0, what="its end")
        state = admin.consumer_running_info(topic, client).state
        with_stacks = admin.consumer_running_info(topic, client, stacks=True).state
    told = state.properties
    assert {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMEORDERLY": "false", "PROP_CLIENT_VERSION": "V4_9_8",
        "PROP_THREADPOOL_CORE_SIZE": "3", "PROP_NAMESERVER_ADDR": f"{broker.namesrv};", "consumerGroup": topic,
        "instanceName": "teller", "pullBatchSize": "17", "pullThresholdForQueue": "321", "consumeTimeout": "2",
        "persistConsumerOffsetInterval": "7000", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeThreadMin": "3", "maxReconsumeTimes": "16", "allocateMessageQueueStrategy": "average",
    }.items() <= told.items()  # fmt: skip
    assert int(told["PROP_CONSUMER_START_TIMESTAMP"]) > 1_700_000_000_000
    assert {one.topic for one in state.subscriptions} == {topic, f"{topic}_2", f"%RETRY%{topic}"}
    assert sum(one.position for queue, one in state.queues.items() if queue.topic == topic) == 2
    taken = [one for one in state.queues.values() if one.consumed_ms]
    assert len(taken) == 1
    assert taken[0].pulled_ms > 1_700_000_000_000
    assert not taken[0].locked
    rates = state.rates[topic]
    assert rates.pulled > 0
    assert rates.pull_ms > 0
    assert rates.failed_messages == 0
    assert state.stacks is None
    assert with_stacks.stacks is not None
    assert f"metaq-{topic}-0 TID" in with_stacks.stacks
    assert "task " in with_stacks.stacks


def test_secrets_are_not_told(broker, admin, producer, topic):
    producer.send(topic, b"1")
    with metaq.Consumer(
        broker.namesrv,
        group=topic,
        topics=topic,
        access_key="the-access-key",
        secret_key="the-secret-key",
    ):
        state = admin.consumer_running_info(topic, member_of(admin, topic), stacks=True)
    assert "the-secret-key" not in repr(state)
    assert "the-access-key" not in repr(state)


def test_what_is_cached_and_what_failed_is_told(broker, admin, producer, topic):
    for number in range(3):
        producer.send(topic, b"%d" % number)
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        messages = [consumer.receive(PATIENCE) for _ in range(3)]
        client = member_of(admin, topic)
        state = admin.consumer_running_info(topic, client).state
        assert sum(one.cached for one in state.queues.values()) == 3
        held = [one for one in state.queues.values() if one.cached]
        assert all(one.cached_last - one.cached_first + 1 == one.cached for one in held)
        assert all(one.cached_first == one.position for one in held)
        messages[0].retry()
        messages[1].ack()
        messages[2].ack()
        eventually(
            lambda: admin.consumer_running_info(topic, client).state.rates[topic].failed_messages == 1,
            what="the failure",
        )
        assert admin.consumer_running_info(topic, client).state.rates[topic].failed > 0


def test_an_orderly_consumer_tells_its_locks_and_its_hand(broker, admin, producer, topic):
    producer.send(topic, b"1")
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", orderly=True) as consumer:
        message = consumer.receive(PATIENCE)
        state = admin.consumer_running_info(topic, member_of(admin, topic)).state
        queue = state.queues[message.queue]
        assert state.properties["PROP_CONSUMEORDERLY"] == "true"
        assert queue.locked
        assert queue.locked_ms > 1_700_000_000_000
        assert (queue.in_hand, queue.in_hand_first, queue.in_hand_last) == (1, 0, 0)
        message.ack()


def test_positions(broker, admin, producer, topic):
    """Of the topic that is asked for."""
    producer.send(topic, b"1")
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        message = consumer.receive(PATIENCE)
        message.ack()
        client = member_of(admin, topic)
        found = admin.consumer_positions(topic, topic, client)
        assert set(found) == {client}
        assert found[client][message.queue] == 1
        assert {queue.topic for queue in found[client]} == {topic}
        assert admin.consumer_positions(topic, "nowhere") == {client: {}}


def test_a_pull_consumer_tells_its_positions_and_options(broker, admin, producer, topic):
    producer.send(topic, b"1")
    with metaq.PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        client = member_of(admin, topic)
        eventually(lambda: consumer.queues, what="its queues")
        queue = consumer.queues[0]
        consumer.update(queue, 1)
        state = admin.consumer_running_info(topic, client).state
        assert state.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert state.queues[queue].position == 1
        assert admin.consumer_positions(topic, topic)[client][queue] == 1
        message = producer.send(topic, b"2").message_id
        with pytest.raises(BrokerError, match="pull consumer, which has no handler"):
            admin.consume_directly(topic, message)


def fails(message: object) -> None:
    raise ValueError(f"no order {len(message.body)}")


def ends(message: object) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("handler", "verdict", "remark"),
    [
        (lambda message: None, ConsumeVerdict.SUCCESS, None),
        (lambda message: Later(3), ConsumeVerdict.LATER, "Later(3)"),
        (lambda message: Pause(5.0), ConsumeVerdict.LATER, "Pause(5.0)"),
        (lambda message: Reject(), ConsumeVerdict.LATER, "rejected: "),
        (lambda message: message.retry(), ConsumeVerdict.LATER, "Later(0)"),
        (fails, ConsumeVerdict.EXCEPTION, "ValueError: no order 7"),
        (ends, ConsumeVerdict.EXCEPTION, "ClientError: SystemExit was raised: 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_is_consumed_directly(broker, admin, producer, topic, handler, verdict, remark, orderly):
    """By the handler of `run`, and nothing is acknowledged, given back or stopped by it."""
    sent = producer.send(topic, b"message")
    calls: list[str] = []

    def noting(message: metaq.ReceivedMessage) -> object:
        calls.append(message.message_id)
        assert threading.current_thread().name == f"metaq-{topic}-direct"
        return handler(message)

    consumer = metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", orderly=orderly)
    consumer.suspend()  # Or it would get the message as usual, too.
    with running(consumer, noting):
        consumer.wait_assigned(PATIENCE)
        client = member_of(admin, topic)
        before = admin.consumer_positions(topic, topic)
        found = admin.consume_directly(topic, sent.message_id, client_id=client)
        assert found.outcome.verdict is verdict
        assert remark is None or (found.outcome.remark or "").startswith(remark)
        assert (found.topic, found.client_id, found.outcome.order) == (topic, client, orderly)
        assert admin.consume_directly(topic, found.offset_id).outcome.verdict is verdict
        assert calls == [sent.message_id] * 2
        assert admin.consumer_positions(topic, topic) == before
        state = admin.consumer_running_info(topic, client).state
        assert state.rates[topic].failed_messages == 0
        assert not consumer.stopped


def handled_there(message: metaq.ReceivedMessage) -> object:
    """In a process of its own."""
    return Later(1) if message.body == b"later" else None


def test_a_message_is_consumed_directly_in_batches_processes_and_with_values(broker, admin, producer, topic):
    sent, later = producer.send(topic, b'{"a": 1}'), producer.send(topic, b"later")
    values: list[object] = []
    consumer = metaq.Consumer(broker.namesrv, group=topic, topics=topic, deserialize="json")
    consumer.suspend()
    with running(consumer, lambda hand: values.append([one.value for one in hand]), batch=5):
        member_of(admin, topic)
        assert admin.consume_directly(topic, sent.message_id).outcome.verdict is ConsumeVerdict.SUCCESS
        assert values == [[{"a": 1}]]
        undecodable = admin.consume_directly(topic, later.message_id).outcome
        assert undecodable.verdict is ConsumeVerdict.EXCEPTION
        assert undecodable.remark
    consumer = metaq.Consumer(broker.namesrv, group=topic, topics=topic)
    consumer.suspend()
    with running(consumer, handled_there, processes=1):
        member_of(admin, topic)
        assert admin.consume_directly(topic, later.message_id).outcome.verdict is ConsumeVerdict.LATER


def test_an_asynchronous_handler_consumes_directly_in_its_own_loop(broker, admin, producer, topic):
    sent = producer.send(topic, b"message")
    loops: list[asyncio.AbstractEventLoop] = []

    async def handler(message: metaq.ReceivedMessage) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if len(loops) > 1:
            raise SystemExit(3)
        raise LookupError("nothing there")

    async def main() -> None:
        async with metaq.aio.Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
            consumer.suspend()
            work = asyncio.create_task(consumer.run(handler), name="the-run")
            await asyncio.to_thread(eventually, lambda: consumer._member.direct.newest)
            client = await asyncio.to_thread(member_of, admin, topic)
            found = await asyncio.to_thread(admin.consume_directly, topic, sent.message_id)
            assert found.outcome.verdict is ConsumeVerdict.EXCEPTION
            assert found.outcome.remark == "LookupError: nothing there"
            assert loops == [asyncio.get_running_loop()]
            ended = await asyncio.to_thread(admin.consume_directly, topic, sent.message_id)
            assert ended.outcome.remark == "ClientError: SystemExit was raised: 3"
            told = await asyncio.to_thread(admin.consumer_running_info, topic, client, stacks=True)
            assert "task the-run" in (told.state.stacks or "")
            consumer.stop()
            await work

    asyncio.run(main())


def test_a_handler_that_takes_long_stops_nothing_else(broker, admin, producer, topic):
    """Neither other answers on the connection, nor deliveries, nor the end of the consumer."""
    sent = producer.send(topic, b"slow")
    begun, end, got = threading.Event(), threading.Event(), list[bytes]()

    def handler(message: metaq.ReceivedMessage) -> None:
        got.append(message.body)
        if message.body == b"slow":
            begun.set()
            end.wait(PATIENCE)

    consumer = metaq.Consumer(broker.namesrv, group=topic, topics=topic)
    consumer.suspend()
    outcome: list[object] = []
    with running(consumer, handler):
        consumer.wait_assigned(PATIENCE)
        consumer.seek(sent.queue, offset=1)
        consumer.resume()
        client = member_of(admin, topic)
        asking = threading.Thread(target=lambda: outcome.append(admin.consume_directly(topic, sent.message_id)))
        asking.start()
        assert begun.wait(PATIENCE)
        producer.send(topic, b"quick")
        eventually(lambda: b"quick" in got, what="a delivery meanwhile")
        assert admin.consumer_running_info(topic, client).client_id == client
        end.set()
        asking.join(PATIENCE)
        assert outcome[0].outcome.verdict is ConsumeVerdict.SUCCESS
        end.clear()
        begun.clear()
        threading.Thread(target=_asked_in_vain, args=(admin, topic, sent.message_id), daemon=True).start()
        assert begun.wait(PATIENCE)
    end.set()


def _asked_in_vain(admin: Admin, group: str, message_id: str) -> None:
    with contextlib.suppress(metaq.MetaqError):
        admin.consume_directly(group, message_id)


def test_who_has_no_handler_says_so(broker, admin, producer, topic):
    sent = producer.send(topic, b"1")
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        client = member_of(admin, topic)
        with pytest.raises(BrokerError, match="no handler of group"):
            admin.consume_directly(topic, sent.message_id)
        with pytest.raises(MemberNotFound, match=client):
            admin.consumer_running_info(topic, "nobody")
        with pytest.raises(MessageNotFound, match=topic):
            admin.consume_directly(topic, "0" * 32)
        with pytest.raises(ConfigError, match="no message id"):
            admin.consume_directly(topic, "short")
        with pytest.raises(ConfigError, match="no message id"):
            admin.consume_directly(topic, "z" * 32)
        assert not consumer.stopped
    with pytest.raises(GroupNotFound, match="has no online members"):
        admin.consumer_running_info(topic, client)


def test_names_in_a_namespace(broker, admin, topic):
    """Brokers and administrators see the names with the namespace, the handler those without."""
    topics: list[str] = []
    with metaq.Producer(broker.namesrv, namespace="shop") as producer:
        sent = producer.send(topic, b"1")
    consumer = metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="latest", namespace="shop")
    with running(consumer, lambda message: topics.append(message.topic)):
        client = member_of(admin, f"shop%{topic}")
        eventually(lambda: consumer.queues, what="its queues")
        state = admin.consumer_running_info(f"shop%{topic}", client).state
        assert {queue.topic for queue in state.queues} <= {f"shop%{topic}", f"%RETRY%shop%{topic}"}
        assert f"shop%{topic}" in state.rates
        assert {queue.topic for queue in admin.consumer_positions(f"shop%{topic}", f"shop%{topic}")[client]} == {
            f"shop%{topic}"
        }
        assert admin.consume_directly(f"shop%{topic}", sent.message_id).outcome.verdict is ConsumeVerdict.SUCCESS
        assert set(topics) == {topic}
