"""Who leads the brokers of one name, since where in the log, and what a change of leaders has cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct, field

SLAVE: Final = "SLAVE"
ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
MASTERS: Final = (ASYNC_MASTER, SYNC_MASTER)


class Epoch(Struct, frozen=True, rename="camel"):
    """The log from `start` on, until the next epoch, was appended by one leader."""

    number: int
    """From 1 on. What lies before the first epoch is of number 0, and of nobody who is known."""
    start: int
    """LogOffset at which the leader began."""
    leader: str
    """Chosen by chance when the epoch began: two brokers that were promoted beside each other have different ones."""
    since_ms: int
    """When it began, ms since 1970, by the leader's clock."""
    broker_id: int = 0
    """Number that the leader had as a slave before; 0: it was the master already."""
    term: int = 0
    """Promotions so far; in a group that chooses its leader the epoch's number, if that is more. A master that starts again after a
    crash begins an epoch too, of which a slave that is promoted without it may not have heard: that one leads all the same."""


Rank: TypeAlias = tuple[int, int, int, str]
"""(term, number, since ms, leader) of an epoch: of two slaves that were promoted beside each other, the later one leads."""


def rank(epochs: Sequence[Epoch]) -> Rank:
    """Return the rank of the newest of these epochs."""
    return (epochs[-1].term, epochs[-1].number, epochs[-1].since_ms, epochs[-1].leader) if epochs else (0, 0, 0, "")


class CutTail(Struct, frozen=True, rename="camel"):
    """End of a log that was cut off because the leader of a later epoch does not have it."""

    log_offset: int
    """Where the log was cut."""
    log_end: int
    """Where it had ended."""
    records: int
    """How many messages were cut off."""
    queues: Mapping[str, Mapping[int, int]]
    """Topic → queue id → messages that were cut off, of the queues with the most."""
    folder: str
    """Where the bytes are kept; `metaq store dump` reads them."""
    at_ms: int
    """When that was, ms since 1970."""


class Leadership(Struct, frozen=True, rename="camel"):
    """What a broker keeps of its role, `config/metaqLeadership.json`."""

    role: str = ""
    """brokerRole since it was promoted or has stepped down; "": as it is configured."""
    broker_id: int = 0
    """With a role, its number."""
    master: str = ""
    """Of a slave, `host:port` of the broker that it has stepped down for; "": it is not known."""
    epochs: tuple[Epoch, ...] = ()
    """Of this log, the oldest first."""
    cuts: tuple[CutTail, ...] = ()
    """The newest last."""
    master_role: str = ""
    """brokerRole of the master that it follows or followed last, or that it was itself; "": it is not known."""

    @property
    def epoch(self) -> int:
        """Number of the newest epoch."""
        return self.epochs[-1].number if self.epochs else 0

    @property
    def rank(self) -> Rank:
        """Of two brokers that lead, or have led, the one with the greater rank leads."""
        return rank(self.epochs)


class SlaveState(Struct, frozen=True, rename="camel"):
    """A slave, as its master knows it."""

    address: str
    """Where it connects from, `host:port`."""
    copied: int
    """LogOffset up to which it has the log."""
    behind_ms: int
    """How long ago the master's log was as long as the slave's; 0: it has all."""


class GroupRole(Struct, frozen=True, rename="camel"):
    """A broker's part in its group, when leaders change by themselves."""

    member: int
    """Its number for ever; `ReplicaState.broker_id` is 0 while it leads."""
    in_sync: tuple[int, ...] = ()
    """Of the leader: the members of the in-sync set."""
    copied: Mapping[int, int] = {}
    """Of the leader: member → LogOffset up to which it has the log, of those that follow."""
    acknowledged: int = -1
    """LogOffset up to which clients read here: what the in-sync set has, as far as it is known; -1: it is not."""
    doubt: str = ""
    """Why it acknowledges nothing at present; "": it does, or it does not lead."""
    behind_ms: Mapping[int, int] = {}
    """Of the leader: member → how long ago its log was as long as that member's, of those in `copied`; 0: it has all."""
    minimum: int = 0
    """minInSyncReplicas of this broker; 0: it is of an earlier release."""
    lease_ms: int = 0
    """Of the leader: for how long it still acknowledges if ZooKeeper does not answer any more."""
    waiting: str = ""
    """Of one that does not lead: why it neither leads nor follows; "": somebody leads, and it follows."""


class ReplicaState(Struct, frozen=True, rename="camel"):
    """A broker as one of the replicas of a log (30011)."""

    broker: str
    """The name that replicas of one log share."""
    broker_id: int
    """Its brokerId; 0 is the master."""
    role: str
    """Its brokerRole now: `SYNC_MASTER`, `ASYNC_MASTER` or `SLAVE`."""
    leads: bool
    """Whether it takes messages, or will once it has started."""
    log_min: int
    """LogOffset at which its log begins."""
    log_end: int
    """LogOffset at which its log ends."""
    ha_port: int
    """Port from which its log can be copied, at the host of its address."""
    epochs: tuple[Epoch, ...] = ()
    """Those of its log, oldest first."""
    master: str = ""
    """Of a slave, the address that it copies from, or of the broker for which it has stepped down; "": of none at present."""
    master_end: int = -1
    """Of a slave, where its master's log ended when it was heard last; -1: never."""
    master_heard_ms: int = 0
    """When its master was heard last, ms since 1970; 0: never."""
    slaves: tuple[SlaveState, ...] = ()
    """Of a master: the slaves that copy from it."""
    cuts: tuple[CutTail, ...] = field(default_factory=tuple)
    """What was cut off the end of its log."""
    torn_from: int = 0
    """LogOffset from which a power cut may have torn the log, until it was compared with another replica's."""
    torn_end: int = 0
    """Where that part ends; `torn_from`: nothing is torn."""
    group: GroupRole | None = None
    """Its part in a group with failover; None: who leads is changed by hand."""
    quiet_ms: int = -1
    """Of one that does not lead: for how long no client has asked it for what only a leader does; -1: it leads, or does not say."""

    @property
    def epoch(self) -> int:
        """Number of the newest epoch."""
        return self.epochs[-1].number if self.epochs else 0

    @property
    def rank(self) -> Rank:
        """Of two brokers that lead, or have led, the one with the greater rank leads."""
        return rank(self.epochs)


Found: TypeAlias = tuple[str, ReplicaState]
"""A replica's address, and its state."""


def parting(own: Sequence[Epoch], own_end: int, others: Sequence[Epoch], other_end: int) -> int:
    """Return the LogOffset up to which two logs with these epochs and ends are the same.

    They are as long as the same leaders wrote them: up to the end of the newest epoch that both have.
    """
    known = {(one.number, one.start, one.leader): at for at, one in enumerate(others)}
    for at in range(len(own) - 1, -1, -1):
        other_at = known.get((own[at].number, own[at].start, own[at].leader))
        if other_at is not None:
            return min(_end(own, at, own_end), _end(others, other_at, other_end))
    return min(_end(own, -1, own_end), _end(others, -1, other_end))


def _end(epochs: Sequence[Epoch], at: int, log_end: int) -> int:
    """Where the epoch at a place ends; -1: what lies before the first.

    Later ones may begin before the next one does: a slave that had not copied so far was promoted, or a power cut took that.
    """
    return min([log_end, *(one.start for one in epochs[at + 1 :])])
