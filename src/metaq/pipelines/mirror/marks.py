"""Marks of a mirrored message, properties that name its origin; and the properties that are not copied.

    MIRROR_SOURCE   CLUSTER/TOPIC/BROKER/QUEUE/OFFSET    where it was stored, in the cluster that it was mirrored from last
    MIRROR_PATH     CLUSTER,CLUSTER                      the clusters before that, the first one first; only if there are any
    MIRROR_BORN     MS HOST:PORT                         when and where it was sent first: a mirrored record has the mirror's own

Works on texts: `copying` does the same for whole columns, and calls this for messages that have marks already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from metaq.model import MessageQueue
from metaq.model import properties as props

SOURCE: Final = "MIRROR_SOURCE"
PATH: Final = "MIRROR_PATH"
BORN: Final = "MIRROR_BORN"

DROPPED: Final = (
    # Set by the target's broker itself, or acted on again there: a DELAY delays, TRAN_MSG makes a half message that nobody
    # ends, INNER_MULTI_DISPATCH writes to queues that do not exist.
    props.CLUSTER, props.WAIT, props.DELAY, props.DUE, "__STARTDELIVERTIME", props.TRANSACTION_PREPARED, props.PRODUCER_GROUP,
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    # Of a delay or a transaction in the source, which is over.
    props.REAL_TOPIC, props.REAL_QUEUE_ID, props.CHECK_TIMES, props.PREPARED_QUEUE_OFFSET, props.CHECK_IMMUNITY,
    # Of a retry topic: the retries were the source group's; in the target it is a message like others.
    props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID, props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES, props.UNDECODABLE,
    # Added by clients on receipt.
    props.MIN_OFFSET, props.MAX_OFFSET, "CONSUME_START_TIME",
)  # fmt: skip
"""Properties that are not copied."""
REPLACED: Final = (SOURCE, PATH, BORN)
"""Properties that the mirror writes itself."""


class Origin(NamedTuple):
    """Place in the source where a mirrored message was stored."""

    cluster: str
    queue: MessageQueue
    offset: int

    def __str__(self) -> str:
        topic, broker, queue_id = self.queue
        return f"{self.cluster}/{topic}/{broker}/{queue_id}/{self.offset}"


def origin_of(text: str | None) -> Origin | None:
    """Parse a MIRROR_SOURCE; None: no mirror has written it."""
    if text is None:
        return None
    head, _, offset = text.rpartition("/")
    head, _, queue_id = head.rpartition("/")
    cluster, _, rest = head.partition("/")
    topic, _, broker = rest.partition("/")
    if not (cluster and topic and broker and _is_number(queue_id) and _is_number(offset)):
        return None
    return Origin(cluster, MessageQueue(topic, broker, int(queue_id)), int(offset))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def path_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the clusters that a message was in before this one, the first one first."""
    earlier = tuple(name for name in properties.get(PATH, "").split(",") if name)
    origin = origin_of(properties.get(SOURCE))
    return (*earlier, origin.cluster) if origin is not None else earlier


def came_around(path: tuple[str, ...], source: str, target: str) -> bool:
    """Return whether a message with this path must not be mirrored from `source` to `target`: it was there before.

    If the two mirrors of a circle spell a cluster's name servers differently, the message is recognised one hop later, by the
    source.
    """
    return target in path or source in path
