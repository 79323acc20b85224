"""`trace=True`: what producers and consumers tell of their messages, when, and what it may cost."""

from __future__ import annotations

import asyncio

import pytest

import metaq
from metaq import Later, aio
from metaq.admin import Admin, TraceNotFound
from metaq.client.conversation.sending.sending import Outgoing, Stored
from metaq.client.observing.observing import Sends
from metaq.client.observing.tracing import KEYS_BYTES_MAX, Tracer, _messages
from metaq.client.shared.futures import SendBatch
from metaq.client.shared.transport import Transport
from metaq.clock import FakeClock
from metaq.errors import BadRequest, ConfigError, SendFailed
from metaq.model import MessageQueue, SendStatus, StoredMessage
from metaq.model.trace import Begun, Sent
from metaq.wire import compression
from metaq.wire.trace import batch_texts, decode, text_of
from tests.support import eventually

OK = SendStatus.SEND_OK


def told(namesrv, message_id, wanted, **arguments):
    """What of the timeline is asked for: (what, group, result, attempt) of each event, as soon as it is `wanted`."""
    with Admin(namesrv) as admin:

        def probe():
            try:
                found = admin.message_trace(message_id, **arguments)
            except TraceNotFound:
                return False
            shown = sorted((event.what, event.group, event.result, event.attempt) for event in found.events)
            return found if shown == sorted(wanted) else False

        return eventually(probe, what=f"the trace {wanted}")


def test_sends_of_every_kind_are_traced(metaq_broker):
    """One by one, in batches, delayed, with keys; each under its own id."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv, group="tracer", trace=True) as producer:
        one = producer.send("traced-sends", b"12345", tag="t", keys=["k1", "k2"], properties={"colour": "blue"})
        many = [producer.submit("traced-sends", b"x", tag="t") for _ in range(20)]
        batch = producer.send_batch([metaq.Message("traced-sends", b"y"), metaq.Message("traced-sends", b"z")])
        late = producer.send("traced-sends", b"later", delay_level=1)
        long = producer.send("traced-sends", bytes(10_000))
    for message_id in (one.message_id, *(future.message_id for future in many), batch[1].message_id, long.message_id):
        told(namesrv, message_id, [("sent", "tracer", "ok", 0), ("stored", "", "ok", 0)])
    with Admin(namesrv) as admin:
        [sent] = [event for event in admin.message_trace(late.message_id).events if "sent" in event.what]
        assert sent.what == "delayed message sent"
        [sent] = [event for event in admin.message_trace(one.message_id).events if event.what == "sent"]
    assert (sent.topic, sent.detail.endswith("5 bytes")) == ("traced-sends", True)


@pytest.mark.parametrize("orderly", [False, True])
def test_each_delivery_is_traced_with_its_result(metaq_broker, orderly):
    """A failure and the delivery after it; taken with `with`, by a handler, and in lists."""
    topic, namesrv = f"traced-{orderly}", metaq_broker.namesrv
    with metaq.Producer(namesrv, group="p", trace=True) as producer:
        ids = [producer.send(topic, b"m%d" % number, keys="k").message_id for number in range(3)]
    tried = []

    def handler(messages):
        for message in messages:
            if message.body == b"m1" and not tried:
                tried.append(message)
                raise ValueError("once")
        if sum(len(done) for done in seen) + len(messages) >= 3:
            consumer.stop()
        seen.append(messages)

    seen: list[list] = []
    options = {"orderly": orderly, "trace": True, "start": "earliest"}
    with metaq.Consumer(namesrv, group=f"g{orderly}", topics=topic, **options) as consumer:
        consumer.run(handler, batch=1)
    group = f"g{orderly}"
    sent = [("sent", "p", "ok", 0), ("stored", "", "ok", 0)]
    told(namesrv, ids[0], [*sent, ("delivered", group, "ok", 1)])
    with Admin(namesrv) as admin:
        found = admin.message_trace(ids[1])
    deliveries = [(event.result, event.attempt) for event in found.events if event.what == "delivered"]
    assert deliveries == [("failed", 1), ("ok", 2)]


def test_a_message_taken_by_hand_is_traced_when_it_is_settled(metaq_broker):
    """With `with`, ack, retry and an exception; what was not settled has not ended."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv, group="p") as producer:
        ids = {producer.send("by-hand", b"%d" % number).message_id: number for number in range(5)}
    with metaq.Consumer(namesrv, group="g", topics="by-hand", start="earliest", trace=True) as consumer:
        for _ in ids:
            message = consumer.receive()
            match ids[message.message_id]:
                case 0:
                    with message:
                        pass
                case 1:
                    message.ack()
                    message.ack()
                case 2:
                    message.retry(18)
                case 3:
                    with message:
                        raise ValueError
    results = {0: "ok", 1: "ok", 2: "failed", 3: "exception", 4: "not ended"}
    for message_id, number in ids.items():
        told(namesrv, message_id, [("stored", "", "ok", 0), ("delivered", "g", results[number], 1)])


def test_asyncio_traces_the_same(metaq_broker):
    """Sends and deliveries of `metaq.aio`, also in order."""
    namesrv = metaq_broker.namesrv

    async def work():
        async with aio.Producer(namesrv, group="p", trace=True) as producer:
            receipt = await producer.send("traced-aio", b"x")

        async def handler(message):
            consumer.stop()

        for orderly in (False, True):
            options = {"orderly": orderly, "trace": True, "start": "earliest"}
            async with aio.Consumer(namesrv, group=f"aio{orderly}", topics="traced-aio", **options) as consumer:
                await consumer.run(handler)
        return receipt.message_id

    message_id = asyncio.run(work())
    told(namesrv, message_id, [
        ("sent", "p", "ok", 0), ("stored", "", "ok", 0), ("delivered", "aioFalse", "ok", 1), ("delivered", "aioTrue", "ok", 1),
    ])  # fmt: skip


def test_a_transaction_is_traced_to_its_end(metaq_broker):
    """The half message, and how it ended."""
    namesrv = metaq_broker.namesrv
    with metaq.TransactionProducer(namesrv, group="tx", check=lambda _: None, trace=True) as producer:
        with producer.transaction("traced-tx", b"x") as tx:
            pass
        result = producer.send_in_transaction(metaq.Message("traced-tx", b"y"), lambda _: False)
    told(namesrv, tx.id, [("half message sent", "tx", "ok", 0), ("stored", "", "ok", 0), ("committed", "tx", "ok", 0)])
    with Admin(namesrv) as admin:
        assert "rolled back" in [event.what for event in admin.message_trace(result.message_id).events]


def test_traces_go_where_they_are_told(metaq_broker):
    """`trace_topic`, and never into a namespace, where nobody would look for them; their names are those of the user."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv, group="p", trace=True, trace_topic="our-traces", namespace="ns") as producer:
        receipt = producer.send("named", b"x")
    with Admin(namesrv) as admin:
        [event] = admin.message_trace(receipt.message_id, trace_topic="our-traces").events
    assert (event.topic, event.group) == ("named", "p")


def test_a_send_that_failed_is_traced_as_failed(metaq_broker):
    """It has an id, and somebody will look for it."""
    namesrv = metaq_broker.namesrv
    with Admin(namesrv) as admin:
        admin.create_topic("traced-gone", queues=1)
    with metaq.Producer(namesrv, group="p", trace=True, retries=0, timeout=1.0) as producer:
        future = producer.submit("traced-gone", b"x" * 100, queue=MessageQueue("traced-gone", "nobody", 0))
        assert future.exception() is not None
    told(namesrv, future.message_id, [("sent", "p", "failed", 0)])


def test_a_trace_that_cannot_be_written_costs_the_send_nothing(metaq_broker, caplog):
    """Wrong topic, for instance: said in the log, and the send is as it would be."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv, group="p", trace=True, trace_topic="OFFSET_MOVED_EVENT") as producer:
        assert producer.send("traced-all-the-same", b"x").status is OK
    assert "could not be written to topic OFFSET_MOVED_EVENT and are lost" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"trace": "yes"}, TypeError), ({"trace_topic": "a.b"}, ConfigError), ({"trace_rate": 0}, ConfigError),
        ({"trace_rate": 1.5}, TypeError), ({"message_log": 1}, TypeError), ({"message_log_rate": -1}, ConfigError),
        ({"tracing": True}, TypeError),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_at_once(metaq_broker, wrong, error):
    """By producers and consumers."""
    with pytest.raises(error):
        metaq.Producer(metaq_broker.namesrv, **wrong)
    with pytest.raises(error):
        metaq.Consumer(metaq_broker.namesrv, group="g", topics="t", **wrong)


# ---------------------------------------------------------------- limits, without a broker


class Core:
    """What of a client core a tracer needs; what it sends is kept."""

    def __init__(self):
        self.clock, self.client_id = FakeClock(), "10.0.0.1@x"
        self.id_prefixes = self
        self.transport = Transport(clock=self.clock)

    def shared(self):
        return self

    def next(self):
        return b"7F00000100000000000000000000"

    def address_of(self, broker):
        return f"{broker}:10911"


class KeptSends:
    """In place of a sender."""

    def __init__(self, error=None):
        self.sent, self.error = [], error

    async def send(self, outgoing, timeout):
        if self.error is not None:
            raise self.error
        self.sent.append(outgoing)


def tracer(per_second=100, error=None):
    made = Tracer(Core(), "g", "traces", per_second, role="PRODUCE")
    made._sender = KeptSends(error)
    return made


def tell(made, one):
    """As a producer does."""
    if made.wants(one.outgoing, one.batch):
        made.sent(one)


def sends(count, *, topic="t", body=b"x", trace=True):
    batch = SendBatch(b"7F00000100000000000000000001", 1 << 22)
    for _ in range(count):
        batch.add_message(body, None, None)
    taken = batch.take()
    batch.acknowledge(Stored(MessageQueue("t", "b", 0), 5, OK, ",".join("A" * 32 for _ in range(count)), "r", trace))
    return Sends.of(Outgoing(topic, taken, batch=True), batch, 1000, 2)


def records_of(made):
    bodies = [
        compression.decompress(one.body, one.sys_flag, 1 << 20) if one.sys_flag else one.body
        for one in made._sender.sent
    ]
    return [record for body in bodies for record in decode(body).records]


def test_what_is_above_the_rate_is_left_out_and_told(caplog):
    """Of a hundred a second, fifty in half a second and the rest of their batch; the next half second has its own."""
    made = tracer()
    for _ in range(30):
        tell(made, sends(10))
    asyncio.run(made.write())
    assert len(records_of(made)) == 50
    assert "250 messages of group g were not traced: more than trace_rate=100" in caplog.text
    tell(made, sends(10))
    asyncio.run(made.write())
    assert len(records_of(made)) == 60


def test_a_batch_beyond_the_rate_is_paid_for_by_the_next_half_second():
    """It is traced whole, and over time the rate holds."""
    made = tracer()
    traced = []
    for _ in range(10):
        for _ in range(5):
            tell(made, sends(80))
        asyncio.run(made.write())
        traced.append(len(records_of(made)))
    assert traced[0] == 80
    assert traced[-1] <= 10 * 50 + 80


def test_bodies_that_wait_are_bounded():
    """A batch is kept until it is traced: not more than some megabytes of them."""
    made = tracer(per_second=1_000_000)
    for _ in range(100):
        tell(made, sends(1, body=bytes(1 << 20)))
    assert sum(len(one.outgoing.body) for one in made._waiting) < 5 << 20


def test_a_broker_that_wants_no_traces_gets_none():
    """TRACE_ON=false in its answer (`traceOn`)."""
    made = tracer()
    tell(made, sends(3, trace=False))
    asyncio.run(made.write())
    assert made._sender.sent == []


def test_traces_are_not_traced():
    """Whoever consumes the trace topic and traces would do so for ever; by a pattern that is soon done."""
    made = tracer()
    tell(made, sends(3, topic="traces"))
    assert made.begun(StoredMessage(topic="traces", body=b"x")) is None
    assert made.begun(StoredMessage(topic="t", body=b"x", store_host_raw=bytes(8))) is not None
    asyncio.run(made.write())
    assert len(records_of(made)) == 1


def test_after_a_failure_the_rest_is_not_tried():
    """It would wait as long: the traces are lost, and nothing is kept."""
    made = tracer(per_second=1000, error=SendFailed("no", ()))
    tell(made, sends(400))
    tell(made, sends(100))
    asyncio.run(made.write())
    assert not made._waiting
    made._sender.error = None
    tell(made, sends(2))
    asyncio.run(made.write())
    assert len(records_of(made)) == 2


def test_nothing_is_lost_by_a_close_in_the_midst_of_a_writing():
    """What has been taken to be written is written, and what came meanwhile."""

    async def work():
        made, going_on = tracer(per_second=1000), asyncio.Event()
        send, begun = made._sender.send, asyncio.Event()

        async def slow(outgoing, timeout):
            begun.set()
            await going_on.wait()
            await send(outgoing, timeout)

        made._sender.send = slow
        tell(made, sends(150))
        made._ticking = asyncio.create_task(made.write())
        await begun.wait()
        tell(made, sends(10))
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0)
        going_on.set()
        await closing
        return made

    assert len(records_of(asyncio.run(work()))) == 160


def test_records_are_shared_out_over_messages_that_fit():
    """At most 400 in one, 118 000 characters, and keys that fit the properties; one that is larger goes alone."""
    records = [Begun(time_ms=1, request_id="r", message_id=f"id{number}", keys="k") for number in range(1000)]
    found = list(_messages([([text_of(one)], [one.message_id], "k") for one in records]))
    assert [len(decode(body).records) for body, _ in found] == [400, 400, 200]
    assert found[0][1].split().count("k") == 1
    for run in (7, 400, 1000):
        texts, ids = [text_of(one) for one in records], [one.message_id for one in records]
        runs = [(texts[start : start + run], ids[start : start + run], "k") for start in range(0, 1000, run)]
        assert list(_messages(runs)) == found
    long = [(["x" * 60_000 + "\x02"], ["id"], ""), (["y" * 60_000, "z" * 200_000 + "\x02"], ["id2", "id3"], "")]
    assert len(list(_messages(long))) == 3
    for word, message_id in (
        ("w" * 99, "the-id"),
        ("\N{OLD ITALIC LETTER A}" * 99, "\N{GREEK SMALL LETTER MU}" * 9000),
    ):
        lines = [(["x\x02"], [f"{message_id[:7500]}{number}"], word + str(number)) for number in range(1000)]
        found = list(_messages(lines))
        assert sum(body.count(b"\x02") for body, _ in found) == 1000
        assert max(len(keys.encode()) for _, keys in found) <= KEYS_BYTES_MAX
    [(_, keys)] = _messages([(["x\x02"], ["the-id"], " ".join(f"{number:0100}" for number in range(1000)))])
    assert keys.startswith("the-id ")
    assert len(keys) <= KEYS_BYTES_MAX


def test_a_batch_is_traced_like_its_messages_one_by_one():
    """The quick way for whole batches writes what the other writes, whatever is in their properties."""
    made, batch = tracer(), SendBatch(b"7F00000100000000000000000001", 1 << 22)
    for number in range(40):
        batch.add_message(
            b"x" * (number % 3 + 1),
            b"tag" if number % 4 > 1 else None,
            b"k%d w" % (number // 8) if number % 5 else None,
        )
        batch.add(number, b"yy", f"colour\x01blue{number}\x02KEYS\x01a b".encode())
        batch.add(0, b"z", "TAGS\x01\N{GREEK SMALL LETTER MU}\x02INSTANCE_ID\x01ns".encode())
    body = batch.take()
    batch.acknowledge(
        Stored(MessageQueue("t", "b", 0), 5, OK, ",".join(f"{number:032X}" for number in range(100)), "r")
    )
    whole = Sends.of(Outgoing("t", body, batch=True), batch, 1000, 2)
    one_by_one = [(text_of(record), record.message_id, record.keys) for record in made._records(whole)]
    found = [
        (text, message_id, keys)
        for texts, ids, keys in made._lines([whole])
        for text, message_id in zip(texts, ids, strict=True)
    ]
    assert found == one_by_one


@pytest.mark.parametrize("change", ["cut", "size", "body", "properties"])
def test_a_batch_that_is_broken_is_not_read_as_the_one_before(change):
    """The quick way believes nothing of an entry because the one before was well."""
    batch = SendBatch(b"7F00000100000000000000000001", 1 << 22)
    for _ in range(3):
        batch.add_message(b"x" * 9, None, None)
    whole = batch.take()
    body, last = bytearray(whole), len(whole) // 3 * 2
    if change == "cut":
        del body[last + 25 :]
    else:
        place = {"size": last, "body": last + 16, "properties": last + 20 + 9}[change]
        body[place] ^= 0x80
    shared = Sent(time_ms=1, region="r", group="g", topic="t", message_id="")
    assert len(next(batch_texts(shared, whole[:last], batch.prefix, ""))[0]) == 2
    with pytest.raises(BadRequest, match="batch entry 2"):
        next(batch_texts(shared, bytes(body), batch.prefix, ""))


def test_a_listener_that_says_later_is_a_failure(metaq_broker):
    """Not an exception: the same code as a Java listener's RECONSUME_LATER."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv) as producer:
        message_id = producer.send("says-later", b"x").message_id

    def handler(message):
        consumer.stop()
        return Later(18)

    with metaq.Consumer(namesrv, group="later", topics="says-later", start="earliest", trace=True) as consumer:
        consumer.run(handler)
    told(namesrv, message_id, [("stored", "", "ok", 0), ("delivered", "later", "failed", 1)])
