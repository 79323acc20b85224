"""Who leads the brokers of one name, when ZooKeeper decides it: what is kept there, and what each broker keeps of it.

The rules by which these values change are `metaq.broker.failover.protocol`; docs/failover-protocol.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct

ZOOKEEPER: Final = "zookeeper"
"""Option `failover`: leadership is decided through ZooKeeper."""
NOBODY: Final = 0
"""`GroupState.leader` while nobody leads. Members have numbers from 1 on."""
CHANGING: Final = -1
"""`Member.log_end` while it does not hold."""
MEMBERS_MAX: Final = 64
"""Most members of a group, and greatest number of one."""
TOKEN_CHARS_MAX: Final = 64
"""Of a history, an incarnation or a store."""


class Place(Struct, frozen=True):
    """A place of the in-sync set: a broker with the store that was in sync. The same broker with another store is not in the set."""

    member: int
    """brokerId that it is configured with, from 1 on."""
    store: str
    """Token of its store folder (`Membership.store`)."""


class GroupState(Struct, frozen=True, rename="camel"):
    """The state of a group of replicas, in ZooKeeper. Changed by compare-and-set alone."""

    history: str
    """Token of the group, chosen when the state was created: a log belongs to one history for ever."""
    epoch: int
    """Grows by one with each leader."""
    leader: int
    """Number of the member that leads, or led last and has not handed over; NOBODY: it has."""
    incarnation: str
    """Token of the process that leads: the same broker, started again, does not lead any more."""
    in_sync: tuple[Place, ...]
    """The in-sync set. All of them have whatever was acknowledged. Never empty."""
    hand_to: int = NOBODY
    """Member that is to lead next, if it can."""

    def place_of(self, member: int) -> Place | None:
        """Return the place of a member in the set; None: it has none."""
        return next((one for one in self.in_sync if one.member == member), None)


class Member(Struct, frozen=True, rename="camel"):
    """A broker of the group that is alive: what it says of itself in ZooKeeper for as long as its session lasts."""

    member: int
    incarnation: str
    store: str
    address: str
    """`host:port` of its remoting server."""
    whole: bool
    """Whether its log has all that it ever reported to a leader. Not so after a power cut, until it has caught up again."""
    log_end: int
    """LogOffset at which its log ends; only looked at while it is not whole. CHANGING: it copies from a leader, see
    `protocol.following`."""
    epoch: int
    """Number of the newest epoch of its log."""

    @property
    def place(self) -> Place:
        return Place(self.member, self.store)


Live: TypeAlias = Mapping[int, Member]
"""Number → member, of those that are alive."""


class Membership(Struct, frozen=True, rename="camel"):
    """What a broker keeps of its group, `config/metaqFailover.json`."""

    store: str
    """Token of this store folder, chosen when the broker first took part."""
    member: int = NOBODY
    """The number that it had."""
    history: str = ""
    """Of the group that its log belongs to; "": of none yet."""
    epoch: int = 0
    """The greatest epoch that it has known."""
    whole: bool = True
    """See `Member.whole`. Saved before it is told."""
    boot: str = ""
    """Id of the machine's run in which it was saved; "": it is not known."""
    synced: bool = False
    """Whether all that its broker has reported since then was on the disk (flushDiskType=SYNC_FLUSH)."""


# ---------------------------------------------------------------------- what is seen in ZooKeeper


class Seen(Struct, frozen=True):
    """What one look at a group's nodes has found."""

    state: GroupState | None
    """None: nobody has made the group's state yet."""
    version: int
    """Of the state's node, for a compare-and-set; -1 without a state."""
    live: Live


class Holder(Struct, frozen=True):
    """Who holds this broker's live node in another session: an earlier session of ours, or another process with our number."""

    member: Member
    session: int
