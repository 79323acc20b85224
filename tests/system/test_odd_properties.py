"""Properties whose values hold the separators of the format and NUL, as a foreign client may send them.

There are no escapes: 0x02 ends a value, a piece without 0x01 is no property, and the first 0x01 of a piece ends its name.
All readers agree on that, and nobody is harmed.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

import metaq
from metaq.admin import Admin
from metaq.testing import EmbeddedBroker
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import SerializeType, encode, request
from tests.interop.remoting_client import RemotingClient
from tests.support import ROOT, run_metaq

_numbers = itertools.count()
ODD: dict[str, dict[str, str]] = {
    "a\x01x\x00y\x02TAGS\x01t\x02b\x01fine": {"a": "x\0y", "b": "fine"},
    "a\x01x\x01y\x02TAGS\x01t\x02b\x01fine": {"a": "x\x01y", "b": "fine"},
    "a\x01x\x02y\x02TAGS\x01t\x02b\x01fine": {"a": "x", "b": "fine"},
    "\x02\x02a\x01x\x02\x01no name\x02no value\x01\x02TAGS\x01t\x02b\x01fine\x02\x02": {"a": "x", "b": "fine"},
    "a\x01first\x02a\x01x\x02TAGS\x01t\x02b\x01fine": {"a": "x", "b": "fine"},
    "a\x01" + "\x00" * 5000 + "\x02TAGS\x01t\x02b\x01fine": {"a": "\0" * 5000, "b": "fine"},
    "KEYS\x01k\x00 k\x01 \x00\x02a\x01x\x02TAGS\x01t\x02b\x01fine": {"a": "x", "b": "fine", "KEYS": "k\0 k\x01 \0"},
    "a\x01\U0001d11e\N{REPLACEMENT CHARACTER}\x02TAGS\x01t\x02b\x01fine": {
        "a": "\U0001d11e\N{REPLACEMENT CHARACTER}",
        "b": "fine",
    },
}
"""Property text → properties that every reader must find in it, beside the tag and what brokers add."""


@pytest.fixture(scope="module")
def broker():
    places = "fine=tests.broker.pulls.support:fine"
    with EmbeddedBroker(options={"filterPredicates": places, "filterPredicatePath": str(ROOT)}) as running:
        yield running


def send_raw(broker, topic: str, text: str, body: bytes, serialize: SerializeType) -> int:
    """The code of the answer."""
    header = headers.SendHeader(
        producer_group="PG", topic=topic, queue_id=0, born_ms=1_700_000_000_000, properties="placeholder"
    )  # fmt: skip
    command = request(RequestCode.SEND_MESSAGE_V2, header, body, serialize=serialize)
    command.opaque, command.version, command.language = 7, 409, "JAVA"
    if serialize is SerializeType.JSON:
        frame = encode(command)
        written = json.dumps(text)[1:-1].encode()  # all odd characters as escapes
        head_size = int.from_bytes(frame[5:8], "big")
        head = frame[8 : 8 + head_size].replace(b"placeholder", written)
        frame = len(head).to_bytes(4, "big") + head + frame[8 + head_size :]
        frame = (len(frame)).to_bytes(4, "big") + frame
    else:
        header = headers.SendHeader(
            producer_group="PG", topic=topic, queue_id=0, born_ms=1_700_000_000_000, properties=text
        )  # fmt: skip
        command = request(RequestCode.SEND_MESSAGE_V2, header, body, serialize=serialize)
        command.opaque, command.version, command.language = 7, 409, "JAVA"
        frame = encode(command)
    with RemotingClient(broker.broker) as client:
        client._socket.sendall(frame)
        while 7 not in client._answers:
            client._receive()
        return client._answers[7].code


@pytest.mark.parametrize("serialize", SerializeType)
def test_every_reader_finds_the_same_and_nobody_is_harmed(broker, serialize, tmp_path):
    """Stored, read by a reader, by tag, by a condition and by a predicate, looked up by key, and shown by the command line."""
    topic = f"odd-{next(_numbers)}"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    sent = []
    for number, text in enumerate(ODD):
        assert send_raw(broker, topic, text, b"%d" % number, serialize) == 0
        sent.append((b"%d" % number, ODD[text]))
    with metaq.Producer(broker.namesrv) as producer:
        producer.send(topic, b"behind", tag="t", properties={"b": "fine"})
    bodies = Counter([*(body for body, _ in sent), b"behind"])
    for wanted in ("*", "t", metaq.Sql("b = 'fine' AND TAGS = 't'"), metaq.Predicate("fine")):
        with metaq.Reader(broker.namesrv, topic, tags=wanted, stop_at_end=True) as reader:
            read = list(reader)
        assert Counter(message.body for message in read) == bodies, wanted
    found = {message.body: message.properties for message in read}
    for body, properties in sent:
        assert found[body] | properties == found[body], body
    with metaq.Reader(broker.namesrv, topic, tags=metaq.Sql("a = 'x'"), stop_at_end=True) as reader:
        assert {m.body for m in reader} == {body for body, properties in sent if properties.get("a") == "x"}
    shown = run_metaq("consume", topic, "--json", "-n", broker.namesrv)
    assert shown.returncode == 0, shown.stderr
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(lines) == len(read)


def test_such_values_are_refused_of_our_own_clients():
    """They would not come out as they went in."""
    for wrong in ("a\x01b", "a\x02b"):
        with pytest.raises(metaq.InvalidMessage):
            metaq.Message("t", b"x", properties={"a": wrong}).check()
    metaq.Message("t", b"x", properties={"a": "a\0b"}).check()
