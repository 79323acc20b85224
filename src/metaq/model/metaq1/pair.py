"""The synchronous pair of MetaQ 1.x: a master (*samsa*) that has every message at its slave (*gregor*) before it acknowledges it.

What a master asks of its slave, and what it hears, as values; `metaq.wire.metaq1.commands` has the lines (`sync`, `offset`, `get`).
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from msgspec import Struct

STATUS_TOPIC: Final = "_metaq_slave_status_test"
"""Topic of a gregor, in which a samsa that was refused too often stores a message now and then, to see whether it can again."""
BRANCHES_TOPIC: Final = "rmq_sys_METAQ_BRANCHES"
"""Topic of syncs that are steps of XA branches; nothing is stored in it."""
NO_ID: Final = -1
"""Message id in an offset of a consumer that has consumed nothing yet."""


class SamsaSettings(Struct, frozen=True, kw_only=True):
    """Settings of the master of a pair, in `samsa_master.properties`. Times in seconds."""

    slave: str
    """`host:port` of the slave's text server."""
    recover_offset: bool = False
    """Rewrite the offsets that consumers keep in ZooKeeper to this broker's own positions, before it registers there."""
    send_timeout: float = 2.0
    failures_max: int = 100
    """Failures of the slave in a row after which the master leaves ZooKeeper until the slave takes a message again."""
    check_interval: float = 0.1
    copy_backlog: bool = True
    """Copy what an empty slave, or one that was away, lacks, before puts are taken. Not in the original, whose slaves lack it for ever."""

    @property
    def url(self) -> str:
        return f"meta://{self.slave}"


class GregorSettings(Struct, frozen=True):
    """Settings of the slave of a pair, in `gregor_slave.properties`: the original has none either."""


PairSettings: TypeAlias = SamsaSettings | GregorSettings


class PartitionSync(Struct, frozen=True, kw_only=True):
    """Store a message with the id that its master gave it. `flag` and `body` are as in a put."""

    topic: str
    partition: int
    message_id: int
    body: bytes
    flag: int = 0
    checksum: int = -1
    """CRC-32 of the body, its lower 31 bits; -1: not given."""
    born_host: bytes
    """4 or 16 address bytes, then 4 of the port."""


# ------------------------------------------------------------------ what a master asks


class SyncMessage(Struct, frozen=True):
    """`sync`: store this message."""

    topic: str
    partition: int
    flag: int
    message_id: int
    body: bytes
    checksum: int


class AskEnd(Struct, frozen=True):
    """`offset`: where does this partition end?"""

    topic: str
    partition: int


class AskHead(Struct, frozen=True):
    """`get`: the header of the frame at this position."""

    topic: str
    partition: int
    position: int


class BranchStep(enum.Enum):
    """What becomes of the slave's copy of an XA branch."""

    ASK = "ask"
    """Nothing: does this slave keep branches? One of 1.4.6.2 does not."""
    PUT = "put"
    PREPARE = "prepare"
    END = "end"
    """It is committed or rolled back at the master; what a commit has made visible is synced as any other message."""


class BranchCopy(Struct, frozen=True):
    """`sync` to `BRANCHES_TOPIC`: a step of the slave's copy of an XA branch. `message`: of PUT."""

    step: BranchStep
    key: str = ""
    message: SyncMessage | None = None


ToSlave: TypeAlias = SyncMessage | AskEnd | AskHead | BranchCopy


class Heard(Struct, frozen=True):
    """The slave's answer: `code` is HTTP's, 200 for success; `body` is its text, or the bytes of frames."""

    code: int
    body: bytes
