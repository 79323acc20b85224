"""Members of consumer and producer groups, kept on heartbeat leases.

A member is one connection. It joins with its first heartbeat, and leaves when it unregisters, when its connection closes, or
after 120 s of silence. Changes that a group's members must be notified of are returned as effects.

Static membership (like Kafka's group.instance.id): a member may ask in its heartbeats to be kept for some seconds after it
leaves. Meanwhile its client id stays in the list that the rebalance uses, and neither its leaving nor its return is notified,
so no queue moves. The number of kept members is bounded, per group and in all.

A broker keeps one subscription per group and topic, the newest, as RocketMQ does. Members with different subscriptions each
miss messages; that is logged when one joins or changes, and shown by the tools.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from metaq.broker.allowance import share_of
from metaq.broker.channel import Channel, Effect
from metaq.clock import Clock
from metaq.errors import MetaqError, Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model import ConsumeFrom, ConsumerView, Heartbeat, MessageModel, SubscriptionData
from metaq.model.access import Caller
from metaq.model.notices import MembersChanged
from metaq.model.topics.topic import RETRY_PREFIX

log = logging.getLogger(__name__)

# RocketMQ's channel expiry. Its clients send heartbeats every 30 s.
LEASE_SECONDS = 120.0
SETS_MAX = 1024
"""Groups of one connection, or topics of one group, at most. Larger heartbeats are refused before anything is stored."""
KEEP_SECONDS_MAX = 600.0
"""Longest time that a member is kept, s, whatever it asked for: nobody consumes its queues meanwhile."""
CLIENT_ID_CHARS_MAX = 1024
"""Longest client id: kept members and queue locks store it beyond the connection."""
_MEMBER_BYTES, _WANTED_BYTES = 900, 100
"""Memory of a member, and of one of its subscriptions, beside names and expressions (estimate)."""
_GROUP_BYTES, _SUBSCRIPTION_BYTES, _TAG_BYTES = 1000, 350, 170
"""Memory of an online group, of one of its subscriptions, and of a tag of that (estimate)."""
KEPT_OF_GROUP_MAX = 256
KEPT_MAX = 4096
KEPT_OF_CLIENT_MAX = share_of(KEPT_MAX)
"""Kept members at most, of one group, of all, and of one host or signer. Beyond that a member leaves at once, as without
static membership."""


class Member(Struct):
    """One connection of one client in one group."""

    channel: Channel
    client_id: str
    language: str
    version: int
    seen: float
    """Monotonic seconds of its newest heartbeat."""
    caller: Caller
    """The signer of that heartbeat."""
    wants: Mapping[str, str] = field(default_factory=dict)
    """A consumer's subscriptions: topic → expression, without the group's retry topic."""
    keep_seconds: float = 0.0
    """Time for which it is kept after it leaves, s."""
    size: int = 0
    """Memory of all this, for which its channel answers (`Channel.keep`), bytes."""


class ConsumerGroup(Struct):
    """An online consumer group. Its settings are those of the newest heartbeat, as in RocketMQ."""

    name: str
    push: bool = True
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Channel, Member] = field(default_factory=dict)
    size: int = 0
    """Memory of its subscriptions, bytes."""
    answers: Channel | None = None
    """The member that answers for it: the one that last changed them, or another when that has left."""

    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def differs(self) -> bool:
        """Return whether two of its clients have different subscriptions."""
        wants = {member.client_id: member.wants for member in self.members.values()}  # the newest connection of each
        first, *others = wants.values()
        return any(other != first for other in others)

    def view(self) -> ConsumerView:
        """Return the group in the form of a heartbeat."""
        return ConsumerView(self.name, dict(self.subscriptions), self.push, self.model, self.consume_from)


class Members:
    """The registry of connected clients. `changes` counts changes that void cached decisions about pulls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = RateLimitedLog(log, clock)
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Channel, Member]] = {}
        self._groups_of: dict[Channel, set[str]] = {}
        self._producing: dict[Channel, set[str]] = {}
        self._client_of: dict[Channel, str] = {}
        """Connection in producer groups → client id."""
        self._connections: dict[str, dict[Channel, None]] = {}
        """Client id → its connections in producer groups; that of the newest heartbeat is last."""
        self._kept: dict[str, dict[str, float]] = {}
        """Group → client id of a kept member → end of its time (monotonic seconds)."""
        self._kept_for: dict[tuple[str, str], str] = {}
        """Group and client id of a kept member → `Caller.client`."""
        self._kept_of = Counter[str]()
        self._next_kept = math.inf
        """Lower bound of the first of these ends, so that most ticks look at nothing."""
        self.changes = 0

    # -- heartbeats
    def beat(
        self, channel: Channel, language: str, version: int, beat: Heartbeat, caller: Caller | None = None
    ) -> list[Effect]:
        """Process a heartbeat. Returns notices of changed groups. `caller`: the signer; None: the connection's identity.

        Raises Refused, see `check_amounts`.
        """
        # With ACL each request is signed; the member's permissions are those of the signer of its heartbeat.
        caller = caller or channel.caller
        self.check_amounts(channel, beat)
        now, effects = self._clock.monotonic(), list[Effect]()
        for view in beat.consumers:
            member = Member(channel, beat.client_id, language, version, now, caller)
            member.keep_seconds = min(max(view.keep_seconds, 0.0), KEEP_SECONDS_MAX)
            if self._join(member, view):
                effects += self._everyone(view.group)
        for group in beat.producers:
            producing = self.producers.setdefault(group, {})
            size = _MEMBER_BYTES + len(group) + len(beat.client_id)
            if (known := producing.get(channel)) is None:
                channel.keep(size)
            elif known.size != size:
                channel.keep(size - known.size)
            producing[channel] = Member(channel, beat.client_id, language, version, now, caller, size=size)
            self._producing.setdefault(channel, set()).add(group)
        if beat.producers:
            # Moved to the end: while a client has two connections, replies go to that of the newest heartbeat.
            self._forget_client(channel)
            self._client_of[channel] = beat.client_id
            self._connections.setdefault(beat.client_id, {})[channel] = None
        return effects

    def check_amounts(self, channel: Channel, beat: Heartbeat) -> None:
        """Raise Refused if the connection were in more groups, or a group had more topics, than SETS_MAX, or if all that
        clients make the broker keep were too much with it."""
        if len(beat.client_id) > CLIENT_ID_CHARS_MAX:
            raise Refused(
                Reason.INVALID,
                f"the client id has {len(beat.client_id)} characters, allowed are {CLIENT_ID_CHARS_MAX}",
            )
        for known, named in (
            (self._groups_of.get(channel, set()), {view.group for view in beat.consumers}),
            (self._producing.get(channel, set()), set(beat.producers)),
        ):
            if len(known) + len(named) > SETS_MAX and len(known | named) > SETS_MAX:
                raise Refused(Reason.INVALID, f"the connection {channel.remote} is in more than {SETS_MAX} groups")
        for view in beat.consumers:
            if len(view.subscriptions) > SETS_MAX:
                raise Refused(Reason.INVALID, f"group {view.group} subscribes to more than {SETS_MAX} topics")
        new = sum(
            _size_of(view.subscriptions.values())
            for view in beat.consumers
            if (online := self.consumers.get(view.group)) is None or channel not in online.members
        )
        if new and not channel.may_keep(new):
            raise Refused(
                Reason.BUSY,
                f"the subscriptions of the connection {channel.remote} take {new} bytes more, and all clients together take "
                "what they may already (peerBytesMax): subscribe to less, or share the groups among more clients",
            )

    def _forget_client(self, channel: Channel) -> None:
        connections = self._connections.get(client_id := self._client_of.pop(channel, ""), {})
        connections.pop(channel, None)
        if not connections:
            self._connections.pop(client_id, None)

    def _join(self, member: Member, view: ConsumerView) -> bool:
        """Return whether the group's members or topics have changed; a newer version of a filter alone does not count."""
        group = self.consumers.get(view.group)
        if group is None:
            group = self.consumers[view.group] = ConsumerGroup(view.group)
        group.push, group.model, group.consume_from = view.push, view.model, view.consume_from
        old = group.members.get(member.channel)
        member.wants = _wants(view)
        if old is not None and old.wants == member.wants:
            member.wants, member.size = old.wants, old.size
        else:
            self._compare(group, member)
            # In full, also where fellows share one copy: the others may leave.
            member.size = _MEMBER_BYTES + len(view.group) + len(member.client_id) + _wanted_size(member)
            member.channel.keep(member.size - (0 if old is None else old.size))
        back = self._is_back(view.group, member.client_id)
        # A heartbeat every 30 s changes nothing. Only a new connection, or a new client id on an old one, is a join.
        changed = (old is None and not back) or (old is not None and old.client_id != member.client_id)
        self.changes += back
        wanted_otherwise = group.answers is None
        group.members[member.channel] = member
        self._groups_of.setdefault(member.channel, set()).add(view.group)
        for topic, wanted in view.subscriptions.items():
            known = group.subscriptions.get(topic)
            changed |= known is None
            # A late heartbeat of another member must not bring back an older filter.
            if known is None or wanted.version > known.version:
                group.subscriptions[topic] = wanted
                self.changes += 1
                wanted_otherwise = True
        # RocketMQ drops topics that the newest heartbeat lacks, so members with different topics take each other's away.
        for topic in group.subscriptions.keys() - view.subscriptions.keys():
            del group.subscriptions[topic]
            changed = wanted_otherwise = True
        self.changes += changed
        if wanted_otherwise:
            self._answer_for(group, member.channel, _GROUP_BYTES + _size_of(group.subscriptions.values()))
        return changed

    @staticmethod
    def _answer_for(group: ConsumerGroup, channel: Channel | None, size: int) -> None:
        """Have this channel answer for the group's subscriptions."""
        if group.answers is not None:
            group.answers.keep(-group.size)
        group.answers, group.size = channel, size
        if channel is not None:
            channel.keep(size)

    def _compare(self, group: ConsumerGroup, member: Member) -> None:
        """Log a warning if another client of the group has other subscriptions."""
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
        """Log a refused heartbeat: RocketMQ's clients show their users nothing but that no message arrives."""
        self._log.warning(
            ("refused", tuple(groups), str(error)),
            "refused a heartbeat of client %.100s at %s for group %.200s: %s. Its consumers get no messages",
            client_id or "(unnamed)", remote, ", ".join(groups) or "(unnamed)", error,
        )  # fmt: skip

    # -- leaving
    def unregister(self, channel: Channel, producer_group: str | None, consumer_group: str | None) -> list[Effect]:
        """Remove a connection from groups (35). Returns notices."""
        if producer_group:
            self._stop_producing(channel, producer_group)
        return self._leave(channel, consumer_group) if consumer_group else []

    def closed(self, channel: Channel) -> list[Effect]:
        """Remove a closed connection from all groups. Returns notices."""
        for group in list(self._producing.get(channel, ())):
            self._stop_producing(channel, group)
        return [effect for group in list(self._groups_of.get(channel, ())) for effect in self._leave(channel, group)]

    def expire(self) -> list[Effect]:
        """Remove members without a heartbeat within the lease. Returns notices."""
        self._log.tick()
        old = self._clock.monotonic() - LEASE_SECONDS
        effects = list[Effect]()
        for group in list(self.consumers.values()):
            # The connection stays open: a silent client may come back with its next heartbeat.
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
        channel.keep(-member.size)
        if group.answers is channel:
            self._answer_for(group, next(iter(group.members), None), group.size)
        self.changes += 1
        kept = self._keep(group, member)
        if not group.members:
            # As in RocketMQ, an empty group is offline: pulls by heartbeat subscription are refused until somebody joins.
            del self.consumers[name]
            return []
        return [] if kept else list(self._everyone(name))

    # -- members that are gone and kept
    def _keep(self, group: ConsumerGroup, member: Member) -> bool:
        """Keep a leaving member, if it wants that. Returns whether the list of client ids is unchanged."""
        if any(other.client_id == member.client_id for other in group.members.values()):
            return False  # it has reconnected before the old connection ended
        now = self._clock.monotonic()
        # From the last heartbeat on for one whose lease ran out: its time has passed while it was silent.
        until = member.keep_seconds + (now if now - member.seen <= LEASE_SECONDS else member.seen)
        if member.keep_seconds <= 0 or until <= now:
            return False
        kept = self._kept.get(group.name, {})
        client = member.caller.client
        full = sum(map(len, self._kept.values())) >= KEPT_MAX or self._kept_of[client] >= KEPT_OF_CLIENT_MAX
        if len(kept) >= KEPT_OF_GROUP_MAX or full:
            self._log.warning(
                ("kept", group.name),
                "the queues of member %s of group %s are not kept for it: %d members of the group are kept already, and "
                "%d of all groups, %d of them from %s (at most %d, %d and %d)",
                member.client_id, group.name, len(kept), sum(map(len, self._kept.values())), self._kept_of[client], client,
                KEPT_OF_GROUP_MAX, KEPT_MAX, KEPT_OF_CLIENT_MAX,
            )  # fmt: skip
            return False
        self._is_back(group.name, member.client_id)  # one that is kept already, for another host, is counted once
        self._kept.setdefault(group.name, {})[member.client_id] = until
        self._kept_for[group.name, member.client_id] = client
        self._kept_of[client] += 1
        self._next_kept = min(self._next_kept, until)
        log.info(
            "member %s of group %s is gone; its queues are kept for it for %.0f s", member.client_id, group.name,
            until - now,
        )  # fmt: skip
        return True

    def _is_back(self, group: str, client_id: str) -> bool:
        """Stop keeping a client. Returns whether it was kept."""
        kept = self._kept.get(group)
        if kept is None or kept.pop(client_id, None) is None:
            return False
        if not kept:
            del self._kept[group]
        client = self._kept_for.pop((group, client_id))
        self._kept_of[client] -= 1
        if not self._kept_of[client]:
            del self._kept_of[client]
        return True

    def give_up_kept(self) -> list[Effect]:
        """Drop kept members that did not come back in time. Returns notices."""
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
        if members is not None and (member := members.pop(channel, None)) is not None:
            channel.keep(-member.size)
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

    def everyone(self) -> Iterator[Effect]:
        """Notices to the members of all consumer groups that there are now, one for each client and group."""
        for group in list(self.consumers):
            yield from list(self._everyone(group)) if group in self.consumers else ()

    # -- questions
    def client_ids(self, group: str) -> list[str]:
        """Return the client ids of a group's members in the order they joined, and of its kept ones (38).

        Empty if the group is offline.
        """
        online = self.consumers.get(group)
        # Kept members count only while others of the group are online; an offline group has no members.
        return [*online.client_ids(), *self._kept.get(group, ())] if online else []

    def producing(self, group: str) -> list[Member]:
        """Return a producer group's members in the order they joined; empty if it is offline."""
        return list(self.producers.get(group, {}).values())

    def connection_of(self, client_id: str) -> Channel | None:
        """Return the connection of a client's producers, by its newest heartbeat; None: it is not connected."""
        return next(reversed(self._connections.get(client_id, {})), None)

    def subscribers(self, topic: str) -> list[str]:
        """Return online groups that subscribe to `topic`."""
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]


def _wants(view: ConsumerView) -> dict[str, str]:
    return {
        topic: data.spelling for topic, data in sorted(view.subscriptions.items()) if not topic.startswith(RETRY_PREFIX)
    }


def _wanted_size(member: Member) -> int:
    return sum(_WANTED_BYTES + len(topic) + len(spelling) for topic, spelling in member.wants.items())


def _size_of(subscriptions: Iterable[SubscriptionData]) -> int:
    return sum(
        _SUBSCRIPTION_BYTES + len(one.topic) + len(one.expression) + _TAG_BYTES * len(one.tags) for one in subscriptions
    )


def _subscriber(member: Member) -> str:
    """Return a member's client id, address and subscriptions, for the log."""
    wants = ", ".join(f"{topic} ({spelling})" for topic, spelling in member.wants.items())[:300] or "nothing"
    return f"{member.client_id} at {member.channel.remote} to {wants}"
