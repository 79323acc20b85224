"""How long a group's member waits for what."""

from __future__ import annotations

from msgspec import Struct


class GroupSeconds(Struct, frozen=True):
    """All in seconds."""

    rebalance: float = 20.0
    """Between two looks at who shares the queues, if nobody says that it has changed."""
    persist: float = 5.0
    """Between two reports of the progress."""
    retry: float = 1.0
    """After a rebalance that failed, and a pull whose answer holds broken records."""
    pause: float = 0.05
    """How often a queue that is full is looked at, beside being woken when a chunk has been handed out."""
    stall: float = 60.0
    """A queue that stays full for so long is worth a warning."""
    give_back: float = 60.0
    """For the answer to a message that was given back, over all tries."""
    copy: float = 3.0
    """For the send of a copy to the retry topic, over all tries."""
    again: float = 5.0
    """Before a message that no broker takes is handed out here once more."""
    locks: float = 1.0
    """Between two looks at which locks of an orderly consumer are to be renewed."""
    leave: float = 20.0
    """For the message in hand of a queue that goes to another member, in orderly consumption."""
    drain: float = 5.0
    """For messages on their way back to the broker, when the member leaves."""


USUAL = GroupSeconds()
