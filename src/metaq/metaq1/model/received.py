"""A message of MetaQ 1.x, as a consumer gets it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from metaq.errors import ClientError
from metaq.metaq1.model.partition import Partition


class Acknowledging(Protocol):
    """The listener call's batch, of a subscription with `auto_ack=False`."""

    def ack(self) -> None: ...

    def rollback(self) -> None: ...


class ReceivedMessage(Struct):
    """What was sent, and where it lies."""

    topic: str
    """Name of the topic."""
    data: bytes
    """What was sent."""
    attribute: str | None
    """None: there is none."""
    message_id: int
    """Id that the server gave the message, unique in its cluster."""
    flag: int
    """As it was sent; its lowest bit says that there is an attribute."""
    partition: Partition
    """Partition that it lies in."""
    offset: int
    """Byte position in the partition."""
    size: int
    """Bytes that it takes there; the next message begins at `offset + size`."""
    _batch: Acknowledging | None = None
    """Where `ack` and `rollback` are told; None: the subscription has `auto_ack=True`."""
    rollback_only: bool = False
    """The message counts as failed when the listener returns: see `set_rollback_only`."""

    def set_rollback_only(self) -> None:
        """Have the message delivered again, as if the listener had raised an error."""
        self.rollback_only = True

    def ack(self) -> None:
        """Acknowledge this message and those before it, when the listener returns. For subscriptions with `auto_ack=False`.

        Raises ClientError: of another subscription, or the batch was rolled back in this call.
        """
        self._acknowledging().ack()

    def rollback(self) -> None:
        """Have all messages after the last acknowledged one delivered again. For subscriptions with `auto_ack=False`.

        Raises ClientError: of another subscription, or the batch was acknowledged in this call.
        """
        self._acknowledging().rollback()

    def _acknowledging(self) -> Acknowledging:
        if self._batch is None:
            raise ClientError(
                f"messages of topic {self.topic} are acknowledged when the listener returns: subscribe with auto_ack=False to do it "
                "yourself"
            )
        return self._batch
