"""How large messages may be that a cluster is to take in a transaction: as large as it takes sends, if all its brokers are new enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.model.message import BODY_BYTES_MAX
from metaq.model.transactions.staging import CHUNK_BYTES_MAX
from metaq.spark.cluster.client import ClusterClient
from metaq.wire.extensions import LARGE_CHUNKS_LEVEL


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageLimits:
    """What is taken. Plain values: it travels to the workers."""

    body_bytes: int
    whole_bytes: int | None = None
    """Of body and properties together; None: each has its own limit only."""
    empty: bool = False
    """Whether a body may be empty."""
    retry_topics: bool = False
    """Whether it may go to the retry topic of a group."""

    @property
    def words(self) -> str:
        """The limit of what is there beside the properties."""
        least = 0 if self.empty else 1
        if self.whole_bytes is not None:
            return f"{least} to {self.whole_bytes} in all"
        return f"bodies of {least} to {self.body_bytes}"


SENT: Final = MessageLimits(body_bytes=BODY_BYTES_MAX, whole_bytes=BODY_BYTES_MAX)
"""Of what is sent in batches, to whatever broker."""
OLDER: Final = MessageLimits(body_bytes=CHUNK_BYTES_MAX, whole_bytes=CHUNK_BYTES_MAX)
"""Of a transaction at brokers of ours that know no chunk above 1 MiB."""


def of_transactions(client: ClusterClient) -> MessageLimits:
    """What every broker of a cluster takes in a transaction. Raises as `ClusterClient`."""
    found = [client.takes(broker) for broker in client.masters()]
    if not found or min(takes.level for takes in found) < LARGE_CHUNKS_LEVEL:
        return OLDER
    return MessageLimits(body_bytes=min(takes.body_bytes for takes in found), empty=True, retry_topics=True)
