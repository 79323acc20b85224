"""The core for a client with a namespace."""

from __future__ import annotations

from typing import Any, TypeVar

from metaq.client.conversation.call import Call
from metaq.client.identity.names import Namespace
from metaq.client.shared.core import ClientCore
from metaq.client.shared.namespaces import (
    NamespacedChecker,
    NamespacedMember,
    NamespacedRoutes,
    plain_outcome,
    wrapped_call,
)
from metaq.client.shared.roles import Checker, Member
from metaq.client.shared.routes import KnownRoutes
from metaq.client.shared.transport import CONNECT_SECONDS

T = TypeVar("T")


class NamespacedCore(ClientCore):
    """The core for a client with a namespace: adds it to names in requests, and removes it from results."""

    def __init__(self, shared: ClientCore, namespace: Namespace) -> None:
        object.__setattr__(self, "_shared", shared)
        # Past our own __setattr__, which writes to the shared core.
        object.__setattr__(self, "namespace", namespace)
        assert isinstance(shared.routes, KnownRoutes)
        object.__setattr__(self, "routes", NamespacedRoutes(shared.routes, namespace))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_shared"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._shared, name, value)  # all state is the shared core's

    def shared(self) -> ClientCore:
        shared: ClientCore = self._shared
        return shared

    async def ask(self, address: str, call: Call[T], seconds: float | None = None) -> T:
        outcome = await super().ask(address, wrapped_call(call, self.namespace), seconds)
        plain: T = plain_outcome(outcome, self.namespace)
        return plain

    async def send_oneway(self, address: str, call: Call[Any], seconds: float = CONNECT_SECONDS) -> None:
        await super().send_oneway(address, wrapped_call(call, self.namespace), seconds)

    def add_producer(self, group: str) -> None:
        super().add_producer(self.namespace.wrapped(group))

    def remove_producer(self, group: str) -> bool:
        return super().remove_producer(self.namespace.wrapped(group))

    def add_checker(self, checker: Checker) -> None:
        super().add_checker(NamespacedChecker(checker, self.namespace))

    def remove_checker(self, checker: Checker) -> None:
        super().remove_checker(NamespacedChecker(checker, self.namespace))

    def claim(self, member: Member) -> bool:
        return super().claim(NamespacedMember(member, self.namespace))

    def member(self, group: str) -> Member | None:
        found = super().member(self.namespace.wrapped(group))
        return found.member if isinstance(found, NamespacedMember) else found

    def remove_member(self, member: Member) -> None:
        super().remove_member(NamespacedMember(member, self.namespace))
