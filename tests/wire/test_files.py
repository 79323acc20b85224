"""The configuration files, in RocketMQ's form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model import DataVersion, DelayProgress, GroupConfig, TopicConfig
from metaq.model.quota import CAMEL, VALUE_MAX, QuotaKind, QuotaLimits
from metaq.wire import bodies, fastjson, files

names = st.text(min_size=1, max_size=20)
versions = st.builds(DataVersion, st.integers(0, 2**40), st.integers(0, 2**40))


def text_of(form, table, version):
    return form.whole({key: form.entry(key, value) for key, value in table.items()}, version)


@given(st.dictionaries(names, st.integers(0, 64), max_size=5), versions)
def test_files_put_together_of_entries_are_the_files_that_are_written_whole(counts, version):
    """topics.json and subscriptionGroup.json, byte for byte, the empty table included; and they read back."""
    topics = {name: TopicConfig(name, count, count) for name, count in counts.items()}
    text = text_of(files.TOPICS, topics, version)
    assert text == fastjson.dumps_file(bodies.topic_table_tree(topics, version))
    assert files.TOPICS.parse(text) == (version, topics)
    groups = {name: GroupConfig(name, retry_queues=count) for name, count in counts.items()}
    text = text_of(files.GROUPS, groups, version)
    assert text == fastjson.dumps_file(bodies.group_table_tree(groups, version))
    assert files.GROUPS.parse(text) == (version, groups)


@given(st.dictionaries(st.tuples(names, names), st.text(max_size=10), max_size=5))
def test_the_kv_configuration_reads_back(table):
    """Texts by namespace and key."""
    assert files.KV_CONFIG.parse(text_of(files.KV_CONFIG, table, DataVersion())) == (DataVersion(), table)


limits = st.builds(QuotaLimits, **{name: st.none() | st.integers(0, VALUE_MAX) for name in CAMEL})
printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
subjects = st.tuples(st.sampled_from(QuotaKind), printable)


@given(st.dictionaries(subjects, limits, max_size=5))
def test_quotas_read_back(table):
    """Limits by kind and name; 0 and none are kept apart."""
    assert files.QUOTAS.parse(text_of(files.QUOTAS, table, DataVersion())) == (DataVersion(), table)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"quotas":{"topic":{"a":{}}}}',
        '{"quotas":{"client":{"":{}}}}',
        '{"quotas":{"client":{"a":{"topics":9007199254740993}}}}',
    ],
)
def test_a_broken_file_of_quotas_is_refused(text):
    """Whoever is limited must not be let loose by a file that cannot be read."""
    with pytest.raises(BadRequest):
        files.QUOTAS.parse(text)


@given(st.dictionaries(names, st.integers(0, 2**62), max_size=5))
def test_deleted_topics_read_back(table):
    """Log offsets by topic."""
    assert files.DELETED_TOPICS.parse(text_of(files.DELETED_TOPICS, table, DataVersion())) == (DataVersion(), table)


def test_positions_read_back_and_a_key_without_a_group_is_passed_over():
    """consumerOffset.json."""
    table = {("orders", "G"): {0: 7, 3: 1}, ("%RETRY%G", "G"): {0: 0}}
    assert files.CONSUMER_OFFSETS.parse(files.CONSUMER_OFFSETS.text(table)) == table
    assert files.CONSUMER_OFFSETS.parse('{"offsetTable":{"orders":{0:1}}}') == {}


def test_the_delay_file_says_where_the_log_ended_unless_rocketmq_wrote_it():
    """delayOffset.json with and without `metaqLogOffset`."""
    for progress in (DelayProgress({1: 5, 18: 2}, 4711), DelayProgress({1: 5})):
        assert files.DELAY_OFFSETS.parse(files.DELAY_OFFSETS.text(progress)) == progress
    assert (
        files.DELAY_OFFSETS.text(DelayProgress({1: 5}, 7)) == '{\n\t"offsetTable":{1:5\n\t},\n\t"metaqLogOffset":7\n}'
    )


@pytest.mark.parametrize("form", [files.KV_CONFIG, files.DELETED_TOPICS])
def test_a_file_without_its_table_is_another_file(form):
    """Taking it for an empty one would overwrite it."""
    with pytest.raises(BadRequest, match="need a table of"):
        form.parse("{}")
