"""Requests and their replies, through real brokers: Python asks Python."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import metaq
from metaq import Message, aio
from metaq.admin import Admin
from metaq.client.consumer.received.replying import Replying
from metaq.client.identity.names import Namespace
from metaq.client.shared import cores
from metaq.client.shared.requests import AwaitedReply, Requests
from metaq.client.shared.transport import Waits
from metaq.clock import SYSTEM
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.notices import RequestReplied
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"requests_{os.getpid()}_{next(_names)}"


@pytest.fixture
def producer(metaq_broker):
    with metaq.Producer(metaq_broker.namesrv) as made:
        yield made


class Responder:
    """A consumer in a thread of its own whose handler is the test's."""

    def __init__(self, namesrv: str, topic: str, handler, **options: object) -> None:
        instance = f"responder-{next(_names)}"
        self.consumer = metaq.Consumer(
            namesrv, group=f"{topic}_responders", topics=topic, start="earliest", instance_name=instance, **options
        )
        self._thread = threading.Thread(target=self.consumer.run, args=(handler,))

    def __enter__(self) -> metaq.Consumer:
        self._thread.start()
        return self.consumer

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self._thread.join()


def shout(message: metaq.ReceivedMessage) -> None:
    message.reply(message.body.upper())


def test_a_request_gets_its_reply(metaq_broker, producer, topic):
    """The reply is a message: body, properties, who sent it and when; the responder has a receipt, and is told nothing else."""
    receipts = []

    def handle(message):
        assert message.wants_reply
        assert (message.tag, message.keys, message.properties["colour"]) == ("t", ("k",), "blue")
        future = message.reply(b"pong", tag="r", properties={"shape": "round"}, flag=7)
        receipts.append(future.result(PATIENCE))

    with Responder(metaq_broker.namesrv, topic, handle):
        reply = producer.request(topic, b"ping", tag="t", keys="k", properties={"colour": "blue"}, timeout=PATIENCE)
    assert (reply.body, reply.tag, reply.flag, reply.properties["shape"]) == (b"pong", "r", 7, "round")
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    assert reply.properties[props.MESSAGE_TYPE] == "reply"
    assert int(reply.properties[props.PUSH_TIME]) <= int(reply.properties[props.ARRIVE_TIME])
    assert reply.born_host[0] == "127.0.0.1"
    (receipt,) = receipts
    assert receipt.message_id == reply.message_id
    assert receipt.queue.topic == reply.topic
    assert reply.broker == receipt.queue.broker


def test_each_of_many_requests_at_once_gets_its_own_reply(metaq_broker, producer, topic):
    """From many threads, some with an ordering key, some to a queue of their choice; long bodies too."""
    with Responder(metaq_broker.namesrv, topic, shout), ThreadPoolExecutor(16) as threads:
        bodies = [b"%d-" % number + b"x" * (number * 200) for number in range(100)]
        queue = producer.queues(topic)[0] if producer.send(topic, b"first") else None

        def ask(number: int) -> bytes:
            where = [{}, {"ordering_key": f"k{number}"}, {"queue": queue}][number % 3]
            return producer.request(Message(topic, bodies[number]), timeout=PATIENCE, **where).body

        assert list(threads.map(ask, range(100))) == [body.upper() for body in bodies]


def test_nobody_can_guess_the_number_of_another_s_request(metaq_broker, producer, topic):
    """Who knows one could reply to the next ones in the name of those who are asked: it is no count, and no message id."""
    seen = []

    def handle(message):
        seen.append((message.properties[props.CORRELATION_ID], message.message_id))
        message.reply(b"pong")

    with Responder(metaq_broker.namesrv, topic, handle):
        for _ in range(20):
            producer.request(topic, b"ping", timeout=PATIENCE)
    assert {len(one) for one, _ in seen} == {32}
    assert len({one[:8] for one, _ in seen}) == len({one[-8:] for one, _ in seen}) == 20
    assert not any(one[:8].upper() == message_id[:8] for one, message_id in seen)


def test_asyncio_asks_and_replies(metaq_broker, topic):
    """`await producer.request`, `await message.reply`; a thousand under way at once."""

    async def main() -> None:
        async with (
            aio.Producer(metaq_broker.namesrv) as producer,
            aio.Consumer(
                metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", instance_name="asyncio"
            ) as consumer,
        ):

            async def respond() -> None:
                async for message in consumer:
                    async with message:
                        receipt = await message.reply(message.body[::-1], timeout=PATIENCE)
                        assert receipt.queue.topic.endswith("_REPLY_TOPIC")

            responder = asyncio.create_task(respond())
            first = await producer.request(topic, b"abc", timeout=PATIENCE)
            assert first.body == b"cba"
            replies = await asyncio.gather(
                *(producer.request(topic, b"%04d" % number, timeout=PATIENCE) for number in range(1000))
            )
            assert [reply.body for reply in replies] == [f"{number:04d}"[::-1].encode() for number in range(1000)]
            consumer.stop()
            await responder

    asyncio.run(main())


def test_a_pull_consumer_replies_to_what_it_pulled(metaq_broker, producer, topic):
    producer.send(topic, b"no request")
    with (
        metaq.PullConsumer(metaq_broker.namesrv, group=f"{topic}_g", instance_name="puller") as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        asked = thread.submit(producer.request, topic, b"ping", timeout=PATIENCE)

        def found() -> metaq.StoredMessage | None:
            messages = [one for queue in consumer.all_queues(topic) for one in consumer.pull(queue, 0).messages]
            return next((one for one in messages if one.body == b"ping"), None)

        consumer.reply(eventually(found), b"pong").result(PATIENCE)
        assert asked.result(PATIENCE).body == b"pong"


def test_a_request_that_nobody_replies_to_times_out(metaq_broker, producer, topic):
    """The error says whether it is stored; it is consumed all the same, and the late reply is refused nobody."""
    with pytest.raises(
        metaq.RequestTimeout, match=rf"no reply to the request to topic {topic} within 1 s; it is stored as"
    ):
        producer.request(topic, b"ping", timeout=1)
    core = producer._core
    assert len(core.requests) == 0
    done = threading.Event()

    def late(message):
        message.reply(b"too late").result(PATIENCE)
        done.set()

    with Responder(metaq_broker.namesrv, topic, late):
        assert done.wait(PATIENCE)


def test_a_reply_that_cannot_be_read_ends_its_request_at_once():
    """Not the timeout."""

    async def main() -> None:
        requests = Requests(RateLimitedLog(logging.getLogger("metaq.client"), SYSTEM))
        reply = AwaitedReply()
        with requests.awaiting(main, "c-1", reply):
            requests.replied(RequestReplied("c-1", StoredMessage(topic="t", body=b"x"), "no zlib"))
            with pytest.raises(metaq.ClientError, match="cannot be read: no zlib"):
                await asyncio.wrap_future(reply)

    asyncio.run(main())


def test_a_request_whose_send_fails_raises_what_failed(metaq_broker, topic):
    """Also when the brokers know the requester already, and the caller's thread waits by itself."""
    with metaq.Producer(metaq_broker.namesrv, instance_name="failing") as producer:
        with Responder(metaq_broker.namesrv, topic, shout):
            assert producer.request(topic, b"first", timeout=PATIENCE).body == b"FIRST"
            assert producer._requesting.is_known
            with pytest.raises(metaq.MetaqError, match="nobody"):
                producer.request(topic, b"x", queue=metaq.MessageQueue(topic, "nobody", 0), timeout=1.0)
            assert producer.request(topic, b"second", timeout=PATIENCE).body == b"SECOND"
        with pytest.raises(metaq.RequestTimeout, match=r"within 0.2 s; it is stored as"):
            producer.request(topic, b"nobody is there", timeout=0.2)
    assert len(producer._core.requests) == 0


def test_a_request_waits_for_room_no_longer_than_its_time(metaq_broker, topic):
    """`max_pending_bytes` is used up by sends that wait for a broker that does not come: the request ends in time all the same."""
    with metaq.Producer(
        metaq_broker.namesrv, instance_name="full", max_pending_bytes=1, timeout=1.0, retries=0
    ) as producer:
        with Responder(metaq_broker.namesrv, topic, shout):
            assert producer.request(topic, b"first", timeout=PATIENCE).body == b"FIRST"
        accumulator = producer._accumulator
        accumulator._pending_bytes += 100
        with pytest.raises(metaq.RequestTimeout, match="not acknowledged"):
            producer.request(topic, b"x", timeout=0.2)
        accumulator._pending_bytes -= 100


def test_several_requests_of_one_pull_and_replies_that_never_come_hold_no_pull_up(metaq_broker, producer, topic):
    """After a request that came alone the next pull waits for its reply, but not for long: a handler that never replies
    gets the next message all the same."""
    seen = []

    def handle(message):
        seen.append(message.body)

    with Responder(metaq_broker.namesrv, topic, handle), ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(producer.request, topic, b"%d" % number, timeout=1.0) for number in range(8)]
        eventually(lambda: len(seen) == 8)
        for one in asked:
            with pytest.raises(metaq.RequestTimeout):
                one.result(PATIENCE)


def test_a_reply_goes_out_before_the_next_pull_is_made():
    """What is written in a turn of the loop leaves at its end: what a reply lets go on begins behind it."""
    happened: list[str] = []

    async def send():
        happened.append("reply")

    async def turns():
        core = SimpleNamespace(
            shared=lambda: core, spawn=asyncio.ensure_future, namespace=Namespace(), clock=SYSTEM,
            transport=SimpleNamespace(waits=Waits(SYSTEM.monotonic)),
        )  # fmt: skip
        Replying(core, "g")._start(send, lambda: happened.append("pull"))
        assert not happened
        while len(happened) < 2:
            await asyncio.sleep(0)

    asyncio.run(turns())
    assert happened == ["reply", "pull"]


def test_a_late_reply_is_said_in_the_log(caplog):
    """Once in a while, not for each."""
    requests = Requests(RateLimitedLog(logging.getLogger("metaq.client"), SYSTEM))
    for _ in range(50):
        requests.replied(RequestReplied("c-1", StoredMessage(topic="t", body=b"x")))
    assert caplog.text.count("nobody waited for it any more") == 1


def test_a_requester_that_is_gone_fails_the_reply_and_not_the_message(metaq_broker, topic, caplog):
    """`result` raises what the broker said; who does not ask reads it in the log. The message is finished either way."""
    errors = []
    with (
        metaq.Producer(metaq_broker.namesrv, instance_name="short-lived") as producer,
        pytest.raises(metaq.RequestTimeout),
    ):
        producer.request(topic, b"ping", timeout=1.0)  # enough to find the new topic's route and be sent

    def handle(message):
        with pytest.raises(metaq.SendFailed) as caught:
            message.reply(b"pong").result(PATIENCE)
        errors.append(str(caught.value))
        message.reply(b"not waited for")

    with Responder(metaq_broker.namesrv, topic, handle):
        eventually(lambda: caplog.text.count("did not reach its requester") == 2)
    assert len(errors) == 1, "it is not delivered again"
    assert "not found" in errors[0]


def test_what_is_no_request_cannot_be_replied_to(metaq_broker, producer, topic):
    """Nor what was given back, nor a copy in another process; a body that no message can have is refused at once."""
    producer.send(topic, b"plain")
    with metaq.Consumer(
        metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", instance_name="plain"
    ) as consumer:
        message = consumer.receive(PATIENCE)
        assert not message.wants_reply
        with pytest.raises(metaq.ClientError, match=r"is no request.*CORRELATION_ID, REPLY_TO_CLIENT"):
            message.reply(b"pong")
        message.ack()
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(producer.request, topic, b"ping", timeout=PATIENCE)
            message = consumer.receive(PATIENCE)
            with pytest.raises(TypeError, match="encode"):
                message.reply("text")
            with pytest.raises(metaq.InvalidMessage, match="4194305 bytes"):
                message.reply(bytes(4 * 1024 * 1024 + 1))
            with pytest.raises(metaq.ConfigError, match="timeout"):
                message.reply(b"x", timeout=0)
            with pytest.raises(metaq.ClientError, match="is a copy"):
                pickle.loads(pickle.dumps(message)).reply(b"pong")
            message.reply(b"pong").result(PATIENCE)
            message.retry()
            with pytest.raises(metaq.ClientError, match="was given back"):
                message.reply(b"pong")
            assert asked.result(PATIENCE).body == b"pong"


def test_what_cannot_be_a_request_is_refused(metaq_broker, producer, topic):
    """Delays, wrong types, impossible times; a closed producer."""
    with pytest.raises(metaq.ConfigError, match="delay_level=3"):
        producer.request(Message(topic, b"x", delay_level=3))
    with pytest.raises(TypeError, match="encode"):
        producer.request(topic, "text")
    with pytest.raises(metaq.ConfigError, match="timeout"):
        producer.request(topic, b"x", timeout=0)
    with pytest.raises(TypeError):
        producer.request(topic, b"x", timeout="soon")
    with pytest.raises(metaq.InvalidMessage):
        producer.request(topic, b"x", properties={"CORRELATION_ID": "mine"})
    with pytest.raises(metaq.InvalidMessage):
        producer.request(topic, b"")
    producer.close()
    with pytest.raises(metaq.ClientClosed):
        producer.request(topic, b"x")


def test_closing_the_producer_ends_its_requests(metaq_broker, topic):
    """Another thread waits for a reply that never comes: it hears of the end at once, and nothing is left behind."""
    producer = metaq.Producer(metaq_broker.namesrv)
    core = producer._core
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(producer.request, topic, b"ping", timeout=PATIENCE)
        eventually(lambda: len(core.requests) == 1)
        producer.close()
        with pytest.raises(metaq.ClientClosed, match="before the reply came"):
            asked.result(PATIENCE)
    assert len(core.requests) == 0


def test_closing_ends_requests_of_a_producer_that_is_known_already(metaq_broker, topic):
    """Those that wait in the caller's own thread."""
    producer = metaq.Producer(metaq_broker.namesrv, instance_name="known")
    core = producer._core
    with ThreadPoolExecutor(1) as thread:
        with Responder(metaq_broker.namesrv, topic, shout):
            assert producer.request(topic, b"first", timeout=PATIENCE).body == b"FIRST"
        asked = thread.submit(producer.request, topic, b"ping", timeout=PATIENCE)
        eventually(lambda: len(core.requests) == 1)
        producer.close()
        with pytest.raises(metaq.ClientClosed, match="before the reply came"):
            asked.result(PATIENCE)
    assert len(core.requests) == 0


def test_a_cancelled_request_leaves_nothing_behind(metaq_broker, topic):
    async def main() -> None:
        async with aio.Producer(metaq_broker.namesrv) as producer:
            core = producer._core
            asked = asyncio.create_task(producer.request(topic, b"ping", timeout=PATIENCE))
            while not len(core.requests):
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            while len(core.requests):
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_forgotten_producer_that_asked_is_still_warned_of(metaq_broker, topic):
    """Waiting for replies keeps no producer alive."""
    producer = metaq.Producer(metaq_broker.namesrv, instance_name="forgotten")
    with pytest.raises(metaq.RequestTimeout):
        producer.request(topic, b"x", timeout=0.05)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer

        def warned():
            gc.collect()  # The loop may have the request in its hands for a moment more.
            return any(issubclass(one.category, ResourceWarning) for one in caught)

        eventually(warned)


def test_a_namespace_keeps_its_topics_and_shares_the_replies(metaq_broker, topic):
    """The topic of replies belongs to the cluster."""
    with (
        metaq.Producer(metaq_broker.namesrv, namespace="ns") as producer,
        metaq.Consumer(
            metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", namespace="ns"
        ) as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        asked = thread.submit(producer.request, topic, b"ping", timeout=PATIENCE)
        with consumer.receive(PATIENCE) as message:
            assert message.topic == topic
            message.reply(b"pong").result(PATIENCE)
        assert asked.result(PATIENCE).body == b"pong"


def test_orderly_consumers_reply_too(metaq_broker, producer, topic):
    with Responder(metaq_broker.namesrv, topic, shout, orderly=True):
        assert producer.request(topic, b"ping", timeout=PATIENCE).body == b"PING"


def test_too_many_requests_at_once_are_refused(monkeypatch, metaq_broker, producer, topic):
    monkeypatch.setattr("metaq.client.shared.requests.REQUESTS_MAX", 0)
    with pytest.raises(metaq.BufferFull, match="wait for replies"):
        producer.request(topic, b"x")


@pytest.mark.slow
def test_a_reply_arrives_although_the_broker_that_held_the_request_is_dead(topic):
    """Every broker knows where requesters are, also one that they send nothing to."""
    with Cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        with (
            metaq.Producer(cluster.namesrv, instance_name="asker") as producer,
            metaq.Consumer(
                cluster.namesrv, group=f"{topic}_g", topics=topic, start="earliest", instance_name="responder"
            ) as consumer,
            ThreadPoolExecutor(1) as thread,
        ):
            queues = eventually(lambda: len(found := producer.queues(topic)) == 2 and found)
            asked = thread.submit(producer.request, topic, b"ping", queue=queues[0], timeout=PATIENCE)
            message = consumer.receive(PATIENCE)
            holder = next(broker for broker in cluster.brokers if broker.name == queues[0].broker)
            holder.kill()
            receipt = message.reply(b"pong", timeout=PATIENCE).result(PATIENCE)
            message.ack()
            assert receipt.queue.broker == queues[1].broker
            assert asked.result(PATIENCE).body == b"pong"


def test_cores_are_released_after_requests(metaq_broker, topic):
    """The last user closes the core, whoever asked."""
    with (
        metaq.Producer(metaq_broker.namesrv, instance_name="released") as producer,
        pytest.raises(metaq.RequestTimeout),
    ):
        producer.request(topic, b"x", timeout=0.05)
    assert not [key for key in cores._cores if "released" in key]
