"""The text of message traces: what Java 4.9.8 and Go 2.1.2 wrote, and our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.trace import Begun, Handled, Kind, Record, Result, Sent, Settled
from metaq.wire.trace import decode, encode

JAVA_ID = "FD000000000000000000000000000002248530946E096FF06A140000"
JAVA_PUB = (
    b"Pub\x011795369226773\x01DefaultRegion\x01jp\x01tt\x01FD000000000000000000000000000002248530946E096FF06A140000\x01a"
    b"\x01k1 k2\x01127.0.0.1:37203\x015\x0116\x010\x017F000001000091530000000000000000\x01true\x02"
)
JAVA_BATCH = (
    b"Pub\x011795369226791\x01DefaultRegion\x01jp\x01tt\x01FD000000000000000000000000000002248530946E096FF06A260002,FD0000"
    b"00000000000000000000000002248530946E096FF06A260003\x01null\x01null\x01127.0.0.1:37203\x01234\x012\x010\x017F00000100"
    b"00915300000000000000CC,7F00000100009153000000000000019F\x01true\x02"
)
JAVA_DELIVERY = (
    b"SubBefore\x011795369226800\x01null\x01jc\x01FD000000000000000000000000000002248530946E096FF06A300011\x01FD00000000000"
    b"0000000000000000002248530946E096FF06A2C000D\x010\x01null\x02SubAfter\x01FD000000000000000000000000000002248530946E09"
    b"6FF06A300011\x01FD000000000000000000000000000002248530946E096FF06A2C000D\x011\x01false\x01null\x014\x011795369226800"
    b"\x01jc\x02"
)
JAVA_TRANSACTION = (
    b"Pub\x011795369294914\x01DefaultRegion\x01txg\x01tt\x01FD00000000000000000000000000000226BF30946E096FF174410000\x01ta"
    b"gt\x01kt\x01127.0.0.1:45737\x014\x0119\x011\x017F0000010000B2A90000000000000000\x01true\x02EndTransaction\x0117953692"
    b"94933\x01DefaultRegion\x01txg\x01tt\x01FD00000000000000000000000000000226BF30946E096FF174410000\x01tagt\x01kt\x01127."
    b"0.0.1:45737\x012\x01FD00000000000000000000000000000226BF30946E096FF174410000\x01COMMIT_MESSAGE\x01false\x02"
)
GO_PUB = (
    b"Pub\x011795369233703\x01DefaultRegion\x01gp\x01tt\x01C0000202258F000000006ff082680001\x01a\x01\x01127.0.0.1:37203\x015"
    b"\x011\x010\x017F000001000091530000000000001CAB\x01true\x01192.0.2.2\x02"
)
GO_DELIVERY = (
    b"SubBefore\x011795369233703\x01\x01gc\x01C0000202258F000000006ff082680004\x01FD0000000000000000000000000000022485309"
    b"46E096FF06A140000\x010\x01k1 k2\x01192.0.2.2\x02SubAfter\x01C0000202258F000000006ff082680004\x01FD0000000000000000000"
    b"00000000002248530946E096FF06A140000\x010\x01true\x01k1 k2\x010\x011795369233703\x01gc\x02"
)


def test_a_java_send_is_read() -> None:
    """14 fields, without the client's host; and written again it is the same bytes."""
    trace = decode(JAVA_PUB)
    assert trace.records == (
        Sent(
            time_ms=1795369226773, region="DefaultRegion", group="jp", topic="tt", message_id=JAVA_ID, tags="a",
            keys="k1 k2", store_host="127.0.0.1:37203", body_bytes=5, cost_ms=16, kind=Kind.NORMAL,
            offset_id="7F000001000091530000000000000000", success=True,
        ),
    )  # fmt: skip
    assert encode(trace.records) == JAVA_PUB


def test_a_java_batch_is_one_record_of_several_ids() -> None:
    """Joined by commas; its absent tags and keys are the text null."""
    [sent] = decode(JAVA_BATCH).records
    assert isinstance(sent, Sent)
    assert [one[-4:] for one in sent.message_ids] == ["0002", "0003"]
    assert (sent.tags, sent.keys, sent.body_bytes) == ("", "", 234)


def test_a_java_delivery_that_failed_is_read() -> None:
    """Its beginning and its end have one request id; code 4 is a failure."""
    begun, handled = decode(JAVA_DELIVERY).records
    assert isinstance(begun, Begun)
    assert isinstance(handled, Handled)
    assert begun.request_id == handled.request_id
    assert (begun.region, begun.group, begun.retry_times, begun.keys) == ("", "jc", 0, "")
    assert (handled.success, handled.code, handled.cost_ms, handled.group) == (False, Result.FAILED, 1, "jc")
    assert encode([begun, handled]) == JAVA_DELIVERY.replace(b"\x01null\x01jc", b"\x01\x01jc", 1)


def test_a_java_transaction_is_read() -> None:
    """A half message, and what its producer said of it; written again it is the same bytes."""
    trace = decode(JAVA_TRANSACTION)
    sent, settled = trace.records
    assert isinstance(sent, Sent)
    assert isinstance(settled, Settled)
    assert (sent.kind, settled.kind, settled.state, settled.from_check) == (
        Kind.HALF, Kind.COMMIT, "COMMIT_MESSAGE", False,
    )  # fmt: skip
    assert settled.transaction_id == sent.message_id == settled.message_id
    assert encode(trace.records) == JAVA_TRANSACTION


def test_a_go_send_and_delivery_are_read() -> None:
    """15 and 8 fields, with the client's host; written again they are the same bytes."""
    [sent] = decode(GO_PUB).records
    assert isinstance(sent, Sent)
    assert (sent.client_host, sent.keys, sent.success) == ("192.0.2.2", "", True)
    assert encode([sent]) == GO_PUB
    delivery = decode(GO_DELIVERY)
    assert encode(delivery.records) == GO_DELIVERY


def test_older_records_are_read() -> None:
    """A Pub without offset id; a SubAfter without code, time and group."""
    [sent] = decode(b"Pub\x017\x01r\x01g\x01t\x01id\x01\x01\x01h:1\x013\x012\x010\x01false\x02").records
    assert sent == Sent(
        time_ms=7, region="r", group="g", topic="t", message_id="id", store_host="h:1", body_bytes=3, cost_ms=2, success=False,
    )  # fmt: skip
    [handled] = decode(b"SubAfter\x01rq\x01id\x015\x01false\x01null\x02").records
    assert handled == Handled(request_id="rq", message_id="id", cost_ms=5, success=False, code=Result.FAILED)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xfe",
        b"Pub\x02",
        b"Pub\x01x\x02",
        b"SubAfter\x01a\x02",
        b"New\x011\x02",
        b"SubBefore\x01" + b"9" * 9999 + b"\x02",
    ],
)
def test_what_is_no_record_is_counted_and_the_others_are_read(garbage: bytes) -> None:
    """Whatever somebody sends to the trace topic."""
    trace = decode(garbage + (b"" if garbage.endswith(b"\x02") else b"\x02") + JAVA_PUB)
    assert trace.unreadable == 1
    assert len(trace.records) == 1


def test_a_separator_in_a_value_does_not_make_another_record() -> None:
    """It becomes a blank."""
    sent = Sent(time_ms=1, topic="t", message_id="id", keys="a\x01b\x02Pub")
    [read] = decode(encode([sent])).records
    assert isinstance(read, Sent)
    assert read.keys == "a b Pub"


_TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])).filter(
    lambda text: text != "null"
)
_NUMBERS = st.integers(0, 1 << 62)


def _records() -> st.SearchStrategy[Record]:
    common = {"region": _TEXTS, "group": _TEXTS, "keys": _TEXTS}
    return st.one_of(
        st.builds(
            Sent, time_ms=_NUMBERS, topic=_TEXTS, message_id=_TEXTS, tags=_TEXTS, store_host=_TEXTS, body_bytes=_NUMBERS,
            cost_ms=_NUMBERS, kind=st.integers(0, 3), offset_id=_TEXTS, success=st.booleans(), client_host=_TEXTS, **common,
        ),
        st.builds(
            Begun, time_ms=_NUMBERS, request_id=_TEXTS, message_id=_TEXTS, retry_times=_NUMBERS, client_host=_TEXTS, **common
        ),
        st.builds(
            Handled, request_id=_TEXTS, message_id=_TEXTS, cost_ms=_NUMBERS, success=st.booleans(), keys=_TEXTS,
            code=st.integers(0, 4), time_ms=_NUMBERS, group=_TEXTS,
        ),
        st.builds(
            Settled, time_ms=_NUMBERS, topic=_TEXTS, message_id=_TEXTS, tags=_TEXTS, store_host=_TEXTS,
            kind=st.integers(0, 3), transaction_id=_TEXTS, state=_TEXTS, from_check=st.booleans(), **common,
        ),
    )  # fmt: skip


@given(st.lists(_records(), max_size=5))
def test_what_is_written_is_read_again(records: list[Record]) -> None:
    """Any values without separators."""
    trace = decode(encode(records))
    assert list(trace.records) == records
    assert trace.unreadable == 0


@given(st.binary(max_size=300))
def test_no_bytes_raise(body: bytes) -> None:
    """A body of the trace topic may be anything."""
    decode(body)
