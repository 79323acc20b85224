"""Figures of `stats`: lines between STATS and END, and the topics in them."""

from __future__ import annotations

import pytest

from metaq.errors import RemoteProtocolError
from metaq.wire.metaq1.stats import stats_lines, topic_figures, topic_parts


def test_lines_are_words_and_topics_have_pairs():
    """As recorded from the original, with a topic that nothing was put to."""
    body = b"STATS\r\ntest partitions 2 message_count 5 accept_publish true\r\nnew *Empty*\r\nEND\r\n"
    lines = stats_lines(body)
    assert lines[1] == ["new", "*Empty*"]
    assert topic_figures(lines) == {
        "test": {"partitions": "2", "message_count": "5", "accept_publish": "true"},
        "new": {},
    }
    assert stats_lines(b"STATS\r\nEND\r\n") == []


@pytest.mark.parametrize("body", [b"", b"STATS\r\n", b"END\r\n", b"STATS\r\na 1\r\nEND", b"a 1\r\nEND\r\n"])
def test_another_frame_is_none_of_ours(body):
    with pytest.raises(RemoteProtocolError):
        stats_lines(body)


def test_a_figure_without_a_value_is_an_error():
    with pytest.raises(ValueError):
        topic_figures([["test", "partitions", "2", "message_count"]])


def test_partitions_that_have_a_store():
    """As recorded from the original: in no order, with gaps."""
    body = b"STATS\r\nt part 7 min_offset 0 max_offset 21\r\nu part 0 min_offset 0 max_offset 0\r\nt part 2 min_offset 5 max_offset 9\r\nEND\r\n"
    assert topic_parts(stats_lines(body)) == {"t": [7, 2], "u": [0]}
    for words in (["t", "part"], ["t", "part", "x"], ["t", "min_offset", "0"]):
        with pytest.raises(ValueError):
            topic_parts([words])
