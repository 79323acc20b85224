"""What a transactional client says to brokers, and reads of them, byte by byte."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.notices import notice_of
from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.conversation.sending.transactions import EndTransaction, check_of, half_at, half_message, half_of
from metaq.errors import BadRequest
from metaq.model import TransactionOutcome
from metaq.model import properties as props
from metaq.model.message import COMPRESSION_ZLIB, HalfMessage, SysFlag
from metaq.model.notices import TransactionCheck
from metaq.wire import compression
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command
from metaq.wire.record import encode_record

HALF = HalfMessage("7F0000012A0B18B4AAC276DB9D2B0000", 7, 4711)


def check_command(
    body: bytes = b"body",
    sys_flag: int = 0,
    properties: str = "PGROUP\x01payments",
    message_id: str = HALF.message_id,
    store_host: bytes = bytes(8),
    **ext: str,
) -> Command:
    record = encode_record(
        topic=b"orders", queue_id=3, queue_offset=8, log_offset=5000, flag=7, sys_flag=sys_flag, born_ms=1700,
        born_host=bytes(8), store_ms=1800, store_host=store_host, reconsume_times=0, prepared_offset=0, body=body,
        properties=f"{properties}\x02UNIQ_KEY\x01{message_id}".encode(),
    )  # fmt: skip
    named = {"tranStateTableOffset": "8", "commitLogOffset": "5000", "msgId": message_id, **ext}
    return Command(RequestCode.CHECK_TRANSACTION_STATE, ext=named, body=record)


def test_half_message_is_marked_as_java_marks_it():
    """The property that makes it one, the group that is asked later, the bit in the flags; the rest as it was."""
    plain = Outgoing("orders", b"body", sys_flag=1, flag=7, properties="TAGS\x01paid")
    half = half_message(plain, "payments")
    assert half == Outgoing(
        "orders", b"body", sys_flag=5, flag=7, properties="TAGS\x01paid\x02TRAN_MSG\x01true\x02PGROUP\x01payments"
    )
    later = half_message(Outgoing("orders", b"body"), "payments", 30)
    assert props.parse(later.properties) == {
        "TRAN_MSG": "true", "PGROUP": "payments", "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "number"),
    [(TransactionOutcome.COMMIT, "8"), (TransactionOutcome.ROLLBACK, "12"), (TransactionOutcome.UNKNOWN, "0")],
)
def test_end_is_what_rocketmq_reads(ending, number):
    command = EndTransaction(group="payments", broker="broker-a", half=HALF, ending=ending).request()
    assert (command.code, command.flag, command.remark, bytes(command.body)) == (37, 0, None, b"")
    assert command.ext == {
        "producerGroup": "payments", "tranStateTableOffset": "7", "commitLogOffset": "4711", "commitOrRollback": number,
        "fromTransactionCheck": "false", "msgId": HALF.message_id, "transactionId": HALF.message_id, "bname": "broker-a",
    }  # fmt: skip


def test_answer_to_a_check_says_so_and_why():
    """`fromTransactionCheck`, and a remark for the broker's log that is not longer than a line."""
    call = EndTransaction(
        group="g", broker=None, half=HALF, ending=TransactionOutcome.UNKNOWN, from_check=True, remark="x" * 10_000
    )
    command = call.request()
    assert command.ext["fromTransactionCheck"] == "true"
    assert "bname" not in command.ext
    assert command.remark == "x" * 500


@pytest.mark.parametrize(
    ("offset_id", "log_offset"),
    [("7F00000100002A9F0000000000001267", 4711), ("0" * 31 + "1" + "0000" + "2A9F" + "0000000000001267", 4711)],
)
def test_half_message_is_found_by_its_offset_id(offset_id, log_offset):
    """With IPv4 and with IPv6."""
    assert half_at("ID", 7, offset_id) == HalfMessage("ID", 7, log_offset)


@pytest.mark.parametrize("offset_id", ["", "7F", "not hex" * 4, "0" * 30, "7F00000100002A9F0000000000001267,7F"])
def test_an_answer_that_does_not_say_where_is_no_half_message(offset_id):
    with pytest.raises(BadRequest, match="offset id"):
        half_at("ID", 7, offset_id)


def test_check_brings_the_message_as_it_will_be_delivered():
    """Group and id, the newest place of the half message, the body expanded, the broker's name."""
    body = b"x" * 5000
    packed = compression.compress(body, COMPRESSION_ZLIB)
    command = check_command(packed, int(SysFlag.COMPRESSED) | COMPRESSION_ZLIB, transactionId="t", offsetMsgId="0")
    found = notice_of(command, "broker-a")
    assert isinstance(found, TransactionCheck)
    assert (found.group, half_of(found.half)) == ("payments", HalfMessage(HALF.message_id, 8, 5000))
    message = found.half
    assert (message.topic, message.queue_id, message.body, message.flag) == ("orders", 3, body, 7)
    assert (message.message_id, message.broker, message.born_ms) == (HALF.message_id, "broker-a", 1700)


LIVE_EXT = {
    "commitLogOffset": "271", "msgId": "C000020204DAA696C1016F8D7B620000", "tranStateTableOffset": "1",
    "offsetMsgId": "7F000001000058FE000000000000010F", "transactionId": "C000020204DAA696C1016F8D7B620000",
}  # fmt: skip
LIVE_RECORD = bytes.fromhex(
    "00000118daa320a73610a68600000002000000070000000000000001000000000000010f00000000000001a203f563737f0000010000a348"
    "000001a203f563977f000001000058fe0000000000000000000000000000000568656c6c6f066f726465727300b25245414c5f544f504943"
    "016f7264657273025452414e53414354494f4e5f434845434b5f54494d45530131024b455953013432025452414e5f4d5347017472756502"
    "554e49515f4b455901433030303032303230344441413639364331303136463844374236323030303002434c55535445520144656661756c74436c7573746572"
    "025047524f5550017061796d656e747302574149540166616c736502544147530170616964025245414c5f5149440132"
)


def test_check_of_a_rocketmq_is_read():
    """The bytes of a broker 4.9.7, which asks for the first time."""
    found = check_of(Command(39, flag=2, ext=LIVE_EXT, body=LIVE_RECORD), "broker-a")
    message = found.half
    assert (found.group, half_of(message)) == ("payments", HalfMessage(LIVE_EXT["msgId"], 1, 271))
    assert (message.topic, message.queue_id, message.body, message.flag) == ("orders", 2, b"hello", 7)
    assert (message.tag, message.keys, message.offset_id) == ("paid", ("42",), LIVE_EXT["offsetMsgId"])
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_check_names_the_newest_place_whatever_the_record_says():
    """The header's offsets are those that the answer must have; its id is optional."""
    command = check_command(tranStateTableOffset="9", commitLogOffset="6000")
    del command.ext["msgId"]
    assert half_of(check_of(command).half) == HalfMessage(HALF.message_id, 9, 6000)


def test_check_that_cannot_be_read_is_a_bad_request():
    """No group, no record, a broken body, no offsets."""
    with pytest.raises(BadRequest, match="names no producer group"):
        check_of(check_command(properties="TAGS\x01x"))
    with pytest.raises(BadRequest, match="cannot be read"):
        check_of(Command(39, ext=check_command().ext, body=b"garbage"))
    with pytest.raises(BadRequest, match="cannot be read"):
        check_of(check_command(b"garbage", int(SysFlag.COMPRESSED)))
    with pytest.raises(BadRequest, match="commitLogOffset"):
        check_of(Command(39, ext={"tranStateTableOffset": "8"}, body=check_command().body))


def test_check_that_would_fill_the_memory_is_a_bad_request():
    """A body that expands beyond what a message can hold is not expanded."""
    packed = compression.compress(bytes(17 * 1024 * 1024), COMPRESSION_ZLIB)
    with pytest.raises(BadRequest, match="cannot be read"):
        check_of(check_command(packed, int(SysFlag.COMPRESSED) | COMPRESSION_ZLIB))


@given(
    st.binary(max_size=200), st.dictionaries(st.sampled_from(sorted(check_command(msgId="x").ext)), st.text(max_size=9))
)
def test_whatever_a_broker_asks_is_a_check_or_a_bad_request(body, ext):
    with contextlib.suppress(BadRequest):
        check_of(Command(39, ext=ext, body=body))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.text(max_size=40))
def test_every_end_comes_back_as_it_was(queue_offset, log_offset, message_id):
    from metaq.wire.headers import EndTransactionHeader

    half = HalfMessage(message_id, queue_offset, log_offset)
    call = EndTransaction(group="g", broker="b", half=half, ending=TransactionOutcome.COMMIT)
    header = EndTransactionHeader.from_ext(call.request().ext)
    assert HalfMessage(header.message_id, header.half_queue_offset, header.log_offset) == half
