"""Serializers: values in and out, what is refused, and where bodies go that cannot be read."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import marshal
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metaq
from metaq import Json, Message, Text, aio
from metaq.client.shared.serializers import decoder_of, encoder_of
from metaq.model import properties as props
from metaq.options import MIB
from metaq.testing import EmbeddedBroker
from tests.client.consumer.handling import process_handlers
from tests.support import PATIENCE, eventually

pydantic = pytest.importorskip("pydantic")

_names = itertools.count()


class Order(msgspec.Struct, frozen=True):
    id: int
    note: str = ""


@dataclasses.dataclass
class Line:
    sku: str
    count: int


class Total(TypedDict):
    cents: int


class Model(pydantic.BaseModel):
    id: int
    tags: list[str] = pydantic.Field(default_factory=list)


class Basket(msgspec.Struct):
    models: dict[str, Model]


VALUES = [
    (Json(), {"id": 42, "tags": ["a", "ä"], "none": None, "pi": 3.5}),
    (Json(), [1, "two", False]),
    (Json(Order), Order(7, "héllo")),
    (Json(Line), Line("x", 3)),
    (Json(Total), {"cents": 5}),
    (Json(list[int]), [1, 2, 3]),
    (Json(Model), Model(id=1, tags=["a"])),
    (Json(list[Model]), [Model(id=1), Model(id=2, tags=["a"])]),
    (Json(Model | None), Model(id=1)),
    (Json(Basket), Basket({"a": Model(id=1)})),
    (Text(), "grüße 🙂"),
    (Text("latin-1"), "grüße"),
]


@pytest.fixture
def topic() -> str:
    return f"serializers_{os.getpid()}_{next(_names)}"


@pytest.mark.parametrize(("serializer", "value"), VALUES, ids=repr)
def test_a_value_comes_back_as_it_was(serializer, value):
    assert decoder_of(serializer)(encoder_of(serializer)(value)) == value


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(PLAIN)
def test_any_plain_value_is_json_that_others_can_read(value):
    body = Json().encode(value)
    assert json.loads(body) == value
    assert Json().decode(body) == value


@pytest.mark.parametrize(
    ("serializer", "body"),
    [
        (Json(), b"{"), (Json(), b""), (Json(), b"\xff"), (Json(), b"[" * 100_000), (Json(), b"1" * 10_000 + b"x"),
        (Json(Order), b'{"id": "seven"}'), (Json(Order), b"[]"), (Json(Order), b'{"note": "no id"}'),
        (Json(Model), b'{"id": "x"}'), (Json(list[Model]), b'[{"id": "x"}]'), (Json(Basket), b'{"models": {"a": []}}'), (Json(Model), b"nonsense"), (Text(), b"\xff\xfe"), (Text("ascii"), "ä".encode()),
    ],
)  # fmt: skip
def test_a_body_that_is_none_raises(serializer, body):
    """Whatever it holds: nothing hangs, nothing is guessed."""
    with pytest.raises((ValueError, RecursionError)):
        decoder_of(serializer)(body)


@pytest.mark.parametrize(
    ("serialize", "value", "words"),
    [
        (Json(Order), {"id": 1}, r"Json\(Order\).*got a dict"),
        (Json(), object(), "an object"),
        (Text(), b"bytes", r"Text\('utf-8'\) got a bytes"),
        (Text("ascii"), "ä", "ascii"),
        (lambda value: "text", 1, "a str"),
        (lambda value: 1 // 0, 1, "by zero"),
    ],
)
def test_a_value_that_makes_no_body_is_refused_before_it_is_sent(metaq_broker, topic, serialize, value, words):
    """InvalidMessage, with the serializer's own error as its cause."""
    with metaq.Producer(metaq_broker.namesrv, serialize=serialize) as producer:
        for send in (producer.send, producer.submit, producer.send_oneway, producer.request):
            with pytest.raises(metaq.InvalidMessage, match=words) as caught:
                send(topic, value)
            assert caught.value.__cause__ is not None


def test_a_type_that_nothing_makes_of_json_is_refused_when_it_is_named():
    """And not by each of the messages, which would all be dead letters."""
    for wrong in (itertools.count, ThreadPoolExecutor):
        with pytest.raises(metaq.ConfigError, match="nothing says how one is made of JSON"):
            Json(wrong)


PICKLES = [
    "pickle", "cloudpickle", "marshal", pickle, pickle.dumps, pickle.loads, marshal.loads, pickle.Pickler,
    type("Cloud", (), {"__module__": "cloudpickle.cloudpickle", "encode": None, "decode": None})(),
]  # fmt: skip


@pytest.mark.parametrize("pickled", PICKLES, ids=lambda given: getattr(given, "__name__", type(given).__name__))
def test_pickle_is_refused_by_name(pickled):
    """The producer and the consumer are not even made."""
    with pytest.raises(metaq.ConfigError, match="unpickling runs code"):
        metaq.Producer("localhost:1", serialize=pickled)
    with pytest.raises(metaq.ConfigError, match="unpickling runs code"):
        metaq.Consumer("localhost:1", group="g", topics="t", deserialize=pickled)


@pytest.mark.parametrize("wrong", [7, Json, b"json"], ids=str)
def test_what_is_no_serializer_is_refused(wrong):
    with pytest.raises(TypeError, match="Json"):
        metaq.Producer("localhost:1", serialize=wrong)
    with pytest.raises(TypeError, match="Json"):
        metaq.Consumer("localhost:1", group="g", topics="t", deserialize=wrong)


def test_a_name_that_there_is_not_says_which_there_are():
    for make in (encoder_of, decoder_of):
        with pytest.raises(metaq.ConfigError, match="'json', 'text'"):
            make("yaml")
    with pytest.raises(metaq.ConfigError, match="no such encoding"):
        Text("klingon")
    with pytest.raises(metaq.ConfigError, match="Json"):
        Json(dict[tuple[int, int], int] | list[int] | list[str])


def test_values_go_from_producer_to_consumer(metaq_broker, topic):
    """By every way to send; a whole Message keeps its bytes; `body` stays what was sent."""
    with (
        metaq.Producer(metaq_broker.namesrv, serialize=Json(Order)) as producer,
        metaq.Consumer(
            metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", deserialize=Json(Order)
        ) as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        producer.send(topic, Order(1))
        producer.submit(topic, Order(2)).result(PATIENCE)
        producer.send_oneway(topic, Order(3))
        producer.send(Message(topic, b'{"id": 4}'))
        producer.send_batch([Message(topic, b'{"id": 5}')])
        asked = thread.submit(producer.request, topic, Order(6), timeout=PATIENCE)
        got = []
        while len(got) < 6:
            with consumer.receive(PATIENCE) as message:
                got.append(message.value)
                assert msgspec.json.decode(message.body, type=Order) == message.value
                if message.wants_reply:
                    message.reply(Json().encode({"seen": message.value.id}))
        assert sorted(got, key=lambda order: order.id) == [Order(number) for number in range(1, 7)]
        assert Json().decode(asked.result(PATIENCE).body) == {"seen": 6}


def test_asyncio_and_functions_and_names(metaq_broker, topic):
    """`serialize=str.encode`, `deserialize="text"`."""

    async def main() -> None:
        async with (
            aio.Producer(metaq_broker.namesrv, serialize=str.encode) as producer,
            aio.Consumer(
                metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", deserialize="text"
            ) as consumer,
        ):
            await producer.send(topic, "grüße")
            await producer.submit(topic, "x" * 10_000)
            got = set()
            async for message in consumer:
                async with message:
                    got.add(message.value)
                if len(got) == 2:
                    break
            assert got == {"grüße", "x" * 10_000}

    asyncio.run(main())


def test_without_deserialize_the_value_is_the_body(metaq_broker, topic):
    with (
        metaq.Producer(metaq_broker.namesrv) as producer,
        metaq.Consumer(metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest") as consumer,
    ):
        producer.send(topic, b"raw")
        with consumer.receive(PATIENCE) as message:
            assert message.value == message.body == b"raw"


def test_handlers_in_other_processes_get_the_value(metaq_broker, topic, tmp_path):
    """It was made once, here."""
    with metaq.Producer(metaq_broker.namesrv, serialize="json") as producer:
        producer.send(topic, {"file": str(tmp_path / "seen")})
    consumer = metaq.Consumer(
        metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", deserialize="json"
    )
    with consumer, ThreadPoolExecutor(1) as thread:
        running = thread.submit(consumer.run, process_handlers.touch_the_file_of_its_value, processes=1)
        eventually((tmp_path / "seen").exists)
        consumer.stop()
        running.result(PATIENCE)


def dead_letters(namesrv: str, group: str, count: int) -> list[metaq.StoredMessage]:
    topic = f"%DLQ%{group}"
    with metaq.PullConsumer(namesrv, group=f"{group}_undertaker", instance_name=f"undertaker-{group}") as consumer:

        def found() -> list[metaq.StoredMessage] | None:
            try:
                queues = consumer.all_queues(topic)
            except metaq.MetaqError:
                return None
            messages = [message for queue in queues for message in consumer.pull(queue, 0).messages]
            return messages if len(messages) >= count else None

        return eventually(found)


def test_an_undecodable_body_is_a_dead_letter_with_the_reason_and_harms_no_other(metaq_broker, topic, caplog):
    """One bad message between good ones: those are consumed, the group's progress passes it, and nothing loops."""
    group = f"{topic}_g"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        queue = eventually(lambda: (producer.send(topic, b'{"id": 0}') and producer.queues(topic)) or None)[0]
        for body in (b'{"id": 1}', b"\xff\x01 not json \x02", b'{"id": 2}'):
            producer.send(topic, body, queue=queue, keys="k", properties={"colour": "blue"})
    with metaq.Consumer(
        metaq_broker.namesrv,
        group=group,
        topics=topic,
        start="earliest",
        deserialize=Json(Order),
        max_reconsume_times=0,
        commit_interval=0.1,
    ) as consumer:
        got = []
        while len(got) < 3:
            with consumer.receive(PATIENCE) as message:
                got.append(message.value.id)
        assert sorted(got) == [0, 1, 2]
        (dead,) = dead_letters(metaq_broker.namesrv, group, 1)
        assert consumer.receive(0.2) is None
        window = consumer._member.windows
        eventually(
            lambda: all(one.unfinished == 0 for one in consumer._member._pullers.values() for one in [one.window])
        )
        assert window
    assert (dead.body, dead.keys, dead.properties["colour"]) == (b"\xff\x01 not json \x02", ("k",), "blue")
    assert dead.properties[props.UNDECODABLE].startswith("DecodeError: ")
    assert dead.properties[props.RETRY_TOPIC] == topic
    assert caplog.text.count("no value can be made") == 1


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("options", "size", "why"), [({}, 6 * MIB, "DecodeError: "), ({"maxMessageSize": 100_000}, MIB, "")]
)
def test_a_body_that_is_too_long_when_expanded_does_not_hold_up_its_queue(orderly, options, size, why):
    """No broker takes a plain copy of it: it is compressed again, and where that does not help given back, with no reason."""
    with (
        EmbeddedBroker(options=options) as broker,
        metaq.Producer(broker.namesrv, max_message_bytes=16 * MIB) as producer,
        metaq.Consumer(
            broker.namesrv,
            group="g",
            topics="t",
            start="earliest",
            deserialize="json",
            max_reconsume_times=0,
            orderly=orderly,
        ),
    ):
        producer.send("t", b"x" * size)
        (dead,) = dead_letters(broker.namesrv, "g", 1)
        assert len(dead.body) == size
        assert dead.properties.get(props.UNDECODABLE, "").startswith(why)


def test_it_is_tried_again_and_may_be_decoded_then(metaq_broker, topic):
    """Through the retry topic, counted; a member that can read it gets it, and the reason is still there."""
    tries = []

    def decode(body: bytes) -> str:
        tries.append(body)
        if len(tries) == 1:
            raise metaq.Later(1)
        return body.decode()

    with (
        metaq.Producer(metaq_broker.namesrv) as producer,
        metaq.Consumer(
            metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", deserialize=decode
        ) as consumer,
    ):
        sent = producer.send(topic, b"hello")
        with consumer.receive(PATIENCE) as message:
            assert (message.value, message.topic, message.reconsume_times) == ("hello", topic, 1)
            assert message.properties[props.UNDECODABLE].startswith("Later")
            assert message.properties[props.ORIGIN_MESSAGE_ID] == sent.message_id
    assert tries == [b"hello", b"hello"]


def test_reject_files_it_at_once(metaq_broker, topic):
    def decode(body: bytes) -> str:
        raise metaq.Reject("\x01never\x02" + "x" * 5000)

    group = f"{topic}_g"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"hello")
    with metaq.Consumer(metaq_broker.namesrv, group=group, topics=topic, start="earliest", deserialize=decode):
        (dead,) = dead_letters(metaq_broker.namesrv, group, 1)
    reason = dead.properties[props.UNDECODABLE]
    assert reason.startswith("Reject:  never ")
    assert len(reason) <= 512


def test_orderly_consumption_goes_on_behind_it(metaq_broker, topic):
    """Tried again in place it would hold up its queue: it is a dead letter at once, and the others keep their order."""
    group = f"{topic}_g"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for body in (b'"a"', b"bad", b'"b"', b'"c"'):
            producer.send(topic, body, ordering_key="k")
    with metaq.Consumer(
        metaq_broker.namesrv, group=group, topics=topic, start="earliest", deserialize="json", orderly=True
    ) as consumer:
        got = []
        while len(got) < 3:
            with consumer.receive(PATIENCE) as message:
                got.append(message.value)
        (dead,) = dead_letters(metaq_broker.namesrv, group, 1)
    assert got == ["a", "b", "c"]
    assert (dead.body, dead.properties[props.UNDECODABLE].startswith("DecodeError")) == (b"bad", True)


def test_broadcasting_passes_over_it(metaq_broker, topic, caplog, tmp_path):
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for body in (b"bad", b'"good"'):
            producer.send(topic, body, ordering_key="k")
    with metaq.Consumer(
        metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", deserialize="json", broadcast=True,
        offset_store=tmp_path / "offsets.json",
    ) as consumer:  # fmt: skip
        with consumer.receive(PATIENCE) as message:
            assert message.value == "good"
        eventually(lambda: "no value can be made" in caplog.text)


def test_a_deserializer_that_wants_to_end_the_thread_ends_nothing(metaq_broker, topic):
    """SystemExit is one more reason."""

    def decode(body: bytes) -> bytes:
        if body == b"bad":
            raise SystemExit(3)
        return body

    group = f"{topic}_g"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for body in (b"bad", b"good"):
            producer.send(topic, body, ordering_key="k")
    with metaq.Consumer(
        metaq_broker.namesrv, group=group, topics=topic, start="earliest", deserialize=decode, max_reconsume_times=0
    ) as consumer:
        with consumer.receive(PATIENCE) as message:
            assert message.value == b"good"
        (dead,) = dead_letters(metaq_broker.namesrv, group, 1)
    assert "SystemExit" in dead.properties[props.UNDECODABLE]
