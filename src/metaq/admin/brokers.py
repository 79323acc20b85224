"""Brokers: list and status, configuration reload, closed partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field, structs

from metaq.client.conversation.administration import ClosePartitions, GetRuntime, ReloadConfiguration
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.errors import NotFound
from metaq.model import BrokerData
from metaq.model.reload import ReloadedFile
from metaq.model.topics.route import MASTER_ID


class BrokerNotFound(NotFound):
    """No such broker or cluster is registered at the name servers."""


class BrokerStatus(Struct, frozen=True):
    """One broker process. `runtime` has every value that it reports, under RocketMQ's names; empty if unreachable.

    `registered`: the name servers know it.
    """

    cluster: str
    """Name of its cluster; "": it is not known."""
    broker: str
    """Name of the broker, which a master and its slaves share."""
    broker_id: int
    """0: the master; above: a slave."""
    address: str
    """`host:port`."""
    error: str = ""
    """Why it cannot be asked; "": it has answered."""
    runtime: dict[str, str] = field(default_factory=dict)
    registered: bool = True

    @property
    def version(self) -> str:
        """Release that it reports, such as `V4_9_7`; "": it has not answered."""
        return self.runtime.get("brokerVersionDesc", "")

    @property
    def put_rate(self) -> float:
        """Messages stored per second, over the last ten seconds."""
        return _first_number(self.runtime.get("putTps", ""))

    @property
    def get_rate(self) -> float:
        """Messages delivered per second, over the last ten seconds."""
        return _first_number(self.runtime.get("getTransferedTps", ""))

    @property
    def disk_used(self) -> float | None:
        """Share of the commit log's disk that is used, 0 to 1; None: it does not say."""
        text = self.runtime.get("commitLogDiskRatio")
        return _first_number(text) if text else None

    @property
    def disk_step(self) -> str:
        """What a full disk has come to: ok, warn, clean, refuse (docs/cleaning.md); "": the broker does not say."""
        return self.runtime.get("metaqDiskStep", "")

    @property
    def log_end(self) -> int | None:
        """LogOffset where the broker's log ends; None: it does not say."""
        text = self.runtime.get("commitLogMaxOffset")
        return int(_first_number(text)) if text else None

    @property
    def draining(self) -> bool:
        """Whether it announces no topic as writable (`metaq broker drain`)."""
        return self.runtime.get("metaqDraining") == "true"

    @property
    def put_p99_ms(self) -> float | None:
        """Time of 99 of 100 sends of the last ten minutes at the broker, ms; None: it does not say."""
        return _number(self.runtime, "putLatency99")

    @property
    def put_p999_ms(self) -> float | None:
        """Time of 999 of 1000 sends of the last ten minutes at the broker, ms; None: it does not say."""
        return _number(self.runtime, "putLatency999")

    @property
    def connections(self) -> int | None:
        """Connections that are open at its remoting server; None: it does not say, as a RocketMQ."""
        found = _number(self.runtime, "metaqConnections")
        return None if found is None else int(found)

    @property
    def trouble(self) -> str:
        """What fails in a broker of ours; empty if all is well."""
        return "; ".join(filter(None, (self.runtime.get("metaqTrouble"), self.runtime.get("unsavedFiles"))))

    @property
    def started_ms(self) -> int:
        """When its process started, ms since 1970; 0: it does not say."""
        return int(_first_number(self.runtime.get("bootTimestamp", "")))


def _first_number(text: str) -> float:
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return 0.0


def _number(runtime: Mapping[str, str], key: str) -> float | None:
    return _first_number(text) if (text := runtime.get(key)) else None


def behind(brokers: Sequence[BrokerStatus], slave: BrokerStatus) -> int | None:
    """Return how many bytes of its master's log a slave lacks; None: of a master, or one of the two does not say."""
    master = next(
        (one for one in brokers if one.broker == slave.broker and one.broker_id == MASTER_ID and one is not slave), None
    )
    if master is None or master.log_end is None or slave.log_end is None:
        return None
    return max(0, master.log_end - slave.log_end)  # they are not asked in the same moment


async def statuses(core: ClientCore) -> list[BrokerStatus]:
    """Return the status of every broker that the name servers know, masters first. One that does not answer has an `error`."""
    info = await core.consult(core.name_servers.cluster())

    return await ask_all(core, places_of(info.brokers.values()))


def places_of(brokers: Iterable[BrokerData]) -> list[BrokerStatus]:
    """Return every process of brokers, not asked yet."""
    return [
        BrokerStatus(data.cluster, data.broker, broker_id, address)
        for data in brokers
        for broker_id, address in data.addresses.items()
    ]


async def ask_all(core: ClientCore, places: Iterable[BrokerStatus]) -> list[BrokerStatus]:
    """Return brokers as they are now, masters first."""

    async def one(place: BrokerStatus) -> BrokerStatus:
        try:
            return structs.replace(place, error="", runtime=await core.ask(place.address, GetRuntime()))
        except FAULTS as error:
            return structs.replace(place, error=str(error), runtime={})

    found = await asyncio.gather(*map(one, places))
    return sorted(found, key=lambda status: (status.cluster, status.broker, status.broker_id))


async def masters(core: ClientCore, *, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
    """Return broker name → master's address; of one broker, one cluster, or all. Raises BrokerNotFound."""
    info = await core.consult(core.name_servers.cluster())
    if broker is not None:
        wanted = {broker} & info.brokers.keys()
    elif cluster is not None:
        wanted = set(info.clusters.get(cluster, ()))
    else:
        wanted = set(info.brokers)
    found = {name: info.brokers[name].addresses.get(MASTER_ID) for name in sorted(wanted) if name in info.brokers}
    reachable = {name: address for name, address in found.items() if address is not None}
    if not reachable:
        what = f"broker {broker}" if broker else f"cluster {cluster}" if cluster else "broker"
        known = ", ".join(sorted(info.brokers if cluster is None else info.clusters)) or "none"
        raise BrokerNotFound(
            f"no {what} with a master is registered at name servers {core.name_servers}; registered: {known}"
        )
    return reachable


async def close_partitions(core: ClientCore, address: str, topic: str, first: int, last: int) -> list[int]:
    """Close partitions of a topic at the broker at an address, or open all of them (-1, -1)."""
    return await core.ask(address, ClosePartitions(topic, first, last))


async def reload(core: ClientCore, address: str) -> ReloadedFile:
    """Have the broker at an address of this machine read its configuration file again."""
    return await core.ask(address, ReloadConfiguration())
