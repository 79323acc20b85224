"""Every body and configuration file is read as fastjson 1.2.69 reads it into RocketMQ's own classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq.errors import BadRequest
from tests.fastjson_cases import TARGETS

VECTORS: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("fastjson_vectors.json").read_text("utf-8")
)
REFUSED = "refused"
ON_PURPOSE = {
    ("", "1e10"): "beyond an int: Java keeps the low bits, we refuse",
    ("", "1e30"): "beyond a long too",
    ("", "2147483648.5"): "beyond an int",
    ("", "012"): "where a text is wanted fastjson keeps the zero in front",
    ("", "-"): "where a text is wanted this is one to fastjson",
    ("ConsumeStats.consumeTps", "1e400"): "Java's infinity",
    ("ConsumeStats.offsetTable", "[]"): "a table by queue may be a list of pairs: some clients write it so",
    ("TopicStatsTable", "[]"): "as above",
    ("ResetOffsetBody", "[]"): "as above",
    (
        "LockBatchRequestBody.mqSet",
        "{}",
    ): "one queue is taken for a list of one, as fastjson takes it in the answer's set",
    ("LockBatchRequestBody.mqSet", '{"topic":"T"}'): "as above",
    ("GetConsumerListByGroupResponseBody", "Set[1,2]"): "a Set read into a List is one text to fastjson",
    ("GetConsumerListByGroupResponseBody", 'TreeSet["5"]'): "as above",
}
"""Where we differ: (target or all, text) → why."""


def outcome(target: str, body: str) -> Any:
    try:
        return TARGETS[target].read(body)
    except BadRequest as error:
        assert "need" in str(error) or "JSON" in str(error) or "lacks" in str(error), error
        return REFUSED


def differences(target: str) -> Iterator[str]:
    for result, texts in VECTORS[target].items():
        wanted = outcome(target, result) if result else REFUSED
        for text in texts:
            got = outcome(target, TARGETS[target].body(text))
            if got != wanted and not {(target, text), ("", text)} & ON_PURPOSE.keys():
                yield f"{text}: fastjson made {result or REFUSED}, we {got}"


@pytest.mark.parametrize("target", TARGETS)
def test_every_text_becomes_what_fastjson_makes_of_it(target):
    """Our reading of the odd text is our reading of what fastjson made of it; what it refuses, we refuse."""
    assert not list(differences(target))
