"""Rows of Arrow tables become the messages that `Producer.send` would make of their values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.shared.messages import queue_for_key
from metaq.errors import ConfigError, InvalidMessage
from metaq.model import Message, MessageQueue
from metaq.model import properties as props
from metaq.wire import hot
from metaq.wire.record import decode_batch

pa = pytest.importorskip("pyarrow")
from metaq.client.arrow.rows import check_columns, rows_of  # noqa: E402  needs pyarrow

PAIRS = pa.map_(pa.string(), pa.string())


def entries(batch, topic="t"):
    """(flag, body, properties) of each row."""
    rows = rows_of(batch, topic)
    made = hot.Batch()
    assert made.add_rows(rows.columns) == batch.num_rows
    return [(flag, body, props.parse(text.decode())) for flag, body, text in decode_batch(made.take())]


_word = st.text("abc012", min_size=1, max_size=4)
_names = _word.filter(lambda name: name not in props.RESERVED)


@given(
    rows=st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=20),
            st.none() | _word,
            st.none() | st.lists(_word, max_size=3),
            st.none() | st.dictionaries(_names, _word, max_size=3),
            st.none() | st.integers(-(2**31), 2**31 - 1),
        ),
        min_size=1,
        max_size=9,
    ),
    cut=st.integers(0, 8),
)
def test_each_row_is_the_message_of_its_values(rows, cut):
    """Also of a slice of a batch, with nulls anywhere."""
    bodies, tags, keys, maps, flags = zip(*rows, strict=True)
    whole = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "tag": pa.array(tags, pa.string()),
            "keys": pa.array(keys, pa.list_(pa.string())),
            "properties": pa.array([None if one is None else list(one.items()) for one in maps], PAIRS),
            "flag": pa.array(flags, pa.int32()),
        }
    )
    cut = min(cut, len(rows) - 1)
    expected = []
    for body, tag, some, pairs, flag in rows[cut:]:
        message = Message("t", body, tag, tuple(some or ()), flag=flag or 0, properties=dict(pairs or {}))
        text = props.parse(message.property_text(None))
        del text[props.WAIT]
        expected.append((message.flag, message.body, text))
    assert entries(whole.slice(cut)) == expected


def test_other_types_that_mean_the_same_are_taken():
    """Text as body, one key as text, large and small integers, columns of nothing but null."""
    batch = pa.record_batch(
        {
            "body": pa.array(["ä", "b"], pa.large_string()),
            "keys": pa.array(["k", None]),
            "flag": pa.array([1, None], pa.int64()),
            "tag": pa.nulls(2),
            "properties": pa.nulls(2, PAIRS),
            "queue_id": pa.nulls(2, pa.int32()),
        }
    )
    assert entries(batch) == [(1, "ä".encode(), {"KEYS": "k"}), (0, b"b", {})]
    assert rows_of(batch.slice(2), "t").topics == ()


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("body", pa.array([b"a", None]), "row 1: body is null"),
        ("body", pa.array([b"a", b""]), "row 1: body is empty"),
        ("tag", pa.array(["fine", "a||b"]), r"row 1: the tag 'a\|\|b'"),
        ("tag", pa.array(["*", "fine"]), r"row 0: the tag '\*'"),
        ("keys", pa.array([["a"], ["b", "c d"]]), "row 1: the key 'c d'"),
        ("keys", pa.array(["a", ""]), "row 1: the key ''"),
        ("keys", pa.array([["a"], ["b", None]], pa.list_(pa.string())), "row 1: the key None"),
        ("properties", pa.array([[], [("TAGS", "x")]], PAIRS), "row 1: the property name TAGS is reserved"),
        ("properties", pa.array([[("a", "x\x01")], []], PAIRS), "row 0: the property 'a' holds 0x01"),
        ("properties", pa.array([[], [("a", None)]], PAIRS), "row 1: the property a is"),
        ("flag", pa.array([0, 1 << 31]), "row 1: flag=2147483648"),
        ("delay_level", pa.array([3, 19]), "row 1: delay_level=19"),
        ("topic", pa.array(["fine", "a b"]), "row 1: the topic name 'a b'"),
    ],
)
def test_a_row_that_is_no_message_is_named(column, values, text):
    """With its number and what is wrong."""
    columns = {"body": pa.array([b"a", b"b"]), column: values}
    with pytest.raises(InvalidMessage, match=text):
        rows_of(pa.record_batch(columns), "t")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (pa.schema([("body", pa.binary()), ("colour", pa.string())]), "no column 'colour'.*properties"),
        (pa.schema([("body", pa.int32())]), "the column body is binary or string, not int32"),
        (pa.schema([("body", pa.binary()), ("queue_id", pa.string())]), "queue_id is int, not string"),
        (pa.schema([("body", pa.binary()), ("body", pa.binary())]), "named twice"),
        (pa.schema([("tag", pa.string())]), "no column body"),
    ],
)
def test_a_table_that_holds_no_messages_is_refused(schema, text):
    """Before any row is looked at."""
    with pytest.raises(ConfigError, match=text):
        check_columns(schema, "t")
    with pytest.raises(ConfigError, match="no column topic, and no topic is named"):
        check_columns(pa.schema([("body", pa.binary())]), None)


def test_rows_go_to_the_queues_that_they_name():
    """By queue, by ordering key as Java's producers do it, else where the caller says; each queue's rows in order."""
    queues = [MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]
    keys = ["k1", None, "k2", None, "k1"]
    batch = pa.record_batch(
        {
            "body": [b"%d" % number for number in range(5)],
            "ordering_key": keys,
            "broker": [None, "b", None, None, None],
            "queue_id": pa.array([None, 1, None, None, None], pa.int32()),
        }
    )
    rows = rows_of(batch, "t")
    ((topic, numbers),) = rows.topics
    found = {queue: some.tolist() for queue, some in rows.by_queue(numbers, queues, queues[0])}
    expected = {}
    for row, key in enumerate(keys):
        queue = queue_for_key(key, queues) if key else queues[3] if row == 1 else queues[0]
        expected.setdefault(queue, []).append(row)
    assert (topic, found) == ("t", expected)


def test_a_queue_that_is_not_there_or_not_clear_is_an_error():
    """The row is named."""
    queues = [MessageQueue("t", broker, 0) for broker in "ab"]
    rows = rows_of(pa.record_batch({"body": [b"a"], "queue_id": [0]}), "t")
    with pytest.raises(InvalidMessage, match=r"row 0: queue_id 0 of topic t is there at 2 brokers.*column broker"):
        list(rows.by_queue(np.arange(1, dtype=np.int32), queues, queues[0]))
    rows = rows_of(pa.record_batch({"body": [b"a"], "queue_id": [7]}), "t")
    with pytest.raises(InvalidMessage, match=r"row 0: the queue .*7 cannot be sent to"):
        list(rows.by_queue(np.arange(1, dtype=np.int32), queues[:1], queues[0]))


def test_topics_and_delays_divide_the_rows():
    """A null topic is the named one; a level of 0 is no delay."""
    batch = pa.record_batch(
        {"body": [b"a", b"b", b"c"], "topic": ["x", None, "x"], "delay_level": pa.array([0, 3, None], pa.int32())}
    )
    rows = rows_of(batch, "t")
    assert [(topic, numbers.tolist()) for topic, numbers in rows.topics] == [("x", [0, 2]), ("t", [1])]
    at_once, delayed = rows.delayed(np.arange(3, dtype=np.int32))
    assert (at_once.tolist(), delayed.tolist()) == ([0, 2], [1])
    with pytest.raises(InvalidMessage, match="row 1: topic is null"):
        rows_of(batch)


def test_rows_for_one_group_alone_go_to_its_retry_topic():
    """Each says the topic as which the group's members see it; a row without other properties too."""
    batch = pa.record_batch(
        {
            "body": pa.array([b"1", b"2", b"3"]),
            "topic": pa.array(["a", None, "b"], pa.string()),
            "tag": pa.array(["x", None, None], pa.string()),
        }
    )
    rows = rows_of(batch, "t", only_group="billing")
    assert [(topic, numbers.tolist()) for topic, numbers in rows.topics] == [("%RETRY%billing", [0, 1, 2])]
    made = hot.Batch()
    assert made.add_rows(rows.columns) == 3
    assert [props.parse(text.decode()) for _, _, text in decode_batch(made.take())] == [
        {"RETRY_TOPIC": "a", "TAGS": "x"}, {"RETRY_TOPIC": "t"}, {"RETRY_TOPIC": "b"},
    ]  # fmt: skip
    plain = rows_of(pa.record_batch({"body": pa.array([b"1"])}), "t", only_group="g")
    made = hot.Batch()
    assert made.add_rows(plain.columns) == 1
    assert decode_batch(made.take()) == [(0, b"1", b"RETRY_TOPIC\x01t\x02")]
