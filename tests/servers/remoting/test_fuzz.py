"""Damaged and invented requests at the broker's server: an answer or the end of that connection, never anything else."""

from __future__ import annotations

import logging
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.client.conversation.staged import staging as calls
from metaq.errors import RemoteProtocolError
from metaq.model import properties as props
from metaq.model.transactions.staging import DecisionOutcome, TransactionDecision
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, SerializeType, encode
from metaq.wire.record import encode_batch
from metaq.wire.staging import DecideBody
from tests import staged
from tests.effort import repeats
from tests.servers.support import Client, pull_header, send_header
from tests.staged import PlannedPart

RELAXED = settings(
    max_examples=repeats(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

PYTHON_ERROR = re.compile(r"^\w+(Error|Exception|Interrupt): ")
"""How the server words an exception that nobody foresaw."""

BATCH = encode_batch([(0, b"one", b"UNIQ_KEY\x01a"), (1, b"two", b"UNIQ_KEY\x01b")])
T = "t1@broker-a"
PART = PlannedPart("broker-a", "p", "orders", 0, ((b"one", b"two"), (b"three",)))
DECISION = TransactionDecision(T, DecisionOutcome.COMMIT, (PART.manifest,), "writer", 3, 1_700_000_000_000)
STAGED = [  # one of each, as the client asks
    staged.stage(T, [PART], decide=DecideBody(DecisionOutcome.COMMIT, (PART.manifest,), "writer", 3)),
    calls.SealPart(T, "p", PART.seal, "broker-a"),
    calls.Decide(T, DecideBody(DecisionOutcome.PREPARED, (PART.manifest,))),
    calls.Settle("t2@broker-b"),
    calls.Apply(T, DECISION, "broker-a", ("broker-b",)),
    calls.Apply("t2@broker-b", TransactionDecision("t2@broker-b", DecisionOutcome.ROLLBACK)),
    calls.GetTransaction(T),
    calls.GetRow("writer"),
    calls.ForgetStaged(transaction=T),
    calls.ListStaged(),
    calls.ListRows(),
]
RETRIED = send_header(
    "%RETRY%TOOLS_CONSUMER",
    properties={props.DELAY: "3", props.RETRY_TOPIC: "orders"},
    reconsume_times=1,
    max_reconsume_times=16,
)
SAMPLES = [
    (RequestCode.SEND_MESSAGE_V2, send_header("orders").to_ext(), b"body"),
    (RequestCode.SEND_MESSAGE, send_header("orders").to_long_ext(), b"body"),
    (RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True).to_ext(), BATCH),
    (RequestCode.PULL_MESSAGE, pull_header("orders").to_ext(), b""),
    (RequestCode.HEART_BEAT, {}, b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G","retryMaxTimes":3}'),
    (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "TOOLS_CONSUMER", "delayLevel": "0"}, b""),
    (RequestCode.SEND_MESSAGE_V2, send_header("orders", properties={props.DELAY: "3"}).to_ext(), b"later"),
    (RequestCode.SEND_MESSAGE_V2, RETRIED.to_ext(), b"again"),
    *((asked.code, asked.ext, asked.body) for asked in (call.request() for call in STAGED)),
]


def check(client: Client, data: bytes, caplog) -> None:
    """Feed `data`: every answer is worded for a reader, and only a broken frame ends the connection.

    The log is synced before the next: a deletion is answered, and its topic written to again, once its mark is durable.
    """
    caplog.clear()
    try:
        client.feed(data)
    except RemoteProtocolError as error:
        assert str(error)
    client.server.broker.store.flusher.flush()
    for answer in client.received():
        assert answer.is_response or answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert not PYTHON_ERROR.match(answer.remark or ""), answer.remark
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def is_alive(server) -> bool:
    other = Client(server)
    return other.send("alive").code == 0 and other.pull("alive")[0].code == 0


@RELAXED
@given(
    sample=st.sampled_from(SAMPLES),
    serialize=st.sampled_from(list(SerializeType)),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_damaged_request_harms_nobody_else(server, caplog, sample, serialize, damage):
    """Any bytes of a valid request may be anything."""
    Client(server).send("orders")
    code, ext, body = sample
    data = bytearray(encode(Command(code, 1, ext=ext, body=body, serialize=serialize)))
    for place, value in damage:
        data[int(place * len(data))] = value
    check(Client(server), bytes(data), caplog)
    assert is_alive(server)


def test_the_next_request_after_a_deletion_is_answered(server, caplog):
    """A topic that one example deletes is there for the next one."""
    for _ in range(2):
        Client(server).send("orders")
        deletion = Command(RequestCode.DELETE_TOPIC_IN_BROKER, 1, ext={"topic": "orders"})
        check(Client(server), encode(deletion), caplog)
    assert is_alive(server)


VALUES = st.one_of(
    st.sampled_from(["", "0", "-1", "2147483647", "-2147483649", "9223372036854775807", "NaN", "true", "orders", "G", "*"]),
    st.text(max_size=30),
)  # fmt: skip
FIELDS = sorted(
    {name for _, ext, _ in SAMPLES for name in ext} | {"timestamp", "key", "maxNum", "beginTimestamp", "perm"}
)


@RELAXED
@given(
    code=st.sampled_from(sorted(RequestCode)),
    ext=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=14),
    body=st.one_of(st.just(b""), st.binary(max_size=60), st.sampled_from([sample[2] for sample in SAMPLES])),
    serialize=st.sampled_from(list(SerializeType)),
)
def test_invented_values_are_answered_in_words(server, caplog, code, ext, body, serialize):
    """Whatever a request says, its answer is a code and a text that nobody has to decipher."""
    Client(server).send("orders")
    check(Client(server), encode(Command(int(code), 1, ext=ext, body=body, serialize=serialize)), caplog)
    assert is_alive(server)
