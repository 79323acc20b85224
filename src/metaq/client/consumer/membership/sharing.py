"""Rebalance of one member: which queues of its topics it owns, recomputed after every notice of a change.

What taking and giving up a queue means is its owner's business. Topics, and the queues of one, are dealt with side by
side: a group with a thousand queues must not be without owners while one after the other is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from metaq.client.consumer.membership.once_log import OnceLog
from metaq.client.consumer.membership.rebalance import checked_share, in_order, queues_in_order
from metaq.client.consumer.membership.subscriptions import Subscriptions
from metaq.client.consumer.options import GroupOptions
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import members_of
from metaq.client.conversation.retry import DENIED_SECONDS
from metaq.client.shared.core import ClientCore
from metaq.client.shared.together import in_thread, together
from metaq.errors import AccessDenied, ClientError, MetaqError, NoRoute
from metaq.model import MessageModel, MessageQueue
from metaq.wire.extensions import KEEPING_LEVEL

log = logging.getLogger("metaq.client")

TOPICS_AT_ONCE = 16
RETRY_TOPIC_LOOKS = 30
"""Rebalances in a row that are repeated soon because the retry topic is missing; afterwards it waits for the usual
interval, since no message is there yet."""


class Assignee(Protocol):
    """The member that takes and gives up queues."""

    def owned(self) -> Collection[MessageQueue]:
        """The queues that it has now."""
        ...

    def seen(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Note the queues of a topic, before some are taken; none: no name server knows it."""
        ...

    async def take(self, queues: Sequence[MessageQueue]) -> bool:
        """Begin to consume queues of one topic. Returns False if some have to be retried soon."""
        ...

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Give up queues of one topic, which other members own now."""
        ...

    def denied(self, error: AccessDenied) -> None:
        """Access control refuses what the group needs: whoever waits for messages is told."""
        ...

    def announced(self, queues: Sequence[MessageQueue]) -> None:
        """Begin with queues once the listener, if there is one, was notified that they are ours: it may want to move
        them first."""
        ...


class _Outcome(Struct, frozen=True):
    """The result for one topic: whether it is settled, and whether our share has changed."""

    settled: bool
    changed: bool = False


_UNSETTLED, _AS_IT_WAS = _Outcome(settled=False), _Outcome(settled=True)


class Sharing:
    """The rebalance of one member. Runs on the background loop."""

    def __init__(
        self, core: ClientCore, group: str, subscriptions: Subscriptions, retry_topic: str, options: GroupOptions,
        owner: Assignee, faults: OnceLog,
    ) -> None:  # fmt: skip
        self._core, self._group, self._subscriptions, self._retry_topic = core, group, subscriptions, retry_topic
        self._options, self._seconds, self._owner, self._faults = options, options.seconds, owner, faults
        self._due = asyncio.Event()
        self.settled = asyncio.Event()
        """Set once the first rebalance is through."""
        self._denied = False
        """Whether access control has refused something since the last look."""
        self._asked: dict[tuple[str, ...], asyncio.Future[list[str]]] = {}
        """Brokers in the order in which this rebalance asks them → the members that they list."""
        self._unannounced_topics = False
        """Whether brokers must get a heartbeat with the subscriptions before anything of them is pulled."""
        self._retry_topic_missing = 0
        """Rebalances in a row that missed the retry topic. A new group's first heartbeat creates it; its route comes
        later."""

    def newly_subscribed(self) -> None:
        """Send heartbeats soon: the subscriptions have changed since the last ones."""
        self._unannounced_topics = True
        self.soon()

    def note(self, error: MetaqError) -> None:
        """Note a failure: one that access control caused is told, and tried again less often."""
        if isinstance(error, AccessDenied):
            self._denied = True
            self._owner.denied(error)

    def soon(self) -> None:
        """Schedule a rebalance: the group's members or the queues may have changed."""
        self._due.set()

    async def run(self) -> None:
        """Rebalance periodically and when asked, until cancelled."""
        await together(self._learn_route, self._subscriptions, TOPICS_AT_ONCE)
        # Before the first rebalance: brokers list this client as a member only after a heartbeat.
        await self._core.send_heartbeats()
        while True:
            self._due.clear()
            try:
                settled = await self._rebalance()
            except FAULTS as error:
                self.note(error)
                log.debug("rebalance of group %s: %s", self._group, error)
                settled = False
            except Exception:  # a member that stops rebalancing would be silent for good
                log.exception("sharing out the queues of group %s failed, trying again", self._group)
                settled = False
            # A change that came during the rebalance is not shared out yet.
            if settled and not self._due.is_set():
                self.settled.set()
            # RocketMQ's broker registers a new group's retry topic asynchronously, so its route is missing for a moment.
            soon = not settled or 0 < self._retry_topic_missing <= RETRY_TOPIC_LOOKS
            pause = self._seconds.retry if soon else self._seconds.rebalance
            if self._denied:
                pause, self._denied = max(pause, DENIED_SECONDS), False
            try:
                async with asyncio.timeout(pause):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _learn_route(self, topic: str) -> None:
        """Learn the topics' routes, so that the first heartbeat finds the brokers."""
        try:
            await self._core.routes.route(topic)
        except FAULTS as error:
            log.debug("no route for %s yet: %s", topic, error)

    async def _rebalance(self) -> bool:
        """Take and give up queues. Returns False if something has to be retried soon."""
        self._asked.clear()
        for topic in self._subscriptions.leaving:
            # A pattern may have found the topic again meanwhile.
            if topic not in self._subscriptions:
                await self._change(topic, [], [])
                self._core.routes.forget(topic)
            self._subscriptions.left(topic)
        if self._unannounced_topics:
            self._unannounced_topics = False
            await together(self._learn_route, self._subscriptions, TOPICS_AT_ONCE)
            self._subscriptions.renew()
            await self._core.send_heartbeats()
        outcomes = await together(self._rebalance_topic, self._subscriptions, TOPICS_AT_ONCE)
        if any(outcome.changed for outcome in outcomes):
            # As Java's clients: the new version makes brokers replace the subscription. Pulls that overtake this heartbeat are
            # refused with SUBSCRIPTION_NOT_LATEST (25) by RocketMQ, and repeated.
            self._subscriptions.renew()
            await self._core.send_heartbeats()
        return all(outcome.settled for outcome in outcomes)

    async def _rebalance_topic(self, topic: str) -> _Outcome:
        try:
            queues = queues_in_order(await self._queues(topic))
            share = await self._share(topic, queues)
        except NoRoute as error:
            if topic == self._retry_topic:  # created by the broker after the group's first heartbeat
                self._retry_topic_missing += 1
                return _AS_IT_WAS
            self._faults.once(topic, f"consumer group {self._group} waits for topic {topic}: {error}")
            return _UNSETTLED
        except _NotListed as error:
            log.debug("the share of %s in %s stays as it is: %s", self._group, topic, error)
            return _UNSETTLED
        except FAULTS as error:
            if topic != self._retry_topic:
                self._faults.once(
                    f"share {topic}",
                    f"consumer group {self._group} cannot find its share of topic {topic}, trying again: {error}",
                )
                self.note(error)
            return _UNSETTLED
        if topic == self._retry_topic:
            self._retry_topic_missing = 0
        self._faults.over(f"share {topic}")
        self._faults.over(topic)
        if self._options.keep_seconds:
            self._check_keeping(queues)
        return _AS_IT_WAS if share is None else await self._change(topic, queues, share)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic; the owner hears of them first. Raises NoRoute, one of FAULTS."""
        try:
            queues = await self._core.routes.subscribe_queues(topic)
        except NoRoute:
            self._owner.seen(topic, ())
            raise
        self._owner.seen(topic, queues)
        return queues

    def _check_keeping(self, queues: list[MessageQueue]) -> None:
        """Warn of brokers that will not keep our queues."""
        for broker in {queue.broker for queue in queues}:
            level = self._core.level_of(broker)
            if level is not None and level < KEEPING_LEVEL:
                self._faults.once(
                    f"keep {broker}",
                    f"broker {broker} does not keep the queues of a member of group {self._group} that restarts (keep_queues): "
                    "only a MetaQ broker does, from this version on; its queues go to other members meanwhile",
                )

    async def _change(self, topic: str, queues: list[MessageQueue], share: list[MessageQueue]) -> _Outcome:
        """Take the queues of `share`, and give up the topic's others."""
        mine = frozenset(share)
        before = self._owned(topic)
        settled = True
        if lost := sorted(before - mine):  # first, so that their new owners find offsets committed and locks released
            await self._owner.give_up(lost)
        if gained := [queue for queue in share if queue not in self._owner.owned()]:
            settled = await self._owner.take(gained)
        after = self._owned(topic)
        if after != before and self._options.on_share is not None:
            await self._notify(topic, queues, [queue for queue in queues if queue in after])
        self._owner.announced(gained)
        return _Outcome(settled, changed=after != before)

    def _owned(self, topic: str) -> frozenset[MessageQueue]:
        return frozenset(queue for queue in self._owner.owned() if queue.topic == topic)

    async def _notify(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> None:
        """Call the listener in a thread: it may block, or use the consumer."""
        assert self._options.on_share is not None
        if topic == self._retry_topic:
            return
        try:
            await in_thread(self._options.on_share, topic, queues, mine)
        except Exception:
            log.exception("the listener for the share of topic %s raised", topic)

    async def _share(self, topic: str, queues: list[MessageQueue]) -> list[MessageQueue] | None:
        """Return our share of the topic's queues; None: keep what we have, because the strategy failed."""
        if self._options.model is MessageModel.BROADCASTING:
            return queues
        members = in_order(await self._members(queues))
        me = self._core.client_id
        if me not in members:
            # The broker has restarted, or our heartbeat is on its way: keep the queues, and send another heartbeat.
            self._core.spawn(self._core.send_heartbeats())
            raise _NotListed(f"the broker does not list this client as a member of {self._group} yet")
        key = f"strategy {topic}"
        try:
            share = checked_share(self._options.strategy, queues, members, me)
        except BaseException as error:  # noqa: BLE001  whatever a strategy of the user's raises, in our thread
            self._faults.once(
                key,
                f"the allocation strategy of group {self._group} failed for topic {topic}, so this member keeps the queues "
                f"that it has: {type(error).__name__}: {error}",
                logging.ERROR,
            )
            return None
        if share.wrong:
            self._faults.once(
                key,
                f"the allocation strategy of group {self._group} returned for topic {topic} {share.wrong}. This member takes "
                "the others of its share. A strategy gives each queue to one member, and depends on its arguments alone "
                "(metaq.client.consumer.membership.rebalance.fixed is for a list that only this member knows)",
                logging.ERROR,
            )
        else:
            self._faults.over(key)
        return share.queues

    async def _members(self, queues: list[MessageQueue]) -> list[str]:
        """Return client ids of the group, from any broker of the topic. Queried once per rebalance, not per topic."""
        names = sorted({queue.broker for queue in queues})
        # A random broker of the topic, as Java's clients: each knows all members, and the load is spread.
        start = self._core.clock.random_below(len(names)) if names else 0
        addresses = [self._core.address_of(name) for name in names[start:] + names[:start]]
        found = tuple(one for one in addresses if one is not None)
        if found not in self._asked:
            self._asked[found] = asking = asyncio.ensure_future(self._core.consult(members_of(self._group, found)))
            asking.add_done_callback(_looked_at)
        # Several topics wait for one look-up: the cancellation of one must not end it for the others.
        return await asyncio.shield(self._asked[found])


class _NotListed(ClientError):
    """Raised when a broker does not list this member yet: its heartbeat is still under way."""


def _looked_at(asking: asyncio.Future[list[str]]) -> None:
    """Retrieve the error of a look-up whose waiters may be gone, so that asyncio does not log it."""
    if not asking.cancelled():
        asking.exception()
