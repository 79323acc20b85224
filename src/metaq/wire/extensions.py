"""What is ours beyond RocketMQ 4.9 on the wire. Every entry stands in docs/formats/extensions.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from metaq.errors import BadRequest
from metaq.model.reload import Reloaded

MARK_FIELD: Final = "METAQ"
"""Ext field of heartbeat answers, and key of the runtime table (28): who sends it is a broker of ours."""
MEMBER_WANTS: Final = "metaqSubscriptions"
"""In a member of 203's `connectionSet`, if the members of the group differ: topic → filter."""
KEEP_SECONDS: Final = "metaqKeepSeconds"
"""In a consumer of a heartbeat: for so long its queues are kept for it when it is gone."""
LEVEL: Final = 4
"""Raised by one with every extension that a client must know of before it uses it."""
KEEPING_LEVEL: Final = 3
"""From here on a broker keeps the queues of members that asked for it."""
STAGING_LEVEL: Final = 3
"""From here on a broker knows staged transactions (30000 to 30006)."""
LARGE_CHUNKS_LEVEL: Final = 4
"""From here on a chunk of one message may be as large as a message may be, messages in chunks may have empty bodies,
and may go to retry topics."""
OUR_MARK: Final[Mapping[str, str]] = {MARK_FIELD: str(LEVEL)}


def level_of(fields: Mapping[str, str]) -> int:
    """The level of extensions that the sender of these ext fields or this runtime table has; 0 for a RocketMQ."""
    text = fields.get(MARK_FIELD, "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def reloaded(outcome: Reloaded) -> bytes:
    """The body of an answer to RELOAD (30007)."""
    return msgspec.json.encode(outcome)


def closed_partitions(numbers: Iterable[int]) -> bytes:
    """The body of an answer to CLOSE_PARTITIONS (30010): those that are closed now."""
    return msgspec.json.encode(sorted(numbers))


def closed_partitions_of(body: bytes | memoryview) -> list[int]:
    """What it says. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=list[int])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no list of partitions: {error}") from None


def reloaded_of(body: bytes | memoryview) -> Reloaded:
    """What it says. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=Reloaded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no outcome of a reload: {error}") from None
