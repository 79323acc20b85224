"""Requests of a slave to its master: what of a broker is not in its log (21, 43, 45, 201, which RocketMQ has, and 30014, ours)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from metaq.client.conversation.call import Call
from metaq.model.failover import Place
from metaq.model.table_changes import TableChanges
from metaq.wire import following, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request

TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
GROUP_OFFSETS = RequestCode.GET_ALL_CONSUMER_OFFSET
DELAY_OFFSETS = RequestCode.GET_ALL_DELAY_OFFSET


class GetTable(Call[bytes], frozen=True):
    """Return one of a broker's tables, as its answer has it: most are what they were the last time.

    `metaq.wire.bodies` decodes them: `topic_table_in_pieces`, `group_table_of`, `group_offsets_of`, `delay_offsets_of`.
    """

    seconds: ClassVar[float] = 10.0

    table: RequestCode
    """One of the four above."""

    @property
    def action(self) -> str:
        return f"answer {self.table.name}"

    def request(self) -> Command:
        return request(self.table)

    def read(self, answer: Command) -> bytes:
        return bytes(answer.body)


class Joined(NamedTuple):
    """What a follower is told that may be counted."""

    ticket: int
    """What its connection to the replication port shows first."""
    log_end: int
    """LogOffset at which the leader's log ended."""


class JoinInSync(Call[Joined], frozen=True):
    """Tell a leader of a group with failover who copies its log (30027). Refused: it does not lead in that epoch."""

    action = "count this broker's reports"

    place: Place
    epoch: int

    def request(self) -> Command:
        header = headers.JoinInSyncHeader(member=self.place.member, store=self.place.store, epoch=self.epoch)
        return request(RequestCode.JOIN_IN_SYNC, header)

    def read(self, answer: Command) -> Joined:
        reply = headers.JoinInSyncReply.from_ext(answer.ext)
        return Joined(reply.ticket, reply.log_end)


class FollowTables(Call[TableChanges], frozen=True):
    """Return what has changed in the tables of a master of ours since change `position` of its feed `feed`.

    The master waits for a change up to `suspend_ms`. A RocketMQ refuses with REQUEST_CODE_NOT_SUPPORTED.
    """

    seconds: ClassVar[float] = 10.0
    """Beside `suspend_ms`."""

    feed: int = 0
    position: int = 0
    suspend_ms: int = 0
    place: Place | None = None
    """Of a follower in a group with failover: what it has taken counts there."""

    @property
    def action(self) -> str:
        return "tell what has changed in its tables"

    def request(self) -> Command:
        member, store = (self.place.member, self.place.store) if self.place is not None else (None, None)
        header = headers.FollowTablesHeader(
            feed=self.feed, position=self.position, suspend_ms=self.suspend_ms, member=member, store=store
        )
        return request(RequestCode.FOLLOW_TABLES, header)

    def read(self, answer: Command) -> TableChanges:
        return following.table_changes_of(answer.body)
