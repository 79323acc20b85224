"""`Admin.message_trace` and `metaq message trace`: what clients told of a message, found and put in order."""

from __future__ import annotations

import json

import pytest

import metaq
from metaq.admin import Admin, TraceNotFound
from metaq.errors import ConfigError
from metaq.model.trace import Begun, Handled, Kind, Record, Result, Sent, Settled
from metaq.wire.trace import encode
from tests.support import PATIENCE, eventually, run_metaq

PREFIX = "7F0000010000000000000000000000AA"


@pytest.fixture
def admin(metaq_broker):
    with Admin(metaq_broker.namesrv) as opened:
        yield opened


def tell(namesrv, message_id, *records: Record, topic="traces", more_keys=()):
    """Send a trace message as a client does."""
    with metaq.Producer(namesrv) as producer:
        producer.send(topic, encode(records), keys=[message_id, *more_keys])


def test_a_message_is_shown_from_its_send_to_its_last_delivery(admin, metaq_broker):
    """In the order of time, whatever order the trace messages came in; what is told of others is left out."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv) as producer:
        receipt = producer.send("traced", b"hello")
    one, at = receipt.message_id, 1_700_000_000_000
    tell(
        namesrv, one,
        Begun(time_ms=at + 90, group="g", request_id="r2", message_id=one, retry_times=1, client_host="10.0.0.2"),
        Handled(request_id="r2", message_id=one, cost_ms=7, group="g", time_ms=at + 97),
        Begun(time_ms=at + 95, group="h", request_id="r3", message_id=one),
        Begun(time_ms=at + 1, group="g", request_id="rx", message_id="other"),
    )  # fmt: skip
    tell(
        namesrv, one,
        Begun(time_ms=at + 20, group="g", request_id="r1", message_id=one),
        Handled(request_id="r1", message_id=one, cost_ms=3, success=False, code=Result.EXCEPTION, group="g", time_ms=at + 23),
        Sent(time_ms=at, group="p", topic="traced", message_id=f"x,{one}", body_bytes=5, cost_ms=2, store_host="10.0.0.1:1"),
        Sent(time_ms=at, group="p", topic="traced", message_id="other"),
    )  # fmt: skip
    found = admin.message_trace(one, trace_topic="traces")
    shown = [(event.what, event.group, event.cost_ms, event.result, event.attempt) for event in found.events]
    assert shown == [
        ("sent", "p", 2, "ok", 0),
        ("delivered", "g", 3, "exception", 1),
        ("delivered", "g", 7, "ok", 2),
        ("delivered", "h", None, "not ended", 1),
        ("stored", "", None, "ok", 0),  # really, years after these times
    ]
    assert found.events[2].client == "10.0.0.2"
    assert found.events[1].client == "127.0.0.1"
    assert found.events[-1].detail == f"{receipt.queue.broker} queue {receipt.queue.queue_id} offset {receipt.offset}"
    assert (found.silent, found.unreadable, found.cut) == ((), 0, False)


@pytest.mark.parametrize("online", [True, False])
def test_a_message_that_only_its_consumer_tells_of_is_shown_with_where_it_is_stored(admin, metaq_broker, online):
    """Records of deliveries name no topic: it is found by what their group subscribes to, or has consumed."""
    namesrv, topic = metaq_broker.namesrv, f"told-by-consumer-{online}"
    with metaq.Producer(namesrv) as producer:
        receipt = producer.send(topic, b"hello")
    with metaq.Consumer(namesrv, group=f"{topic}-g", topics=topic, start="earliest", trace=True) as consumer:
        with consumer.receive(PATIENCE):
            pass
        consumer.commit()

        def told():
            try:
                found = admin.message_trace(receipt.message_id)
            except TraceNotFound:
                return None
            shown = sorted((event.what, event.result, event.topic) for event in found.events)
            return shown == [("delivered", "ok", ""), ("stored", "ok", topic)]

        if online:
            eventually(told)
    if not online:
        eventually(told)


def test_a_transaction_and_a_delivery_without_a_beginning_are_shown(admin, metaq_broker):
    """The half message, what its producer said, and an end whose beginning was lost."""
    one = PREFIX + "01"
    tell(
        metaq_broker.namesrv, one,
        Sent(time_ms=10, group="p", topic="nowhere", message_id=one, kind=Kind.HALF),
        Settled(time_ms=20, group="p", topic="nowhere", message_id=one, state="ROLLBACK_MESSAGE", from_check=True),
        Handled(request_id="r", message_id=one, cost_ms=5, success=False, group="g", time_ms=40),
    )  # fmt: skip
    events = admin.message_trace(one, trace_topic="traces").events
    assert [(event.what, event.time_ms, event.result, event.detail) for event in events] == [
        ("half message sent", 10, "ok", "0 bytes"), ("rolled back", 20, "ok", "when the broker asked"),
        ("delivered", 35, "failed", ""),
    ]  # fmt: skip


def test_what_cannot_be_read_is_counted_and_does_not_hide_the_rest(admin, metaq_broker):
    """Anybody may send to the trace topic."""
    one = PREFIX + "02"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send("traces", b"\xff\x01nonsense\x02", keys=[one])
    tell(metaq_broker.namesrv, one, Begun(time_ms=1, group="g", request_id="r", message_id=one))
    found = admin.message_trace(one, trace_topic="traces")
    assert (len(found.events), found.unreadable) == (1, 1)


def test_a_message_of_which_nothing_is_told_says_why(admin, metaq_broker):
    """No trace topic, or nothing in it; and what is no message id is a wrong argument."""
    with pytest.raises(TraceNotFound, match=r"no-such-traces does not exist"):
        admin.message_trace(PREFIX + "03", trace_topic="no-such-traces")
    tell(metaq_broker.namesrv, "else", Begun(time_ms=1, request_id="r", message_id="else"))
    with pytest.raises(TraceNotFound, match="trace=True"):
        admin.message_trace(PREFIX + "04", trace_topic="traces")
    for wrong in ("", "two words", "a,b", "x" * 300):
        with pytest.raises(ConfigError, match="message id"):
            admin.message_trace(wrong)


def test_the_command_prints_a_table_or_json(metaq_broker):
    """And exits with 3 if nothing is told."""
    one = PREFIX + "05"
    tell(
        metaq_broker.namesrv, one,
        Sent(time_ms=1_700_000_000_000, group="p", topic="t", message_id=one, cost_ms=4),
        Begun(time_ms=1_700_000_000_500, group="g", request_id="r", message_id=one),
        Handled(request_id="r", message_id=one, cost_ms=9),
    )  # fmt: skip
    common = ("-n", metaq_broker.namesrv, "--trace-topic", "traces")
    table = run_metaq("message", "trace", one, *common)
    assert table.returncode == 0, table.stderr
    assert table.stdout.index("sent") < table.stdout.index("delivered")
    events = json.loads(run_metaq("message", "trace", one, *common, "--json").stdout)["events"]
    assert [(event["what"], event["group"], event["milliseconds"]) for event in events] == [
        ("sent", "p", 4), ("delivered", "g", 9),
    ]  # fmt: skip
    missing = run_metaq("message", "trace", PREFIX + "06", *common)
    assert (missing.returncode, "nothing is told" in missing.stderr) == (3, True)
