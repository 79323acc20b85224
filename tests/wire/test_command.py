"""Commands: golden vectors of live RocketMQ 4.9.8 traffic, round trips, habits of foreign clients, hostile bytes."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import LocalProtocolError, RemoteProtocolError
from metaq.wire.codes import RequestCode
from metaq.wire.command import LANGUAGES, Command, SerializeType, decode, encode, encode_prefix, reply, request
from metaq.wire.headers import RouteHeader, SendHeader, SendReplyHeader

SEND_JSON = (
    rb'{"code":310,"extFields":{"a":"PG","b":"TopicA","c":"TBW102","d":"4","e":"1","f":"0","g":"1795226546496",'
    rb'"h":"0","i":"a\u00015\u0002KEYS\u0001k1 k2\u0002UNIQ_KEY\u00017F00000128E55FFD2B27676F493F0000\u0002WAIT'
    rb'\u0001true\u0002TAGS\u0001TagA","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA",'
    rb'"opaque":8,"serializeTypeCurrentRPC":"JSON","version":409}'
)
SEND_REPLY_JSON = (
    b'{"code":0,"extFields":{"queueId":"1","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F0000000000000000","queueOffset":"0"},"flag":1,"language":"JAVA","opaque":8,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)
ROUTE_BINARY = bytes.fromhex(
    "0000002a 01000026 0069 00 0199 00000000 00000000 00000000 00000011 0005 746f706963 00000006 544257313032"
)
SUCCESS_BINARY = bytes.fromhex("01000015 0000 00 0199 00000000 00000001 00000000 00000000")


def frame_of(header: bytes, body: bytes = b"", form: int = 0) -> bytes:
    """A frame without its length."""
    return bytes([form]) + len(header).to_bytes(3, "big") + header + body


def test_send_request_of_a_java_producer_is_read() -> None:
    """The JSON request of vector A.8 gives every field of its V2 header and its body."""
    command = decode(frame_of(SEND_JSON, b"hello"))
    assert (command.code, command.opaque, command.language, command.version) == (310, 8, "JAVA", 409)
    assert command.body == b"hello"
    assert not command.is_response
    assert not command.is_oneway
    header = SendHeader.from_ext(command.ext)
    assert (header.producer_group, header.topic, header.queue_id, header.born_ms) == ("PG", "TopicA", 1, 1795226546496)
    assert header.properties.startswith("a\x015\x02KEYS\x01k1 k2\x02")
    assert header.broker_name == "broker-a"
    assert not header.batch


def test_written_json_is_what_java_writes() -> None:
    """What we write for the vectors differs from Java's bytes only by `serializeTypeCurrentRPC`, which all ignore."""
    for vector in (SEND_JSON, SEND_REPLY_JSON):
        written = encode(decode(frame_of(vector)))[8:]
        assert written == vector.replace(b'"serializeTypeCurrentRPC":"JSON",', b"")


def test_send_reply_of_a_java_broker_is_read() -> None:
    """The JSON response of vector A.8 is a response with its typed header."""
    command = decode(frame_of(SEND_REPLY_JSON))
    assert command.is_response
    header = SendReplyHeader.from_ext(command.ext)
    assert header == SendReplyHeader(message_id="7F00000100002A9F0000000000000000", queue_id=1, queue_offset=0)


def test_binary_vectors_are_read_and_written() -> None:
    """The binary request and success header of vector A.6, both ways, byte for byte."""
    command = decode(ROUTE_BINARY[4:])
    assert command == Command(105, 0, 0, "JAVA", 409, None, {"topic": "TBW102"}, b"", SerializeType.BINARY)
    assert encode(command) == ROUTE_BINARY
    answer = Command(0, 0, 1, "JAVA", body=b"{}", serialize=SerializeType.BINARY)
    assert encode(answer) == (len(SUCCESS_BINARY) + 2).to_bytes(4, "big") + SUCCESS_BINARY + b"{}"
    assert decode(SUCCESS_BINARY + b"{}") == answer


def test_reply_uses_the_form_of_its_request() -> None:
    """Opaque and serialize type come back, the flag says response."""
    asked = decode(ROUTE_BINARY[4:])
    answer = reply(asked, 17, remark="no route")
    assert (answer.serialize, answer.opaque, answer.is_response, answer.remark) == (
        SerializeType.BINARY, asked.opaque, True, "no route",
    )  # fmt: skip


def test_request_carries_its_typed_header() -> None:
    """`request` flattens the header; oneway sets bit 1."""
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic="T"), oneway=True)
    assert command.ext == {"topic": "T"}
    assert command.is_oneway


@pytest.mark.parametrize(
    ("value", "text"),
    [("3", "3"), ("true", "true"), ("false", "false"), ('"x"', "x"), ("null", None), ("-1", "-1"), ('""', "")],
)
def test_unquoted_ext_values_become_text(value: str, text: str | None) -> None:
    """Node and C++ send numbers and booleans unquoted; a null is an absent field."""
    command = decode(frame_of(b'{"code":310,"extFields":{"k":%s},"flag":0,"opaque":1}' % value.encode()))
    assert command.ext.get("k") == text


@pytest.mark.parametrize(
    ("language", "name"),
    [('"KLINGON"', "KLINGON"), ("1", "CPP"), ("99", "OTHER"), ("null", "OTHER"), ("-1", "OTHER"), ('""', "")],
)
def test_no_language_kills_the_connection(language: str, name: str) -> None:
    """An unknown name stays as it is, an ordinal gets its name."""
    command = decode(frame_of(b'{"code":34,"language":%s,"opaque":1}' % language.encode()))
    assert command.language == name


def test_unknown_keys_and_blanks_are_passed_over() -> None:
    """Keys that we do not know, of any depth, do not matter."""
    command = decode(frame_of(b'{ "code" : 34 , "later" : {"a":[1,{"b":2}]}, "opaque":7 }'))
    assert (command.code, command.opaque) == (34, 7)


HOSTILE_HEADERS = {
    "not JSON": b"hello",
    "empty": b"",
    "an array": b"[1,2]",
    "no code": b'{"opaque":1}',
    "code beyond int": b'{"code":2147483648}',
    "opaque beyond int": b'{"code":1,"opaque":-2147483649}',
    "a number of 10 000 digits": b'{"code":' + b"9" * 10_000 + b"}",
    "an ext number of 10 000 digits in a nested value": b'{"code":1,"extFields":{"a":[' + b"9" * 10_000 + b"]}}",
    "deep nesting": b'{"code":1,"x":'
    + b"[" * 1_000_000
    + b"]" * 1_000_000
    + b"}",  # Python 3.14 takes what fits on the stack
    "broken UTF-8": b'{"code":1,"remark":"\xff\xfe"}',
    "ext is a list": b'{"code":1,"extFields":[1]}',
    "ext value is an object": b'{"code":1,"extFields":{"a":{"b":"c"}}}',
    "code is text": b'{"code":"many"}',
    "cut short": b'{"code":1,"extFields":{"a":"b',
}


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS.keys())
def test_hostile_json_header_is_a_protocol_error(header: bytes) -> None:
    """Whatever is in the header, the only error is RemoteProtocolError."""
    with pytest.raises(RemoteProtocolError):
        decode(frame_of(header))


def test_huge_unquoted_ext_number_is_text_or_refused() -> None:
    """Ten thousand digits cost no quadratic conversion."""
    header = b'{"code":1,"extFields":{"a":' + b"9" * 10_000 + b"}}"
    with contextlib.suppress(RemoteProtocolError):
        assert len(decode(frame_of(header)).ext["a"]) < 10_100


def binary_header(code=1, language=0, version=409, opaque=0, flag=0, remark=b"", ext=b"", *, remark_size=None) -> bytes:
    size = len(remark) if remark_size is None else remark_size
    return (
        code.to_bytes(2, "big") + bytes([language]) + version.to_bytes(2, "big") + opaque.to_bytes(4, "big")
        + flag.to_bytes(4, "big") + size.to_bytes(4, "big", signed=True) + remark
        + len(ext).to_bytes(4, "big") + ext
    )  # fmt: skip


HOSTILE_BINARY = {
    "empty": b"",
    "shorter than the fixed part": binary_header()[:-5],
    "negative remark": binary_header(remark_size=-1),
    "remark beyond the header": binary_header(remark_size=1 << 30),
    "ext beyond the header": binary_header()[:-4] + (1 << 30).to_bytes(4, "big"),
    "negative ext": binary_header()[:-4] + b"\xff\xff\xff\xff",
    "negative key": binary_header(ext=b"\xff\xffkey"),
    "key beyond the header": binary_header(ext=b"\x7f\xffkey"),
    "negative value": binary_header(ext=b"\x00\x01k\xff\xff\xff\xff"),
    "value beyond the header": binary_header(ext=b"\x00\x01k\x00\x00\x00\x09v"),
    "value cut": binary_header(ext=b"\x00\x01k\x00\x00"),
    "broken UTF-8": binary_header(remark=b"\xff\xfe"),
}


@pytest.mark.parametrize("header", HOSTILE_BINARY.values(), ids=HOSTILE_BINARY.keys())
def test_hostile_binary_header_is_a_protocol_error(header: bytes) -> None:
    """Lengths that are negative, cut or beyond the header close the connection and nothing else."""
    with pytest.raises(RemoteProtocolError):
        decode(frame_of(header, form=1))


def test_binary_ext_section_that_ends_inside_a_field_is_refused() -> None:
    """A field may not run past its section into other header bytes."""
    ext = b"\x00\x01k\x00\x00\x00\x01v"
    header = binary_header()[:-4] + (len(ext) - 1).to_bytes(4, "big") + ext
    with pytest.raises(RemoteProtocolError, match="past its section"):
        decode(frame_of(header, form=1))


def test_unknown_binary_language_is_other() -> None:
    """Ordinals that we do not know do not kill the connection."""
    assert decode(frame_of(binary_header(language=200), form=1)).language == "OTHER"


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "no room"),
        (b"\x00\x00\x00", "no room"),
        (b"\x00\x00\x00\x09{}", "does not fit"),
        (b"\x07\x00\x00\x00", "serialize type 7"),
    ],
)
def test_broken_frame_is_a_protocol_error(frame: bytes, why: str) -> None:
    """The header must lie inside the frame and be of a known form."""
    with pytest.raises(RemoteProtocolError, match=why):
        decode(frame)


def test_command_that_does_not_fit_is_our_error() -> None:
    """Nothing is sent that the peer would close the connection for."""
    with pytest.raises(LocalProtocolError, match="limit"):
        encode_prefix(Command(1), 16 * 1024 * 1024)
    with pytest.raises(LocalProtocolError, match="binary header"):
        encode(Command(200_050, serialize=SerializeType.BINARY))
    with pytest.raises(LocalProtocolError):
        encode(Command(1, remark="\ud800"))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)


@given(
    code=int32, opaque=int32, flag=int32, version=int32, language=st.sampled_from(LANGUAGES),
    remark=st.none() | texts, ext=st.dictionaries(texts, texts, max_size=6), body=st.binary(max_size=200),
)  # fmt: skip
def test_json_round_trip(code, opaque, flag, version, language, remark, ext, body) -> None:
    """Every command comes back from JSON as it was, and the header is JSON that others can read."""
    command = Command(code, opaque, flag, language, version, remark, ext, body)
    frame = encode(command)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(memoryview(frame)[4:]) == command
    header = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
    assert header.get("extFields", {}) == ext


@given(
    code=int16, opaque=int32, flag=int32, version=int16, language=st.sampled_from(LANGUAGES),
    remark=st.none() | texts.filter(bool),
    ext=st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=6), body=st.binary(max_size=200),
)  # fmt: skip
def test_binary_round_trip(code, opaque, flag, version, language, remark, ext, body) -> None:
    """Every command without empty texts comes back from the binary form as it was."""
    command = Command(code, opaque, flag, language, version, remark, ext, body, SerializeType.BINARY)
    assert decode(encode(command)[4:]) == command


@given(st.binary(max_size=200))
def test_arbitrary_frames_raise_nothing_else(frame: bytes) -> None:
    """Garbage is a command or a RemoteProtocolError."""
    with contextlib.suppress(RemoteProtocolError):
        decode(frame)
