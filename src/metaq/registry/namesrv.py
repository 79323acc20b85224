"""A broker's side of the name servers: it tells all of them the same, all the time, and says goodbye.

Name servers do not talk to each other, so a broker registers at each. It does so at its start, whenever a topic
changes, and every `period` seconds, which also renews its lease; a name server that was away learns everything then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from metaq.errors import BrokerError, MetaqError
from metaq.model import DataVersion, TopicConfig
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request
from metaq.wire.hot import crc31

log = logging.getLogger(__name__)

REGISTER_TIMEOUT = 6.0
UNREGISTER_TIMEOUT = 3.0


class Caller(Protocol):
    """The part of `metaq.client.transport.Transport` that is needed here."""

    async def call(self, address: str, command: Command, timeout: float) -> Command: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who registers: addresses are `host:port`."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    ha_address: str


class Registrar:
    """Keeps one broker registered at every name server.

    Args: describe: what to tell now, the DataVersion and the whole topic table. period: seconds between registrations.
    """

    def __init__(
        self,
        caller: Caller,
        name_servers: Sequence[str],
        identity: Identity,
        describe: Callable[[], tuple[DataVersion, Mapping[str, TopicConfig]]],
        period: float = 30.0,
    ) -> None:
        self._caller, self._identity, self._describe, self._period = caller, identity, describe, period
        self._name_servers = tuple(name_servers)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Name servers that did not take the last registration, and why."""
        return self._failing

    async def start(self) -> None:
        """Register everywhere, wait for the answers, and go on in the background.

        A name server that cannot be reached is logged and tried again; it does not stop the broker.
        """
        await self._register()
        self._task = asyncio.create_task(self._keep_registering(), name="registrar")

    def changed(self) -> None:
        """A topic changed: register at once. Several calls before that happens make one registration."""
        self._changed.set()

    async def stop(self) -> None:
        """Say goodbye to every name server that can be reached."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        who = self._identity
        header = headers.BrokerHeader(
            broker_name=who.broker, broker_address=who.address, cluster=who.cluster, broker_id=who.broker_id
        )
        calls = (
            self._caller.call(address, request(RequestCode.UNREGISTER_BROKER, header), UNREGISTER_TIMEOUT)
            for address in self._name_servers
        )
        for address, answer in zip(
            self._name_servers, await asyncio.gather(*calls, return_exceptions=True), strict=True
        ):
            if isinstance(answer, MetaqError):
                log.info("could not unregister at name server %s: %s", address, answer)

    async def _keep_registering(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._period)
            await self._register()

    async def _register(self) -> None:
        self._changed.clear()  # Before the table is read: a change during the calls must cause another round.
        version, topics = self._describe()
        body = bodies.registration(version, topics)
        who = self._identity
        header = headers.RegisterBrokerHeader(
            broker_name=who.broker,
            broker_address=who.address,
            cluster=who.cluster,
            ha_address=who.ha_address,
            broker_id=who.broker_id,
            body_crc32=crc31(body),
        )
        await asyncio.gather(*(self._register_at(address, header, body) for address in self._name_servers))

    async def _register_at(self, address: str, header: headers.RegisterBrokerHeader, body: bytes) -> None:
        try:
            answer = await self._caller.call(
                address, request(RequestCode.REGISTER_BROKER, header, body), REGISTER_TIMEOUT
            )
            if answer.code != 0:
                raise BrokerError(answer.code, answer.remark or "", address, "register the broker")
        except MetaqError as error:
            if self._failing.get(address) != str(error):  # Once per reason, not every 30 seconds.
                log.warning("cannot register at name server %s, will try again: %s", address, error)
            self._failing[address] = str(error)
        else:
            if self._failing.pop(address, None):
                log.info("registered at name server %s again", address)
