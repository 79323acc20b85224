"""Conditions of a query that choose what is read: nothing that fits is missing, and what is taken holds of all that is read."""

from __future__ import annotations

import datetime as dt
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from metaq.errors import ConfigError
from metaq.model.offsets import Slice, to_text
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import client
from metaq.spark.data_source import MetaqDataSource, MetaqReader, MetaqReaderWithPushFilters, MetaqStreamReader
from metaq.spark.source.pushdown import CLOCK_BACK_MS, Pushed, push
from metaq.spark.source.settings import SourceOptions
from metaq.wire.codes import RequestCode
from tests.scripted import ScriptedCluster

START = 1_700_000_000_000
HOUR_MS = 3_600_000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TOPICS = ["orders", "orders-old", "stock"]
QUEUES = [MessageQueue(topic, broker, number) for topic in TOPICS for broker in "ab" for number in range(2)]
MESSAGES = 12
"""In each queue, an hour between two."""


def at(store_ms: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=store_ms)


def row(queue: MessageQueue, offset: int) -> dict[str, object]:
    return {
        "topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id, "queue_offset": offset,
        "store_time": at(START + offset * HOUR_MS), "tag": [None, "paid", "late"][(offset + queue.queue_id) % 3],
    }  # fmt: skip


ROWS = [row(queue, offset) for queue in QUEUES for offset in range(MESSAGES)]


def fits(one, found: dict[str, object]) -> bool | None:
    """What SQL says of a condition: it holds, it does not, or it is not known."""
    if isinstance(one, Not):
        inner = fits(one.child, found)
        return None if inner is None else not inner
    value = found[one.attribute[0]]
    if isinstance(one, IsNull | IsNotNull):
        return (value is None) == isinstance(one, IsNull)
    if isinstance(one, EqualNullSafe):
        return value == one.value
    if isinstance(one, In):
        return None if value is None else True if value in one.value else None if None in one.value else False
    if value is None or one.value is None:
        return None
    return {
        EqualTo: lambda a, b: a == b, GreaterThan: lambda a, b: a > b, GreaterThanOrEqual: lambda a, b: a >= b,
        LessThan: lambda a, b: a < b, LessThanOrEqual: lambda a, b: a <= b, StringStartsWith: str.startswith,
        StringEndsWith: str.endswith, StringContains: lambda a, b: b in a,
    }[type(one)](value, one.value)  # fmt: skip


VALUES = {
    "topic": st.sampled_from([*TOPICS, "orders-new"]),
    "broker": st.sampled_from(["a", "b", "c"]),
    "queue_id": st.integers(-1, 3),
    "queue_offset": st.integers(-3, MESSAGES + 3),
    "store_time": st.integers(-2 * HOUR_MS, (MESSAGES + 2) * HOUR_MS).map(lambda ms: at(START + ms)),
    "tag": st.sampled_from(["paid", "late", "lost", "", "a|b", "\ufffd", " paid"]),
}


@st.composite
def conditions(draw):
    column = draw(st.sampled_from(list(VALUES)))
    values = VALUES[column]
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In, IsNull, IsNotNull]
    if isinstance(ROWS[0][column], str) or column == "tag":
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    kind = draw(st.sampled_from(kinds))
    if kind in {IsNull, IsNotNull}:
        one = kind((column,))
    elif kind is In:
        one = In((column,), tuple(draw(st.lists(values | st.none(), max_size=4))))
    else:
        one = kind((column,), draw(values | st.none() if kind is EqualNullSafe else values))
    return Not(one) if draw(st.booleans()) else one


@given(st.lists(conditions(), max_size=4), st.booleans())
def test_a_query_gets_the_same_rows_as_without(filters, by_tag):
    """What is read, under the conditions that were given back, is what fits all of them."""
    pushed, left = push(filters, by_tag=by_tag)
    assert all(any(one is given for given in filters) for one in left)  # As Spark demands it.

    def first_at(moment):
        return None if moment is None else {q: min(max(-(-(moment - START) // HOUR_MS), 0), MESSAGES) for q in QUEUES}

    whole = [Slice(queue, 0, MESSAGES) for queue in QUEUES]
    read = pushed.narrowed(whole, first_at(pushed.since_ms), first_at(pushed.until_ms))
    rows = [row(piece.queue, offset) for piece in read for offset in range(piece.start, piece.end)]
    if pushed.tags is not None:
        assert by_tag
        rows = [found for found in rows if found["tag"] in pushed.tags]
    assert [found for found in rows if all(fits(one, found) for one in left)] == [
        found for found in ROWS if all(fits(one, found) for one in filters)
    ]


def test_each_kind_of_condition_leaves_something_out():
    """And is taken, but for those that only bound what they ask for."""

    def pushed(*filters):
        got, left = push(filters, by_tag=True)
        assert pickle.loads(pickle.dumps(got)) == got  # It travels with the reader.
        return got, left

    in_two = In(("queue_offset",), (3, 5))
    assert pushed(in_two) == (Pushed(first=3, stop=6), [in_two])
    assert pushed(GreaterThan(("queue_offset",), 3), LessThan(("queue_offset",), 9)) == (Pushed(first=4, stop=9), [])
    assert pushed(IsNotNull(("topic",)), IsNotNull(("queue_offset",))) == (Pushed(), [])
    tags = pushed(In(("tag",), ("paid", "late")), EqualTo(("tag",), "paid"))
    assert tags == (Pushed(tags=frozenset({"paid"})), [])
    with_topic = StringStartsWith(("topic",), "orders")
    got, left = pushed(with_topic)
    assert ({queue.topic for queue in QUEUES if got.takes(queue)}, left) == ({"orders", "orders-old"}, [])
    since = GreaterThanOrEqual(("store_time",), at(START))
    assert pushed(since) == (Pushed(since_ms=START - CLOCK_BACK_MS), [since])
    two_tags = EqualTo(("tag",), "paid"), EqualTo(("tag",), "late")
    assert not pushed(*two_tags)[0].takes(QUEUES[0])


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("properties", "a"), "b"), EqualTo(("body",), b"x"), EqualTo(("queue_id",), "0"), EqualTo(("queue_id",), True),
        EqualTo(("queue_offset",), 1.5), IsNotNull(("tag",)), EqualNullSafe(("topic",), None), Not(EqualTo(("tag",), "paid")),
        GreaterThan(("store_time",), dt.datetime(2026, 1, 1)), In(("topic",), ("orders", None)),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_what_cannot_choose_is_left_to_spark(one):
    """Other columns, other types, times without a zone, nulls."""
    assert push([one], by_tag=True) == (Pushed(), [one])


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path) as running:
        for hour in range(10):
            running.put("orders", hour % 2, [b"x" * 100] * 50, START + hour * HOUR_MS)
        yield running
        client.client_of.cache_clear()


def reader(cluster, **more) -> MetaqReader:
    source = MetaqDataSource({"nameServers": cluster.namesrv, "subscribe": "orders", "retrySeconds": "0.2"} | more)
    return source.reader(StructType([]))


def test_times_are_searched_for_where_they_bound(cluster):
    """With room for a clock that was set back; the brokers of queues that are not read are not asked."""
    narrow = reader(cluster, pushFilters="true")
    assert isinstance(narrow, MetaqReaderWithPushFilters)
    before = LessThan(("store_time",), at(START + 4 * HOUR_MS))
    assert list(narrow.pushFilters([before, EqualTo(("queue_id",), 0)])) == [before]
    # Hours 0, 2, 4, 6, 8 lie in queue 0, and that of the fourth hour may have been stored by a clock set back.
    assert [str(part.wanted) for part in narrow.partitions()] == ["orders@broker-a:0 [0, 150)"]
    assert len(reader(cluster, pushFilters="true").partitions()) == 2


def test_topics_of_a_pattern_that_cannot_fit_are_not_asked_for(cluster):
    """Unless an option says something about places in them, which is checked as without."""
    for name in ("stock", "orders-old", "refunds"):
        cluster.put(name, 0, [b"x"] * 3)
    pattern = {"subscribe": "", "subscribePattern": "*", "pushFilters": "true"}

    def asked(one, **more):
        before = cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        narrow = reader(cluster, **pattern, **more)
        assert narrow.pushFilters([one]) == []
        read = {part.wanted.queue.topic for part in narrow.partitions() if part.wanted.messages}
        return read, cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) - before

    assert asked(EqualTo(("topic",), "stock")) == ({"stock"}, 1)
    assert asked(Not(StringStartsWith(("topic",), "orders"))) == ({"stock", "refunds"}, 2)
    assert asked(EqualTo(("broker",), "broker-a"))[0] == {"orders", "orders-old", "stock", "refunds"}
    assert asked(EqualTo(("topic",), "nothing")) == (set(), 0)
    start = to_text({MessageQueue("stock", "broker-a", 0): 1})
    assert asked(EqualTo(("topic",), "refunds"), startingOffsets=start) == ({"refunds"}, 4)


def test_nothing_fits_is_no_rows(cluster):
    narrow = reader(cluster, pushFilters="true")
    assert narrow.pushFilters([EqualTo(("topic",), "stock")]) == []
    assert [row for part in narrow.partitions() for row in narrow.read(part)] == []


def test_tags_are_left_to_spark_where_brokers_choose_already_or_cannot(cluster):
    """By the options tags and filter, and in the topic whose units hold other things than tags."""
    paid = EqualTo(("tag",), "paid")
    for more in (
        {"tags": "t"}, {"filter": "a > 1"}, {"subscribe": "SCHEDULE_TOPIC_XXXX"},
        {"subscribe": "", "assign": '{"SCHEDULE_TOPIC_XXXX": {"broker-a": [0]}}'},
    ):  # fmt: skip
        narrow = reader(cluster, pushFilters="true", **more)
        assert narrow.pushFilters([paid]) == [paid]
        assert narrow.fetch == narrow.options.fetch


def test_more_tags_than_a_pull_can_name_are_left_to_spark():
    """Brokers refuse a subscription that is too long, and the query would fail that does not without pushFilters."""
    few, many = (In(("tag",), tuple(f"{number:010d}" for number in range(count))) for count in (1000, 2000))
    pushed, left = push([few, many], by_tag=True)
    assert (len(pushed.tags), left) == (1000, [many])


def test_only_a_reader_that_was_asked_to_has_push_filters(cluster):
    """Spark refuses every read of one that has it where its own setting is off; a stream would not heed the option."""
    assert "pushFilters" not in vars(type(reader(cluster)))
    options = SourceOptions.of({"nameServers": cluster.namesrv, "subscribe": "orders", "pushFilters": "true"})
    with pytest.raises(ConfigError, match="pushFilters is for batch reads"):
        options.check_stream()
    assert not hasattr(MetaqStreamReader, "pushFilters")
