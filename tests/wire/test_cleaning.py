"""What brokers tell of cleanings and trims: 30023, 30024 and their answers."""

from __future__ import annotations

import json

import pytest

from metaq.errors import BadRequest
from metaq.model.upkeep.cleaning import Cleanable, CleanableFiles, QueueTrim, TopicTrim, UnreadInQueue
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode

TRIM = TopicTrim("orders", (QueueTrim(3, 5, 20, 9, 1000, 2000),), (UnreadInQueue("g", 3, 2),), done=True)
FOUND = Cleanable(CleanableFiles(2, 2 << 30), CleanableFiles(1, 6_000_000), ("lost",), CleanableFiles(4, 80))


def test_codes_headers_and_answers_are_as_documented():
    """In docs/formats/extensions.md."""
    assert (RequestCode.TRIM_TOPIC, RequestCode.PREVIEW_CLEANING) == (30023, 30024)
    assert headers.TrimTopicHeader(topic="orders", before=7, dry_run=True).to_ext() == {
        "topic": "orders", "before": "7", "dryRun": "true", "force": "false",
    }  # fmt: skip
    assert json.loads(extensions.topic_trim(TRIM)) == {
        "topic": "orders", "done": True, "unread": [{"group": "g", "queueId": 3, "messages": 2}],
        "queues": [{"queueId": 3, "minOffset": 5, "maxOffset": 20, "newMin": 9, "oldestMs": 1000, "newestMs": 2000}],
    }  # fmt: skip
    assert json.loads(extensions.cleanable(FOUND)) == {
        "logFiles": {"files": 2, "bytes": 2 << 30}, "queueFiles": {"files": 1, "bytes": 6_000_000},
        "topics": ["lost"], "topicFiles": {"files": 4, "bytes": 80},
    }  # fmt: skip


def test_answers_are_read_as_they_were_written():
    assert extensions.topic_trim_of(extensions.topic_trim(TRIM)) == TRIM
    assert extensions.cleanable_of(extensions.cleanable(FOUND)) == FOUND
    assert TRIM.queues[0].messages == 4


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"\xff", b'{"topic":7,"queues":[]}', b'{"topic":"x","queues":[{"queueId":-1}]}',
        b'{"topic":"x","queues":[{"queueId":0,"minOffset":0,"maxOffset":1,"newMin":1,"oldestMs":9223372036854775807}]}',
        b'{"topic":"x","queues":[{"queueId":0,"minOffset":-5,"maxOffset":1,"newMin":1}]}',
        b'{"topic":"x","queues":[],"unread":[{"group":"g","queueId":0,"messages":1e400}]}',
        b'{"topic":"x","queues":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_no_broker_answers_is_refused(body):
    """No time that cannot be shown comes out of it."""
    with pytest.raises(BadRequest, match="the body is no trim of a topic"):
        extensions.topic_trim_of(body)


@pytest.mark.parametrize(
    "body", [b"", b"7", b'{"logFiles":{"files":-1}}', b'{"topics":[1]}', b'{"logFiles":' + b"[" * 100_000]
)
def test_what_is_no_preview_is_refused(body):
    with pytest.raises(BadRequest, match="the body is no preview"):
        extensions.cleanable_of(body)
