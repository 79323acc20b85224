"""Half messages: how a transaction ended, and the question after one that did not (37, 39)."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header, Int, Long


class EndTransactionHeader(Header, kw_only=True):
    """37: what became of the local transaction that a half message belongs to."""

    producer_group: str
    half_queue_offset: Long = field(name="tranStateTableOffset")
    """QueueOffset of the half record."""
    log_offset: Long = field(name="commitLogOffset")
    """LogOffset of the half record."""
    outcome: Int = field(name="commitOrRollback")
    """`SysFlag.COMMITTED`, `SysFlag.ROLLED_BACK`, or 0: unknown."""
    from_check: bool = field(name="fromTransactionCheck", default=False)
    """Whether this answers a check."""
    message_id: str = field(name="msgId", default="")
    """The producer's unique id of the message. One that is missing is no error; another message's is, at brokers of ours."""
    transaction_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class CheckTransactionHeader(Header, kw_only=True):
    """39, of a broker: how did it end? The body is the half record with the topic and queue that it is for."""

    half_queue_offset: Long = field(name="tranStateTableOffset")
    """QueueOffset of the half record, to be named in the answer."""
    log_offset: Long = field(name="commitLogOffset")
    """LogOffset of the half record, to be named in the answer."""
    message_id: str | None = field(name="msgId", default=None)
    """The producer's unique id of the message."""
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)


class ResumeCheckHeader(Header, kw_only=True):
    """323: ask once more about a half message that was given up."""

    message_id: str = field(name="msgId")
    """The offset id of its record in TRANS_CHECK_MAX_TIME_TOPIC."""
