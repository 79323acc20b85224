"""Typed headers: both spellings of a send, round trips of every class, hostile values."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metaq.errors import BadRequest
from metaq.wire import headers
from metaq.wire.headers import Header, Int, Long, PullHeader, PullReplyHeader, SendBackHeader, SendHeader

CLASSES = [
    value for value in vars(headers).values()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
]  # fmt: skip
SEND = {"a": "PG", "b": "T", "e": "1", "g": "1795226546496"}


def values_of(hint: object) -> st.SearchStrategy[object]:
    if hint == Int:
        return st.integers(-(2**31), 2**31 - 1)
    if hint == Long:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is bool:
        return st.booleans()
    if hint is str:
        return st.text(max_size=10)
    inner = [option for option in typing.get_args(hint) if option is not type(None)]
    return st.none() | values_of(inner[0])


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_header_comes_back_as_it_was(cls: type[Header]) -> None:
    """to_ext and from_ext are inverse for every class, with distinct wire names and text values only."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: values_of(hints[field.name]) for field in structs.fields(cls)}

    @given(st.fixed_dictionaries(fields))
    def round_trip(values: dict[str, object]) -> None:
        header = cls(**values)
        ext = header.to_ext()
        assert all(isinstance(value, str) for value in ext.values())
        assert len(ext) == sum(value is not None for value in values.values())
        assert cls.from_ext(ext) == header

    round_trip()


def test_send_header_reads_both_spellings() -> None:
    """Code 10 of Go has long names, 310 has letters; they mean the same."""
    letters = SendHeader.from_ext({**SEND, "l": "0", "k": "false"})
    assert SendHeader.from_ext(letters.to_long_ext()) == letters
    assert letters.to_long_ext()["defaultTopicQueueNums"] == "4"
    assert letters.to_ext()["c"] == "TBW102"
    assert letters.max_reconsume_times == 0


def test_wire_names_are_those_of_java() -> None:
    """Names that are not plain camelCase of ours."""
    pull = PullHeader(
        group="G", topic="T", queue_id=1, queue_offset=2, max_messages=32, sys_flag=6, suspend_ms=15000, max_msg_bytes=7
    ).to_ext()
    assert pull == {
        "consumerGroup": "G", "topic": "T", "queueId": "1", "queueOffset": "2", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "maxMsgBytes": "7",
    }  # fmt: skip
    assert PullReplyHeader(next_offset=3, min_offset=0, max_offset=9).to_ext() == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "9",
    }  # fmt: skip
    back = SendBackHeader(offset=1, group="G", delay_level=3, origin_message_id="A", origin_topic="T").to_ext()
    assert {"originMsgId", "originTopic", "delayLevel", "unitMode"} < set(back)
    assert "metaqRepeated" not in back, "a first request is as RocketMQ's own"
    again = SendBackHeader(offset=1, group="G", delay_level=3, repeated=True).to_ext()
    assert again["metaqRepeated"] == "true"


def test_wire_names_of_transactions_are_those_of_java() -> None:
    """37 and 39 as the Java client 4.9.8 and a broker 4.9.7 write them."""
    end = headers.EndTransactionHeader(
        producer_group="PG", half_queue_offset=7, log_offset=4711, outcome=8, message_id="ID", transaction_id="ID"
    )
    assert end.to_ext() == {
        "producerGroup": "PG", "tranStateTableOffset": "7", "commitLogOffset": "4711", "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": "ID", "transactionId": "ID",
    }  # fmt: skip
    check = headers.CheckTransactionHeader(
        half_queue_offset=8, log_offset=5000, message_id="ID", transaction_id="ID", offset_message_id="7F"
    )
    assert check.to_ext() == {
        "tranStateTableOffset": "8", "commitLogOffset": "5000", "msgId": "ID", "transactionId": "ID",
        "offsetMsgId": "7F",
    }  # fmt: skip
    assert headers.EndTransactionHeader.from_ext({
        "producerGroup": "PG", "tranStateTableOffset": "7", "commitLogOffset": "4711", "commitOrRollback": "0",
        "fromTransactionCheck": "true",
    }).from_check  # fmt: skip


def test_wire_names_of_a_reply_that_is_handed_on_are_those_of_java() -> None:
    """326, all that `ReplyMessageRequestHeader` of 4.9.8 has."""
    push = headers.PushReplyHeader(
        producer_group="PG", topic="C_REPLY_TOPIC", queue_id=0, sys_flag=1, born_ms=5, flag=7, properties="a\x01b",
        born_host="10.0.0.1:1234", store_host="[::1]:10911", store_ms=6,
    )  # fmt: skip
    assert push.to_ext() == {
        "producerGroup": "PG", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "1", "bornTimestamp": "5", "flag": "7", "properties": "a\x01b",
        "reconsumeTimes": "0", "unitMode": "false", "bornHost": "10.0.0.1:1234", "storeHost": "[::1]:10911",
        "storeTimestamp": "6",
    }  # fmt: skip
    assert headers.PushReplyHeader.from_ext(push.to_ext()) == push


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("false", False), ("x", False)]
)
def test_booleans_are_read_as_java_and_cpp_write_them(text: str, value: bool) -> None:
    """Java writes true and false; C++ sends the batch flag as 1."""
    assert SendHeader.from_ext({**SEND, "m": text}).batch is value


def test_leading_zeros_and_a_plus_are_numbers() -> None:
    """Java's parser takes them."""
    assert SendHeader.from_ext({**SEND, "e": "+0000000012"}).queue_id == 12


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("e", ""), ("e", "one"), ("e", "1.5"), ("e", "1e3"), ("e", "0x10"), ("e", "1_000"), ("e", "2147483648"),
        ("e", "-2147483649"), ("g", "9223372036854775808"), ("e", "9" * 100_000), ("g", "NaN"), ("j", "true"),
    ],
)  # fmt: skip
def test_hostile_number_is_a_bad_request_that_names_it(field: str, text: str) -> None:
    """Not a number, out of its Java type, or too long to convert."""
    with pytest.raises(BadRequest, match=f"the field {field}") as caught:
        SendHeader.from_ext({**SEND, field: text})
    assert len(str(caught.value)) < 200


def test_missing_field_is_a_bad_request_that_names_it() -> None:
    """A mandatory field has no default to guess."""
    with pytest.raises(BadRequest, match="consumerGroup"):
        PullHeader.from_ext({"topic": "T"})
    with pytest.raises(BadRequest, match="producerGroup"):
        SendHeader.from_ext({"topic": "T"})
