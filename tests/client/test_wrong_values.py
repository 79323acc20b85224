"""What a program passes by mistake is refused at the call, with the remedy, through every way in; nothing is sent.

Against a real broker: the counts are its own.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metaq
from metaq import ConfigError, Message, Producer, Reader, aio
from tests.effort import repeats
from tests.support import PATIENCE

_names = itertools.count()


@pytest.fixture(scope="module")
def topic() -> str:
    return f"wrong_values_{os.getpid()}_{next(_names)}"


@pytest.fixture(scope="module")
def producer(metaq_broker, topic):
    with Producer(metaq_broker.namesrv) as made:
        made.send(topic, b"the only one")  # The topic's direct link is there, so `submit` takes its short way.
        yield made


def _awaited(send):
    def run(producer, topic, body, **more):
        async def main():
            async with aio.Producer(";".join(producer._core.name_servers.addresses)) as fallback:
                return await send(fallback, topic, body, **more)

        return asyncio.run(main())

    return run


async def _submitted(fallback, topic, body, **more):
    return await fallback.submit(topic, body, **more)


WAYS = {
    "send": lambda producer, topic, body, **more: producer.send(topic, body, **more),
    "submit": lambda producer, topic, body, **more: producer.submit(topic, body, **more).result(PATIENCE),
    "message": lambda producer, topic, body, **more: producer.send(Message(topic, body, **more)),
    "changed message": lambda producer, topic, body, **more: producer.send(_changed(topic, body, **more)),
    "batch": lambda producer, topic, body, **more: producer.send_batch([_changed(topic, body, **more)])[0],
    "aio.send": _awaited(aio.Producer.send),
    "aio.submit": _awaited(_submitted),
    "aio.batch": _awaited(lambda fallback, topic, body, **more: fallback.send_batch([_changed(topic, body, **more)])),
}
BODY_WAYS = {
    **WAYS,
    "oneway": lambda producer, topic, body: producer.send_oneway(topic, body),
    "aio.oneway": _awaited(aio.Producer.send_oneway),
}


def _changed(topic, body, **more):
    """A message whose fields were set after it was made, where no constructor looks."""
    message = Message(topic, b"x")
    message.body = body
    for name, value in more.items():
        setattr(message, name, value)
    return message


def stored(broker, topic) -> int:
    with Reader(broker.namesrv, topic) as reader:
        return sum(map(len, reader.ranges().values()))


WRONG_BODIES = [
    5, True, 1.5, [1, 2, 3], (1, 2), {"a": 1}, {1}, "text", array.array("I", [1, 2]), memoryview(b"abcdef")[::2],
    range(3), object(), None,
]  # fmt: skip


@pytest.mark.parametrize("way", BODY_WAYS)
@pytest.mark.parametrize("body", WRONG_BODIES, ids=lambda body: type(body).__name__)
def test_body_that_is_no_bytes_is_a_type_error(metaq_broker, producer, topic, way, body):
    """A number would be so many zero bytes, a list its elements: hardly what was meant. The text proposes a remedy."""
    with pytest.raises(TypeError, match=r"body is .*: |body is missing: "):
        BODY_WAYS[way](producer, topic, body)
    assert stored(metaq_broker, topic) == 1


@pytest.mark.parametrize("way", BODY_WAYS)
def test_empty_body_is_refused(metaq_broker, producer, topic, way):
    """InvalidMessage is a ValueError, for those who do not know us."""
    for body in (b"", bytearray(), memoryview(b"")):
        with pytest.raises(metaq.InvalidMessage, match="empty") as caught:
            BODY_WAYS[way](producer, topic, body)
        assert isinstance(caught.value, ValueError)
    assert stored(metaq_broker, topic) == 1


WRONG_TYPES = [
    ({"delay_level": True}, "delay_level"),
    ({"delay_level": 1.5}, "delay_level"),
    ({"delay_level": "3"}, "delay_level"),
    ({"flag": "1"}, "flag"),
    ({"flag": 2.5}, "flag"),
    ({"wait_store_ok": "no"}, "wait_store_ok"),
    ({"tag": 5}, r"str\(5\)"),
    ({"tag": b"t"}, r"decode\(\)"),
    ({"tag": ["t"]}, "tag is"),
    ({"keys": 42}, r"str\(key\)"),
    ({"keys": [42]}, r"str\(42\)"),
    ({"keys": [b"k"]}, r"decode\(\)"),
    ({"keys": b"k"}, "keys is"),
    ({"properties": {"a": 5}}, r"str\(5\)"),
    ({"properties": {5: "a"}}, r"str\(5\)"),
    ({"properties": {"a": None}}, "property a"),
    ({"properties": {"a": b"x"}}, r"decode\(\)"),
    ({"properties": [("a", "b")]}, "dict"),
]
WRONG_VALUES = [
    ({"delay_level": -1}, "delay_level=-1"),
    ({"delay_level": 19}, "delay_level=19"),
    ({"flag": 1 << 31}, "flag"),
    ({"tag": ""}, "tag"),
    ({"tag": "a|b"}, "tag"),
    ({"tag": "a\x02b"}, "tag"),
    ({"tag": "\ud800"}, "UTF-8"),
    ({"keys": ["a b"]}, "key"),
    ({"keys": [""]}, "key"),
    ({"keys": ""}, "key"),
    ({"keys": ["k\x01"]}, "key"),
    ({"keys": ["\udfff"]}, "UTF-8"),
    ({"properties": {"a": ""}}, "empty"),
    ({"properties": {"": "a"}}, "empty"),
    ({"properties": {"a\x01": "b"}}, "0x01"),
    ({"properties": {"a": "b\x02"}}, "0x01"),
    ({"properties": {"KEYS": "b"}}, "reserved"),
    ({"properties": {"a": "\ud800"}}, "UTF-8"),
    ({"properties": {"a": "b" * 40_000}}, "32767"),
    ({"keys": ["k" * 40_000]}, "32767"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("more", "text", "kind"),
    [(more, text, TypeError) for more, text in WRONG_TYPES]
    + [(more, text, metaq.errors.LocalProtocolError) for more, text in WRONG_VALUES],
    ids=lambda value: repr(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_value_is_refused_at_the_call(metaq_broker, producer, topic, way, more, text, kind):
    """By its type, or by what brokers and formats can carry."""
    with pytest.raises(kind, match=text):
        WAYS[way](producer, topic, b"x", **more)
    assert stored(metaq_broker, topic) == 1


@pytest.mark.parametrize(
    ("more", "text", "kind"),
    [
        ({"ordering_key": 7}, r"str\(7\)", TypeError),
        ({"queue": 3}, "MessageQueue", TypeError),
        ({"selector": lambda _: 3}, "selector", TypeError),
        ({"selector": lambda queues: queues[0]._replace(topic="other")}, "other", metaq.ConfigError),
        ({"message_id": 7}, "message_id", TypeError),
        ({"message_id": "x\x01yABCD"}, "message_id", metaq.InvalidMessage),
        ({"message_id": "ABCD"}, "message_id", metaq.InvalidMessage),
    ],
    ids=["number key", "number queue", "number chosen", "foreign chosen", "number id", "bad id", "short id"],
)
@pytest.mark.parametrize("way", ["send", "submit", "aio.send", "aio.submit"])
def test_wrong_way_to_a_queue_is_refused_at_the_call(metaq_broker, producer, topic, way, more, text, kind):
    """What decides where a message goes, and under which id."""
    with pytest.raises(kind, match=text):
        WAYS[way](producer, topic, b"x", **more)
    assert stored(metaq_broker, topic) == 1


def test_other_wrong_calls_are_told(producer, topic):
    """A topic that is no text, a message and a body, a batch of bodies, a time that is over."""
    for call in (
        lambda: producer.send(5, b"x"),
        lambda: producer.submit(None, b"x"),
        lambda: producer.submit(Message(topic, b"x"), b"y"),
        lambda: producer.send(Message(topic, b"x"), tag="t"),
        lambda: producer.send_batch([b"x"]),
    ):
        with pytest.raises(TypeError):
            call()
    for timeout in (0, -1, float("nan")):
        with pytest.raises(metaq.ConfigError, match="timeout"):
            producer.send(topic, b"x", timeout=timeout)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"timeout": "3"}, TypeError), ({"timeout": float("nan")}, ConfigError), ({"timeout": float("inf")}, ConfigError),
        ({"linger": None}, TypeError), ({"linger": float("nan")}, ConfigError), ({"retries": 1.5}, TypeError),
        ({"retries": True}, TypeError), ({"default_topic_queue_nums": 2.5}, TypeError), ({"batch_bytes": 1.5}, TypeError),
        ({"max_message_bytes": "x"}, TypeError), ({"max_message_bytes": 0}, ConfigError), ({"compress_over": 0.5}, TypeError),
        ({"send_latency_fault_enable": "no"}, TypeError), ({"retry_another_broker_when_not_store_ok": 0}, TypeError),
    ],
    ids=str,
)  # fmt: skip
def test_option_that_no_producer_can_have_is_refused_by_name(wrong, error):
    """When it is made, not by the first send."""
    for make in (Producer, aio.Producer):
        with pytest.raises(error, match=next(iter(wrong))):
            make("127.0.0.1:1", **wrong)


def test_later_takes_what_a_message_takes():
    """The ladder of delays has one rule."""
    for wrong in (True, 1.5, "3", None):
        with pytest.raises(TypeError, match="delay_level"):
            metaq.Later(wrong)
    for wrong in (-1, 19):
        with pytest.raises(ValueError, match="delay_level"):
            metaq.Later(wrong)
    assert metaq.Later(18).delay_level == 18


@pytest.mark.parametrize("way", ["send", "submit", "aio.send", "aio.submit", "message", "batch"])
def test_other_buffers_are_copied_at_the_call(metaq_broker, producer, way):
    """A bytearray that is used again at once, and a view of it, are sent as they were."""
    name = f"buffers_{os.getpid()}_{next(_names)}"
    producer.send(name, b"makes the topic")
    for kind in (bytearray, lambda data: memoryview(bytearray(data))):
        buffer = kind(b"before")
        if way == "submit":
            future = producer.submit(name, buffer)
            buffer[:] = b"behind"
            future.result(PATIENCE)
        elif way == "message":
            message = Message(name, buffer)
            buffer[:] = b"behind"
            producer.send(message)
        else:
            WAYS[way](producer, name, buffer)
    with Reader(metaq_broker.namesrv, name, stop_at_end=True) as reader:
        assert sorted(message.body for message in reader) == [b"before", b"before", b"makes the topic"]


@settings(max_examples=repeats(60))
@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers(0, 255)),
              st.dictionaries(st.text(), st.integers()), st.binary().map(bytearray), st.binary().map(memoryview)),
)  # fmt: skip
def test_what_is_stored_is_what_was_passed(metaq_broker, producer, body):
    """Any value is refused, or comes back as the very bytes that it is."""
    try:
        receipt = producer.send("wrong_values_any", body)
    except (TypeError, metaq.InvalidMessage):
        assert not isinstance(body, bytes | bytearray | memoryview) or len(body) == 0
        return
    with Reader(metaq_broker.namesrv, "wrong_values_any", queues=[receipt.queue], start="latest") as reader:
        reader.seek(receipt.queue, offset=receipt.offset)
        assert reader.receive(PATIENCE).body == bytes(body)
