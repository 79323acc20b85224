"""What becomes of one message on its way: properties, marks, and those that stay behind. Without Spark and brokers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.arrow import records
from metaq.errors import InvalidMessage
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.pipelines.mirror import marks
from metaq.pipelines.mirror.copying import COLUMNS, Copying
from metaq.spark.cluster.client import BATCH_LIMITS, OLDER_TRANSACTION_LIMITS, MessageLimits
from metaq.wire import hot
from metaq.wire.record import decode_batch, encode_record

QUEUE = MessageQueue("orders", "broker-a", 3)
HOST = bytes([10, 0, 0, 7]) + (4711).to_bytes(4, "big")
STORE = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")


def copied(messages, **more) -> tuple[list[tuple[int, bytes, dict[str, str]]], tuple[int, int]]:
    """(flag, body, properties) of what goes to the target; how many came around and were unfit."""
    data = b"".join(
        encode_record(
            topic=b"orders", queue_id=3, flag=flag, body=body, properties=text.encode(), queue_offset=70 + number,
            log_offset=1000 + number, sys_flag=0, born_ms=1_700_000_000_123, born_host=HOST, store_ms=1_700_000_000_456,
            store_host=STORE, reconsume_times=0, prepared_offset=0,
        )
        for number, (flag, body, text) in enumerate(messages)
    )  # fmt: skip
    copying = Copying(
        **(
            {"source": "a", "target": "b", "leave_out": False, "limits": MessageLimits(body_bytes=1 << 22, empty=True)}
            | more
        )
    )
    batch = copying.batch_of(QUEUE, records.decode(data, QUEUE))
    columns, offsets, size = batch.kept()
    out = hot.Batch(b"", 1 << 24, True)
    assert out.add_rows(columns) == columns.count == len(offsets)
    found = [(flag, body, props.parse(text.decode())) for flag, body, text in decode_batch(out.take())]
    assert size == sum(len(body) for _, body, _ in found)
    return found, (int(batch.around.sum()), int(batch.unfit.sum()))


def text(**pairs: str) -> str:
    return props.join(pairs)


def test_a_delayed_transactional_message_arrives_as_a_plain_one():
    """With what is the user's and its id; without what would delay it again or make it half."""
    stored = text(
        TAGS="t", KEYS="k1 k2", UNIQ_KEY="A" * 32, mine="x", DELAY="3", REAL_TOPIC="orders", REAL_QID="3", TRAN_MSG="true",
        PGROUP="p", WAIT="true", CLUSTER="DefaultCluster", TRAN_PREPARED_QUEUE_OFFSET="5",
    )  # fmt: skip
    ((flag, body, found),), left = copied([(9, b"body", stored)])
    assert (flag, body, left) == (9, b"body", (0, 0))
    assert found == {
        "TAGS": "t", "KEYS": "k1 k2", "UNIQ_KEY": "A" * 32, "mine": "x", "MIRROR_SOURCE": "a/orders/broker-a/3/70",
        "MIRROR_BORN": "1700000000123 10.0.0.7:4711",
    }  # fmt: skip


def test_a_message_without_an_id_gets_the_one_that_readers_of_the_source_see():
    """The id by its place."""
    ((_, _, found),), _ = copied([(0, b"x", "")])
    assert found["UNIQ_KEY"] == (STORE.hex() + f"{1000:016x}").upper()


def test_what_came_around_stays_behind_and_what_comes_from_elsewhere_tells_its_path():
    """The target's own messages, and those that were here before, though the target was called otherwise."""

    def one(source, **more):
        return (0, b"x", text(UNIQ_KEY="A" * 32, MIRROR_SOURCE=source, **more))

    messages = [
        one("b/orders/broker-a/0/1"), one("c/orders/broker-a/0/1", MIRROR_BORN="5 1.1.1.1:1"), one("c/t/x/0/1", MIRROR_PATH="a"),
        one("what a user wrote"), one("c/orders/broker-a/0/2", MIRROR_PATH="d"), (0, b"x", text(UNIQ_KEY="A" * 32)),
    ]  # fmt: skip
    found, left = copied(messages)
    assert left == (2, 0)
    told = [
        (one["MIRROR_SOURCE"].rpartition("/")[2], one.get("MIRROR_PATH"), one["MIRROR_BORN"][:2]) for _, _, one in found
    ]
    assert told == [("71", "c", "5 "), ("73", None, "17"), ("74", "d,c", "17"), ("75", None, "17")]


def test_what_the_target_cannot_take_is_an_error_or_left_out():
    """By its place, with what to do."""
    huge = [(0, b"x", ""), (0, b"y" * ((1 << 22) + 1), ""), (0, b"z", "")]
    wanted = r"offset 71 of orders@broker-a:3 has 4194305 bytes.*takes bodies of 0 to 4194304, .*unfit = 'leave-out'"
    with pytest.raises(InvalidMessage, match=wanted):
        copied(huge)
    found, left = copied(huge, leave_out=True)
    assert ([body for _, body, _ in found], left) == ([b"x", b"z"], (0, 1))
    assert copied([(0, b"y" * (1 << 22), ""), (0, b"", "")])[1] == (0, 0)
    with pytest.raises(InvalidMessage, match="of properties"):
        copied([(0, b"x", text(big="v" * 32_600))])


@pytest.mark.parametrize(
    ("limits", "size"), [(OLDER_TRANSACTION_LIMITS, 1 << 20), (BATCH_LIMITS, 1 << 22)], ids=["older", "sent"]
)
def test_where_there_are_no_large_chunks_body_and_properties_count_together(limits, size):
    """An older broker of ours, or batches of sends; neither has empty bodies."""
    for body in (b"", b"y" * size):
        with pytest.raises(InvalidMessage, match=rf"has {len(body)} bytes.*takes 1 to {size} in all"):
            copied([(0, body, "")], limits=limits)
    assert copied([(0, b"y" * (size - 1000), "")], limits=limits)[1] == (0, 0)


NAMES = st.sampled_from([*marks.DROPPED[:6], "mine", "TAGS", "DELAYED", "XDELAY", "n"])
VALUES = st.text(
    st.characters(blacklist_characters="\x01\x02\x00", blacklist_categories=["Cs"]), min_size=1, max_size=5
)


@given(st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=5), st.booleans())
def test_of_all_properties_those_stay_that_are_not_named(sets, trailing):
    """Whatever their order and their separators."""
    messages = [(0, b"x", props.join(one) + (props.PAIR_END if trailing and one else "")) for one in sets]
    found, _ = copied(messages)
    for (_, _, after), before in zip(found, sets, strict=True):
        own = {name: value for name, value in after.items() if name not in {marks.SOURCE, marks.BORN, "UNIQ_KEY"}}
        assert own == {name: value for name, value in before.items() if name not in marks.DROPPED}


@given(
    st.text("ab:;.0", min_size=1),
    st.sampled_from(["orders", "%RETRY%g"]),
    st.text("a/b", min_size=1),
    st.integers(0, 9),
    st.integers(0, 1 << 60),
)
def test_a_mark_is_read_as_it_was_written(cluster, topic, broker, queue_id, offset):
    """A broker may be called as it likes."""
    origin = marks.Origin(cluster, MessageQueue(topic, broker, queue_id), offset)
    assert marks.origin_of(str(origin)) == origin


@given(st.text("a/1", max_size=12))
def test_what_no_mirror_wrote_is_no_mark(written):
    """And is no error."""
    found = marks.origin_of(written)
    assert found is None or str(found).split("/")[:-2] == written.split("/")[:-2]


def test_a_body_that_does_not_decompress_is_unfit(caplog):
    """As it is stored it would be another message in the target, which is not told that it is compressed."""
    record = encode_record(
        topic=b"orders", queue_id=3, flag=0, body=b"no zlib", properties=b"", queue_offset=70, log_offset=1000, sys_flag=1,
        born_ms=1_700_000_000_123, born_host=HOST, store_ms=1_700_000_000_456, store_host=STORE, reconsume_times=0,
        prepared_offset=0,
    )  # fmt: skip
    (decoded,) = records.decode(record, QUEUE).pieces(COLUMNS)
    limits = MessageLimits(body_bytes=1 << 22, empty=True)
    batch = Copying(source="a", target="b", leave_out=True, limits=limits).batch_of(QUEUE, decoded)
    assert (batch.unfit.tolist(), batch.kept()[0].count) == ([True], 0)
    assert (
        "the body of the message at offset 70 of orders@broker-a:3 cannot be decompressed: it is left out"
        in caplog.text
    )
    with pytest.raises(InvalidMessage, match=r"offset 70 .* unfit = 'leave-out'"):
        Copying(source="a", target="b", leave_out=False, limits=limits).batch_of(QUEUE, decoded)
