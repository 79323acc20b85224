"""Group membership of clients: heartbeats (34), unregistration (35), expiry, and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from metaq.broker.channel import Channel, Effect, Notice, carry_out
from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.part import BrokerPart
from metaq.broker.pulls.filters import Filters
from metaq.broker.pulls.locks import Locks
from metaq.errors import Refused
from metaq.in_pieces import InPieces, finish
from metaq.model import Heartbeat
from metaq.model.access import Caller
from metaq.model.topics.topic import RETRY_PREFIX, UNIT_SUBSCRIBED, check_consumer_group, check_group
from metaq.saved import Pending, Saving

NOTICES_OF_A_PIECE = 32
"""Members that are notified at once: some 0.5 ms."""
NOTICES_OF_A_TICK = 256
"""Members that are told in one tick that this broker leads now: some 4 ms."""
EXPIRY_SECONDS = 10.0
"""Interval of the search for silent clients, s."""


class Membership(BrokerPart):
    """Keeps `Members`, and what lives as long as they do: their groups' filters and queue locks."""

    leads = False

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        filters: Filters,
        locks: Locks,
        deletions: Deletions,
        gatekeeper: Gatekeeper,
    ) -> None:
        self._gatekeeper = gatekeeper
        self._options, self._clock = environment.options, environment.clock
        self._topics, self._groups, self._members = tables.topics, tables.groups, tables.members
        self._filters, self._locks, self._deletions = filters, locks, deletions
        self._expiry_due = 0.0
        self._untold: Iterator[Effect] = iter(())
        """Notices to members that are not told yet who leads."""

    def open(self) -> None:
        """Start the first interval, in which clients have time to connect."""
        self._expiry_due = self._clock.monotonic() + EXPIRY_SECONDS

    def beat(
        self, channel: Channel, language: str, version: int, beat: Heartbeat, caller: Caller | None = None
    ) -> None:
        """Process a heartbeat at once; otherwise as `beat_in_pieces`."""
        finish(self.beat_in_pieces(channel, language, version, beat, caller))

    def beat_in_pieces(
        self, channel: Channel, language: str, version: int, beat: Heartbeat, caller: Caller | None = None
    ) -> InPieces[None]:
        """Process a heartbeat, some groups at a time. New consumer groups and their retry topics are created. `caller`: as in
        `Members.beat`.

        Raises Saving while some are being created: those groups have not joined, so the heartbeat has to be processed again;
        Refused: a group could not be created. The other groups have joined in both cases.
        """
        client = (caller or channel.caller).client
        refused: Refused | None = None
        joining, waiting = [], list[Pending]()
        self._members.check_amounts(channel, beat)
        # Checked, not created: producer groups have no settings.
        producers = tuple(check_group(group) for group in beat.producers)
        self.notify(self._members.beat(channel, language, version, Heartbeat(beat.client_id, (), producers), caller))
        for view in beat.consumers:
            try:
                self._gatekeeper.check_consumer(caller or channel.caller, view.group, view.subscriptions)
                self._filters.check_amount(view.group, view.subscriptions)
                config = self._groups.require(check_consumer_group(view.group), client)
                unit = UNIT_SUBSCRIBED if view.unit_mode else 0
                # RocketMQ creates the retry topic here, so that the group's first failure finds a route for it.
                self._topics.ensure(RETRY_PREFIX + view.group, max(1, config.retry_queues), unit)
                joining.append(view)
            except Saving as saving:
                waiting += saving.pending
            # One bad group must not keep the client's other groups from joining; it is reported after they have.
            except Refused as error:
                refused = error
            yield
        for view in joining:
            joined = Heartbeat(beat.client_id, (view,), ())
            effects = self._members.beat(channel, language, version, joined, caller)
            # A wrong SQL filter does not fail the heartbeat: the pulls of the group are refused with the reason.
            self._filters.register(view.group, view.subscriptions, client)
            for at in range(0, len(effects), NOTICES_OF_A_PIECE):
                self.notify(effects[at : at + NOTICES_OF_A_PIECE])
                yield
        if refused is not None:
            raise refused
        if waiting:
            raise Saving(*waiting)

    def unregister(self, channel: Channel, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client from a group, and notify the remaining members."""
        self.notify(self._members.unregister(channel, producer_group, consumer_group))

    def closed(self, channel: Channel) -> None:
        """Remove a closed connection from all its groups, and notify the remaining members."""
        self.notify(self._members.closed(channel))

    def tell_all(self) -> None:
        """Notify the members of all groups, some in each tick: this broker leads from now on, as the name servers know. Clients of ours
        then look for their brokers' leaders; others rebalance."""
        self._untold = self._members.everyone()

    def notify(self, effects: Iterable[Effect]) -> None:
        """Send notices to groups that want them (notifyConsumerIdsChangedEnable of broker and group)."""
        if self._options.notify_consumer_ids_changed_enable:
            carry_out(effect for effect in effects if self._wants(effect.what))

    def _wants(self, what: Notice) -> bool:
        """Return whether the group's settings allow the notice."""
        config = self._groups.get(what.group)
        return config is None or config.notify_changed

    def tick(self) -> None:
        """Expire silent members, and their groups' locks and filters."""
        self.notify(itertools.islice(self._untold, NOTICES_OF_A_TICK))
        now = self._clock.monotonic()
        if now >= self._expiry_due:
            self._expiry_due = now + EXPIRY_SECONDS
            self._deletions.prune()
            self.notify(self._members.expire())
            self._locks.expire()
            self._filters.expire(self._members.consumers)
            self._filters.save()
        # Every tick, unlike the other expiries: a member's keep time may be shorter than EXPIRY_SECONDS.
        self.notify(self._members.give_up_kept())

    def close(self) -> None:
        """Mark the filters of groups that are gone; the filters are saved after this."""
        self._filters.expire(self._members.consumers)
