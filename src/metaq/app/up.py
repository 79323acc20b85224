"""`metaq up`: a name server and a broker in one process, data in one folder."""

from __future__ import annotations

from metaq.app.addressing.told import from_here
from metaq.app.broker import RunningBroker, start_broker
from metaq.app.namesrv import RunningNamesrv, start_namesrv
from metaq.app.supervision.service_manager import Told, nobody
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import SYSTEM, Clock
from metaq.model.trace_context import SpanProvider
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.store.disk import Disk
from metaq.tls_options import NO_TLS, TlsOptions


class RunningUp:
    """A running name server and broker. Made by `start_up`."""

    def __init__(self, namesrv: RunningNamesrv, broker: RunningBroker, data: str) -> None:
        self.namesrv, self.broker, self.data = namesrv, broker, data
        self.failure = broker.failure
        self.again, self.stopped = broker.again, broker.stopped
        self.settings = {**broker.settings, **namesrv.settings}
        self.metaq1, self.reloading = broker.metaq1, broker.reloading
        self.restarting = None
        """The name server of other brokers ends with this process, and so does the dashboard."""

    @property
    def addresses(self) -> dict[str, str]:
        """Of each protocol server, by name, behind the name of the server that it is of."""
        parts = {"namesrv": self.namesrv.addresses, "broker": self.broker.addresses}
        return {f"{part} {name}": address for part, ones in parts.items() for name, address in ones.items()}

    @property
    def ready(self) -> str:
        return f"ready up namesrv={self.namesrv.address} broker={self.broker.address} data={self.data}"

    async def close(self) -> None:
        await self.broker.close()
        await self.namesrv.close()


async def start_up(
    broker: BrokerOptions,
    store: StoreOptions,
    namesrv: NamesrvOptions,
    clock: Clock = SYSTEM,
    disk: Disk | None = None,
    metaq1: Metaq1Settings | None = None,
    tls: TlsOptions = NO_TLS,
    told: Told = nobody,
    tracer_provider: SpanProvider | None = None,
) -> RunningUp:
    """Start both. The broker registers at this name server, and at those of `namesrvAddr`.

    Raises as `start_namesrv` and `start_broker`.
    """
    first = await start_namesrv(namesrv, clock, tls=tls)
    try:
        own = from_here(first.address)
        addresses = ";".join(filter(None, [own, broker.namesrv_addr]))
        second = await start_broker(
            broker.replace(namesrv_addr=addresses),
            store,
            clock,
            disk,
            metaq1,
            tls=tls,
            told=told,
            tracer_provider=tracer_provider,
        )
    except BaseException:
        await first.close()
        raise
    return RunningUp(first, second, store.store_path_root_dir)
