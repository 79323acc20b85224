"""Where a send goes when a broker fails, is slow, or does not keep its promise; and what strict order does instead."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

import metaq
from metaq import Producer, SendStatus, aio
from metaq.client.shared.messages import queue_for_key
from metaq.client.shared.sending import FirstTry, QueueRotation, Sender, SendRules
from metaq.client.shared.transport import Waits
from metaq.clock import FakeClock
from metaq.errors import ConfigError, ConnectionFailed, NoRoute
from metaq.model import MessageQueue
from metaq.model.topics.route import ORDER_NAMESPACE
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.client.cluster import FakeCluster, _send, swallow
from tests.support import PATIENCE, eventually

SINGLE = RequestCode.SEND_MESSAGE_V2
LAYOUT = "broker-a:2;broker-b:2;broker-c:2"
FIXED = [MessageQueue("orders", f"broker-{letter}", number) for letter in "abc" for number in range(2)]


@pytest.fixture
def cluster():
    with FakeCluster(brokers=3) as running:
        running.topics = {"orders": 2}
        yield running


def asked(cluster: FakeCluster) -> list[str]:
    """The brokers that were sent to, in order."""
    sends = [command for command in list(cluster.seen) if command.code == SINGLE]
    return [headers.SendHeader.from_ext(command.ext).broker_name for command in sends]


def failing(*brokers: str, code: int = ResponseCode.SYSTEM_ERROR):
    """These refuse, for a reason that is theirs alone."""

    def script(session, command):
        name = headers.SendHeader.from_ext(command.ext).broker_name
        return reply(command, code, remark="not me") if name in brokers else NotImplemented

    return script


def stored_with(status: SendStatus, *brokers: str):
    """These store, and say that they have not kept their promise."""

    def script(session, command):
        answer = _send(session.cluster, session, command)
        if headers.SendHeader.from_ext(command.ext).broker_name in brokers:
            answer.code = status.value
        return answer

    return script


def ordered(cluster: FakeCluster, layout: str | None) -> None:
    """The name server keeps this layout, and tells it in no route (as without orderMessageEnable)."""

    def get(session, command):
        header = headers.KvKeyHeader.from_ext(command.ext)
        if layout is None or (header.namespace, header.key) != (ORDER_NAMESPACE, "orders"):
            return reply(command, ResponseCode.QUERY_NOT_FOUND, remark="No config item")
        return reply(command, 0, headers.KvValueReplyHeader(value=layout))

    cluster.script[RequestCode.GET_KV_CONFIG] = get


# ---------------------------------------------------------------- tries


@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (2, 3), (5, 6)])
def test_a_send_is_tried_so_often_and_no_more(cluster, retries, tries):
    """1 + retryTimesWhenSendFailed, then it has failed."""
    cluster.script[SINGLE] = failing("broker-a", "broker-b", "broker-c")
    with Producer(cluster.namesrv, retries=retries, timeout=PATIENCE) as producer, pytest.raises(metaq.SendFailed):
        producer.send("orders", b"x")
    assert len(asked(cluster)) == tries


def test_each_try_goes_to_a_broker_that_has_not_failed(cluster):
    """Three brokers, two of them failing: the third gets it with the third try at the latest."""
    cluster.script[SINGLE] = failing("broker-a", "broker-b")
    with Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        for _ in range(12):
            cluster.seen.clear()
            assert producer.send("orders", b"x").queue.broker == "broker-c"
            brokers = asked(cluster)
            assert len(set(brokers)) == len(brokers) <= 3


def test_the_rotation_avoids_all_that_failed_then_the_last_one():
    """With nothing else left, it takes what there is."""
    queues, rotation = FIXED, QueueRotation(0)
    assert {rotation.next(queues, ["broker-a", "broker-b"]).broker for _ in range(9)} == {"broker-c"}
    all_failed = ["broker-c", "broker-a", "broker-b"]
    assert {rotation.next(queues, all_failed).broker for _ in range(9)} == {"broker-a", "broker-c"}
    assert rotation.next(queues[:2], ["broker-a"]).broker == "broker-a"


def test_all_tries_together_take_no_longer_than_the_timeout(cluster):
    """sendMsgTimeout is for the send, not for a try: brokers that never answer end it then."""
    cluster.script[SINGLE] = swallow
    with (
        Producer(cluster.namesrv, timeout=0.4, retries=100) as producer,
        pytest.raises(metaq.SendFailed, match=r"the timeout of 0\.4 s is over"),
    ):
        producer.send("orders", b"x")
    assert len(asked(cluster)) == 1


# ---------------------------------------------------------------- statuses


@pytest.mark.parametrize("status", SendStatus)
def test_every_status_is_a_result(cluster, status):
    """Stored, with or without the promise: never an exception, and not sent again."""
    cluster.script[SINGLE] = stored_with(status, "broker-a", "broker-b", "broker-c")
    with Producer(cluster.namesrv) as producer:
        assert producer.send("orders", b"x").status is status
    assert len(asked(cluster)) == 1


def test_another_broker_is_tried_after_a_broken_promise_if_that_is_wished(cluster):
    """retryAnotherBrokerWhenNotStoreOK: until one keeps it; if none does, the last status is the result."""
    cluster.script[SINGLE] = stored_with(SendStatus.FLUSH_DISK_TIMEOUT, "broker-a", "broker-b")
    with Producer(cluster.namesrv, timeout=PATIENCE, retry_another_broker_when_not_store_ok=True) as producer:
        receipts = [producer.send("orders", b"x") for _ in range(6)]
        assert {(receipt.status, receipt.queue.broker) for receipt in receipts} == {(SendStatus.SEND_OK, "broker-c")}
        cluster.script[SINGLE] = stored_with(SendStatus.SLAVE_NOT_AVAILABLE, "broker-a", "broker-b", "broker-c")
        cluster.seen.clear()
        assert producer.send("orders", b"x").status is SendStatus.SLAVE_NOT_AVAILABLE
        assert len(set(asked(cluster))) == len(asked(cluster)) == 3
        cluster.seen.clear()
        chosen = producer.send("orders", b"x", queue=FIXED[0])
        assert (chosen.status, asked(cluster)) == (SendStatus.SLAVE_NOT_AVAILABLE, ["broker-a"])


def test_a_broken_promise_is_the_result_if_the_tries_after_it_fail(cluster):
    """It is stored: that must not be told as a failure."""

    def script(session, command):
        if len(asked(cluster)) > 1:
            return reply(command, ResponseCode.SYSTEM_ERROR, remark="no")
        return stored_with(SendStatus.FLUSH_SLAVE_TIMEOUT, "broker-a", "broker-b", "broker-c")(session, command)

    cluster.script[SINGLE] = script
    with Producer(cluster.namesrv, timeout=PATIENCE, retry_another_broker_when_not_store_ok=True) as producer:
        assert producer.send("orders", b"x").status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(asked(cluster)) == 3


# ---------------------------------------------------------------- slow brokers


def test_a_broker_that_failed_is_avoided_by_later_sends_if_that_is_wished(cluster):
    """sendLatencyFaultEnable: it is asked once; without the option once in every turn over the queues."""
    cluster.script[SINGLE] = failing("broker-a")
    for enabled in (True, False):
        cluster.seen.clear()
        with Producer(cluster.namesrv, timeout=PATIENCE, send_latency_fault_enable=enabled) as producer:
            for _ in range(12):
                producer.send("orders", b"x")
        times = asked(cluster).count("broker-a")
        assert times == 1 if enabled else times >= 2  # the turn begins anywhere


def test_brokers_that_are_all_avoided_are_sent_to_all_the_same(cluster):
    """Nothing better is there."""
    with Producer(cluster.namesrv, timeout=PATIENCE, retries=0, send_latency_fault_enable=True) as producer:
        cluster.script[SINGLE] = failing("broker-a", "broker-b", "broker-c")
        for _ in range(12):
            with pytest.raises(metaq.SendFailed):
                producer.send("orders", b"x")
        assert set(asked(cluster)) == {"broker-a", "broker-b", "broker-c"}
        cluster.script.clear()
        assert producer.send("orders", b"x").status is SendStatus.SEND_OK


# ---------------------------------------------------------------- strict order


def test_strict_keys_are_hashed_over_the_fixed_list_though_brokers_are_down(cluster):
    """The layout decides, not who is up; without strict, the queues that are up."""
    ordered(cluster, LAYOUT)
    with Producer(cluster.namesrv) as producer:
        for number in range(20):
            key = f"key-{number}"
            wanted = queue_for_key(key, FIXED)
            assert producer.send("orders", b"x", ordering_key=key, strict=True).queue == wanted
            assert producer.submit("orders", b"x", ordering_key=key, strict=True).result(PATIENCE).queue == wanted


def test_strict_send_fails_when_its_queues_broker_is_down_and_is_never_moved(cluster):
    """One broker's share stops; the others go on; a plain key moves on."""
    ordered(cluster, LAYOUT)
    keys = {queue_for_key(f"key-{number}", FIXED).broker: f"key-{number}" for number in range(30)}
    with Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        assert producer.send("orders", b"x", ordering_key=keys["broker-b"], strict=True).queue.broker == "broker-b"
        cluster.broker_names = ["broker-a", "broker-c"]  # its lease is over: no route names it
        cluster.ports = [cluster.ports[0], *cluster.ports[2:]]
        producer._core.thread.run(producer._core.routes.refresh(), PATIENCE)
        with pytest.raises(
            metaq.SendFailed, match="goes to no other queue"
        ) as failed:  # it waits for a leader until then
            producer.send("orders", b"x", ordering_key=keys["broker-b"], strict=True, timeout=0.5)
        assert "broker-b" in str(failed.value)
        for broker in ("broker-a", "broker-c"):
            assert producer.send("orders", b"x", ordering_key=keys[broker], strict=True).queue.broker == broker
        assert producer.send("orders", b"x", ordering_key=keys["broker-b"]).queue.broker != "broker-b"


def test_strict_send_tries_again_after_a_broken_promise_at_the_same_queue(cluster):
    """A status other than SEND_OK is retried by the ordered producer; if it stays, it is the result."""
    ordered(cluster, LAYOUT)
    left = [1]

    def script(session, command):
        answer = _send(session.cluster, session, command)
        if left[0]:
            left[0] -= 1
            answer.code = SendStatus.FLUSH_DISK_TIMEOUT.value
        return answer

    cluster.script[SINGLE] = script
    with Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        assert producer.send("orders", b"x", ordering_key="k", strict=True).status is SendStatus.SEND_OK
        assert asked(cluster) == [queue_for_key("k", FIXED).broker] * 2
        left[0] = 100
        assert producer.send("orders", b"x", ordering_key="k", strict=True).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(asked(cluster)) == 5
        assert producer.send("orders", b"x", ordering_key="k").status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(asked(cluster)) == 6


@pytest.mark.parametrize(
    ("layout", "says"), [(None, "metaq topic order set orders"), ("broker-a", "need broker:queues")]
)
def test_strict_order_needs_a_fixed_list(cluster, layout, says):
    """One that is not there, or cannot be read, is said, in both kinds of producer; nothing is sent."""
    ordered(cluster, layout)

    async def main():
        async with aio.Producer(cluster.namesrv) as producer:
            await producer.send("orders", b"x", ordering_key="k", strict=True)

    with Producer(cluster.namesrv) as producer, pytest.raises(ConfigError, match=says):
        producer.send("orders", b"x", ordering_key="k", strict=True)
    with pytest.raises(ConfigError, match=says):
        asyncio.run(main())
    assert asked(cluster) == []


@pytest.mark.parametrize("wrong", [{}, {"queue": FIXED[0]}, {"selector": lambda queues: queues[0]}])
def test_strict_is_for_an_ordering_key(cluster, wrong):
    """Anything else is a mistake, told at the call."""
    with Producer(cluster.namesrv) as producer, pytest.raises(ConfigError, match="ordering_key"):
        producer.send("orders", b"x", strict=True, **wrong)


def test_a_layout_that_changes_is_seen_with_the_next_route_poll(cluster):
    """And keys go where the new one says."""
    ordered(cluster, LAYOUT)
    with Producer(cluster.namesrv, poll_name_server_interval=0.02) as producer:
        producer.send("orders", b"x", ordering_key="k", strict=True)
        ordered(cluster, "broker-c:1")
        eventually(lambda: producer._core.routes.fixed_queues_now("orders") == [MessageQueue("orders", "broker-c", 0)])
        assert producer.send("orders", b"x", ordering_key="k", strict=True).queue.broker == "broker-c"


def test_many_threads_keep_each_keys_order_in_strict_sends(cluster):
    """Batches of a queue go one after the other."""
    ordered(cluster, LAYOUT)
    with Producer(cluster.namesrv, timeout=PATIENCE) as producer:

        def work(key: str) -> None:
            futures = [producer.submit("orders", b"%d" % n, ordering_key=key, strict=True) for n in range(200)]
            places = [future.result(PATIENCE) for future in futures]
            assert [place.offset for place in places] == sorted(place.offset for place in places)
            assert len({place.queue for place in places}) == 1
            done.append(key)

        done: list[str] = []
        threads = [threading.Thread(target=work, args=(f"key-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(done) == 8


def test_a_first_try_without_an_answer_is_told_though_no_route_is_known_then():
    """It was made on a direct link, and the broker went from the route meanwhile: the message may be stored."""

    class NoRoutes:
        def publish_queues_now(self, _topic):
            return None

        async def publish_queues(self, topic, **_more):
            raise NoRoute(f"no queue of topic {topic} can be written")

        async def recent_queues(self, topic, _template):
            await self.publish_queues(topic)

    async def pause(_broker, seconds):
        await asyncio.sleep(seconds)

    core = SimpleNamespace(
        routes=NoRoutes(), clock=FakeClock(), transport=SimpleNamespace(waits=Waits(time.monotonic)),
        leaders=SimpleNamespace(doubt=lambda _broker: None, pause=pause),
    )  # fmt: skip
    core.shared = lambda: core
    sender = Sender(core, "g", SendRules(retries=1))
    lost = ConnectionFailed("the connection broke")
    first = FirstTry(FIXED[0], lost, 0.01)
    outgoing = SimpleNamespace(topic="orders")
    with pytest.raises(metaq.SendFailed, match="Whether a try without an answer was stored is unknown"):
        asyncio.run(sender.send(outgoing, PATIENCE, first=first))
    with pytest.raises(NoRoute):  # nothing was sent at all
        asyncio.run(sender.send(outgoing, PATIENCE))
