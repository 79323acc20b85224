"""The producer's contracts, against a scripted cluster."""

from __future__ import annotations

import ast
import gc
import inspect
import os
import textwrap
import threading
import warnings
from collections.abc import Callable

import pytest

import metaq
from metaq import Message, Producer, SendStatus
from metaq.client.shared.messages import is_plain, queue_for_key
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.message import COMPRESSION_ZLIB, SysFlag
from metaq.wire import compression, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.client.cluster import FakeCluster, refuse, swallow
from tests.support import PATIENCE, eventually

SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        yield running


@pytest.fixture
def producer(cluster):
    with Producer(cluster.namesrv, instance_name="test", linger=0.002) as made:
        yield made


def stored(cluster: FakeCluster, topic: str = "orders") -> list[tuple[int, bytes, dict[str, str]]]:
    return [
        (flag, body, props.parse(text.decode()))
        for (name, _), log in cluster.stored.items()
        if name == topic
        for flag, body, text in log
    ]


def test_send_returns_where_the_message_is(cluster, producer):
    """The receipt has id, queue, offset and status; tag and keys travel as properties."""
    receipt = producer.send("orders", b"hello", tag="paid", keys=["42", "x"])
    assert receipt.status is SendStatus.SEND_OK
    assert receipt.offset == 0
    assert receipt.queue.broker == "broker-a"
    [(_, body, properties)] = stored(cluster)
    assert body == b"hello"
    assert properties == {"TAGS": "paid", "KEYS": "42 x", "WAIT": "true", "UNIQ_KEY": receipt.message_id}


def test_each_submit_gets_its_own_receipt_from_few_requests(cluster, producer):
    """A thousand submits are stored by a handful of batches; ids and offsets are each message's own."""
    futures = [producer.submit("orders", b"%d" % number) for number in range(1000)]
    receipts = [future.result(PATIENCE) for future in futures]
    assert len({receipt.message_id for receipt in receipts}) == 1000
    assert cluster.count(BATCH) < 60
    for number in (0, 1, 499, 999):
        receipt = receipts[number]
        _, body, text = cluster.stored["orders", receipt.queue.queue_id][receipt.offset]
        assert body == b"%d" % number
        assert receipt.message_id in text.decode()
        assert int(receipt.offset_id, 16) == receipt.offset


def test_str_body_is_a_type_error(producer):
    """Only the sender knows its encoding."""
    producer.send("orders", b"opens the direct link")
    for send in (producer.submit, producer.send):
        with pytest.raises(TypeError, match="encode"):
            send("orders", "text")


def test_bodies_that_brokers_refuse_are_refused_at_once(producer):
    """An empty body and one above the limit raise before anything is sent."""
    with pytest.raises(metaq.MetaqError, match="empty"):
        producer.submit("orders", b"")
    with pytest.raises(metaq.MetaqError, match="max_message_bytes"):
        producer.submit("orders", bytes(4 * 1024 * 1024 + 1))


def test_message_objects_carry_everything(cluster, producer):
    """Flag and own properties survive the batch."""
    message = Message("orders", b"x", tag="t", flag=7, properties={"colour": "red"})
    assert producer.submit(message).result(PATIENCE).offset == 0
    [(flag, _, properties)] = stored(cluster)
    assert flag == 7
    assert properties["colour"] == "red"


def test_message_that_does_not_wait_goes_alone_and_says_so(cluster, producer):
    """A1: wait_store_ok=False travels as WAIT=false, which a broker with SYNC_FLUSH reads; without it nothing is said."""
    assert producer.submit("orders", b"x", wait_store_ok=False).result(PATIENCE).offset == 0
    producer.send("orders", b"y", queue=producer.queues("orders")[0])
    waits = {body: properties.get("WAIT") for _, body, properties in stored(cluster)}
    assert waits[b"x"] == "false"
    assert waits[b"y"] != "false"


def test_large_properties_go_alone_and_too_large_ones_are_refused(cluster):
    """They need not fit a batch; above the format's 32 767 bytes they are an error here."""
    with Producer(cluster.namesrv, batch_bytes=5_000) as producer:
        assert producer.submit("orders", b"x", properties={"a": "b" * 20_000}).result(PATIENCE).offset == 0
        with pytest.raises(metaq.MetaqError, match="32767"):
            producer.submit("orders", b"x", properties={"a": "b" * 40_000})
    assert cluster.count(SINGLE) == 1


def test_large_bodies_go_compressed_and_alone(cluster, producer):
    """From `compress_over` bytes on, one request with the zlib flag."""
    producer.send("orders", b"a" * 10_000)
    [command] = [command for command in cluster.seen if command.code == SINGLE]
    header = headers.SendHeader.from_ext(command.ext)
    assert header.sys_flag == SysFlag.COMPRESSED | COMPRESSION_ZLIB
    assert compression.decompress(command.body, header.sys_flag, 20_000) == b"a" * 10_000


def test_delayed_messages_bypass_the_accumulator(cluster, producer):
    """A delay level cannot be in a batch: the message goes alone, at once."""
    futures = [producer.submit("orders", b"x", delay_level=3) for _ in range(3)]
    for future in futures:
        future.result(PATIENCE)
    assert cluster.count(SINGLE) == 3
    assert cluster.count(BATCH) == 0


def test_ordering_key_keeps_queue_and_order(cluster, producer):
    """All messages of a key are in one queue, in the order of their submits."""
    futures = [producer.submit("orders", b"%d" % number, ordering_key=f"k{number % 5}") for number in range(500)]
    queues = {future.result(PATIENCE).queue for future in futures[::5]}
    assert len(queues) == 1
    [queue] = queues
    bodies = [int(body) for _, body, _ in cluster.stored["orders", queue.queue_id] if int(body) % 5 == 0]
    assert bodies == sorted(bodies)


def test_ordering_key_keeps_order_over_resends(cluster, producer):
    """While a batch of a key is sent again, later ones wait."""
    producer.send("orders", b"0", ordering_key="k")
    cluster.script[BATCH] = cluster.script[SINGLE] = refuse(ResponseCode.SYSTEM_ERROR, times=2)
    futures = [producer.submit("orders", b"%d" % number, ordering_key="k") for number in range(1, 200)]
    queue = futures[-1].result(PATIENCE).queue
    bodies = [int(body) for _, body, _ in cluster.stored["orders", queue.queue_id]]
    assert bodies == list(range(200))


def test_key_goes_where_java_would_send_it():
    """The hash is Java's."""
    queues = [MessageQueue("t", "b", number) for number in range(7)]
    assert queue_for_key("hello world", queues).queue_id == 1794106052 % 7
    assert queue_for_key("polygenelubricants", queues).queue_id == 2147483648 % 7


def test_selector_and_queue_choose(cluster, producer):
    """A selector sees the writable queues; an explicit queue is that very one."""
    assert producer.send("orders", b"x", selector=lambda queues: queues[2]).queue.queue_id == 2
    assert producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 3)).queue.queue_id == 3
    with pytest.raises(metaq.ConfigError, match="not one of topic"):
        producer.send("orders", b"x", queue=MessageQueue("other", "broker-a", 3))


def test_batch_is_one_request(cluster, producer):
    """send_batch is contiguous in one queue; what cannot be one request is refused."""
    receipts = producer.send_batch(Message("orders", b"%d" % number) for number in range(10))
    assert [receipt.offset for receipt in receipts] == list(range(10))
    assert len({receipt.queue for receipt in receipts}) == 1
    assert cluster.count(BATCH) == 1
    for wrong in ([], [Message("orders", b"1"), Message("other", b"2")], [Message("orders", b"1", delay_level=1)]):
        with pytest.raises(metaq.ConfigError):
            producer.send_batch(wrong)


def test_resend_keeps_the_unique_id(cluster, producer):
    """A try that failed and the one that succeeded carry one id."""
    cluster.script[SINGLE] = refuse(ResponseCode.SYSTEM_ERROR, times=2)
    receipt = producer.send("orders", b"x")
    sent = [command for command in cluster.seen if command.code == SINGLE]
    assert len(sent) == 3
    assert {props.parse(command.ext["i"])["UNIQ_KEY"] for command in sent} == {receipt.message_id}


def test_failed_message_can_be_sent_again_under_its_id(cluster, producer):
    """`message_id` of a failed future makes a later send recognizable."""
    cluster.script[SINGLE] = refuse(ResponseCode.SYSTEM_ERROR, times=3)
    failed = producer.submit("orders", b"x", delay_level=1)
    with pytest.raises(metaq.SendFailed, match="3 tries"):
        failed.result(PATIENCE)
    assert producer.send("orders", b"x", message_id=failed.message_id).message_id == failed.message_id


def test_retries_go_to_another_broker():
    """The queue of the next try is not on the broker that failed."""
    with FakeCluster(brokers=3) as cluster, Producer(cluster.namesrv) as producer:
        tried = []

        def fail_first(session, command):
            tried.append(session.broker)
            return (
                reply(command, ResponseCode.SERVICE_NOT_AVAILABLE, remark="full") if len(tried) < 3 else NotImplemented
            )

        cluster.script[SINGLE] = fail_first
        producer.send("orders", b"x")
        assert len(tried) == 3
        assert tried[0] != tried[1]
        assert tried[1] != tried[2]


def test_refusal_that_no_try_can_mend_is_told_at_once(cluster, producer):
    """Code 13 is not retried, and its text reaches the caller."""
    cluster.script[SINGLE] = refuse(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")
    with pytest.raises(metaq.BrokerError, match="illegal") as caught:
        producer.send("orders", b"x")
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert cluster.count(SINGLE) == 1


def test_one_illegal_message_does_not_fail_its_batch(cluster, producer):
    """A batch refused as illegal is sent one by one: the others are stored, the culprit alone fails."""
    cluster.script[BATCH] = refuse(ResponseCode.MESSAGE_ILLEGAL)
    cluster.script[SINGLE] = lambda session, command: (
        reply(command, ResponseCode.MESSAGE_ILLEGAL, remark="bad") if command.body == b"bad" else NotImplemented
    )
    futures = [producer.submit("orders", body) for body in (b"1", b"bad", b"3")]
    assert futures[0].result(PATIENCE).message_id == futures[0].message_id
    assert isinstance(futures[1].exception(PATIENCE), metaq.BrokerError)
    assert futures[2].result(PATIENCE).queue.topic == "orders"


def test_stored_with_a_promise_missed_is_a_status(cluster, producer):
    """10, 11 and 12 are results, not errors."""
    for code, status in ((10, SendStatus.FLUSH_DISK_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE)):
        said = headers.SendReplyHeader(message_id="A", queue_id=1, queue_offset=5).to_ext()
        cluster.script[SINGLE] = lambda session, command, code=code, said=said: reply(command, code, said)
        assert producer.send("orders", b"x").status is status


def test_busy_broker_is_waited_for(cluster, producer):
    """SYSTEM_BUSY costs no try as long as there is time."""
    cluster.script[SINGLE] = refuse(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy", times=10)
    assert producer.send("orders", b"x").offset == 0
    assert cluster.count(SINGLE) == 11


def test_silent_broker_fails_the_send_in_time(cluster):
    """`timeout` holds for all tries together, and the error says what is unknown."""
    cluster.script[SINGLE] = swallow
    with Producer(cluster.namesrv, timeout=0.3) as producer, pytest.raises(metaq.SendFailed, match="unknown"):
        producer.send("orders", b"x")


def test_broken_connection_is_dialled_again(cluster, producer):
    """A send that loses its connection is tried on a new one."""
    producer.send("orders", b"1")
    broke = []

    def break_once(session, command):
        if broke:
            return NotImplemented
        broke.append(session)
        session.peer.abort("the test says so")
        return None

    cluster.script[SINGLE] = break_once
    assert producer.send("orders", b"2").offset >= 0
    assert broke


def test_unknown_topic_says_what_to_do(cluster, producer):
    """No route, no template: the error names topic, name server and the command that helps."""
    with pytest.raises(
        metaq.NoRoute, match=r"no route for topic nosuch at name servers 127.*metaq topic create nosuch"
    ):
        producer.send("nosuch", b"x")


def test_unknown_topic_is_created_by_template(cluster, producer):
    """With TBW102 known, an unknown topic is sent to with at most four queues."""
    cluster.topics["TBW102"] = 8
    queue = producer.send("fresh", b"x").queue
    assert queue.topic == "fresh"
    assert queue.queue_id < 4


def test_name_server_down_is_named():
    """Nobody listens: the error says which addresses were tried."""
    with Producer("127.0.0.1:1", timeout=1.0) as producer, pytest.raises(metaq.SendFailed, match=r"127\.0\.0\.1:1"):
        producer.send("orders", b"x")


def test_missing_address_names_the_ways_to_give_one(monkeypatch):
    """Neither argument nor NAMESRV_ADDR."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(metaq.ConfigError, match="NAMESRV_ADDR"):
        Producer()


def test_names_are_checked(cluster, producer):
    """A topic with a path in it never leaves the process."""
    for name in ("../x", "a/b", "", "a" * 128):
        with pytest.raises(metaq.ConfigError):
            producer.submit(name, b"x")


def test_full_buffer_raises_when_told_to(cluster):
    """`when_full="raise"`: BufferFull names the limit; nothing was queued."""
    cluster.script[BATCH] = cluster.script[SINGLE] = swallow
    limits = {"max_pending_bytes": 10_000, "batch_bytes": 5_000, "when_full": "raise", "timeout": 0.5}
    with Producer(cluster.namesrv, **limits) as producer, pytest.raises(metaq.BufferFull, match="max_pending_bytes"):
        for _ in range(1000):
            producer.submit("orders", bytes(100))


def test_full_buffer_blocks_until_there_is_room(cluster):
    """`when_full="block"`: a submit waits, and goes on when acknowledgements come."""
    gate = threading.Event()
    cluster.script[BATCH] = lambda session, command: gate.wait(PATIENCE) and NotImplemented
    with Producer(cluster.namesrv, max_pending_bytes=10_000, batch_bytes=5_000, timeout=PATIENCE) as producer:
        done = []

        def work() -> None:
            for _ in range(300):
                producer.submit("orders", bytes(100))
            done.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        eventually(lambda: cluster.count(BATCH) >= 1)
        thread.join(0.2)
        assert not done
        gate.set()
        thread.join(PATIENCE)
        assert done


def test_close_flushes(cluster):
    """Leaving `with` sends what is still lingering; a later send says the producer is closed."""
    with Producer(cluster.namesrv, linger=30.0) as producer:
        futures = [producer.submit("orders", b"%d" % number) for number in range(10)]
    assert all(future.result(0).offset >= 0 for future in futures)
    with pytest.raises(metaq.ClientClosed):
        producer.submit("orders", b"x")


def test_flush_waits_for_everything(cluster):
    """After flush every future is done."""
    with Producer(cluster.namesrv, linger=30.0) as producer:
        futures = [producer.submit("orders", b"x") for _ in range(10)]
        producer.flush(5)
        assert all(future.done() for future in futures)


def test_flush_is_not_held_up_by_later_sends(cluster):
    """It waits for what was submitted before it, however much follows."""
    with Producer(cluster.namesrv) as producer:
        future = producer.submit("orders", b"before")
        stop = threading.Event()

        def keep_sending() -> None:
            while not stop.is_set():
                producer.submit("orders", bytes(1000))

        thread = threading.Thread(target=keep_sending)
        thread.start()
        try:
            producer.flush(10)
            assert future.done()
        finally:
            stop.set()
            thread.join()


def test_forgotten_producer_is_a_resource_warning(cluster):
    """It warns, and still sends what was submitted."""
    producer = Producer(cluster.namesrv, linger=30.0)
    future = producer.submit("orders", b"x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert any(issubclass(warning.category, ResourceWarning) for warning in caught)
    assert future.result(PATIENCE).offset == 0


def test_future_calls_back_and_times_out(cluster, producer):
    """Callbacks run once, also when added late; result(timeout) raises and the send goes on."""
    gate = threading.Event()
    cluster.script[SINGLE] = lambda session, command: gate.wait(PATIENCE) and NotImplemented
    future = producer.submit("orders", b"x")
    called: list[object] = []
    future.add_done_callback(called.append)
    with pytest.raises(metaq.RequestTimeout):
        future.result(0.05)
    assert not future.done()
    assert not future.cancel()
    gate.set()
    assert future.result(PATIENCE)
    eventually(lambda: called == [future])
    future.add_done_callback(called.append)
    assert called == [future, future]
    assert future.exception() is None


def test_callback_that_submits_does_not_deadlock(cluster, producer):
    """A done-callback may submit: it runs in the client's own thread, which never waits for itself."""
    second: list[metaq.SendFuture] = []
    producer.submit("orders", b"1").add_done_callback(lambda _: second.append(producer.submit("orders", b"2")))
    eventually(lambda: second)
    assert second[0].result(PATIENCE)


def test_oneway_waits_for_no_answer(cluster, producer):
    """The request has the oneway flag."""
    producer.send_oneway("orders", b"x", tag="t")
    eventually(lambda: any(command.is_oneway for command in cluster.seen if command.code == SINGLE))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_is_told_and_can_make_its_own(cluster, producer):
    """In a child the parent's producer raises ClientForked, pending futures too; a new producer works."""
    producer.send("orders", b"parent")
    pending = producer.submit("orders", b"pending")
    child = os.fork()
    if not child:
        code = 1
        try:
            try:
                producer.submit("orders", b"child")
            except metaq.ClientForked:
                code = 2
            try:
                if code == 2 and not pending._batch.stored:
                    pending.result(PATIENCE)
            except metaq.ClientForked:
                pass
            producer.close()  # Leaves the parent's connections alone.
            with Producer(cluster.namesrv) as own:
                own.send("orders", b"own")
            if code == 2:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert producer.send("orders", b"parent still").offset >= 0
    assert pending.result(PATIENCE)
    assert {body for _, body, _ in stored(cluster)} == {b"parent", b"pending", b"own", b"parent still"}


def test_clients_of_one_process_share_one_connection_per_broker():
    """A4: five producers with one instance name make one connection each way, one heartbeat, one route request."""
    with FakeCluster() as cluster:
        producers = [Producer(cluster.namesrv, instance_name="shared") for _ in range(5)]
        for producer in producers:
            producer.send("orders", b"x")
        assert cluster.accepted == 2
        assert cluster.count(RequestCode.HEART_BEAT) == 1
        assert cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1
        other = Producer(cluster.namesrv, instance_name="other")
        other.send("orders", b"x")
        assert cluster.accepted == 4
        for producer in [*producers, other]:
            producer.close()
        eventually(lambda: not cluster.sessions)


def test_thirty_two_threads_hammer_one_producer(cluster, producer):
    """A4: every message of every thread is stored once, and each receipt is that of its own message."""
    wrong: list[object] = []

    def work(thread: int) -> None:
        futures = [(number, producer.submit("orders", b"%d-%d" % (thread, number))) for number in range(300)]
        for number, future in futures:
            receipt = future.result(PATIENCE)
            _, body, text = cluster.stored["orders", receipt.queue.queue_id][receipt.offset]
            if body != b"%d-%d" % (thread, number) or receipt.message_id not in text.decode():
                wrong.append((thread, number, body))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    bodies = [body for _, body, _ in stored(cluster)]
    assert len(bodies) == len(set(bodies)) == 32 * 300
    assert cluster.accepted == 2


def test_unknown_push_is_refused_by_name(cluster, producer):
    """Requests of a broker that we do not serve are answered, not ignored."""
    producer.send("orders", b"x")
    from metaq.wire.command import request

    question = request(RequestCode.GET_BROKER_CONFIG)
    question.opaque = 77
    cluster.push(question)
    answer = eventually(lambda: next((command for command in cluster.seen if command.is_response), None))
    assert answer.opaque == 77
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "26" in answer.remark


def test_submit_writes_out_what_is_plain_says():
    """`submit` has the condition of its fast path inline, for speed; it is that of `is_plain`, clause by clause."""

    def clauses(function: Callable[..., object]) -> set[str]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        found = next(node for node in ast.walk(tree) if isinstance(node, ast.BoolOp) and len(node.values) > 5)
        return {ast.unparse(clause) for clause in found.values}

    assert clauses(metaq.Producer.submit) - clauses(is_plain) == {"body is not None", "len(body) < self._short"}
    assert clauses(is_plain) < clauses(metaq.Producer.submit)
