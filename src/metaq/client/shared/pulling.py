"""One pull of a consumer or reader: request to the queue's broker, and decoding of messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct, structs

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.pulling import HOLD_MS, Pull, PullResult, PullStatus
from metaq.client.identity.names import Namespace
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pull_replicas import PullReplicas
from metaq.errors import BadRequest, ConfigError
from metaq.model import MessageQueue, StoredMessage, SubscriptionData, SysFlag
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.topics.route import MASTER_ID
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire import compression, hot

log = logging.getLogger("metaq.client")

M = TypeVar("M", bound=StoredMessage)

_COMPRESSED = int(SysFlag.COMPRESSED)  # `&` with the enum itself costs a microsecond per message.


class PullSettings(Struct, Generic[M], frozen=True):
    """Common settings of the pulls of one consumer or reader.

    `messages` are made of `message_class`. `bytes_max` is understood by our brokers only, others give 32 messages or
    256 KiB. `inline`: the pull carries its subscription, because no heartbeat carries it. `hold`: brokers may hold a pull that
    finds nothing, for `hold_ms`. `seconds` to wait for an answer, if not the usual. `replicas` is theirs in common.
    """

    group: str
    message_class: type[M]
    bytes_max: int
    replicas: PullReplicas
    inline: bool = False
    hold: bool = True
    hold_ms: int = HOLD_MS
    seconds: float | None = None
    body_bytes_max: int = 4 * BODY_BYTES_MAX


class PulledMessages(NamedTuple, Generic[M]):
    """Result of a pull: its response, and the messages in it that match the subscription.

    `broken` are messages whose body cannot be expanded, with the reason; they are not among `messages`.
    """

    result: PullResult
    messages: list[M]
    broken: tuple[tuple[M, str], ...] = ()
    undecodable: tuple[tuple[M, Exception], ...] = ()
    """Messages that cannot be deserialized, with the error; they are not among `messages` either."""


async def pull(
    core: ClientCore,
    wanted: PullSettings[M],
    queue: MessageQueue,
    offset: int,
    count: int,
    subscription: SubscriptionData,
    *,
    commit_offset: int = 0,
) -> PulledMessages[M]:
    """Pull up to `count` messages of `queue` from `offset` on, and commit `commit_offset` if that is above 0.

    From the master, or the slave that it has suggested (see `PullReplicas`). What a slave lacks is asked of the master.

    Raises: NoRoute: the broker is not up. BrokerError: refused. RemoteProtocolError: the answer's records are broken.
    And what `Transport.call` raises.
    """
    call = Pull(
        group=wanted.group,
        queue=queue,
        offset=offset,
        count=count,
        subscription=subscription,
        inline=wanted.inline,
        hold=wanted.hold,
        hold_ms=wanted.hold_ms,
        commit_offset=commit_offset,
        bytes_max=wanted.bytes_max
        if core.is_ours(queue.broker)
        else None,  # A field of ours: a RocketMQ has its own bound.
    )
    result = await _pull_of_slave(core, wanted, call)
    if result is None:
        result = await core.ask_broker(queue.broker, call, seconds=wanted.seconds, held=call.hold)
        wanted.replicas.suggested(queue, result.suggested_broker_id)
    if result.status is not PullStatus.FOUND:
        return PulledMessages(result, [])
    records = result.records
    messages = hot.decode_records(
        records, 0, len(records), wanted.message_class, queue.broker, result.min_offset, result.max_offset
    )
    if subscription.tags:  # Brokers compare hashes of tags; here the tags themselves are compared.
        messages = [message for message in messages if message.tag in subscription.tags]
    made_plain(messages, queue, core.namespace)
    return PulledMessages(result, messages, _expand(messages, wanted.body_bytes_max))


async def _pull_of_slave(core: ClientCore, wanted: PullSettings[M], call: Pull) -> PullResult | None:
    """Return the answer of the slave that the master has suggested; None: the master has to be asked."""
    queue = call.queue
    broker_id = wanted.replicas.of(queue)
    if broker_id == MASTER_ID or not core.is_up(queue.broker, broker_id):
        return None
    call = structs.replace(call, commit_offset=0)  # a slave would drop it: progress is the master's
    try:
        result = await core.ask_broker(queue.broker, call, broker_id=broker_id, seconds=wanted.seconds, held=call.hold)
    except FAULTS as error:
        wanted.replicas.failed(queue, broker_id)
        log.warning("a slave of the broker %s gives nothing of %s, its master is asked: %s", queue.broker, queue, error)
        return None
    wanted.replicas.suggested(queue, result.suggested_broker_id)
    # A slave may lag, and its log may begin later: whether messages are gone is for the master to say, and whether this is the
    # queue's end, to who does not wait for more.
    lacks = result.next_offset == call.offset and not call.hold and result.suggested_broker_id == MASTER_ID
    return None if result.status is PullStatus.OUT_OF_RANGE or lacks else result


def made_plain(messages: Iterable[StoredMessage], queue: MessageQueue, namespace: Namespace) -> None:
    """Set the topics of messages to plain names, for a client with a namespace."""
    if not namespace:
        return
    retried = queue.topic.startswith(RETRY_PREFIX)
    for message in messages:
        message.topic = namespace.plain(message.topic)
        if retried and props.RETRY_TOPIC in message.properties:
            message.properties[props.RETRY_TOPIC] = namespace.plain(message.properties[props.RETRY_TOPIC])


def _expand(messages: list[M], limit: int) -> tuple[tuple[M, str], ...]:
    """Decompress bodies in place; messages where that fails are removed and returned."""
    broken: list[tuple[M, str]] = []
    for message in [message for message in messages if message.sys_flag & _COMPRESSED]:
        try:
            message.body = compression.decompress(message.body, message.sys_flag, limit)
        except (BadRequest, ConfigError) as error:
            log.error("%s cannot be read: %s", message, error)  # noqa: TRY400  its traceback says nothing
            broken.append((message, str(error)))
    # One by one, since broken ones are rare.
    for message, _ in broken:
        messages.remove(message)
    return tuple(broken)
