"""One pull: the request, its four kinds of answer, and messages out of the bytes."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import Generic, TypeVar

from metaq.client.core import ClientCore
from metaq.errors import BadRequest, BrokerError, ConfigError, NoRoute
from metaq.model import MessageQueue, StoredMessage, SubscriptionData, SysFlag
from metaq.model.message import BODY_BYTES_MAX
from metaq.wire import compression, headers, hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request

log = logging.getLogger("metaq.client")

M = TypeVar("M", bound=StoredMessage)

SUSPEND_SECONDS = 15.0
"""How long a broker may hold a pull that finds nothing."""
PULL_SECONDS = 30.0
"""How long we wait for the answer: brokers look at held pulls every 5 s."""
_COMPRESSED = int(SysFlag.COMPRESSED)  # `&` with the enum itself costs a microsecond per message.
PLAIN_COUNT = 32
"""Messages that a broker which is not ours gives at most."""


class PullStatus(enum.Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OUT_OF_RANGE = ResponseCode.PULL_OFFSET_MOVED


_STATUS = {int(status.value): status for status in PullStatus}


@dataclass(frozen=True, slots=True)
class Wanted(Generic[M]):
    """What the pulls of one consumer or reader have in common.

    `messages` are made of `message_class`. `bytes_max` is understood by our brokers only, others give 32 messages or
    256 KiB. `inline`: the pull carries its subscription, because no heartbeat told it.
    """

    group: str
    message_class: type[M]
    bytes_max: int
    inline: bool = False
    hold: bool = True
    body_bytes_max: int = 4 * BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Pulled(Generic[M]):
    """The answer. `next_offset` is where to go on; `broken` are messages whose body cannot be expanded, with the reason."""

    status: PullStatus
    messages: list[M]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0
    broken: tuple[tuple[M, str], ...] = ()
    size: int = 0
    """Bytes of the records."""


async def pull(
    core: ClientCore,
    wanted: Wanted[M],
    queue: MessageQueue,
    offset: int,
    count: int,
    subscription: SubscriptionData,
    *,
    commit_offset: int = 0,
    broker_id: int = 0,
) -> Pulled[M]:
    """Pull up to `count` messages of `queue` from `offset` on, and commit `commit_offset` if that is above 0.

    Raises: BrokerError: refused. RemoteProtocolError: the answer's records are broken. And what `Transport.call` raises.
    """
    address = core.address_of(queue.broker, broker_id)
    if address is None:
        raise NoRoute(f"no broker named {queue.broker} is up")
    sys_flag = headers.PullHeader.SUSPEND if wanted.hold else 0
    if commit_offset > 0 and broker_id == 0:
        sys_flag |= headers.PullHeader.COMMIT_OFFSET
    if wanted.inline:
        sys_flag |= headers.PullHeader.SUBSCRIPTION
    header = headers.PullHeader(
        group=wanted.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_messages=count,
        sys_flag=sys_flag,
        commit_offset=max(commit_offset, 0),
        suspend_ms=int(SUSPEND_SECONDS * 1000),
        subscription=subscription.expression if wanted.inline else None,
        sub_version=subscription.version,
        expression_type=subscription.expression_type,
        broker_name=queue.broker,
        max_msg_bytes=wanted.bytes_max if core.is_ours(queue.broker) else None,
    )
    answer = await core.transport.call(address, request(RequestCode.PULL_MESSAGE, header), PULL_SECONDS)
    status = _STATUS.get(answer.code)
    if status is None:
        raise BrokerError(answer.code, answer.remark or "", address, f"pull from {queue}")
    said = headers.PullReplyHeader.from_ext(answer.ext)
    if status is not PullStatus.FOUND:
        return Pulled(status, [], said.next_offset, said.min_offset, said.max_offset, said.suggest_broker_id)
    messages = hot.decode_records(
        answer.body, 0, len(answer.body), wanted.message_class, queue.broker, said.min_offset, said.max_offset
    )
    if subscription.tags:  # Brokers compare hashes of tags; here the tags themselves are compared.
        messages = [message for message in messages if message.tag in subscription.tags]
    broken = _expand(messages, wanted.body_bytes_max)
    return Pulled(
        status, messages, said.next_offset, said.min_offset, said.max_offset, said.suggest_broker_id, broken,
        len(answer.body),
    )  # fmt: skip


def _expand(messages: list[M], limit: int) -> tuple[tuple[M, str], ...]:
    """Expand compressed bodies in place; the messages where that fails are taken out and returned."""
    broken: list[tuple[M, str]] = []
    for message in [message for message in messages if message.sys_flag & _COMPRESSED]:
        try:
            message.body = compression.decompress(message.body, message.sys_flag, limit)
        except (BadRequest, ConfigError) as error:
            log.error("%s cannot be read: %s", message, error)  # noqa: TRY400  its traceback says nothing
            broken.append((message, str(error)))
    for message, _ in broken:
        messages.remove(message)
    return tuple(broken)
