"""Requests and answers of sends as bytes, held against the codec that everybody else uses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.sending.send_frames import (
    OPAQUE_FIRST,
    OPAQUE_LAST,
    PLACE_OF_ID,
    SendFrames,
    framed,
    stored_answer,
)
from metaq.client.conversation.sending.sending import Outgoing, Send, Template
from metaq.errors import MetaqError
from metaq.model import Message, MessageQueue, SendStatus
from metaq.model.acl.secret import Credentials, Secret
from metaq.wire.command import FRAME_BYTES_MAX, RESPONSE_FLAG, Command, decode, encode
from metaq.wire.headers import SendReplyHeader
from metaq.wire.signing import sign

names = st.text("abcXYZ019%|-_", min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
opaques = st.integers(OPAQUE_FIRST, OPAQUE_LAST)
moments = st.integers(0, 9_999_999_999_999)
flags = st.integers(-(1 << 31), (1 << 31) - 1)
queues = st.builds(MessageQueue, names, names, st.integers(0, 1 << 20))
templates = st.builds(Template, names, st.integers(1, 1000), st.booleans())


@given(names, queues, templates, st.binary(max_size=50), texts, flags, flags, moments, opaques)
def test_a_frame_is_the_codecs(group, queue, template, body, properties, sys_flag, flag, born_ms, opaque):
    """Byte by byte, whatever is in the message."""
    outgoing = Outgoing(queue.topic, body, sys_flag, flag, properties)
    command = Send(group, outgoing, queue, born_ms, template).request()
    command.opaque = opaque
    assert SendFrames(group, queue, template).frame(outgoing, born_ms, opaque) == encode(command)


@given(
    names,
    queues,
    st.binary(min_size=1, max_size=50),
    st.none() | names.filter(lambda tag: "|" not in tag),
    moments,
    opaques,
)
def test_a_plain_header_is_the_codecs(group, queue, body, tag, born_ms, opaque):
    """With its id in the place that was kept."""
    unique = b"7F0000010000ABCD00000000000100FF"
    text = Message(queue.topic, body, tag).property_text(unique.decode())
    command = Send(group, Outgoing(queue.topic, body, properties=text), queue, born_ms).request()
    command.opaque = opaque
    form = SendFrames(group, queue, Template()).plain(Message(queue.topic, body, tag).property_text(PLACE_OF_ID))
    assert framed(form % (born_ms, unique[:-4], 0xFF, opaque), body) == encode(command)


accounts = st.builds(Credentials, names, st.builds(Secret, names), st.builds(Secret, st.just("") | names))


@given(accounts, names, queues, templates, st.binary(max_size=50), texts, flags, flags, moments, opaques)
def test_a_signed_frame_is_the_codecs(
    account, group, queue, template, body, properties, sys_flag, flag, born_ms, opaque
):
    """With the signature that `sign` makes, which the body and each field are part of."""
    outgoing = Outgoing(queue.topic, body, sys_flag, flag, properties)
    command = Send(group, outgoing, queue, born_ms, template).request()
    command.opaque = opaque
    sign(command, account)
    assert SendFrames(group, queue, template, account).frame(outgoing, born_ms, opaque) == encode(command)


@given(
    accounts,
    names,
    queues,
    st.binary(min_size=1, max_size=50),
    st.none() | names.filter(lambda tag: "|" not in tag),
    moments,
    opaques,
)
def test_a_signed_plain_header_is_the_codecs(account, group, queue, body, tag, born_ms, opaque):
    """Prepared but for what differs from message to message."""
    unique = b"7F0000010000ABCD00000000000100FF"
    text = Message(queue.topic, body, tag).property_text(unique.decode())
    command = Send(group, Outgoing(queue.topic, body, properties=text), queue, born_ms).request()
    command.opaque = opaque
    sign(command, account)
    frames = SendFrames(group, queue, Template(), account)
    form = frames.plain(Message(queue.topic, body, tag).property_text(PLACE_OF_ID))
    assert framed(form.filled(born_ms, unique[:-4], 0xFF, opaque, body), body) == encode(command)


def test_what_is_larger_than_a_frame_is_not_made():
    """The loop says so, in its words."""
    queue = MessageQueue("orders", "broker-a", 0)
    frames = SendFrames("g", queue, Template())
    assert frames.frame(Outgoing("orders", bytes(FRAME_BYTES_MAX)), 0, OPAQUE_FIRST) is None
    assert frames.frame(Outgoing("orders", bytes(FRAME_BYTES_MAX - 1000)), 0, OPAQUE_FIRST) is not None


whole = st.integers(-(1 << 70), 1 << 70)
odd_numbers = (
    whole | whole.map(str) | st.sampled_from(["", "007", "+1", "1.0", "1e3", " 1", "x", "1_0", True, None, 1.5])
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "msgId": texts | st.integers(), "queueId": odd_numbers | st.integers(0, 9).map(str),
        "queueOffset": odd_numbers | st.integers(0, 99).map(str), "MSG_REGION": texts, "TRACE_ON": st.sampled_from(["true", "false"]),
        "transactionId": texts,
    },
)  # fmt: skip


def quick_and_usual(data: bytes, opaque: int) -> tuple[Any, Any]:
    """(queue id, offset, id, region, trace) by both; None: not read, or an error."""
    quick = stored_answer(data, opaque)
    said = None if quick is None else quick.extFields
    queue = MessageQueue("orders", "broker-a", 0)
    try:
        command = decode(data[4:])
        stored = Send("g", Outgoing("orders", b"x"), queue, 0).outcome(command)
    except MetaqError:
        usual = None
    else:
        ours = command.opaque == opaque and command.flag & RESPONSE_FLAG and stored.status is SendStatus.SEND_OK
        usual = (stored.queue.queue_id, stored.offset, stored.offset_ids, stored.region, stored.trace) if ours else None
    return said and (said.queueId, said.queueOffset, said.msgId, said.MSG_REGION, said.TRACE_ON != "false"), usual


@given(
    st.sampled_from([0, 0, 0, 1, 10, 11, 12]),
    st.sampled_from([1, 1, 0, 3]),
    st.integers(0, 3),
    fields,
    st.binary(max_size=3),
)
def test_an_answer_is_read_as_the_codec_reads_it_or_not_at_all(code, flag, opaque, ext, body):
    """Whatever a broker makes of it: never another value."""
    header = {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 1}
    data = framed(msgspec.json.encode(header), body)
    quick, usual = quick_and_usual(data, 2)
    assert quick is None or quick == usual


@pytest.mark.parametrize("number", ["1.0", "1e3", "-0", "01", 1, 1.0])
@pytest.mark.parametrize("name", ["queueId", "queueOffset"])
def test_a_number_in_another_form_is_left_to_the_codec(name, number):
    ext = {"msgId": "", "queueId": "1", "queueOffset": "0"} | {name: number}
    header = {"code": 0, "extFields": ext, "flag": 1, "language": "JAVA", "opaque": 2, "version": 1}
    quick, _ = quick_and_usual(framed(msgspec.json.encode(header), b""), 2)
    assert quick is None


@given(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1), opaques)
def test_the_usual_answer_is_read(queue_id, offset, opaque):
    """Else every send would take the long way."""
    said = SendReplyHeader(
        message_id="7F00000100002A9F0000000000000123", queue_id=queue_id, queue_offset=offset
    ).to_ext()
    ext = {**said, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    data = encode(Command(0, opaque, RESPONSE_FLAG, ext=ext))
    quick, usual = quick_and_usual(data, opaque)
    assert quick is not None
    assert quick == usual
    for end in range(len(data)):
        assert stored_answer(data[:end], opaque) is None
    assert stored_answer(data + data, opaque) is None
    assert stored_answer(data, opaque - 1) is None
