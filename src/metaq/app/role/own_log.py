"""What this broker would answer to those who ask for pieces of its log."""

from __future__ import annotations

from typing import TypeVar, cast

from metaq.app.role.pending import outcome_of
from metaq.broker.broker import Broker
from metaq.client.conversation.call import Call
from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums

T = TypeVar("T")


async def own_outcome(broker: Broker, call: Call[T]) -> T:
    """Return the broker's own outcome of GetLogChecksums or GetLogBytes. Raises Refused."""
    ranges = broker.log_ranges
    if isinstance(call, GetLogChecksums):
        return cast("T", await outcome_of(ranges.checksums(call.offset, call.stop)))
    assert isinstance(call, GetLogBytes)
    return cast("T", await outcome_of(ranges.piece(call.offset, call.size)))
