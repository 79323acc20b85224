"""Where consumers go on at the slave that has become master: their offsets are found again by the ids of messages.

An offset in ZooKeeper says the id of the last message that was consumed, and the byte position behind it. Where this broker has
that message before that position, as it has if it got every message of its master, the offset stays. Elsewhere the message is
searched, from the newest one back. If it is not here, the newest message that was put before it is taken: ids of puts ascend.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from metaq.model.metaq1.pair import NO_ID
from metaq.model.metaq1.partition import FOREIGN


class Mark(Struct, frozen=True):
    """How far a consumer is: behind this message, at this byte position."""

    message_id: int
    position: int


class Search:
    """Searches the messages of one partition for those at which consumers are. Messages are shown from the newest one back."""

    def __init__(self, wanted: Iterable[Mark]) -> None:
        self.open = {mark.message_id for mark in wanted if mark.message_id != NO_ID}
        self.found: dict[int, Mark] = {}
        """Id that was searched → the message at which its consumer goes on."""

    def look(self, message_id: int, behind: int) -> None:
        """Look at a message. Args: behind: byte position behind it."""
        mark = Mark(message_id, behind)
        if message_id in self.open:
            self.open.discard(message_id)
            self.found[message_id] = mark
        if is_put(message_id):
            for newer in [one for one in self.open if is_put(one) and one > message_id]:
                self.open.discard(newer)
                self.found[newer] = mark


def is_put(message_id: int) -> bool:
    """Return whether a message has an id by which puts are ordered: a 1.x client put it, and the id has a time."""
    return 0 < message_id < FOREIGN


def moved(mark: Mark, search: Search, begin: int, end: int) -> Mark | None:
    """Return where a consumer goes on; None: at its offset as it is.

    Args:
        mark: its offset, whose message this broker does not have in that place.
        begin: position of the partition's oldest message.
        end: behind its newest; the same if it has none.
    """
    if mark.message_id == NO_ID:
        return None  # it has consumed nothing, or was told to go on there
    found = search.found.get(mark.message_id)
    if found is not None:
        return found if found != mark else None
    if begin == end:
        # What the original writes, whatever the id.
        return Mark(NO_ID, begin)
    if mark.message_id < 0:
        return None  # an id without time, which the original leaves as well
    # The message is older than all that is here, or was never here: nothing may be passed over.
    return Mark(NO_ID, begin)
