"""Staged transactions (30000 to 30006; docs/formats/staging.md). What is a list or a decision travels in the body: `metaq.wire.staging`."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header, Int, Long


class StageHeader(Header, kw_only=True):
    """30000: keep these chunks. The body is a run of sections."""

    transaction: str = field(name="transactionId")
    lifetime: str = "a"
    """When parts end that nobody decides: the letter of a `metaq.model.transactions.staging.Lifetime`."""
    seconds: Int = 0
    """With `a`: after so many; 0: as long as the broker keeps such parts at most."""
    born_ms: Long = field(name="bornTimestamp")
    broker: str | None = field(name="bname", default=None)
    """Whom it is for, in all of these: another broker, which has taken over an address, refuses it."""


class SealPartHeader(Header, kw_only=True):
    """30001: a part ends here."""

    transaction: str = field(name="transactionId")
    part: str
    chunks: Int
    rows: Int
    """Messages in all its chunks."""
    bytes: Long
    """Of all its chunks' bodies."""
    crc: Long
    """The part's CRC-32, without a sign."""
    broker: str | None = field(name="bname", default=None)


class StagedTransactionHeader(Header, kw_only=True):
    """30002 and 30003, whose body is a decision."""

    transaction: str = field(name="transactionId")
    settle: bool | None = None
    """30002, of a participant: roll it back, unless it is decided or prepared. There is no body then."""
    broker: str | None = field(name="bname", default=None)


class StagedSubjectHeader(Header, kw_only=True):
    """30004 and 30005: a transaction or a writer's row, one of both."""

    transaction: str | None = field(name="transactionId", default=None)
    row: str | None = None
    broker: str | None = field(name="bname", default=None)


class ListBranchesHeader(Header, kw_only=True):
    """30008: the transactions of MetaQ 1.x clients that a broker has, in the order of their staged transactions' ids."""

    after: str = ""
    """Begin behind this one."""
    count: Int = 100


class EndBranchHeader(Header, kw_only=True):
    """30009: what an operator does with an XA branch of a MetaQ 1.x client."""

    key: str
    """`XID:...`"""
    action: str
    """`commit`, `rollback` or `forget`."""


class ListStagedHeader(Header, kw_only=True):
    """30006: the transactions that a broker has, in the order of their ids."""

    after: str = ""
    """Begin behind this one."""
    count: Int = 100
    rows: bool | None = None
    """List the rows of writers instead, in the order of their keys."""
