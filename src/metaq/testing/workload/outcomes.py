"""What a producer knows of a send that failed, and the bodies that name their messages."""

from __future__ import annotations

from collections.abc import Sequence

from metaq.errors import (
    BrokerError,
    BufferFull,
    ConnectionFailed,
    MetaqError,
    NoRoute,
    RequestTimeout,
    SendFailed,
    TransactionFailed,
)
from metaq.model import SendReceipt, StoredMessage
from metaq.testing.checking import Outcome, Place
from metaq.wire.extensions import IN_DOUBT_MARK

_SURE = "so nothing was stored"
"""How the client ends the text of a `SendFailed` of which it is sure."""


def outcome_of(error: MetaqError) -> Outcome:
    """Return what is known of a send that raised this."""
    if isinstance(error, SendFailed):
        return "refused" if str(error).endswith(_SURE) else "ambiguous"
    if isinstance(error, ConnectionFailed | RequestTimeout):
        return "ambiguous" if error.sent else "refused"
    if isinstance(error, TransactionFailed):
        return "refused" if error.retriable else "ambiguous"
    if isinstance(error, BrokerError):
        return "ambiguous" if error.remark.startswith(IN_DOUBT_MARK) else "refused"
    if isinstance(error, NoRoute | BufferFull):
        return "refused"
    return "ambiguous"


def body_of(key: str, size: int) -> bytes:
    """Return a body of about `size` bytes that names its message."""
    return f"{key} ".encode().ljust(size, b".")


def key_of(body: bytes) -> str:
    """Return the key that a body names."""
    return body.partition(b" ")[0].decode("utf-8", "replace")


def places_of(receipts: Sequence[SendReceipt]) -> list[Place]:
    """Return where acknowledgements say that their messages lie."""
    return [Place(str(receipt.queue), receipt.offset) for receipt in receipts]


def place_of(message: StoredMessage) -> Place:
    """Return where a message lies."""
    return Place(f"{message.topic}@{message.broker}:{message.queue_id}", message.queue_offset)
