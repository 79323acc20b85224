"""Body of the answer to `stats`: lines of words between STATS and END.

Of `stats topics`, a line has the topic and pairs of name and value; `*Empty*` where nothing was put yet. So has one of `stats
offsets`, for each partition that has a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from metaq.errors import RemoteProtocolError

OWN_ITEMS: Final = frozenset({"topics", "offsets", "realtime", "help", "reset", "config"})
"""Words behind `stats` that name no topic."""
PARTITIONS: Final = "partitions"
BROKER_ID: Final = "broker_id"
_PART: Final = "part"
_EMPTY: Final = "*Empty*"
_FIRST, _LAST = "STATS", ("END", "")


def stats_lines(body: bytes) -> list[list[str]]:
    """Return the words of each line. Raises RemoteProtocolError: the lines are not framed by STATS and END."""
    lines = body.decode("utf-8", "replace").split("\r\n")
    if lines[0] != _FIRST or tuple(lines[-2:]) != _LAST:
        raise RemoteProtocolError("its answer is not framed by STATS and END")
    return [line.split(" ") for line in lines[1:-2]]


def topic_figures(lines: Iterable[Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return topic → figure → value, of the lines of `stats topics`; no figures where nothing was put yet.

    Raises ValueError: a figure has no value.
    """
    return {
        topic: {} if list(words) == [_EMPTY] else dict(zip(words[::2], words[1::2], strict=True))
        for topic, *words in lines
    }


def topic_parts(lines: Iterable[Sequence[str]]) -> dict[str, list[int]]:
    """Return topic → numbers of its partitions, of the lines of `stats offsets`, which are those that have a store.

    Raises ValueError: a line is no such.
    """
    found: dict[str, list[int]] = {}
    for topic, *words in lines:
        found.setdefault(topic, []).append(int(dict(zip(words[::2], words[1::2], strict=True)).get(_PART, "")))
    return found
