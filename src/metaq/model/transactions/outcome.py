"""Half messages and how their transactions end."""

from __future__ import annotations

import enum

from msgspec import Struct


class TransactionOutcome(enum.Enum):
    """How a local transaction ended, as far as it is known: what becomes of its half message."""

    COMMIT = "commit"
    """Consumers get the message."""
    ROLLBACK = "roll back"
    """Nobody ever sees it."""
    UNKNOWN = "unknown"
    """It stays unseen, and the broker asks again later."""


class HalfMessage(Struct, frozen=True):
    """What names a half message at the broker that stored it."""

    message_id: str
    """The unique id that its producer gave it: the id of the transaction."""
    queue_offset: int
    """In the broker's queue of half messages. Each check moves it."""
    log_offset: int
