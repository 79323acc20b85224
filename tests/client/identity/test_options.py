"""The options that every client takes, and the producer's: each is seen to do what it says."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import threading

import pytest

import metaq
from metaq import Consumer, Producer, Reader, aio
from metaq.client.identity.options import ClientOptions, client_options
from metaq.client.shared import cores
from metaq.errors import ConfigError
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from tests.client.cluster import FakeCluster
from tests.support import PATIENCE, eventually

SEND = RequestCode.SEND_MESSAGE_V2
_names = itertools.count()


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        yield running


def client_ids(cluster: FakeCluster) -> set[str]:
    """As the heartbeats say."""
    beats = [command for command in list(cluster.seen) if command.code == RequestCode.HEART_BEAT]
    return {bodies.heartbeat_of(command.body).client_id for command in beats}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"poll_name_server_interval": 0}, ConfigError, "poll_name_server_interval=0"),
        ({"poll_name_server_interval": math.nan}, ConfigError, "at least 0 s"),
        ({"heartbeat_broker_interval": "30"}, TypeError, "number of seconds"),
        ({"heartbeat_broker_interval": True}, TypeError, "number of seconds"),
        ({"client_callback_executor_threads": -1}, ConfigError, "need 0 or more"),
        ({"client_callback_executor_threads": 1.5}, TypeError, "whole number"),
        ({"instance_name": ""}, ConfigError, "instance_name has 0 characters"),
        ({"instance_name": 7}, TypeError, "pass text"),
        ({"client_ip": "10.0.0.1 "}, ConfigError, "blanks"),
        ({"unit_name": "a/b"}, ConfigError, "slashes"),
        ({"unit_mode": "yes"}, TypeError, "True or False"),
        ({"namespace": "a b"}, ConfigError, "characters outside"),
        ({"heartbeat_interval": 3}, TypeError, "'heartbeat_interval'"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda **more: Producer("127.0.0.1:1", **more),
        lambda **more: aio.Producer("127.0.0.1:1", **more),
        lambda **more: Consumer("127.0.0.1:1", group="g", topics="t", **more),
        lambda **more: Reader("127.0.0.1:1", "t", **more),
        lambda **more: metaq.TransactionProducer("127.0.0.1:1", group="g", check=lambda message: None, **more),
    ],
    ids=["producer", "aio", "consumer", "reader", "transactions"],
)
def test_wrong_values_are_refused_by_every_client(make, arguments, error, says):
    """At the call, by name; nothing is connected and nothing is left open."""
    with pytest.raises(error, match=says.replace("(", "\\(")):
        make(**arguments)


def test_both_spellings_of_the_route_poll_are_taken():
    """RocketMQ 3 wrote pollNameServerInteval; the right one wins."""
    assert client_options(poll_name_server_inteval=5).poll_name_server_interval == 5
    both = client_options(poll_name_server_inteval=5, poll_name_server_interval=6)
    assert both.poll_name_server_interval == 6
    assert client_options() == ClientOptions()


def test_client_id_is_made_of_address_instance_and_unit(cluster):
    """As in Java: ip@instance, and @unit where there is one; without a name it is the process and the time."""
    with Producer(cluster.namesrv, client_ip="10.1.2.3", instance_name="one", unit_name="u7") as producer:
        producer.send("orders", b"x")
        eventually(lambda: client_ids(cluster) == {"10.1.2.3@one@u7"})
    cluster.seen.clear()
    with Producer(cluster.namesrv, client_ip="10.1.2.3") as producer:
        receipt = producer.send("orders", b"x")
        eventually(lambda: len(client_ids(cluster)) == 1)
    [client_id] = client_ids(cluster)
    assert client_id.startswith(f"10.1.2.3@{os.getpid()}#")
    assert receipt.message_id.startswith("0A010203")


def test_clients_of_different_ids_share_nothing(cluster):
    """Address, instance and unit make a client; what else differs does not."""
    with (
        Producer(cluster.namesrv, instance_name="s", unit_name="a") as one,
        Producer(cluster.namesrv, instance_name="s", unit_name="b") as two,
        Producer(cluster.namesrv, instance_name="s", unit_name="b", unit_mode=True, namespace="n") as three,
    ):
        assert one._core is not two._core
        assert two._core is three._core.shared()


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("poll_name_server_interval", RequestCode.GET_ROUTEINFO_BY_TOPIC),
        ("poll_name_server_inteval", RequestCode.GET_ROUTEINFO_BY_TOPIC),
        ("heartbeat_broker_interval", RequestCode.HEART_BEAT),
    ],
)
def test_intervals_hold_and_the_shortest_of_those_that_share_counts(cluster, option, code):
    """A second client of the same instance that wants it more often gets it, and takes it with it when it goes."""
    with Producer(cluster.namesrv, instance_name="pace") as slow:
        slow.send("orders", b"x")
        core = slow._core
        before = cluster.count(code)
        with Producer(cluster.namesrv, instance_name="pace", **{option: 0.02}):
            eventually(lambda: cluster.count(code) > before + 5)
        work = core._poll_routes if code == RequestCode.GET_ROUTEINFO_BY_TOPIC else core.send_heartbeats
        eventually(lambda: core._paces[work][0] == 30.0)


def test_callbacks_run_in_so_many_threads_and_may_block(cluster):
    """Four block, and sends go on; a fifth has to wait."""
    busy, seen = threading.Event(), set()

    def block(future):
        seen.add(threading.current_thread())
        busy.wait(PATIENCE)

    with Producer(cluster.namesrv, client_callback_executor_threads=4) as producer:
        for _ in range(6):
            producer.send("orders", b"x")
        for _ in range(6):
            producer.submit("orders", b"x", delay_level=1).add_done_callback(block)
        eventually(lambda: len(seen) == 4)
        assert producer.send("orders", b"still served").offset >= 0
        busy.set()
        producer.flush(PATIENCE)
        assert len(seen) == 4
        assert all(thread.name == "metaq-callback" and thread.daemon for thread in seen)
    eventually(lambda: not any(thread.is_alive() for thread in seen))


@pytest.mark.parametrize("threads", [0, 1])
def test_a_callback_that_exits_keeps_no_other_from_being_called(cluster, threads):
    """Whether it runs in the client's own thread or in one for callbacks."""

    def leave(future):
        raise SystemExit(3)

    called = threading.Event()
    with Producer(cluster.namesrv, client_callback_executor_threads=threads) as producer:
        first = producer.submit("orders", b"x", delay_level=1)
        first.add_done_callback(leave)
        first.result(PATIENCE)
        producer.flush(PATIENCE)
        producer.submit("orders", b"x", delay_level=1).add_done_callback(lambda future: called.set())
        producer.flush(PATIENCE)
        assert called.wait(PATIENCE)


def test_callbacks_run_in_the_clients_own_thread_if_there_are_none_for_them(cluster):
    """client_callback_executor_threads=0, where they must not block."""
    names: list[str] = []
    with Producer(cluster.namesrv, client_callback_executor_threads=0) as producer:
        producer.submit("orders", b"x").add_done_callback(lambda _: names.append(threading.current_thread().name))
        producer.flush(PATIENCE)
    assert names in (["metaq-client"], ["MainThread"])  # The latter if it was done before it was asked.


def test_closing_waits_for_callbacks_and_says_if_they_do_not_end(cluster):
    """What a program does in them is done when its producer is closed; one that blocks for ever is told."""
    done, never = [], threading.Event()
    slow = threading.Event()

    def work(future):
        slow.wait(PATIENCE)
        done.append(future.result())

    with Producer(cluster.namesrv) as producer:
        producer.submit("orders", b"x").add_done_callback(work)
        threading.Timer(0.05, slow.set).start()
    assert len(done) == 1
    producer = Producer(cluster.namesrv)
    producer.submit("orders", b"x", delay_level=1).add_done_callback(lambda _: never.wait(PATIENCE))
    with pytest.raises(metaq.RequestTimeout, match="add_done_callback"):
        producer.close(timeout=0.5)
    never.set()


def test_a_callback_may_send_and_close(cluster):
    """Neither waits for itself."""
    told = []
    producer = Producer(cluster.namesrv)

    def again(future):
        told.append(producer.send("orders", b"from a callback").offset)
        producer.close(PATIENCE)
        told.append("closed")

    producer.submit("orders", b"x", delay_level=1).add_done_callback(again)
    eventually(lambda: len(told) == 2)


def test_a_forgotten_producer_ends_its_threads(cluster):
    """With the warning that it was forgotten, after what was to be called."""
    seen: set[threading.Thread] = set()
    producer = Producer(cluster.namesrv)
    producer.submit("orders", b"x", delay_level=1).add_done_callback(lambda _: seen.add(threading.current_thread()))
    eventually(lambda: seen)
    with pytest.warns(ResourceWarning, match="not closed"):
        del producer
        gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in seen if thread.name == "metaq-callback"))


def test_closing_in_asyncio_waits_for_callbacks_too(cluster):
    """Without blocking the loop."""
    done = []

    async def main():
        async with aio.Producer(cluster.namesrv) as producer:
            producer.submit("orders", b"x", delay_level=1).add_done_callback(done.append)

    asyncio.run(main())
    assert len(done) == 1


def sent(cluster: FakeCluster) -> list[headers.SendHeader]:
    return [headers.SendHeader.from_ext(command.ext) for command in list(cluster.seen) if command.code == SEND]


def test_template_queues_and_unit_mode_travel_with_each_send(cluster):
    """createTopicKey, defaultTopicQueueNums and unitMode, beside the group."""
    with Producer(
        cluster.namesrv, group="pg", create_topic_key="TPL", default_topic_queue_nums=7, unit_mode=True
    ) as producer:
        producer.send("orders", b"x")
    with Producer(cluster.namesrv) as producer:
        producer.send("orders", b"x")
    given, usual = sent(cluster)
    assert (given.producer_group, given.default_topic, given.default_topic_queues, given.unit_mode) == (
        "pg", "TPL", 7, True,
    )  # fmt: skip
    assert (usual.default_topic, usual.default_topic_queues, usual.unit_mode) == ("TBW102", 4, False)


@pytest.mark.parametrize("wrong", [{"default_topic_queue_nums": 0}, {"create_topic_key": "a b"}])
def test_templates_that_cannot_be_are_refused(wrong):
    """Before anything is connected."""
    with pytest.raises(ConfigError):
        Producer("127.0.0.1:1", **wrong)


def test_topics_are_made_by_the_template_and_as_many_queues_as_wanted(metaq_broker):
    """And a unit's topic is known as one at the name server."""
    topic = f"made_{os.getpid()}_{next(_names)}"
    with Producer(metaq_broker.namesrv, default_topic_queue_nums=2, unit_mode=True) as producer:
        receipts = [producer.send(topic, b"x") for _ in range(8)]
        assert {receipt.queue.queue_id for receipt in receipts} == {0, 1}
        with metaq.admin.Admin(metaq_broker.namesrv) as admin:
            eventually(lambda: len(admin.describe_topic(topic).queues) == 2)
        route = producer._core.thread.run(producer._core.routes.route(topic, fresh=True), PATIENCE)
    assert {queue.sys_flag for queue in route.queues} == {1}


def test_a_template_that_does_not_exist_makes_no_topic(metaq_broker):
    """createTopicKey takes effect: there is nothing to copy, so it fails, and says of which topic."""
    topic = f"unmade_{os.getpid()}_{next(_names)}"
    with (
        Producer(metaq_broker.namesrv, create_topic_key="NO_SUCH_TEMPLATE") as producer,
        pytest.raises(metaq.NoRoute, match=topic),
    ):
        producer.send(topic, b"x")


def test_release_of_the_last_user_ends_a_core(cluster):
    """Whatever options its users had."""
    one = cores.acquire(cluster.namesrv, client_options(instance_name="last"))
    two = cores.acquire(cluster.namesrv, client_options(instance_name="last", heartbeat_broker_interval=5))
    assert one is two
    one.thread.run(cores.release(one, client_options(instance_name="last")), PATIENCE)
    assert one in cores._cores.values()
    one.thread.run(cores.release(two, client_options(instance_name="last", heartbeat_broker_interval=5)), PATIENCE)
    assert one not in cores._cores.values()
