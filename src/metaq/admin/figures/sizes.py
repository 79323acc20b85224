"""Bytes of the messages in a range of a queue, from the sizes in its units: no message is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from metaq.client.conversation.reading.offsets import GetMinOffset
from metaq.client.conversation.reading.units import GetUnits
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError
from metaq.model import MessageQueue

EXACT_MAX: Final = 1024
"""Messages of a range that are added up one by one; a broker of ours tells as many in one answer."""
PLACES: Final = 8
"""Places of a larger range whose messages are added up, evenly spread, the first and the last among them."""
MESSAGES_OF_A_PLACE: Final = 64


class MessagesSize(Struct, frozen=True):
    """Bytes of messages in the log, with headers and properties. `exact` False: estimated from a part of them."""

    bytes: int
    """How many bytes."""
    exact: bool = True

    def __add__(self, other: MessagesSize) -> MessagesSize:
        return MessagesSize(self.bytes + other.bytes, self.exact and other.exact)


def total(sizes: Iterable[MessagesSize | None]) -> MessagesSize | None:
    """Return the sum; None if one is not known."""
    found = MessagesSize(0)
    for one in sizes:
        if one is None:
            return None
        found += one
    return found


async def size_of(core: ClientCore, address: str, queue: MessageQueue, start: int, end: int) -> MessagesSize | None:
    """Return the bytes of [start, end) of a queue, as far as it is kept; None: the broker does not tell."""
    try:
        if end - start <= EXACT_MAX:
            return await _exactly(core, address, queue, start, end)
        start = max(start, await core.ask(address, GetMinOffset(queue)))
        if end - start <= EXACT_MAX:
            return await _exactly(core, address, queue, start, end)
        step = (end - MESSAGES_OF_A_PLACE - start) / (PLACES - 1)
        pages = await asyncio.gather(
            *(
                core.ask(address, GetUnits(queue, start + int(step * place), MESSAGES_OF_A_PLACE))
                for place in range(PLACES)
            )
        )
    except BrokerError:  # no permission, for instance: the other figures are still worth showing
        return None
    sizes = [unit.size for page in pages for unit in page.units]
    return MessagesSize(round(sum(sizes) / len(sizes) * (end - start)), exact=False) if sizes else None


async def _exactly(core: ClientCore, address: str, queue: MessageQueue, start: int, end: int) -> MessagesSize:
    """Add up the sizes of [start, end): of those that retention has taken, none is counted."""
    found = 0
    while start < end:
        answer = await core.ask(address, GetUnits(queue, start, end - start))
        if answer.units:
            found += sum(unit.size for unit in answer.units[: end - start])
            start += len(answer.units)
            continue
        # A RocketMQ does not tell where the queue begins if no unit is at the place.
        low = await core.ask(address, GetMinOffset(queue))
        if low <= start:
            break
        start = low
    return MessagesSize(found)
