"""Who is connected: the members of consumer and producer groups, kept on heartbeat leases.

A member is one connection. It appears with its first heartbeat and goes when it unregisters, when its connection
closes, or when it was silent for 120 s. Each change that a group's members must hear of is returned as effects.

A member may ask in its heartbeats to be kept for some seconds when it goes (static membership): so long its client id
stays in the list by which the group shares its queues, nobody hears of its going, and when it is back nobody hears of
its coming, so that no queue moves. How many are kept so is bounded per group and over all.

A broker keeps one subscription per group and topic, the newest. Members that subscribe to different things each miss
messages, so that is said: in the log when one joins or changes, and to whoever asks for the group.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from metaq.broker.channel import Channel, Effect
from metaq.clock import Clock
from metaq.errors import MetaqError, Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model import ConsumeFrom, ConsumerView, Heartbeat, MessageModel, SubscriptionData
from metaq.model.access import Caller
from metaq.model.notices import MembersChanged
from metaq.model.topics.topic import RETRY_PREFIX

log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
SETS_MAX = 1024
"""Groups of one connection, or topics of one group: a heartbeat with more is refused before it is kept."""
KEEP_SECONDS_MAX = 600.0
"""A member that is gone is kept no longer, whatever it asked for: nobody consumes its queues meanwhile."""
KEPT_OF_GROUP_MAX = 256
KEPT_MAX = 4096
"""Members that are gone and kept, of one group and of all: who goes beyond them leaves at once, as others do."""


class Member(Struct):
    """One connection of one client in one group."""

    channel: Channel
    client_id: str
    language: str
    version: int
    seen: float
    """Monotonic seconds of its newest heartbeat."""
    caller: Caller
    """Whose that heartbeat was."""
    wants: Mapping[str, str] = field(default_factory=dict)
    """A consumer's subscriptions: topic → what it lets through, without the group's retry topic."""
    keep_seconds: float = 0.0
    """How long it is to be kept when it is gone."""


class ConsumerGroup(Struct):
    """An online consumer group. The settings are those of the newest heartbeat: the last writer wins."""

    name: str
    push: bool = True
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Channel, Member] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def differs(self) -> bool:
        """Whether two of its clients subscribe to different things."""
        wants = {member.client_id: member.wants for member in self.members.values()}  # the newest connection of each
        first, *others = wants.values()
        return any(other != first for other in others)

    def view(self) -> ConsumerView:
        """The group as a heartbeat would tell it."""
        return ConsumerView(self.name, dict(self.subscriptions), self.push, self.model, self.consume_from)


class Members:
    """The registry of connected clients. `changes` counts what may alter a cached decision about pulls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = RateLimitedLog(log, clock)
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Channel, Member]] = {}
        self._groups_of: dict[Channel, set[str]] = {}
        self._producing: dict[Channel, set[str]] = {}
        self._client_of: dict[Channel, str] = {}
        """The client ids of connections in producer groups."""
        self._connections: dict[str, dict[Channel, None]] = {}
        """The same the other way round; the connection of the newest heartbeat stands last."""
        self._kept: dict[str, dict[str, float]] = {}
        """Group → client id of a member that is gone and is kept → until when (monotonic seconds)."""
        self._next_kept = math.inf
        """When the first of them has not come back in time; not later, perhaps sooner."""
        self.changes = 0

    # -- heartbeats
    def beat(
        self, channel: Channel, language: str, version: int, beat: Heartbeat, caller: Caller | None = None
    ) -> list[Effect]:
        """Take one heartbeat. Returns whom to notify of changed groups. `caller`: who signed it; None: it is the connection's.

        Raises Refused for an absurd one.
        """
        caller = caller or channel.caller
        for known, named in (
            (self._groups_of.get(channel, set()), {view.group for view in beat.consumers}),
            (self._producing.get(channel, set()), set(beat.producers)),
        ):
            if len(known | named) > SETS_MAX:
                raise Refused(Reason.INVALID, f"the connection {channel.remote} is in more than {SETS_MAX} groups")
        now, effects = self._clock.monotonic(), list[Effect]()
        for view in beat.consumers:
            if len(view.subscriptions) > SETS_MAX:
                raise Refused(Reason.INVALID, f"group {view.group} subscribes to more than {SETS_MAX} topics")
            member = Member(channel, beat.client_id, language, version, now, caller)
            member.keep_seconds = min(max(view.keep_seconds, 0.0), KEEP_SECONDS_MAX)
            if self._join(member, view):
                effects += self._everyone(view.group)
        for group in beat.producers:
            self.producers.setdefault(group, {})[channel] = Member(
                channel, beat.client_id, language, version, now, caller
            )
            self._producing.setdefault(channel, set()).add(group)
        if beat.producers:
            self._forget_client(channel)
            self._client_of[channel] = beat.client_id
            self._connections.setdefault(beat.client_id, {})[channel] = None
        return effects

    def _forget_client(self, channel: Channel) -> None:
        connections = self._connections.get(client_id := self._client_of.pop(channel, ""), {})
        connections.pop(channel, None)
        if not connections:
            self._connections.pop(client_id, None)

    def _join(self, member: Member, view: ConsumerView) -> bool:
        """Returns whether the group's members or its topics changed; a newer version of a filter alone does not count."""
        group = self.consumers.get(view.group)
        if group is None:
            group = self.consumers[view.group] = ConsumerGroup(view.group)
        group.push, group.model, group.consume_from = view.push, view.model, view.consume_from
        old = group.members.get(member.channel)
        member.wants = _wants(view)
        if old is None or old.wants != member.wants:
            self._compare(group, member)
        back = self._is_back(view.group, member.client_id)
        changed = (old is None and not back) or (old is not None and old.client_id != member.client_id)
        self.changes += back
        group.members[member.channel] = member
        self._groups_of.setdefault(member.channel, set()).add(view.group)
        for topic, wanted in view.subscriptions.items():
            known = group.subscriptions.get(topic)
            changed |= known is None
            if known is None or wanted.version > known.version:
                group.subscriptions[topic] = wanted
                self.changes += 1
        for topic in group.subscriptions.keys() - view.subscriptions.keys():
            del group.subscriptions[topic]
            changed = True
        self.changes += changed
        return changed

    def _compare(self, group: ConsumerGroup, member: Member) -> None:
        """Say it if another client of the group subscribes to something else."""
        for fellow in group.members.values():
            if fellow.client_id == member.client_id:
                continue
            if fellow.wants == member.wants:
                member.wants = fellow.wants  # one copy for the members that agree
            else:
                self._log.warning(
                    ("differ", group.name),
                    "members of group %s subscribe differently: %s, %s. A broker keeps one subscription per group, the "
                    "newest, so that each of them misses messages: give all members of a group the same topics and "
                    "tags, or each its own group",
                    group.name,
                    _subscriber(fellow),
                    _subscriber(member),
                )
                return

    def refused(self, remote: str, client_id: str, groups: Sequence[str], error: MetaqError) -> None:
        """A heartbeat was not taken: said in the log, for the client's user only sees that nothing arrives."""
        self._log.warning(
            ("refused", tuple(groups), str(error)),
            "refused a heartbeat of client %.100s at %s for group %.200s: %s. Its consumers get no messages",
            client_id or "(unnamed)", remote, ", ".join(groups) or "(unnamed)", error,
        )  # fmt: skip

    # -- leaving
    def unregister(self, channel: Channel, producer_group: str | None, consumer_group: str | None) -> list[Effect]:
        """A client says goodbye to a group. Returns whom to notify."""
        if producer_group:
            self._stop_producing(channel, producer_group)
        return self._leave(channel, consumer_group) if consumer_group else []

    def closed(self, channel: Channel) -> list[Effect]:
        """A connection is gone, and with it every membership. Returns whom to notify."""
        for group in list(self._producing.get(channel, ())):
            self._stop_producing(channel, group)
        return [effect for group in list(self._groups_of.get(channel, ())) for effect in self._leave(channel, group)]

    def expire(self) -> list[Effect]:
        """Drop who was silent for longer than the lease. Returns whom to notify."""
        self._log.tick()
        old = self._clock.monotonic() - LEASE_SECONDS
        effects = list[Effect]()
        for group in list(self.consumers.values()):
            for member in [member for member in group.members.values() if member.seen < old]:
                effects += self._leave(member.channel, group.name)
        for name, members in list(self.producers.items()):
            for member in [member for member in members.values() if member.seen < old]:
                self._stop_producing(member.channel, name)
        return effects

    def _leave(self, channel: Channel, name: str) -> list[Effect]:
        group = self.consumers.get(name)
        if group is None or (member := group.members.pop(channel, None)) is None:
            return []
        self._forget(self._groups_of, channel, name)
        self.changes += 1
        kept = self._keep(group, member)
        if not group.members:
            del self.consumers[name]
            return []
        return [] if kept else list(self._everyone(name))

    # -- members that are gone and kept
    def _keep(self, group: ConsumerGroup, member: Member) -> bool:
        """Returns whether the list of client ids stays as it was."""
        if any(other.client_id == member.client_id for other in group.members.values()):
            return False  # It came back on another connection before this one ended.
        now = self._clock.monotonic()
        # Who was silent until its lease ended has had its time.
        until = member.keep_seconds + (now if now - member.seen <= LEASE_SECONDS else member.seen)
        if member.keep_seconds <= 0 or until <= now:
            return False
        kept = self._kept.get(group.name, {})
        if len(kept) >= KEPT_OF_GROUP_MAX or sum(map(len, self._kept.values())) >= KEPT_MAX:
            self._log.warning(
                ("kept", group.name),
                "the queues of member %s of group %s are not kept for it: %d members of the group are kept already, and "
                "%d of all groups (at most %d and %d)",
                member.client_id, group.name, len(kept), sum(map(len, self._kept.values())), KEPT_OF_GROUP_MAX, KEPT_MAX,
            )  # fmt: skip
            return False
        self._kept.setdefault(group.name, {})[member.client_id] = until
        self._next_kept = min(self._next_kept, until)
        log.info(
            "member %s of group %s is gone; its queues are kept for it for %.0f s", member.client_id, group.name,
            until - now,
        )  # fmt: skip
        return True

    def _is_back(self, group: str, client_id: str) -> bool:
        """Whether the client was kept; now it is online."""
        kept = self._kept.get(group)
        if kept is None or kept.pop(client_id, None) is None:
            return False
        if not kept:
            del self._kept[group]
        return True

    def give_up_kept(self) -> list[Effect]:
        """Drop who did not come back in time. Returns whom to notify."""
        now, effects = self._clock.monotonic(), list[Effect]()
        if now < self._next_kept:
            return effects
        for group in list(self._kept):
            gone = [client_id for client_id, until in self._kept[group].items() if until <= now]
            for client_id in gone:
                self._is_back(group, client_id)
                log.info("member %s of group %s did not come back in time: its queues go to others", client_id, group)
            if gone and group in self.consumers:
                self.changes += 1
                effects += self._everyone(group)
        self._next_kept = min((min(kept.values()) for kept in self._kept.values()), default=math.inf)
        return effects

    def _stop_producing(self, channel: Channel, name: str) -> None:
        members = self.producers.get(name)
        if members is not None and members.pop(channel, None) is not None:
            self._forget(self._producing, channel, name)
            if channel not in self._producing:
                self._forget_client(channel)
            if not members:
                del self.producers[name]

    @staticmethod
    def _forget(table: dict[Channel, set[str]], channel: Channel, name: str) -> None:
        names = table[channel]
        names.discard(name)
        if not names:
            del table[channel]

    def _everyone(self, group: str) -> Iterator[Effect]:
        for channel in self.consumers[group].members:
            yield Effect(channel, MembersChanged(group))

    # -- questions
    def client_ids(self, group: str) -> list[str]:
        """Client ids of a consumer group's members, in the order they joined, and of those that are kept.

        Empty if it is offline.
        """
        online = self.consumers.get(group)
        return [*online.client_ids(), *self._kept.get(group, ())] if online else []

    def producing(self, group: str) -> list[Member]:
        """A producer group's members, in the order they joined; empty if it is offline."""
        return list(self.producers.get(group, {}).values())

    def connection_of(self, client_id: str) -> Channel | None:
        """Where the producers of that client are connected, by its newest heartbeat; None: they are not."""
        return next(reversed(self._connections.get(client_id, {})), None)

    def subscribers(self, topic: str) -> list[str]:
        """Online groups that subscribe to `topic`."""
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]


def _wants(view: ConsumerView) -> dict[str, str]:
    return {
        topic: data.spelling for topic, data in sorted(view.subscriptions.items()) if not topic.startswith(RETRY_PREFIX)
    }


def _subscriber(member: Member) -> str:
    """The member's client id, address and subscriptions, for the log."""
    wants = ", ".join(f"{topic} ({spelling})" for topic, spelling in member.wants.items())[:300] or "nothing"
    return f"{member.client_id} at {member.channel.remote} to {wants}"
