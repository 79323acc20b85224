"""Namespaces and units: what brokers see, and what users do, against our broker."""

from __future__ import annotations

import contextlib
import itertools
import os

import pytest
from msgspec import structs

import metaq
from metaq import Consumer, Later, Message, Producer, PullConsumer, Reader, aio
from metaq.admin import Admin
from metaq.client.conversation.groups import ListMembers
from metaq.client.conversation.locks import LockQueues, UnlockQueues
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset, GetPosition, SetPosition
from metaq.client.conversation.reading.pulling import Pull
from metaq.client.conversation.sending.sending import GiveBack, Outgoing, Send
from metaq.client.identity.names import Namespace
from metaq.client.shared.namespaces import wrapped_call
from metaq.model import MessageQueue, QueueLocks
from metaq.model.filters.subscription import subscribe
from metaq.wire import bodies
from tests.support import PATIENCE, eventually

NS = Namespace("shop")
_names = itertools.count()


@pytest.fixture
def topic():
    return f"ns_{os.getpid()}_{next(_names)}"


@pytest.mark.parametrize(
    ("plain", "outside"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%mailer", "%RETRY%shop%mailer"),
        ("%DLQ%mailer", "%DLQ%shop%mailer"),
        ("a%b", "shop%a%b"),
        ("TBW102", "TBW102"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("rmq_sys_X", "rmq_sys_X"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names_are_wrapped_as_java_wraps_them(plain, outside):
    """NamespaceUtil.wrapNamespace and withoutNamespace of 4.9; both may be done twice."""
    assert NS.wrapped(plain) == outside
    assert NS.wrapped(outside) == outside
    assert NS.plain(outside) == plain
    assert NS.plain(plain) == plain
    assert Namespace().wrapped(plain) == Namespace().plain(plain) == plain


QUEUE, OUTSIDE = MessageQueue("orders", "b", 3), MessageQueue("shop%orders", "b", 3)


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (Send("pg", Outgoing("orders", b"x"), QUEUE, 1), {"a": "shop%pg", "b": "shop%orders", "c": "TBW102"}),
        (Pull(group="g", queue=QUEUE, offset=0, count=1, subscription=subscribe("orders", "*"), inline=True),
         {"consumerGroup": "shop%g", "topic": "shop%orders"}),
        (GetMinOffset(QUEUE), {"topic": "shop%orders"}),
        (GetMaxOffset(QUEUE), {"topic": "shop%orders"}),
        (GetPosition("g", QUEUE), {"consumerGroup": "shop%g", "topic": "shop%orders"}),
        (SetPosition("g", QUEUE, 7), {"consumerGroup": "shop%g", "topic": "shop%orders"}),
        (ListMembers("g"), {"consumerGroup": "shop%g"}),
        (GiveBack(group="g", broker="b", topic="orders", message_id="m", log_offset=1, delay_level=0, max_reconsume_times=1),
         {"group": "shop%g", "originTopic": "shop%orders"}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_question_leaves_with_its_names_wrapped(call, fields):
    """And is left as it was for whoever asked it."""
    before = structs.asdict(call)
    command = wrapped_call(call, NS).request()
    assert {name: command.ext[name] for name in fields} == fields
    assert structs.asdict(call) == before
    assert wrapped_call(wrapped_call(call, NS), NS) == wrapped_call(call, NS)


@pytest.mark.parametrize("call", [LockQueues, UnlockQueues])
def test_locks_leave_with_their_names_wrapped(call):
    """Group and queues are in the body."""
    command = wrapped_call(call(QueueLocks("g", "me", (QUEUE,))), NS).request()
    assert bodies.queue_locks_of(command.body) == QueueLocks("shop%g", "me", (OUTSIDE,))


def test_messages_receipts_and_queues_come_out_without_the_namespace(metaq_broker, topic):
    """While the broker holds `ns%topic`, and a client without namespace sees it there."""
    with Producer(metaq_broker.namesrv, namespace="shop") as producer:
        receipt = producer.send(topic, b"one", tag="t", keys="k")
        assert receipt.queue.topic == topic
        assert {queue.topic for queue in producer.queues(topic)} == {topic}
        assert producer.send(topic, b"two", queue=receipt.queue).queue == receipt.queue
        seen: list[str] = []

        def select(queues):
            seen.extend(queue.topic for queue in queues)
            return queues[0]

        assert producer.send(topic, b"three", selector=select).queue.topic == topic
        assert set(seen) == {topic}
        assert producer.submit(topic, b"four", ordering_key="k").result(PATIENCE).queue.topic == topic
        [batched] = producer.send_batch([Message(topic, b"five")])
        assert batched.queue.topic == topic
        producer.send_oneway(topic, b"six")
        producer.submit(topic, b"seven")
    with Reader(metaq_broker.namesrv, f"shop%{topic}") as outside:
        eventually(lambda: sum(map(len, outside.ranges().values())) == 7)
        messages = list(itertools.islice(outside, 7))
        assert {message.topic for message in messages} == {f"shop%{topic}"}
        assert {message.properties["INSTANCE_ID"] for message in messages} == {"shop"}, "as Java's producers do"
    with Reader(metaq_broker.namesrv, topic, namespace="shop", stop_at_end=True) as reader:
        assert {message.topic for message in reader} == {topic}
        assert {queue.topic for queue in reader.queues()} == {queue.topic for queue in reader.ranges()} == {topic}
        assert {queue.topic for queue in reader.positions()} == {topic}
        reader.seek(receipt.queue, offset=receipt.offset)
        assert next(iter(reader)).body == b"one"
    with Reader(metaq_broker.namesrv, topic, namespace="shop", queues=[receipt.queue]) as chosen:
        assert chosen.queues() == [receipt.queue]


@contextlib.contextmanager
def consumer_of(broker, topic, namespace="shop", **options):
    with Consumer(
        broker.namesrv, group="mailer", topics=topic, start="earliest", namespace=namespace, **options
    ) as consumer:
        consumer.wait_assigned(PATIENCE)
        yield consumer


@pytest.mark.parametrize("orderly", [False, True])
def test_groups_of_two_namespaces_share_a_name_and_nothing_else(metaq_broker, topic, orderly):
    """Each its own topic, progress and members, in one process under one client id."""
    with Producer(metaq_broker.namesrv, namespace="shop") as producer:
        producer.send(topic, b"of the shop")
    with Producer(metaq_broker.namesrv, namespace="store") as producer:
        producer.send(topic, b"of the store")
    with (
        consumer_of(metaq_broker, topic, "shop", orderly=orderly) as shop,
        consumer_of(metaq_broker, topic, "store", orderly=orderly) as store,
        Admin(metaq_broker.namesrv) as admin,
    ):
        for consumer, body in ((shop, b"of the shop"), (store, b"of the store")):
            message = consumer.receive(PATIENCE)
            with message:
                assert (message.body, message.topic, message.queue.topic) == (body, topic, topic)
            assert {queue.topic.removeprefix("%RETRY%") for queue in consumer.queues} <= {topic, "mailer"}
            consumer.commit(PATIENCE)
        for namespace in ("shop", "store"):
            progress = admin.group_progress(f"{namespace}%mailer")
            assert {one.queue.topic for one in progress.queues} >= {f"{namespace}%{topic}"}
            assert len(progress.members) == 1


class KeptStore:
    """An offset store of the user's."""

    def __init__(self):
        self.kept: dict[MessageQueue, int] = {}

    def load(self, queue):
        return self.kept.get(queue)

    def update(self, queue, offset):
        self.kept[queue] = offset

    def persist(self):
        pass


def test_listeners_stores_and_ranks_know_plain_names_only(metaq_broker, topic):
    """Whatever of the user's is called with a queue, or asked about a topic."""
    with Producer(metaq_broker.namesrv, namespace="shop") as producer:
        for number in range(8):
            producer.send(topic, b"%d" % number)
    shares, store = [], KeptStore()
    with consumer_of(
        metaq_broker, topic, on_share=lambda *share: shares.append(share), offset_store=store, ranks={topic: 3}
    ) as consumer:
        for _ in range(8):
            with consumer.receive(PATIENCE) as message:
                assert message.topic == topic
        consumer.commit(PATIENCE)
    assert {name for name, _, _ in shares} <= {topic, "%RETRY%mailer"}
    assert {queue.topic for _, everything, mine in shares for queue in [*everything, *mine]} <= {topic, "%RETRY%mailer"}
    assert sum(offset for queue, offset in store.kept.items() if queue.topic == topic) == 8


def test_failed_messages_come_again_and_become_dead_letters_of_the_namespace(metaq_broker, topic):
    """%RETRY%ns%group and %DLQ%ns%group outside, the topic's own name inside."""
    with Producer(metaq_broker.namesrv, namespace="shop2") as producer:
        producer.send(topic, b"bad")
    with consumer_of(metaq_broker, topic, "shop2", max_reconsume_times=1) as consumer:
        first = consumer.receive(PATIENCE)
        with first:
            raise Later(delay_level=1)
        again = consumer.receive(PATIENCE)
        assert (again.body, again.topic, again.reconsume_times) == (b"bad", topic, 1)
        with again:
            raise metaq.Reject
    with Admin(metaq_broker.namesrv) as admin:
        assert "%RETRY%shop2%mailer" in admin.list_topics(system=True)
        eventually(lambda: "%DLQ%shop2%mailer" in admin.list_topics(system=True))
    with Reader(metaq_broker.namesrv, "%DLQ%mailer", namespace="shop2") as dead:
        eventually(lambda: sum(map(len, dead.ranges().values())) == 1)
        message = dead.receive(PATIENCE)
        assert (message.body, message.topic) == (b"bad", "%DLQ%mailer")


def test_asyncio_has_namespaces_too(metaq_broker, topic):
    """The same core is behind it."""
    import asyncio

    async def main():
        async with aio.Producer(metaq_broker.namesrv, namespace="shop") as producer:
            assert (await producer.send(topic, b"x", ordering_key="k")).queue.topic == topic
        async with aio.Reader(metaq_broker.namesrv, topic, namespace="shop") as reader:
            assert (await reader.receive(PATIENCE)).topic == topic

    asyncio.run(main())


def test_strict_order_finds_the_layout_of_the_namespaced_topic(metaq_broker, topic):
    """It is kept under the name that brokers know."""
    with Admin(metaq_broker.namesrv) as admin, Producer(metaq_broker.namesrv, namespace="shop") as producer:
        admin.create_topic(f"shop%{topic}", queues=3)
        admin.set_topic_order(f"shop%{topic}")
        receipt = producer.send(topic, b"x", ordering_key="k", strict=True)
        assert receipt.queue.topic == topic


@pytest.mark.parametrize("client", [Producer, aio.Producer])
def test_names_that_are_too_long_with_the_namespace_are_refused(client):
    """At the call, not by the broker."""
    with pytest.raises(metaq.ConfigError, match="127"):
        Reader("127.0.0.1:1", "t" * 125, namespace="shop")
    with pytest.raises(metaq.ConfigError, match="255"):
        client("127.0.0.1:1", group="g" * 252, namespace="shop")


@pytest.mark.parametrize("client", [Consumer, PullConsumer, aio.Consumer, aio.PullConsumer])
def test_a_consumer_groups_name_leaves_room_for_its_retry_topics(client):
    """RocketMQ takes 255 characters, and then nothing that the group gives back can be stored."""
    for size, options in ((121, {}), (116, {"namespace": "shop"})):
        with pytest.raises(metaq.ConfigError, match=r"121 characters, the limit is 120: .* retry topic, %RETRY%"):
            client("127.0.0.1:1", group="g" * size, topics="t", **options)
