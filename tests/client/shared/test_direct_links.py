"""Sends that their threads carry by themselves: as the loop's in everything that one can tell, and of no harm to it."""

from __future__ import annotations

import _thread
import asyncio
import functools
import itertools
import logging
import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import metaq
from metaq import Producer, SendStatus
from metaq.client.conversation.latency import LATENCIES_MS
from metaq.client.producing.direct import LARGE_BYTES
from metaq.client.shared import direct_links as links
from metaq.client.shared.messages import queue_for_key
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ClientClosed, ConfigError, InvalidMessage, SendFailed
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.net.dialer import dial
from metaq.net.listener import listen
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, reply, request
from tests.client.cluster import FakeCluster, Session, _send, refuse, swallow
from tests.effort import repeats
from tests.net.layers import ChangingLayer
from tests.support import PATIENCE, eventually

SINGLE = RequestCode.SEND_MESSAGE_V2
SHORT = 0.2
"""Seconds of a time-out that is meant to be reached."""
SLOW_SECONDS = LATENCIES_MS[2] / 1000 + 0.01
"""An answer that takes so long has its broker avoided."""


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        yield running


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """A direct link opens for the first send that would use it."""
    monkeypatch.setattr(links, "WISHES", 1)


def with_fast_paths(producer: Producer, topic: str = "orders") -> Producer:
    """Once there is a direct link to each broker of the topic, and the topic's sends use it."""
    addresses = {f"127.0.0.1:{port}" for port in CLUSTERS[-1].ports[:-1]}
    eventually(
        lambda: producer.send(topic, b"opens the direct link") and ready(producer).keys() >= addresses,
        what="direct links",
    )
    return producer


CLUSTERS: list[FakeCluster] = []


@pytest.fixture(autouse=True)
def known(request):
    """`with_fast_paths` finds the cluster of the test."""
    if "cluster" in request.fixturenames:
        CLUSTERS.append(request.getfixturevalue("cluster"))
    yield
    CLUSTERS.clear()


def ready(producer: Producer) -> dict[str, links.DirectLink]:
    return producer._core.links.ready


@pytest.fixture
def producer(cluster):
    with Producer(cluster.namesrv, timeout=PATIENCE) as made:
        with_fast_paths(made)
        cluster.seen.clear()
        cluster.stored.clear()
        WATCHED.clear()
        yield made


def on_fast_paths(cluster: FakeCluster) -> list[Session]:
    """Connections that a heartbeat did not begin."""
    return [session for session in cluster.sessions_to_broker() if session.first != RequestCode.HEART_BEAT]


def carried(cluster: FakeCluster) -> int:
    """How many sends came on direct links since `watch`."""
    return sum(session.first != RequestCode.HEART_BEAT for session, _ in WATCHED)


WATCHED: list[tuple[Session, Command]] = []


@pytest.fixture
def watched(cluster):
    """Every single send is noted with its connection."""
    WATCHED.clear()

    def note(session: Session, command: Command) -> object:
        WATCHED.append((session, command))
        return NotImplemented

    cluster.script[SINGLE] = note


def bodies(cluster: FakeCluster, topic: str = "orders") -> list[bytes]:
    return [body for (name, _), log in cluster.stored.items() if name == topic for _, body, _ in log]


# ---------------------------------------------------------------- where sends go


def test_a_thread_that_sends_one_after_the_other_gets_a_direct_link(cluster, monkeypatch):
    """Not before it has sent so often; it is one for the process, beside the connection with the heartbeat."""
    monkeypatch.setattr(links, "WISHES", 5)
    with Producer(cluster.namesrv, timeout=PATIENCE) as producer, Producer(cluster.namesrv, timeout=PATIENCE) as other:
        for _ in range(5):
            producer.send("orders", b"x")  # the first of them asks for the route
        assert cluster.accepted == 2
        other.send("orders", b"x")
        eventually(lambda: ready(producer))
        assert ready(producer) is ready(other)
        for _ in range(20):
            producer.send("orders", b"x")
            other.send("orders", b"x")
        assert cluster.accepted == 3
        assert len(on_fast_paths(cluster)) == 1
    eventually(lambda: not cluster.sessions, what="all connections are closed")


def test_the_direct_link_carries_sends_and_the_loop_nothing(cluster, watched, producer):
    """From its first use on; receipts say where each message is."""
    receipts = [producer.send("orders", b"%d" % number, tag="t" if number % 2 else None) for number in range(40)]
    assert carried(cluster) == len(WATCHED) == 40
    for number, receipt in enumerate(receipts):
        _, body, text = cluster.stored["orders", receipt.queue.queue_id][receipt.offset]
        found = props.parse(text.decode())
        assert (body, found["UNIQ_KEY"]) == (b"%d" % number, receipt.message_id)
        assert found.get("TAGS") == ("t" if number % 2 else None)
        assert receipt.status is SendStatus.SEND_OK
        assert int(receipt.offset_id, 16) == receipt.offset
    assert len({receipt.message_id for receipt in receipts}) == 40
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}


MESSAGES = [
    {"keys": ["42", "x"], "tag": "paid"},
    {"flag": 7, "properties": {"own": "wert ü \"'\\"}},
    {"delay_level": 3},
    {"wait_store_ok": False},
    {"body": b"a" * 10_000},
    {"body": os.urandom(20_000)},
    {"body": os.urandom(1 << 20)},
    {"ordering_key": "k"},
    {"ordering_key": "k", "tag": "%d%s"},
    {"queue": MessageQueue("orders", "broker-a", 2)},
    {"selector": lambda queues: queues[3]},
    {"message_id": "7F0000010000ABCD00000000000100FF"},
    {"timeout": 60.0, "tag": "ü"},
    {"body": memoryview(b"view")},
]


@pytest.mark.parametrize("options", MESSAGES, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("namespace", ["", "tenant"])
def test_what_is_stored_is_the_same_by_direct_link_and_by_loop(cluster, watched, options, namespace):
    """Whatever a message has; but for its id and its queue, if nobody says which."""
    names = {"orders": 4, "tenant%orders": 4}
    cluster.topics = names
    stored, ways = [], []
    for wishes in (1, 1_000_000):
        links.WISHES = wishes
        more = {"namespace": namespace} if namespace else {}
        with Producer(cluster.namesrv, timeout=PATIENCE, instance_name=f"w{wishes}", **more) as producer:
            if wishes == 1:
                with_fast_paths(producer)
            else:
                producer.send("orders", b"the route")
            cluster.stored.clear()
            WATCHED.clear()
            given = dict(options)
            receipt = producer.send("orders", given.pop("body", b"body"), **given)
            ways.append(carried(cluster))
            assert receipt.queue.topic == "orders"
        [((topic, queue_id), [(flag, body, text)])] = cluster.stored.items()
        assert (topic, queue_id) == (f"{namespace}%orders" if namespace else "orders", receipt.queue.queue_id)
        found = props.parse(text.decode())
        assert found.pop("UNIQ_KEY") == receipt.message_id == options.get("message_id", receipt.message_id)
        if not options.keys() & {"ordering_key", "queue", "selector"}:
            queue_id = None
        command = WATCHED[-1][1]
        others = {key: value for key, value in command.ext.items() if key not in "egi"}
        stored.append((topic, queue_id, flag, body, found, others))
    assert ways == [0 if len(options.get("body", b"")) > LARGE_BYTES else 1, 0]
    assert stored[0] == stored[1]


@pytest.mark.parametrize(
    ("error", "body", "options"),
    [
        (InvalidMessage, b"", {}),
        (InvalidMessage, bytes(5 << 20), {}),
        (TypeError, "text", {}),
        (TypeError, b"x", {"tag": 5}),
        (TypeError, b"x", {"tag": ["unhashable"]}),
        (InvalidMessage, b"x", {"tag": "a|b"}),
        (InvalidMessage, b"x", {"message_id": "no id"}),
        (ConfigError, b"x", {"timeout": 0}),
        (InvalidMessage, b"x", {"properties": {"own": "v" * 40_000}}),
        (TypeError, b"x", {"flag": "1"}),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_what_cannot_be_sent_is_refused_and_leaves_the_direct_link_free(
    cluster, watched, producer, error, body, options
):
    """As without a direct link; nothing is sent."""
    with pytest.raises(error):
        producer.send("orders", body, **options)
    assert not WATCHED
    producer.send("orders", b"next")
    assert carried(cluster) == 1


def test_a_topic_that_is_no_text_is_a_type_error(producer):
    """Also where the direct link looks at it first."""
    for topic in (5, ["orders"], None):
        with pytest.raises(TypeError):
            producer.send(topic, b"x")


def test_a_new_topic_is_the_loops_until_its_route_is_known(cluster, watched, producer):
    """What automatic creation will make is a guess, which the loop settles."""
    cluster.topics["TBW102"] = 4
    receipt = producer.send("new", b"first")
    assert receipt.offset == 0
    assert carried(cluster) == 0
    cluster.topics["new"] = 2
    eventually(lambda: producer.send("new", b"again") and carried(cluster), what="its own route")
    assert {queue for (topic, queue) in cluster.stored if topic == "new"} <= {0, 1, 2, 3}


def test_routes_that_change_are_followed(cluster, producer):
    """The list of queues is that of the newest route."""
    cluster.topics["orders"] = 1
    asyncio.run_coroutine_threadsafe(producer._core.routes.refresh(), producer._core.thread.loop).result(PATIENCE)
    assert {producer.send("orders", b"x").queue.queue_id for _ in range(8)} == {0}
    assert on_fast_paths(cluster)


# ---------------------------------------------------------------- order


def test_a_send_does_not_overtake_what_was_submitted_before(cluster, producer):
    """Of one key: in the order of the calls, also when batches are under way, linger, or have just ended."""
    sent = []
    for number in range(300):
        body = b"%d" % number
        sent.append(body)
        if number % 7 in {0, 1, 3}:
            producer.submit("orders", body, ordering_key="k")
        else:
            producer.send("orders", body, ordering_key="k")
    queue = queue_for_key("k", producer.queues("orders"))
    producer.flush(PATIENCE)
    assert [body for _, body, _ in cluster.stored["orders", queue.queue_id]] == sent


def test_keys_go_where_they_go_without_a_direct_link(cluster, watched, producer):
    """One thread alone: all on the direct link, in order."""
    for number in range(50):
        producer.send("orders", b"%d" % number, ordering_key=f"k{number % 5}")
    assert carried(cluster) == 50
    queues = producer.queues("orders")
    for key in range(5):
        log = cluster.stored["orders", queue_for_key(f"k{key}", queues).queue_id]
        mine = [int(body) for _, body, _ in log if int(body) % 5 == key]
        assert mine == sorted(mine)
        assert len(mine) == 10


# ---------------------------------------------------------------- faults


def test_a_try_that_fails_is_one_of_the_sends_tries(cluster, producer):
    """retries=2 are three tries in all, the direct link's among them."""
    cluster.script[SINGLE] = refuse(ResponseCode.SYSTEM_ERROR)
    with pytest.raises(SendFailed, match="3 tries"):
        producer.send("orders", b"x")
    assert cluster.count(SINGLE) == 3
    cluster.script.clear()
    assert producer.send("orders", b"x").status is SendStatus.SEND_OK


def test_a_refusal_for_good_is_raised_as_it_is(cluster, watched, producer):
    """And the direct link is well."""
    link = dict(ready(producer))
    for size in (10, 5000):
        cluster.script[SINGLE] = refuse(ResponseCode.MESSAGE_ILLEGAL, "too odd", times=1)
        with pytest.raises(BrokerError, match="too odd"):
            producer.send("orders", bytes(size))
    assert cluster.count(SINGLE) == 2
    assert ready(producer) == link


def test_a_busy_broker_is_waited_for(cluster, producer):
    """It costs no try."""
    cluster.script[SINGLE] = refuse(ResponseCode.SYSTEM_BUSY, times=6)
    assert producer.send("orders", b"x").status is SendStatus.SEND_OK
    assert cluster.count(SINGLE) == 7


def test_the_time_is_that_of_all_tries(cluster, producer):
    """Nobody answers: the send fails when its seconds are over, and says how it ended."""
    cluster.script[SINGLE] = swallow
    began = SYSTEM.monotonic()
    with pytest.raises(
        SendFailed, match=r"timeout of 0\.2 s.*did not answer 310 SEND_MESSAGE_V2 within 0\.2 s"
    ) as caught:
        producer.send("orders", b"x", timeout=SHORT)
    assert SYSTEM.monotonic() - began >= SHORT
    assert cluster.count(SINGLE) == 1  # the direct link's: no time is left for another
    assert "unknown" in str(caught.value)
    assert not ready(producer)  # what comes on it now would be nobody's answer
    cluster.script.clear()
    with_fast_paths(producer)


def test_a_broker_that_drops_the_connection_is_met_again(cluster, producer):
    """The try counts, the next one goes by the loop, and a direct link opens again."""
    dropped = []

    def drop(session: Session, command: Command) -> object:
        if not dropped:
            dropped.append(session)
            session.peer.abort("the test says so")
            return None
        return NotImplemented

    cluster.script[SINGLE] = drop
    receipt = producer.send("orders", b"once")
    assert dropped[0].first != RequestCode.HEART_BEAT
    assert bodies(cluster) == [b"once"]
    assert receipt.status is SendStatus.SEND_OK
    with_fast_paths(producer)


def test_a_direct_link_that_was_closed_while_nobody_looked_is_not_used(cluster):
    """It is looked at after a pause: no send is lost on it, or needs another try."""
    with Producer(cluster.namesrv, timeout=PATIENCE, retries=0) as producer:
        for number in range(10):
            with_fast_paths(producer)
            eventually(lambda: len(on_fast_paths(cluster)) == 1, what="the peer has accepted it")
            [link], [session] = ready(producer).values(), on_fast_paths(cluster)
            cluster._loop.call_soon_threadsafe(session.peer.abort, "the test says so")
            eventually(lambda link=link: link.stream.stale)
            link.used_at -= 2 * links.LOOK_AT_SECONDS
            producer.send("orders", b"%d" % number)
    mine = [body for body in bodies(cluster) if body != b"opens the direct link"]
    assert sorted(mine) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("another", [True, False])
def test_a_status_is_a_result_or_a_reason_for_another_broker(another):
    """`retry_another_broker_when_not_store_ok`, with two brokers of which one keeps no promise."""

    def late(session: Session, command: Command) -> Command:
        answer = _send(session.cluster, session, command)
        if headers.SendHeader.from_ext(command.ext).broker_name == "broker-a":
            answer.code = SendStatus.FLUSH_DISK_TIMEOUT.value
        return answer

    with FakeCluster(brokers=2) as cluster:
        CLUSTERS.append(cluster)
        options = {"retry_another_broker_when_not_store_ok": another}
        with Producer(cluster.namesrv, timeout=PATIENCE, **options) as producer:
            with_fast_paths(producer)
            cluster.script[SINGLE] = late
            receipts = [producer.send("orders", b"x") for _ in range(16)]
    told = {receipt.status for receipt in receipts}
    assert told == ({SendStatus.SEND_OK} if another else {SendStatus.SEND_OK, SendStatus.FLUSH_DISK_TIMEOUT})


@pytest.mark.parametrize("fault", ["slow", "refuses"])
def test_a_broker_that_is_slow_or_fails_is_avoided(fault):
    """`send_latency_fault_enable` learns from what direct links carry: the first such answer is the last one there."""
    came: list[str] = []

    def act(session: Session, command: Command) -> object:
        came.append(headers.SendHeader.from_ext(command.ext).broker_name or "")
        if came[-1] != "broker-a":
            return NotImplemented
        if fault == "refuses":
            return reply(command, ResponseCode.SYSTEM_ERROR, remark="not me")
        cluster._loop.call_later(SLOW_SECONDS, session.peer.write, encode(_send(cluster, session, command)))
        return None

    with FakeCluster(brokers=2) as cluster:
        CLUSTERS.append(cluster)
        with Producer(cluster.namesrv, timeout=PATIENCE, send_latency_fault_enable=True) as producer:
            with_fast_paths(producer)
            latencies = producer._sender.latencies
            latencies._seen.clear()  # of what was slow because this machine is
            answered = latencies.answered
            # broker-b is not slow, whatever else this machine does: the worse of two slow brokers is tried, too.
            latencies.answered = lambda broker, took, now: answered(broker, took * (broker == "broker-a"), now)  # type: ignore[method-assign]
            cluster.script[SINGLE] = act
            for _ in range(24):
                assert producer.send("orders", b"x").status is SendStatus.SEND_OK
            assert came.count("broker-a") == 1
            assert len(on_fast_paths(cluster)) == 2


def test_what_a_broker_asks_on_a_direct_link_is_refused_by_name(cluster, producer):
    """And the answer to the send is found behind it; so it is behind an answer that is too late."""
    asked: list[Session] = []

    def ask_first(session: Session, command: Command) -> object:
        if command.is_response or asked:
            return NotImplemented
        asked.append(session)
        question = request(30077)
        question.opaque = 5
        session.peer.write(encode(question) + encode(reply(Command(SINGLE, opaque=1))))
        return NotImplemented

    cluster.script[SINGLE] = ask_first
    assert producer.send("orders", b"x").offset >= 0
    assert asked[0].first != RequestCode.HEART_BEAT
    eventually(lambda: any(one.is_response and one.opaque == 5 for one in list(cluster.seen)))
    [answer] = [one for one in list(cluster.seen) if one.is_response]
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "30077" in (answer.remark or "")
    assert ready(producer)


WAYS = ("answer", "pieces", "late", "other first", "drop", "half", "garbage", "busy", "refuse", "binary", "no promise")


@settings(max_examples=repeats(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways=st.lists(st.sampled_from(WAYS), min_size=1, max_size=12), threads=st.integers(1, 4))
def test_every_send_has_one_outcome_and_it_is_its_own(ways, threads):
    """Whatever a broker does to its answers: a receipt names the message that is stored there; what failed for good is not
    stored unless its error says that this is unknown; and nobody waits for ever.
    """
    with FakeCluster() as cluster:
        CLUSTERS.append(cluster)
        with Producer(cluster.namesrv, timeout=PATIENCE, retries=3) as producer:
            with_fast_paths(producer)
            cluster.stored.clear()
            turn = itertools.count()

            def act(session: Session, command: Command) -> object:
                way = ways[number] if (number := next(turn)) < len(ways) else "answer"
                if way == "busy":
                    return reply(command, ResponseCode.SYSTEM_BUSY, remark="busy")
                if way == "refuse":
                    return reply(command, ResponseCode.MESSAGE_ILLEGAL, remark="no")
                answer = _send(cluster, session, command)
                if way == "no promise":
                    answer.code = SendStatus.FLUSH_SLAVE_TIMEOUT.value
                if way == "binary":
                    answer.serialize = type(answer.serialize)(1)
                frame = encode(answer)
                if way == "pieces":
                    for at in range(0, len(frame), 50):
                        session.peer.write(frame[at : at + 50])
                elif way == "late":
                    cluster._loop.call_later(0.05, session.peer.write, frame)
                elif way == "other first":
                    session.peer.write(encode(reply(Command(SINGLE, opaque=3), 0)) + frame)
                elif way == "drop":
                    session.peer.abort("the test says so")
                elif way == "half":
                    session.peer.write(frame[: len(frame) // 2])
                    session.peer.close("the test says so")
                elif way == "garbage":
                    session.peer.write(b"\x7f" + frame[1:])
                else:
                    return answer
                return None

            cluster.script[SINGLE] = act
            outcomes: dict[bytes, metaq.SendReceipt | Exception] = {}

            def work(thread: int) -> None:
                for number in range(6):
                    body = b"%d-%d" % (thread, number)
                    try:
                        outcomes[body] = producer.send("orders", body)
                    except metaq.MetaqError as error:
                        outcomes[body] = error

            workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(PATIENCE)
            assert len(outcomes) == 6 * threads
            stored = bodies(cluster)
            for body, outcome in outcomes.items():
                if isinstance(outcome, Exception):
                    assert body not in stored or "unknown" in str(outcome) or isinstance(outcome, BrokerError), outcome
                else:
                    assert cluster.stored["orders", outcome.queue.queue_id][outcome.offset][1] == body
            cluster.script.clear()
            assert producer.send("orders", b"and on").status is SendStatus.SEND_OK


# ---------------------------------------------------------------- many threads, ends, forks


@pytest.mark.parametrize("count", [2, 64])
def test_many_threads_share_a_direct_link(cluster, producer, count):
    """Each receipt is that of its own message, whichever way it took; nothing twice."""
    wrong: list[object] = []

    def work(thread: int) -> None:
        for number in range(40):
            body = b"%d-%d" % (thread, number)
            receipt = producer.send("orders", body)
            _, found, text = cluster.stored["orders", receipt.queue.queue_id][receipt.offset]
            if found != body or receipt.message_id not in text.decode():
                wrong.append((body, found))

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert not wrong
    stored = bodies(cluster)
    assert len(stored) == len(set(stored)) == 40 * count
    assert len(on_fast_paths(cluster)) == 1


def held(cluster: FakeCluster) -> tuple[threading.Event, list[tuple[Session, Command]]]:
    """The next single send is answered when the event is set."""
    come, kept = threading.Event(), []

    def hold(session: Session, command: Command) -> object:
        if kept:
            return NotImplemented
        kept.append((session, command))
        come.set()
        return None

    cluster.script[SINGLE] = hold
    return come, kept


def release(cluster: FakeCluster, kept: list[tuple[Session, Command]]) -> None:
    [(session, command)] = kept
    frame = encode(_send(cluster, session, command))
    cluster._loop.call_soon_threadsafe(session.peer.write, frame)


def test_flush_and_close_wait_for_what_a_thread_carries(cluster):
    """Their sends were handed in before; what comes after `close` is refused."""
    producer = Producer(cluster.namesrv, timeout=PATIENCE)
    with_fast_paths(producer)
    come, kept = held(cluster)
    receipts: list[metaq.SendReceipt] = []
    sending = threading.Thread(target=lambda: receipts.append(producer.send("orders", b"held")), daemon=True)
    sending.start()
    assert come.wait(PATIENCE)
    with pytest.raises(metaq.RequestTimeout):
        producer.flush(SHORT)
    done: list[int] = []

    def close() -> None:
        producer.flush(PATIENCE)
        done.append(len(receipts))
        producer.close(PATIENCE)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    eventually(lambda: producer._accumulator.waiting_for_carried, what="the flush waits")
    assert not done
    release(cluster, kept)
    closing.join(PATIENCE)
    sending.join(PATIENCE)
    assert not closing.is_alive()
    assert [receipt.status for receipt in receipts] == [SendStatus.SEND_OK]
    with pytest.raises(ClientClosed):
        producer.send("orders", b"late")
    eventually(lambda: not cluster.sessions)


def test_a_failing_send_of_a_closing_producer_gets_its_other_tries(cluster):
    """`close` waits for the loop that goes on with it."""
    producer = Producer(cluster.namesrv, timeout=PATIENCE)
    with_fast_paths(producer)
    come, kept = held(cluster)
    receipts: list[metaq.SendReceipt] = []
    sending = threading.Thread(target=lambda: receipts.append(producer.send("orders", b"held")), daemon=True)
    sending.start()
    assert come.wait(PATIENCE)
    closing = threading.Thread(target=lambda: producer.close(PATIENCE), daemon=True)
    closing.start()
    eventually(lambda: not producer._open)
    cluster._loop.call_soon_threadsafe(kept[0][0].peer.abort, "the test says so")
    sending.join(PATIENCE)
    closing.join(PATIENCE)
    assert [receipt.status for receipt in receipts] == [SendStatus.SEND_OK]
    assert bodies(cluster).count(b"held") == 1


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_send_and_nothing_else(cluster, producer):
    """Ctrl-C while the broker thinks: KeyboardInterrupt at once, the direct link is gone, and sends, flush and close go on."""
    come, _ = held(cluster)
    thread = threading.Thread(target=lambda: (come.wait(PATIENCE), _thread.interrupt_main()), daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        producer.send("orders", b"interrupted")
    thread.join(PATIENCE)
    assert not ready(producer)
    assert producer.send("orders", b"next").offset >= 0
    producer.flush(PATIENCE)
    with_fast_paths(producer)


def test_a_child_process_has_no_direct_links_of_its_parents(cluster, watched, producer):
    """It is told so; and the parent's goes on."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with pytest.raises(metaq.ClientForked):
                producer.send("orders", b"child")
            with pytest.raises(metaq.ClientForked):
                producer.send("orders", b"child", keys="k")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.send("orders", b"parent")
    assert bodies(cluster) == [b"parent"]
    assert carried(cluster) == 1


def test_a_full_buffer_holds_sends_up(cluster):
    """`max_pending_bytes` counts what the loop has; a direct link is no way round it."""
    options = {"max_pending_bytes": 1000, "batch_bytes": 2000, "when_full": "raise"}
    with Producer(cluster.namesrv, timeout=PATIENCE, **options) as producer:
        with_fast_paths(producer)
        kept: list[tuple[Session, Command]] = []
        cluster.script[RequestCode.SEND_BATCH_MESSAGE] = lambda session, command: kept.append((session, command))
        with pytest.raises(metaq.BufferFull):
            while True:
                producer.submit("orders", bytes(200))
        with pytest.raises(metaq.BufferFull):
            producer.send("orders", b"x")
        eventually(lambda: kept)
        del cluster.script[RequestCode.SEND_BATCH_MESSAGE]
        for session, command in kept:
            cluster._loop.call_soon_threadsafe(session.peer.write, encode(_send(cluster, session, command)))


def test_direct_links_that_nobody_uses_are_closed(cluster, producer):
    """And those to brokers that no route mentions."""
    core = producer._core

    def poll() -> None:
        asyncio.run_coroutine_threadsafe(core._poll_routes(), core.thread.loop).result(PATIENCE)

    poll()
    [link] = ready(producer).values()
    link.used_at -= 2 * links.IDLE_SECONDS
    poll()
    assert not ready(producer)
    eventually(lambda: not on_fast_paths(cluster))
    with_fast_paths(producer)


def test_a_direct_link_that_cannot_be_opened_costs_nothing(cluster, monkeypatch):
    """It is tried again after a while, and sends go by the loop meanwhile."""
    tried = []

    async def fail(peer, address, timeout, clock, tls=None):
        tried.append(address)
        raise metaq.ConnectionFailed("the test says so")

    monkeypatch.setattr(links, "dial_direct", fail)
    with Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        for _ in range(20):
            assert producer.send("orders", b"x").status is SendStatus.SEND_OK
        eventually(lambda: tried)
        assert len(tried) <= 1 + 20
        monkeypatch.setattr(links, "AGAIN_SECONDS", 0.0)
        monkeypatch.undo()
        producer._core.links._not_before.clear()
        monkeypatch.setattr(links, "WISHES", 1)
        with_fast_paths(producer)


def test_behind_a_layer_there_is_no_direct_link(monkeypatch):
    """It would go without: so nobody wishes for one with success, and the loop's connection carries all sends through it."""
    monkeypatch.setattr("metaq.client.shared.transport.dial", functools.partial(dial, layer=ChangingLayer))
    monkeypatch.setattr("tests.client.cluster.listen", functools.partial(listen, layer=ChangingLayer))
    dialled = []
    monkeypatch.setattr(links, "dial_direct", lambda *asked: dialled.append(asked))
    with FakeCluster() as cluster, Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        for _ in range(30):
            assert producer.send("orders", b"x").status is SendStatus.SEND_OK
        core = producer._core
        for address in core.transport.addresses:
            asyncio.run_coroutine_threadsafe(core.links.open(address), core.thread.loop).result(PATIENCE)
        assert core.transport.addresses
        assert not dialled
        assert not ready(producer)
        assert bodies(cluster) == [b"x"] * 30


# ---------------------------------------------------------------- who watches


def test_the_message_log_tells_of_sends_on_direct_links(cluster, watched, caplog):
    """A line each, as of those that the loop sends."""
    caplog.set_level(logging.INFO, "metaq.messages")
    with Producer(cluster.namesrv, timeout=PATIENCE, message_log=True) as producer:
        with_fast_paths(producer)
        WATCHED.clear()
        receipt = producer.send("orders", b"told", keys="k1")
        assert carried(cluster) == 1
        eventually(lambda: any("key k1" in line and receipt.message_id in line for line in caplog.messages))
        cluster.script[SINGLE] = refuse(ResponseCode.MESSAGE_ILLEGAL, "too odd")
        with pytest.raises(BrokerError):
            producer.send("orders", b"refused", keys="k2")
        eventually(lambda: any("not sent" in line and "key k2" in line for line in caplog.messages))


def test_a_real_broker_gets_each_message_once(metaq_broker):
    """Over direct links and loop, from several threads; a consumer finds exactly what was acknowledged."""
    topic, count, threads = "direct-links-of-a-real-broker", 100, 6
    receipts: list[metaq.SendReceipt] = []
    with Producer(metaq_broker.namesrv, timeout=PATIENCE) as producer:
        eventually(lambda: producer.send(topic, b"opens the direct link") and ready(producer), what="a direct link")

        def work(thread: int) -> None:
            receipts.extend(
                producer.send(topic, b"%d-%d" % (thread, number), tag="odd" if number % 2 else None)
                for number in range(count)
            )

        workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
    assert len({(receipt.queue, receipt.offset) for receipt in receipts}) == count * threads
    where = {(receipt.queue, receipt.offset): receipt.message_id for receipt in receipts}
    with metaq.Reader(metaq_broker.namesrv, topic) as reader:
        stored = (reader.receive(PATIENCE) for _ in range(sum(map(len, reader.ranges().values()))))
        found = [one for one in stored if one is not None and one.body != b"opens the direct link"]
    assert {(one.queue, one.queue_offset): one.message_id for one in found} == where
    assert sorted(one.body for one in found) == sorted(b"%d-%d" % (t, n) for t in range(threads) for n in range(count))
