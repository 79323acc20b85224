"""Sharing out: which of its topics' queues are this member's, looked at again whenever somebody says that it changed.

What taking and giving up a queue means is its owner's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from metaq.client.consumer.complaints import Complaints
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.subscriptions import Subscriptions
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import members_of
from metaq.client.core import ClientCore
from metaq.errors import ClientError, NoRoute
from metaq.model import MessageModel, MessageQueue

log = logging.getLogger("metaq.client")


class Owner(Protocol):
    """Who takes and gives up queues."""

    def owned(self) -> Collection[MessageQueue]:
        """The queues that are its own now."""
        ...

    async def take(self, queue: MessageQueue) -> bool:
        """Begin to consume a queue. Returns False if that must be tried again soon."""
        ...

    async def give_up(self, queue: MessageQueue) -> None: ...


class Sharing:
    """One member's part in sharing out the queues of its group. Lives in the background loop."""

    def __init__(
        self, core: ClientCore, group: str, subscriptions: Subscriptions, retry_topic: str, options: GroupOptions,
        owner: Owner, complaints: Complaints,
    ) -> None:  # fmt: skip
        self._core, self._group, self._subscriptions, self._retry_topic = core, group, subscriptions, retry_topic
        self._options, self._seconds, self._owner, self._complaints = options, options.seconds, owner, complaints
        self._due = asyncio.Event()
        self.settled = asyncio.Event()
        """Set once the first rebalance is through."""

    def soon(self) -> None:
        """The group's members or the queues may have changed."""
        self._due.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._learn_routes()
        await self._core.send_heartbeats()
        while True:
            self._due.clear()
            try:
                settled = await self._rebalance()
            except FAULTS as error:
                log.debug("rebalance of group %s: %s", self._group, error)
                settled = False
            if settled:
                self.settled.set()
            try:
                async with asyncio.timeout(self._seconds.rebalance if settled else self._seconds.retry):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _learn_routes(self) -> None:
        """So that the first heartbeat finds the brokers."""
        for topic in self._subscriptions:
            try:
                await self._core.routes.route(topic)
            except FAULTS as error:
                log.debug("no route for %s yet: %s", topic, error)

    async def _rebalance(self) -> bool:
        """Take and give up queues. Returns False if something must be tried again soon."""
        settled, changed = True, False
        for topic in self._subscriptions:
            try:
                share = await self._share(topic)
            except NoRoute as error:
                if topic != self._retry_topic:
                    self._complaints.once(topic, f"consumer group {self._group} waits for topic {topic}: {error}")
                    settled = False
                continue
            except _NotListed as error:
                log.debug("the share of %s in %s stays as it is: %s", self._group, topic, error)
                settled = False
                continue
            except FAULTS as error:
                if topic != self._retry_topic:
                    self._complaints.once(
                        f"share {topic}",
                        f"consumer group {self._group} cannot find its share of topic {topic}, trying again: {error}",
                    )
                settled = False
                continue
            self._complaints.over(f"share {topic}")
            self._complaints.over(topic)
            for queue in [queue for queue in self._owner.owned() if queue.topic == topic and queue not in share]:
                if queue in self._owner.owned():  # An administrator may have moved it since.
                    await self._owner.give_up(queue)
                changed = True
            for queue in share:
                if queue not in self._owner.owned():
                    taken = await self._owner.take(queue)
                    changed, settled = changed or taken, settled and taken
        if changed:
            self._subscriptions.renew()
            await self._core.send_heartbeats()
        return settled

    async def _share(self, topic: str) -> list[MessageQueue]:
        queues = await self._core.routes.subscribe_queues(topic)
        if self._options.model is MessageModel.BROADCASTING:
            return queues
        members = await self._members(queues)
        if self._core.client_id not in members:
            # The broker has restarted, or our heartbeat is under way: no reason to give up what we have.
            self._core.spawn(self._core.send_heartbeats())
            raise _NotListed(f"the broker does not list this client as a member of {self._group} yet")
        return self._options.strategy(queues, members, self._core.client_id)

    async def _members(self, queues: list[MessageQueue]) -> list[str]:
        """Client ids of the group, from any broker of the topic."""
        names = sorted({queue.broker for queue in queues})
        start = self._core.clock.random_below(len(names)) if names else 0
        addresses = [self._core.address_of(name) for name in names[start:] + names[:start]]
        return await self._core.consult(members_of(self._group, [one for one in addresses if one is not None]))


class _NotListed(ClientError):
    """Our heartbeat is still under way."""
