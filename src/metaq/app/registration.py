"""A broker and its name servers: it registers there, says what changes, and says goodbye."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from metaq.broker.broker import Broker
from metaq.client.shared.transport import Transport
from metaq.model import DataVersion, TopicConfig
from metaq.model.topics.registration import BrokerIdentity
from metaq.registry.namesrv import Registrar


class Registration:
    """Of one broker; of none, until it is started."""

    def __init__(self) -> None:
        self._transport: Transport | None = None
        self._registrar: Registrar | None = None

    def when_announced(self, done: Callable[[], None]) -> None:
        """Call `done` when the name servers know the topics as they are; at once if there are none."""
        if self._registrar is None:
            done()
        else:
            self._registrar.when_registered(done)

    async def start(self, broker: Broker, name_servers: Sequence[str], identity: BrokerIdentity, period: float) -> None:
        """Register at the name servers; returns once one of them has taken us."""

        def describe(names: Collection[str] | None) -> tuple[DataVersion, Mapping[str, TopicConfig]]:
            topics, version = broker.registration(names)
            return version, topics

        def lost(address: str) -> None:
            registrar.lost(address)

        self._transport = Transport(lambda _address, _asked: None, lambda _address: None, lost)
        registrar = self._registrar = Registrar(
            self._transport, name_servers, identity, describe, period, ordered=broker.topics.set_ordered
        )
        broker.topics.watch(registrar.changed)
        await registrar.start()
        await registrar.registered()

    async def stop(self) -> None:
        """Withdraw."""
        if self._registrar is not None and self._transport is not None:
            await self._registrar.stop()
            await self._transport.close()
