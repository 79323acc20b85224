"""Executes the steps of staged transactions at the brokers, on the client's loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, TypeVar

from metaq.client.conversation import driver
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.staged.atomic import Ask, Oneway, SideBySide, Sleep, Step, Steps
from metaq.client.conversation.staged.parts import too_old_for_large
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, MetaqError, NoRoute, NotSupported
from metaq.wire.codes import ResponseCode
from metaq.wire.extensions import LARGE_CHUNKS_LEVEL, STAGING_LEVEL

T = TypeVar("T")

AVOID_SECONDS = 30.0
"""Time for which a failed broker is not chosen for messages without a queue, s."""


class Courier:
    """Carries the requests of one producer's transactions to brokers."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core.shared()
        self._failed: dict[str, float] = {}
        """Broker → time of its last request, if that failed on the way."""
        self.capable: set[str] = set()
        """Brokers that have not said that they know no staged transactions."""
        self.takes_large: set[str] = set()
        """Brokers that have not said that they are too old for a chunk above 1 MiB."""

    def now(self) -> float:
        """Return monotonic seconds. Any thread."""
        return self._core.clock.monotonic()

    def well(self, brokers: Collection[str]) -> set[str]:
        """Any thread: those of `brokers` that have not failed lately; all of them if each has."""
        since = self.now() - AVOID_SECONDS
        # Rather one that has failed than none at all.
        return {broker for broker in brokers if self._failed.get(broker, since) <= since} or set(brokers)

    async def check_level(self, broker: str) -> None:
        """Raises NotSupported: the broker has said that it knows no staged transactions."""
        level = await self._core.learn_level(broker)
        # Unknown is taken for capable: if it is not, the first request says so, see `_ask`.
        if level is not None and level < STAGING_LEVEL:
            raise _not_supported(broker, "is an older MetaQ" if level else "is a RocketMQ")
        self.capable.add(broker)

    async def check_large(self, broker: str, what: str) -> None:
        """Check that a broker takes messages above 1 MiB.

        Args: what: the message, for the error's text. Raises NotSupported: the broker has said that it is too old.
        """
        level = await self._core.learn_level(broker)
        if level is not None and level < LARGE_CHUNKS_LEVEL:
            raise NotSupported(too_old_for_large(broker, what))
        self.takes_large.add(broker)

    async def drive(self, steps: Steps[T]) -> T:
        """Run a conversation to its end. Raises what it raises."""
        return await driver.converse_async(steps, self._take)

    async def _take(self, step: Step) -> object:
        if isinstance(step, Ask):
            return await self._ask(step)
        if isinstance(step, Oneway):
            with contextlib.suppress(*FAULTS):
                await self._core.send_oneway(
                    self._known_master(step.broker) or await self._found_master(step.broker), step.call
                )
            return None
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        return await self._together(step)

    async def _together(self, step: SideBySide) -> dict[str, object]:
        async def one(steps: Steps[Any]) -> object:
            try:
                return await self.drive(steps)
            except MetaqError as error:
                return error

        # Each error becomes a result, so that one broker's failure does not end the conversations with the others.
        results = await asyncio.gather(*map(one, step.by_broker.values()))
        return dict(zip(step.by_broker, results, strict=True))

    async def _ask(self, step: Ask[T]) -> T:
        broker = step.broker
        address = self._known_master(broker)
        if address is None:
            try:
                async with asyncio.timeout(step.seconds):
                    address = await self._found_master(broker)
            except TimeoutError:
                raise NoRoute(f"no name server told in time where broker {broker} is") from None
        try:
            outcome = await self._core.ask_leader(broker, address, step.call, step.seconds)
        except FAULTS as error:
            if isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self.capable.discard(broker)
                raise _not_supported(broker, "does not know them") from error
            if error.retriable:
                # The next request looks the broker up again: another machine may be the master of that name by now.
                self._failed[broker] = self.now()
            raise
        self._failed.pop(broker, None)
        return outcome

    def _known_master(self, broker: str) -> str | None:
        """The address of the master of that name; None: it is unknown, or requests to it failed."""
        data = self._core.routes.broker(broker) if broker not in self._failed else None
        return data.master if data is not None else None

    async def _found_master(self, broker: str) -> str:
        """The same, asked for. Raises NoRoute; what asking the name servers raises, if nothing was known."""
        data = self._core.routes.broker(broker)
        try:
            told = (await self._core.consult(self._core.name_servers.cluster())).brokers.get(broker)
        except FAULTS:
            if data is None:
                raise
        else:
            if told is not None:
                # For all: a request that succeeds now shows that this address is right, and not the one in the routes.
                self._core.routes.heard(told)
                data = told
        if data is None or data.master is None:
            raise NoRoute(f"no master of the name {broker} is up")
        return data.master


def _not_supported(broker: str, why: str) -> NotSupported:
    return NotSupported(
        f"broker {broker} has no transactions of several messages: it {why}. They need a MetaQ of this version or later; "
        "one message with a local transaction works with every broker (metaq.TransactionProducer)"
    )
