"""PULL_MESSAGE (11) and its four kinds of response. The records are decoded by the caller."""

from __future__ import annotations

import enum
from typing import ClassVar, NamedTuple

from metaq.client.conversation.call import Call
from metaq.model import MessageQueue, SubscriptionData
from metaq.model.filters.subscription import ALL
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request

PLAIN_COUNT = 32
"""Messages per pull that a RocketMQ broker returns at most (`maxTransferCountOnMessageInMemory`)."""
HOLD_MS = 15_000
"""Default long-polling time-out, ms; as RocketMQ's push consumer."""
EVERYTHING = SubscriptionData("", ALL)


class PullStatus(enum.Enum):
    """Outcome of a pull."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OUT_OF_RANGE = ResponseCode.PULL_OFFSET_MOVED


_STATUS = {int(status.value): status for status in PullStatus}


class PullResult(NamedTuple):
    """Response of a pull. `records`: as in the log, back to back; a view of the response where possible, not a copy.

    `next_offset`: where to continue; [min_offset, max_offset): offsets in the queue.
    """

    status: PullStatus
    records: bytes | memoryview
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0


class Pull(Call[PullResult], frozen=True, kw_only=True):
    """Pull up to `count` messages of a queue from `offset` on (11).

    Args:
        subscription: the filter.
        inline: send it along, for clients whose heartbeat does not carry it.
        hold: allow long polling, for `hold_ms`.
        commit_offset: if above 0, committed as the group's offset.
        bytes_max: response limit; our brokers only. Others return at most 32 messages or 256 KiB.
    """

    seconds: ClassVar[float] = 30.0  # RocketMQ looks for overdue held pulls every 5 s, so 15 s of holding may become 20
    answers = _STATUS

    group: str
    queue: MessageQueue
    offset: int
    count: int
    subscription: SubscriptionData = EVERYTHING
    inline: bool = True
    hold: bool = False
    hold_ms: int = HOLD_MS
    commit_offset: int = 0
    bytes_max: int | None = None

    @property
    def action(self) -> str:
        return f"pull from {self.queue}"

    def request(self) -> Command:
        sys_flag = headers.PullHeader.SUSPEND if self.hold else 0
        # Java's push consumer sets the flag for offsets above 0 only.
        if self.commit_offset > 0:
            sys_flag |= headers.PullHeader.COMMIT_OFFSET
        if self.inline:
            sys_flag |= headers.PullHeader.SUBSCRIPTION
        header = headers.PullHeader(
            group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.offset,
            max_messages=self.count,
            sys_flag=sys_flag,
            commit_offset=self.commit_offset,
            suspend_ms=self.hold_ms if self.hold else 0,
            subscription=self.subscription.expression if self.inline else None,
            sub_version=self.subscription.version,
            expression_type=self.subscription.expression_type,
            broker_name=self.queue.broker,
            max_msg_bytes=self.bytes_max,
        )
        return request(RequestCode.PULL_MESSAGE, header)

    def read(self, answer: Command) -> PullResult:
        header = headers.PullReplyHeader.from_ext(answer.ext)
        status = _STATUS[answer.code]
        records = answer.body if status is PullStatus.FOUND else b""
        return PullResult(
            status, records, header.next_offset, header.min_offset, header.max_offset, header.suggest_broker_id
        )
