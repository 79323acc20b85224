"""What the pipeline `metrics` is told, in files and flags."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.configuration import configure

FILE = """
pipeline = "metrics"
topics = ["orders-*", "payments"]
folder = "m"
rules = ["lag_seconds{group=billing, topic~\\"orders-*\\"} > 60 for 3", "messages_per_second < 1"]
alertCommand = ["/usr/bin/page", "--to", "the team", "it's, urgent"]
"""


def test_lists_in_the_file_are_rules_and_words(tmp_path):
    """With commas and blanks in them."""
    file = tmp_path / "metrics.toml"
    file.write_text(FILE)
    options = configure(None, file).options
    assert [str(rule) for rule in options.parsed_rules] == [
        "lag_seconds{group=billing, topic~orders-*} > 60 for 3",
        "messages_per_second < 1",
    ]
    assert options.command_words == ["/usr/bin/page", "--to", "the team", "it's, urgent"]
    assert (options.topics_read, options.patterns, options.traced) == (
        ["payments"],
        ["orders-*"],
        "RMQ_SYS_TRACE_TOPIC",
    )
    assert configure("metrics", {"topics": "a", "folder": "m", "traceTopic": "off"}).options.traced == ""


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"topics": ""}, "topics is missing"),
        ({"folder": ""}, "folder is missing"),
        ({"rules": "lag_second > 1"}, r"rules, character 1 .*; the nearest is lag_seconds"),
        ({"topics": "RMQ_SYS_TRACE_TOPIC"}, "topics names the trace topic"),
        ({"alertTopic": "orders", "rules": "bytes > 1"}, "alertTopic=orders is one of the topics"),
        ({"alertTopic": "alerts"}, "need rules"),
        ({"alertCommand": "page 'the team", "rules": "bytes > 1"}, "No closing quotation; quote as in a shell"),
        ({"windowSeconds": 0.5}, "the smallest allowed value is 1"),
        ({"topics": ["a,b"]}, "topics: 'a,b' has a comma in it"),
    ],
)
def test_what_does_not_fit_is_said(more, why):
    """Before anything is started."""
    with pytest.raises(ConfigError, match=why):
        configure("metrics", {"topics": "orders", "folder": "m", **more})
