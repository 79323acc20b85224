"""What `metaq pipeline` tells of a running query."""

from __future__ import annotations

from metaq.cli.pipeline import messages_behind, root_text


def progress(latest: str | None, end: str | None) -> dict:
    return {"sources": [{"latestOffset": latest, "endOffset": end}]}


def test_the_backlog_is_counted_over_all_queues():
    """Newest offset less the query's, for each queue."""
    latest, end = '{"v":1,"q":{"t":{"b":{"0":10,"1":5}}}}', '{"v":1,"q":{"t":{"b":{"0":7,"1":5}}}}'
    assert messages_behind(progress(latest, end)) == 3


def test_before_the_first_batch_nothing_is_known():
    """Spark says nothing, or `null`, at first."""
    assert messages_behind(None) is None
    assert messages_behind(progress("null", "null")) is None
    assert messages_behind(progress(None, None)) is None


def test_a_failed_query_is_told_in_our_own_words():
    """Out of Spark's pages of traces, the line of our error."""
    text = "org.apache.spark.X\n  at y\nmetaq.errors.MessagesLost: 5 messages are gone\n SQLSTATE: 38000"
    assert root_text(text) == "5 messages are gone"
    assert root_text("something else\nmore") == "something else"
