"""Staged transactions (30000-30006, 30008, 30009; docs/formats/staging.md). `metaq.wire.staging` has their bodies."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header, Int, Long


class StageHeader(Header, kw_only=True):
    """STAGE (30000): stage chunks. The body is a run of sections."""

    transaction: str = field(name="transactionId")
    lifetime: str = "a"
    """When undecided parts are rolled back: the letter of a `metaq.model.transactions.staging.Lifetime`."""
    seconds: Int = 0
    """Lifetime `a`: age in seconds; 0: the longest that the broker allows."""
    born_ms: Long = field(name="bornTimestamp")
    broker: str | None = field(name="bname", default=None)
    """Name of the broker meant, in all of these headers: another one that has taken over the address refuses the
    request."""


class SealPartHeader(Header, kw_only=True):
    """SEAL (30001): end a part, with its counts and its checksum."""

    transaction: str = field(name="transactionId")
    part: str
    chunks: Int
    rows: Int
    """Messages in all its chunks."""
    bytes: Long
    """Bytes of all its chunks' bodies."""
    crc: Long
    """The part's CRC-32, unsigned (`metaq.model.transactions.staging.part_crc`)."""
    broker: str | None = field(name="bname", default=None)


class StagedTransactionHeader(Header, kw_only=True):
    """DECIDE (30002), APPLY (30003). The body is a decision."""

    transaction: str = field(name="transactionId")
    settle: bool | None = None
    """With DECIDE, from a participant: roll the transaction back unless it is decided or prepared. No body then."""
    broker: str | None = field(name="bname", default=None)


class StagedSubjectHeader(Header, kw_only=True):
    """STAGED_STATE (30004), FORGET_STAGED (30005) of either a transaction or a writer's row."""

    transaction: str | None = field(name="transactionId", default=None)
    row: str | None = None
    broker: str | None = field(name="bname", default=None)


class ListBranchesHeader(Header, kw_only=True):
    """LIST_BRANCHES (30008): a broker's transactions of MetaQ 1.x clients, sorted by the ids of their staged
    transactions."""

    after: str = ""
    """Exclusive start of the list."""
    count: Int = 100


class EndBranchHeader(Header, kw_only=True):
    """END_BRANCH (30009): an operator ends an XA branch of a MetaQ 1.x client."""

    key: str
    """`XID:...`"""
    action: str
    """`commit`, `rollback` or `forget`."""


class ListStagedHeader(Header, kw_only=True):
    """LIST_STAGED (30006): a broker's staged transactions, sorted by id."""

    after: str = ""
    """Exclusive start of the list."""
    count: Int = 100
    rows: bool | None = None
    """List the rows of writers instead, sorted by key."""
