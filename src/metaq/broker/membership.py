"""Clients as members of groups: heartbeats, ends of connections, silence, and the notices that members have changed."""

from __future__ import annotations

from collections.abc import Iterable

from metaq.broker.channel import Channel, Effect, Notice, carry_out
from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.part import BrokerPart
from metaq.broker.pulls.filters import Filters
from metaq.broker.pulls.locks import Locks
from metaq.errors import Refused
from metaq.model import Heartbeat
from metaq.model.access import Caller
from metaq.model.topics.topic import RETRY_PREFIX, UNIT_SUBSCRIBED, check_group, check_topic
from metaq.saved import Pending, Saving

EXPIRY_SECONDS = 10.0
"""Between two looks for clients that fell silent."""


class Membership(BrokerPart):
    """Keeps `Members`, and what lasts as long as they are there: their groups' filters and locks."""

    leads = False

    def __init__(
        self, environment: Environment, tables: Tables, filters: Filters, locks: Locks, deletions: Deletions
    ) -> None:
        self._options, self._clock = environment.options, environment.clock
        self._topics, self._groups, self._members = tables.topics, tables.groups, tables.members
        self._filters, self._locks, self._deletions = filters, locks, deletions
        self._expiry_due = 0.0

    def open(self) -> None:
        """Give clients the time to connect before any counts as silent."""
        self._expiry_due = self._clock.monotonic() + EXPIRY_SECONDS

    def beat(
        self, channel: Channel, language: str, version: int, beat: Heartbeat, caller: Caller | None = None
    ) -> None:
        """Take a heartbeat; its consumer groups and their retry topics are made if they are new. `caller`: as `Members.beat`.

        Raises Saving if some are being made: those groups have not joined, so the heartbeat is to be taken again after
        that; Refused if a group could not be made. The others have joined all the same.
        """
        refused: Refused | None = None
        joining, waiting = [], list[Pending]()
        for view in beat.consumers:
            try:
                self._filters.check_amount(view.group, view.subscriptions)
                config = self._groups.require(view.group)
                unit = UNIT_SUBSCRIBED if view.unit_mode else 0
                self._topics.ensure(check_topic(RETRY_PREFIX + view.group), max(1, config.retry_queues), unit)
                joining.append(view)
            except Saving as saving:
                waiting += saving.pending
            except Refused as error:
                refused = error
        producers = tuple(check_group(group) for group in beat.producers)
        joined = Heartbeat(beat.client_id, tuple(joining), producers)
        effects = self._members.beat(channel, language, version, joined, caller)
        for view in joining:
            self._filters.register(view.group, view.subscriptions, channel.caller.address)
        self.notify(effects)
        if refused is not None:
            raise refused
        if waiting:
            raise Saving(*waiting)

    def unregister(self, channel: Channel, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves a group."""
        self.notify(self._members.unregister(channel, producer_group, consumer_group))

    def closed(self, channel: Channel) -> None:
        """A connection has ended: its client is no member any more."""
        self.notify(self._members.closed(channel))

    def notify(self, effects: Iterable[Effect]) -> None:
        """Notify those who want to hear it that the members of their group have changed."""
        if self._options.notify_consumer_ids_changed_enable:
            carry_out(effect for effect in effects if self._wants(effect.what))

    def _wants(self, what: Notice) -> bool:
        """Whether a group's settings have its members notified of changes."""
        config = self._groups.get(what.group)
        return config is None or config.notify_changed

    def tick(self) -> None:
        """Expire who is silent, and what has lasted as long as them."""
        now = self._clock.monotonic()
        if now >= self._expiry_due:
            self._expiry_due = now + EXPIRY_SECONDS
            self._deletions.prune()
            self.notify(self._members.expire())
            self._locks.expire()
            self._filters.expire(self._members.consumers)
            self._filters.save()
        self.notify(self._members.give_up_kept())

    def close(self) -> None:
        """Note in the filters, which are saved after this, whose group has gone."""
        self._filters.expire(self._members.consumers)
