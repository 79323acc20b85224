"""Marks of a mirrored message: where it came from. And the properties that are not copied.

    MIRROR_SOURCE   CLUSTER/TOPIC/BROKER/QUEUE/OFFSET    where it was stored, in the cluster that it was mirrored from last
    MIRROR_PATH     CLUSTER,CLUSTER                      the clusters before that, the first one first; only if there are any
    MIRROR_BORN     MS HOST:PORT                         when and where it was sent first: a mirrored record has the mirror's own

Pure text: `copying` does the same for whole columns, and asks here where a message has such marks already.
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
    # What the target's broker says itself, or would obey again: a DELAY delays, TRAN_MSG makes a half message that nobody
    # ends, INNER_MULTI_DISPATCH fills queues that are not there.
    props.CLUSTER, props.WAIT, props.DELAY, props.DUE, "__STARTDELIVERTIME", props.TRANSACTION_PREPARED, props.PRODUCER_GROUP,
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    # Where it had waited in the source, and for what: a delay or a transaction that is over.
    props.REAL_TOPIC, props.REAL_QUEUE_ID, props.CHECK_TIMES, props.PREPARED_QUEUE_OFFSET, props.CHECK_IMMUNITY,
    # Of a retry topic: its tries were the source group's, and in the target it is a message like others.
    props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID, props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES, props.UNDECODABLE,
    # What clients add for themselves.
    props.MIN_OFFSET, props.MAX_OFFSET, "CONSUME_START_TIME",
)  # fmt: skip
"""Properties that are not copied."""
REPLACED: Final = (SOURCE, PATH, BORN)
"""Properties that the mirror writes itself."""


class Origin(NamedTuple):
    """Where a mirrored message was stored before."""

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
    """The clusters that a message has been in before this one, the first one first."""
    earlier = tuple(name for name in properties.get(PATH, "").split(",") if name)
    origin = origin_of(properties.get(SOURCE))
    return (*earlier, origin.cluster) if origin is not None else earlier


def came_around(path: tuple[str, ...], source: str, target: str) -> bool:
    """Whether a message with this path is not to be mirrored from `source` to `target`: it has been there.

    A target that is spelled differently each way is not known again; then the source is, when the message comes back to it.
    """
    return target in path or source in path
