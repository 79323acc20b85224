"""Blocking driver of staged-transaction conversations, for Spark's tasks and its driver."""

from __future__ import annotations

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from metaq.client.conversation.call import FAULTS, Call
from metaq.client.conversation.driver import converse
from metaq.client.conversation.staged.atomic import Ask, Oneway, SideBySide, Sleep, Step, Steps
from metaq.client.conversation.staged.parts import too_old_for_large
from metaq.client.identity.access import AS_ENVIRONMENT, Access
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, MetaqError, NoRoute, NotSupported
from metaq.model import MessageQueue
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.cluster.link import Link
from metaq.wire.extensions import LARGE_CHUNKS_LEVEL

T = TypeVar("T")

THREADS_MAX = 16
"""Brokers that are asked in parallel."""


class Courier:
    """Drives conversations over its own connections. Not thread-safe: parallel steps get couriers of their own."""

    def __init__(self, name_servers: str, retry_seconds: float, access: Access = AS_ENVIRONMENT) -> None:
        """
        Args:
            name_servers: `host:port`, `;`-separated.
            retry_seconds: of route and broker look-ups.
            access: what requests are signed with.
        """
        self._name_servers, self._retry_seconds, self._access = name_servers, retry_seconds, access
        self._client = ClusterClient(name_servers, retry_seconds, access=access)
        self._masters: dict[str, str] = {}
        self._body_bytes_max: dict[str, int] = {}

    def now(self) -> float:
        """Return the monotonic time of all conversations, seconds."""
        return SYSTEM.monotonic()

    def brokers(self) -> list[str]:
        """Return the names of all brokers that have a master. Raises as `ClusterClient`; NoRoute: there is none."""
        self._masters = self._client.masters()
        if not self._masters:
            raise NoRoute(f"no broker is registered at name servers {self._name_servers}: is one running?")
        return sorted(self._masters)

    def writable(self, topic: str, seconds: float) -> list[MessageQueue]:
        """Return the writable queues of a topic. Raises as `ClusterClient.writable`."""
        return self._client.writable(topic, seconds)

    def body_bytes_max(self, broker: str) -> int:
        """Return the most bytes of a body that the broker takes in a transaction.

        Raises NotSupported: a broker below extension level 4, which takes no chunk above 1 MiB; as `ClusterClient`.
        """
        if broker not in self._body_bytes_max:
            found = self._client.capabilities(broker)
            if found.level < LARGE_CHUNKS_LEVEL:
                raise NotSupported(too_old_for_large(broker, "a row"))
            self._body_bytes_max[broker] = found.body_bytes
        return self._body_bytes_max[broker]

    def drive(self, steps: Steps[T]) -> T:
        """Drive a conversation to its end. Raises what it raises."""
        return converse(steps, self._take)

    def link_to(self, broker: str) -> Link:
        """Return the connection to a broker's master. Raises NoRoute, and as `ClusterClient`."""
        if broker not in self._masters:
            self._masters = self._client.masters()
        if broker not in self._masters:
            raise NoRoute(f"no master of the name {broker} is up")
        return self._client.link(self._masters[broker])

    def forget(self, broker: str) -> None:
        """Drop the connection to a broker, and its address: it is looked up next time."""
        self._client.drop(self._masters.pop(broker, ""))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _take(self, step: Step) -> object:
        if isinstance(step, Ask):
            return self._ask(step.broker, step.call)
        if isinstance(step, Oneway):  # May be lost, so its faults end nothing.
            with contextlib.suppress(*FAULTS):
                self._ask(step.broker, step.call)
            return None
        if isinstance(step, Sleep):
            threading.Event().wait(step.seconds)
            return None
        return self._together(step)

    def _ask(self, broker: str, call: Call[T]) -> T:
        try:
            return self.link_to(broker).ask([call])[0]
        except BrokerError:
            raise
        except MetaqError:
            self.forget(broker)
            raise

    def _together(self, step: SideBySide) -> dict[str, object]:
        # One broker needs no thread, and no second connection.
        if len(step.by_broker) == 1:
            return {name: self._in_turn(steps) for name, steps in step.by_broker.items()}

        def alone(steps: Steps[Any]) -> object:
            other = Courier(self._name_servers, self._retry_seconds, self._access)
            # A copy: each thread forgets brokers that fail by itself.
            other._masters = dict(self._masters)
            try:
                return other._in_turn(steps)
            finally:
                other.close()

        with ThreadPoolExecutor(min(len(step.by_broker), THREADS_MAX), "metaq-courier") as pool:
            return dict(zip(step.by_broker, pool.map(alone, step.by_broker.values()), strict=True))

    def _in_turn(self, steps: Steps[Any]) -> object:
        try:
            return self.drive(steps)
        except MetaqError as error:
            # Returned and not raised: the conversation decides what one broker's fault means for the whole.
            return error


@functools.lru_cache(maxsize=8)
def courier_of(name_servers: str, retry_seconds: float, access: Access = AS_ENVIRONMENT) -> Courier:
    """Return this process's courier. Cached: Spark's workers, and so their sockets, outlive a task."""
    return Courier(name_servers, retry_seconds, access)
