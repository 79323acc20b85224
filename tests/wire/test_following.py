"""The answer to FOLLOW_TABLES."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model import GroupConfig, TopicConfig
from metaq.model.filters.subscription import GroupFilter
from metaq.model.table_changes import LONG_MAX, TableChanges
from metaq.wire.following import table_changes, table_changes_of

GOLDEN = (
    b'{"feed":77,"since":0,"position":9,"complete":true,"log_end":4096,'
    b'"topics":{"orders":{"name":"orders","read_queues":4,"write_queues":4,"perm":6,"sys_flag":0,"order":false,'
    b'"filter_type":"SINGLE_TAG"},"gone":null},'
    b'"groups":{"g":{"name":"g","consume_enable":true,"consume_from_min_enable":true,"consume_broadcast_enable":true,'
    b'"retry_queues":1,"retry_max":16,"broker_id":0,"slow_broker_id":1,"notify_changed":true}},'
    b'"generations":{"@":-1700000000000,"gone":2048,"gone@g":2048},'
    b'"offsets":{"orders":{"g":{"0":7,"1":null}}},'
    b'"filters":{"orders":{"g":{"topic":"orders","group":"g","expression":"a > 5","expression_type":"SQL92","version":3,'
    b'"born_ms":1700000000000,"dead_ms":0},"h":null}},'
    b'"closed_partitions":{"orders":[1,3]},"floors":{"orders":1024},"delays":{"3":12},"needed_from":2048}'
)
CHANGES = TableChanges(
    77,
    0,
    9,
    complete=True,
    log_end=4096,
    topics={"orders": TopicConfig("orders", 4, 4), "gone": None},
    groups={"g": GroupConfig("g")},
    generations={"@": -1_700_000_000_000, "gone": 2048, "gone@g": 2048},
    offsets={"orders": {"g": {0: 7, 1: None}}},
    filters={"orders": {"g": GroupFilter("orders", "g", "a > 5", version=3, born_ms=1_700_000_000_000), "h": None}},
    closed_partitions={"orders": (1, 3)},
    floors={"orders": 1024},
    delays={3: 12},
    needed_from=2048,
)

names = st.text(max_size=20)
numbers = st.integers(0, LONG_MAX)
queue_ids = st.integers(0, (1 << 31) - 1)
topics = st.builds(
    TopicConfig,
    names,
    st.integers(),
    st.integers(),
    st.integers(),
    st.integers(),
    order=st.booleans(),
    filter_type=names,
)
groups = st.builds(GroupConfig, names, retry_max=st.integers())


@st.composite
def filters(draw):
    found = {}
    for topic, group in draw(st.lists(st.tuples(names, names), max_size=4)):
        one = GroupFilter(
            topic, group, draw(names), version=draw(numbers), born_ms=draw(numbers), dead_ms=draw(numbers)
        )
        found.setdefault(topic, {})[group] = draw(st.sampled_from([one, None]))
    return found


everything = st.builds(
    TableChanges,
    numbers,
    numbers,
    numbers,
    complete=st.booleans(),
    log_end=numbers,
    topics=st.dictionaries(names, st.none() | topics, max_size=4),
    groups=st.dictionaries(names, st.none() | groups, max_size=4),
    generations=st.dictionaries(names, st.none() | st.integers(-LONG_MAX, LONG_MAX), max_size=4),
    offsets=st.dictionaries(
        names,
        st.dictionaries(names, st.dictionaries(queue_ids, st.none() | numbers, max_size=3), max_size=3),
        max_size=3,
    ),
    filters=filters(),
    closed_partitions=st.dictionaries(names, st.lists(queue_ids, max_size=4).map(tuple), max_size=4),
    floors=st.dictionaries(names, numbers, max_size=4),
    delays=st.none() | st.dictionaries(queue_ids, numbers, max_size=4),
    needed_from=numbers,
)


def test_golden_vector():
    assert table_changes(CHANGES) == GOLDEN
    assert table_changes_of(GOLDEN) == CHANGES


def test_nothing_new_is_short():
    """What a waiting slave gets every few seconds."""
    body = table_changes(TableChanges(77, 9, 9, complete=True, log_end=4096))
    assert body == b'{"feed":77,"since":9,"position":9,"complete":true,"log_end":4096}'


@given(everything)
def test_what_is_encoded_is_decoded(changes):
    assert table_changes_of(table_changes(changes)) == changes


WRONG = {
    "no JSON": b"{",
    "nothing": b"{}",
    "no UTF-8": b'{"feed":"\xff"}',
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "a negative place": GOLDEN.replace(b'"log_end":4096', b'"log_end":-1'),
    "more than a long": GOLDEN.replace(b'"log_end":4096', b'"log_end":%d' % (1 << 63)),
    "a negative offset": GOLDEN.replace(b'"0":7', b'"0":-7'),
    "a negative queue": GOLDEN.replace(b'"0":7', b'"-1":7'),
    "no queue": GOLDEN.replace(b'"0":7', b'"x":7'),
    "a fraction": GOLDEN.replace(b'"orders":1024', b'"orders":1024.5'),
    "another's filter": GOLDEN.replace(b'"topic":"orders"', b'"topic":"bills"'),
    "a filter of no time": GOLDEN.replace(b'"version":3', b'"version":%d' % (1 << 70)),
    "a closed partition of none": GOLDEN.replace(b"[1,3]", b"[1,-3]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_master_sends_is_refused(what):
    """The error says what it is about."""
    assert WRONG[what] != GOLDEN
    with pytest.raises(BadRequest, match=r"tables|filter"):
        table_changes_of(WRONG[what])


@given(
    st.binary(max_size=200)
    | st.tuples(st.integers(0, len(GOLDEN) - 1), st.binary(max_size=3)).map(
        lambda cut: GOLDEN[: cut[0]] + cut[1] + GOLDEN[cut[0] + 1 :]
    )
)
def test_garbage_is_refused_or_read(data):
    """Whatever one byte becomes, nothing but BadRequest is raised."""
    try:
        assert isinstance(table_changes_of(data), TableChanges)
    except BadRequest as error:
        assert str(error)


def test_every_field_is_in_the_golden_vector():
    """A new one gets its bytes here, and its word in docs/replication.md."""
    assert set(msgspec.json.decode(GOLDEN)) == {field.name for field in msgspec.structs.fields(TableChanges)}
