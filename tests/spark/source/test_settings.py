"""The options of `format("metaq")`."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue
from metaq.spark import schema
from metaq.spark.source.settings import SourceOptions, markdown_table
from tests.support import ROOT

GOOD = {"nameServers": "127.0.0.1:9876", "subscribe": "orders, refunds"}


def test_names_are_read_in_any_case():
    """Spark hands option names over in lower case."""
    options = SourceOptions.of({"nameservers": "a:1", "SUBSCRIBE": "orders, refunds", "failondataloss": "false"})
    assert (options.name_servers, options.topics, options.fail_on_data_loss) == ("a:1", ["orders", "refunds"], False)


def test_a_retry_topic_may_be_as_long_as_its_group():
    """It is made of the group's name."""
    long = "%RETRY%" + "g" * 200
    assert SourceOptions.of(GOOD | {"subscribe": long}).topics == [long]


def test_a_topic_of_metaq_1_x_may_have_dots():
    assert SourceOptions.of(GOOD | {"subscribe": "com.shop.orders"}).topics == ["com.shop.orders"]


def test_assign_names_queues():
    """A JSON of topic, broker, queue ids."""
    options = SourceOptions.of({"nameServers": "a:1", "assign": '{"t": {"b": [1, 0]}}'})
    assert options.assigned == [MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"startingOfsets": "latest"}, "no option startingOfsets; did you mean startingOffsets"),
        ({"zzz": "1"}, "no option zzz$"),
        ({"subscribe": ""}, "one of the options subscribe, subscribePattern, assign; none was given"),
        ({"assign": "{}"}, "not subscribe and assign together"),
        ({"subscribe": "orders || refunds"}, "subscribe: .*name topics, `,`-separated: messages of all tags are read"),
        ({"subscribe": "orders:paid"}, "subscribe: .*name topics, `,`-separated: messages of all tags are read"),
        ({"progressGroup": "my group"}, "progressGroup: "),
        ({"nameServers": ""}, "needs .option"),
        ({"minPartitions": "0"}, "the smallest allowed value is 1"),
        ({"maxOffsetsPerTrigger": "many"}, "need a whole number"),
        ({"rows": "columns"}, "allowed are messages, slices"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        (
            {"startingOffsets": "latest", "startingTimestamp": "1"},
            "give startingOffsets or startingTimestamp: one of them",
        ),
        ({"endingOffsets": "latest", "endingGroup": "g"}, "give endingOffsets or endingGroup"),
        ({"startingTimestamp": "soon"}, "need ms since 1970"),
        ({"startingTimestamp": "-1"}, "need ms since 1970"),
        ({"startingTimestamp": "9", "endingTimestamp": "9"}, "endingTimestamp is not behind startingTimestamp"),
        ({"maxTriggerDelay": "often"}, "need a number with ms, s, m or h"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"}, "is above maxOffsetsPerTrigger"),
    ],
)
def test_wrong_options_are_refused_with_what_is_wrong(changes, text):
    """Each text names the option and what would be right."""
    with pytest.raises(ConfigError, match=text):
        SourceOptions.of(GOOD | changes)


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        "x",
        '{"t": [0]}',
        '{"t": {"b": ["x"]}}',
        '{"t": {"b": [1.7]}}',
        '{"t": {"b": "12"}}',
        '{"t": {"b": {"0": 5}}}',
    ],
)
def test_a_wrong_assign_is_refused_with_its_form(value):
    """The form is shown."""
    with pytest.raises(ConfigError, match="is not of the form"):
        SourceOptions.of({"nameServers": "a:1", "assign": value})


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"subscribe": " , "}, "subscribe=',' names no topic"),
        ({"assign": "{}"}, "assign='{}' names no queue"),
        ({"assign": '{"orders": {"broker-a": []}}'}, "assign=.* names no queue"),
    ],
)
def test_a_query_of_nothing_is_refused(chosen, text):
    """It would have no rows, and nobody would know why."""
    with pytest.raises(ConfigError, match=text):
        SourceOptions.of({"nameServers": "a:1"} | chosen)


def test_columns_are_lean_all_or_named():
    """`columns` takes a list, `*`, or nothing."""
    assert schema.columns_of(None)[0] == "topic"
    assert len(schema.columns_of("*")) > len(schema.columns_of(None))
    assert schema.columns_of("body , tag") == ("body", "tag")
    with pytest.raises(ConfigError, match="there is no column 'colour'"):
        schema.columns_of("body,colour")


def test_the_documented_table_is_the_real_one():
    """docs/spark.md holds the table that the code makes."""
    assert markdown_table() in (ROOT / "docs" / "spark.md").read_text()
