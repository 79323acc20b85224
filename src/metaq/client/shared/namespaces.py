"""Adapters between a client with a namespace, which uses plain names, and the shared core, which uses those of the brokers.

Outgoing names get the namespace (`ns%topic`): in calls, and in members and checkers registered with the core. Incoming names lose
it: queues in routes and outcomes, topics of messages (`metaq.client.shared.pulling`), groups in notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct, structs

from metaq.client.conversation.call import Call
from metaq.client.conversation.sending.sending import Outgoing, Stored, Template
from metaq.client.identity.names import Namespace
from metaq.client.shared.roles import Checker, Member
from metaq.client.shared.routes import USUAL_TEMPLATE, KnownRoutes
from metaq.model import BrokerData, ConsumerView, MessageQueue, QueueLocks, Route, SubscriptionData
from metaq.model.inspection import ConsumedDirectly, MemberState
from metaq.model.notices import TransactionCheck

C = TypeVar("C", bound=Call[Any])

_NAMES = frozenset({"topic", "group", "producer_group", "consumer_group"})
"""Fields of calls with a topic or a group."""


def wrapped_call(call: C, namespace: Namespace) -> C:
    """Return the call with namespaced names."""
    changes = {}
    for name in call.__struct_fields__:
        value = getattr(call, name)
        changed = namespace.wrapped(value) if name in _NAMES and isinstance(value, str) else _wrapped(value, namespace)
        if changed is not value:
            changes[name] = changed
    return structs.replace(call, **changes) if changes else call


def _wrapped(value: object, namespace: Namespace) -> object:
    if isinstance(value, MessageQueue):
        return namespace.wrapped_queue(value)
    if isinstance(value, SubscriptionData | Outgoing | Template):
        return structs.replace(value, topic=namespace.wrapped(value.topic))
    if isinstance(value, QueueLocks):
        queues = tuple(map(namespace.wrapped_queue, value.queues))
        return structs.replace(value, group=namespace.wrapped(value.group), queues=queues)
    if isinstance(value, tuple | list) and value and all(isinstance(one, MessageQueue) for one in value):
        return type(value)(map(namespace.wrapped_queue, value))
    return value


def plain_outcome(outcome: Any, namespace: Namespace) -> Any:
    """Return the outcome of a call with plain names."""
    if isinstance(outcome, Stored):
        return structs.replace(outcome, queue=namespace.plain_queue(outcome.queue))
    if isinstance(outcome, MessageQueue):
        return namespace.plain_queue(outcome)
    if (
        isinstance(outcome, list | frozenset | set)
        and outcome
        and all(isinstance(one, MessageQueue) for one in outcome)
    ):
        return type(outcome)(map(namespace.plain_queue, outcome))
    return outcome


class NamespacedRoutes:
    """`KnownRoutes` with plain names."""

    def __init__(self, routes: KnownRoutes, namespace: Namespace) -> None:
        self._routes, self._namespace = routes, namespace

    async def route(self, topic: str, *, fresh: bool = False) -> Route:
        found = await self._routes.route(self._namespace.wrapped(topic), fresh=fresh)
        return structs.replace(found, topic=topic)

    async def publish_queues(
        self, topic: str, *, fresh: bool = False, template: Template = USUAL_TEMPLATE
    ) -> list[MessageQueue]:
        # The template topic has the namespace's name, too.
        inside = structs.replace(template, topic=self._namespace.wrapped(template.topic))
        return self._plain(
            await self._routes.publish_queues(self._namespace.wrapped(topic), fresh=fresh, template=inside)
        )

    async def recent_queues(self, topic: str, template: Template = USUAL_TEMPLATE) -> list[MessageQueue]:
        inside = structs.replace(template, topic=self._namespace.wrapped(template.topic))
        return self._plain(await self._routes.recent_queues(self._namespace.wrapped(topic), inside))

    def publish_queues_now(self, topic: str) -> list[MessageQueue] | None:
        queues = self._routes.publish_queues_now(self._namespace.wrapped(topic))
        return None if queues is None else self._plain(queues)

    async def fixed_queues(self, topic: str) -> list[MessageQueue]:
        return self._plain(await self._routes.fixed_queues(self._namespace.wrapped(topic)))

    def fixed_queues_now(self, topic: str) -> list[MessageQueue] | None:
        queues = self._routes.fixed_queues_now(self._namespace.wrapped(topic))
        return None if queues is None else self._plain(queues)

    async def subscribe_queues(self, topic: str, *, fresh: bool = False, patient: bool = False) -> list[MessageQueue]:
        return self._plain(
            await self._routes.subscribe_queues(self._namespace.wrapped(topic), fresh=fresh, patient=patient)
        )

    def forget(self, topic: str) -> None:
        self._routes.forget(self._namespace.wrapped(topic))

    async def look(self, broker: str) -> bool:
        return await self._routes.look(broker)

    def heard(self, data: BrokerData) -> None:
        self._routes.heard(data)

    def broker(self, name: str) -> BrokerData | None:
        return self._routes.broker(name)

    def brokers(self) -> dict[str, BrokerData]:
        return self._routes.brokers()

    async def refresh(self) -> None:
        await self._routes.refresh()

    def forget_guess(self, topic: str) -> None:
        self._routes.forget_guess(self._namespace.wrapped(topic))

    def _plain(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        return list(map(self._namespace.plain_queue, queues))


class NamespacedMember(Struct, frozen=True):
    """A group's member with namespaced names, for the shared core."""

    member: Member
    namespace: Namespace

    @property
    def group(self) -> str:
        """The group's name with the namespace."""
        return self.namespace.wrapped(self.member.group)

    def heartbeat(self) -> ConsumerView:
        view, wrapped = self.member.heartbeat(), self.namespace.wrapped
        subscriptions = {
            wrapped(topic): structs.replace(data, topic=wrapped(data.topic))
            for topic, data in view.subscriptions.items()
        }
        return structs.replace(view, group=self.group, subscriptions=subscriptions)

    def rebalance_soon(self) -> None:
        self.member.rebalance_soon()

    def leader_changed(self, broker: str) -> None:
        self.member.leader_changed(broker)

    def uses(self, topic: str) -> bool:
        # A topic of another namespace, or of none, is none of the member's.
        plain = self.namespace.plain(topic)
        return self.namespace.wrapped(plain) == topic and self.member.uses(plain)

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.member.reset_offsets({self.namespace.plain_queue(queue): offset for queue, offset in offsets.items()})

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        found = self.member.positions(self.namespace.plain(topic))
        return {self.namespace.wrapped_queue(queue): offset for queue, offset in found.items()}

    async def state(self, *, stacks: bool) -> MemberState:
        found, wrapped = await self.member.state(stacks=stacks), self.namespace.wrapped
        return structs.replace(
            found,
            subscriptions=tuple(structs.replace(one, topic=wrapped(one.topic)) for one in found.subscriptions),
            queues={self.namespace.wrapped_queue(queue): one for queue, one in found.queues.items()},
            rates={wrapped(topic): one for topic, one in found.rates.items()},
        )

    async def consume(self, record: bytes, broker: str) -> ConsumedDirectly:
        return await self.member.consume(record, broker)


class NamespacedChecker(Struct, frozen=True):
    """A checker with namespaced names, for the shared core."""

    checker: Checker
    namespace: Namespace

    @property
    def group(self) -> str:
        """The group's name with the namespace."""
        return self.namespace.wrapped(self.checker.group)

    def check(self, question: TransactionCheck, address: str) -> None:
        question.half.topic = self.namespace.plain(question.half.topic)
        self.checker.check(structs.replace(question, group=self.checker.group), address)
