"""Which topics were deleted, and up to where in the log: `config/metaqDeleted.json` (docs/formats/extensions.md).

A topic's records stay in the log until their time is up. Without this memory a start would find them there and, if a
topic of that name exists again, give them back to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import BadRequest, ConfigError
from metaq.wire import beans, fastjson

FILE: Final = "metaqDeleted.json"
_TABLE: Final = "deletedTopics"


def parse(text: str) -> dict[str, int]:
    """Topic → the LogOffset below which its records are dead. Raises ConfigError."""
    if not text:
        return {}
    try:
        table = beans.parse(text, FILE)[_TABLE]
        if table.tree is None:
            raise table.wrong("a table of log offsets")
        return {topic.key(): place.given_whole() for topic, place in table.entries()}
    except BadRequest as error:
        raise ConfigError(
            f"{FILE} cannot be read ({error}); restore it from its .bak, or delete it: messages of a deleted topic may "
            "then be found again when a topic of its name is made"
        ) from None


def entry(topic: str, place: int) -> str:
    """One topic in the file."""
    return fastjson.file_entry(topic, place, 2)


def whole(entries: Mapping[str, str]) -> str:
    """The file's text from all entries."""
    return fastjson.file_map([f'"{_TABLE}":{fastjson.file_map(entries.values(), 1)}'], 0)
