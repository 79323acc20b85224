"""The route table: which brokers hold which topics, on leases and in memory only.

A broker that registers every 30 seconds keeps its lease; one that falls silent, or whose connection breaks, is dropped
with all its queues. Nothing is on disk: brokers register everything again within one period after a restart. Two rules
of RocketMQ that are easy to miss (4.9, RouteInfoManager): a registration never removes a topic, only the broker's end
or a deletion does; and only a master's registration writes queue data, and only when its DataVersion has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Struct, structs

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import BrokerData, ClusterInfo, DataVersion, Perm, QueueData, Route
from metaq.model.topics.advertised import ANYWHERE, Advertised, Origin
from metaq.model.topics.registration import BrokerIdentity, Registration, VersionCheck
from metaq.model.topics.route import MASTER_ID
from metaq.model.topics.topic import READ_WRITE

UNREGISTERED: Final = "unregistered"
DISCONNECTED: Final = "disconnected"
EXPIRED: Final = "expired"
_LEASE_BYTES: Final = 800
"""Estimated memory of a lease with the broker's data, without their texts."""
_ADVERTISED_BYTES: Final = 500
"""Estimated memory of a further address for clients of one origin."""
_QUEUES_BYTES: Final = 400
"""Estimated memory of a broker's queues of one topic, without the topic's name."""


class BrokerConnection(Protocol):
    """Connection over which brokers register, which counts what they make the name server keep. Compared by identity."""

    def keep(self, more: int) -> None:
        """Count bytes that are kept for this connection, or given up (below 0)."""
        ...

    def may_keep(self, more: int) -> bool:
        """Return whether so many bytes more would not get this connection closed."""
        ...


class _Lease(Struct):
    """Lease of a broker's address: time and connection of its last registration, and what that said."""

    heard: float
    connection: BrokerConnection
    version: DataVersion
    ha_address: str
    size: int
    """Bytes that it counts for at its connection."""
    advertised: Advertised = Advertised()
    advertised_ha: Advertised = Advertised()


class _Charge(Struct):
    """Memory of a broker's queues, and the connection at which it counts: that of the master, as long as there is one."""

    connection: BrokerConnection
    bytes: int = 0

    def add(self, more: int) -> None:
        self.bytes += more
        self.connection.keep(more)

    def move(self, connection: BrokerConnection) -> None:
        if connection is not self.connection:
            self.connection.keep(-self.bytes)
            connection.keep(self.bytes)
            self.connection = connection


class RouteTable:
    """Live brokers and their queues. No method touches a socket or a file.

    Args:
        clock: its monotonic time ages the leases.
        lease_ms: silence after which `expire` drops a broker.
    """

    def __init__(self, clock: Clock, lease_ms: int = 120_000) -> None:
        self._clock, self._lease = clock, lease_ms / 1000
        self._leases: dict[str, _Lease] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic → broker → queues
        self._charges: dict[str, _Charge] = {}  # broker → memory of its queues
        self.registrations = 0
        """How many were taken since the start."""
        self.removed = dict.fromkeys((UNREGISTERED, DISCONNECTED, EXPIRED), 0)
        """How many addresses were removed since the start, by why."""

    # ---------------------------------------------------------------- brokers come and go

    def register(self, registration: Registration, connection: BrokerConnection) -> BrokerData:
        """Take a broker's registration and renew its lease. Return the broker's data, with all its addresses.

        Another id at the same address is dropped first: the process there has changed its role.

        Raises Refused BUSY: with it, this connection would hold more than any other, and all hold what they may.
        """
        who = registration.who
        known = self._brokers.get(who.broker)
        # Another one in its place is new, too: it may have the version of a master that did not say goodbye.
        first = known is None or known.addresses.get(who.broker_id) != who.address
        lease = self._leases.get(who.address)
        moved = lease is None or lease.version != registration.version
        # Only then, as in RocketMQ: otherwise each registration would undo WIPE_WRITE_PERM_OF_BROKER within 30 s.
        topics = registration.topics.values() if who.broker_id == MASTER_ID and (first or moved) else ()
        texts = who.cluster, who.broker, who.address, who.ha_address, str(who.advertised), str(who.advertised_ha)
        size = (
            _LEASE_BYTES
            + sum(map(len, texts))
            + _ADVERTISED_BYTES * (len(who.advertised.addresses) + len(who.advertised_ha.addresses))
        )
        more = size - (0 if lease is None else lease.size)
        grown = sum(_size_of(topic.name) for topic in topics if who.broker not in self._queues.get(topic.name, ()))
        if more + grown > 0 and not connection.may_keep(more + grown):
            raise Refused(
                Reason.BUSY,
                f"the registration of {who.broker} at {who.address} takes {more + grown} bytes more, and all peers "
                "together take what they may already (peerBytesMax)",
            )
        addresses = {} if known is None else known.addresses
        addresses = {key: value for key, value in addresses.items() if value != who.address}
        addresses[who.broker_id] = who.address
        broker = BrokerData(who.cluster, who.broker, dict(sorted(addresses.items())))
        self._brokers[who.broker] = broker
        for topic in topics:
            data = QueueData(who.broker, topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag)
            self._queues.setdefault(topic.name, {})[who.broker] = data
        self._leases[who.address] = _Lease(
            self._clock.monotonic(), connection, registration.version, who.ha_address, size,
            who.advertised, who.advertised_ha,
        )  # fmt: skip
        charge = self._charges.setdefault(who.broker, _Charge(connection))
        if who.broker_id == MASTER_ID or (lease is not None and charge.connection is lease.connection):
            charge.move(connection)
        # Only now: who holds the most may be closed for it, and what is his leaves the tables then.
        if lease is not None:
            lease.connection.keep(-lease.size)
        connection.keep(size)
        charge.add(grown)
        self.registrations += 1
        return broker

    def holder(self, who: BrokerIdentity, connection: BrokerConnection) -> str | None:
        """Return the other address that has a broker's name and id over another connection; None: there is none."""
        known = self._brokers.get(who.broker)
        address = known.addresses.get(who.broker_id) if known is not None else None
        lease = self._leases.get(address) if address is not None and address != who.address else None
        return address if lease is not None and lease.connection is not connection else None

    def has_other_id(self, who: BrokerIdentity) -> bool:
        """Return whether the address is that of another id of the broker's name."""
        known = self._brokers.get(who.broker)
        return known is not None and any(
            number != who.broker_id and address == who.address for number, address in known.addresses.items()
        )

    def ha_address(self, address: str, origin: Origin = ANYWHERE) -> str | None:
        """Return the replication address of the broker at `address` for slaves of `origin`, None if it is not alive."""
        lease = self._leases.get(address)
        return lease.advertised_ha.fitting(origin) or lease.ha_address if lease else None

    def address_for(self, address: str, origin: Origin) -> str:
        """Return the address by which clients of `origin` reach the broker that is registered at `address`."""
        lease = self._leases.get(address)
        return (lease.advertised.fitting(origin) if lease is not None else None) or address

    def _told(self, data: BrokerData, origin: Origin) -> BrokerData:
        """Return a broker's data as clients of `origin` are told it."""
        if not any(self._leases[address].advertised for address in data.addresses.values()):
            return data
        fitting = {number: self.address_for(address, origin) for number, address in data.addresses.items()}
        return structs.replace(data, addresses=fitting)

    def check_version(self, address: str, asked: DataVersion) -> VersionCheck:
        """Return whether a broker must register again. Renews its lease if not."""
        lease = self._leases.get(address)
        if lease is None or lease.version != asked:
            return VersionCheck(changed=True, known=lease.version if lease else None)
        lease.heard = self._clock.monotonic()
        return VersionCheck(changed=False, known=lease.version)

    def unregister(self, broker: str, broker_id: int, address: str) -> None:
        """Drop a broker that unregisters. Unknown ones, and an address with a new owner, are ignored."""
        data = self._brokers.get(broker)
        if data is not None and data.addresses.get(broker_id) == address:
            self._remove(address, UNREGISTERED)

    def disconnected(self, connection: BrokerConnection) -> list[str]:
        """Drop the brokers that registered through a broken connection. Return their addresses."""
        gone = [address for address, lease in self._leases.items() if lease.connection is connection]
        for address in gone:
            self._remove(address, DISCONNECTED)
        return gone

    def expire(self) -> list[str]:
        """Drop the addresses whose lease has ended. Return them."""
        oldest = self._clock.monotonic() - self._lease
        gone = [address for address, lease in self._leases.items() if lease.heard < oldest]
        for address in gone:
            self._remove(address, EXPIRED)
        return gone

    def _remove(self, address: str, why: str) -> None:
        self.removed[why] += 1
        lease = self._leases.pop(address)
        lease.connection.keep(-lease.size)
        for name, data in list(self._brokers.items()):
            if address not in data.addresses.values():
                continue
            left = {key: value for key, value in data.addresses.items() if value != address}
            if left:
                self._brokers[name] = structs.replace(data, addresses=left)
                charge = self._charges[name]
                if charge.connection is lease.connection:
                    # The queues stay for as long as a slave does: it may be read from.
                    charge.move(self._leases[next(iter(left.values()))].connection)
            else:
                del self._brokers[name]
                self._drop_queues(name)

    def _drop_queues(self, broker: str) -> None:
        for topic, holders in list(self._queues.items()):
            if holders.pop(broker, None) and not holders:
                del self._queues[topic]
        charge = self._charges.pop(broker)
        charge.add(-charge.bytes)

    # ---------------------------------------------------------------- topics

    @property
    def counts(self) -> tuple[int, int]:
        """Addresses of brokers, and topics."""
        return len(self._leases), len(self._queues)

    def route(self, topic: str, origin: Origin = ANYWHERE) -> Route | None:
        """Return the topic's route for clients of `origin`, None if no live broker has a queue of it."""
        holders = self._queues.get(topic)
        if not holders:
            return None
        # Clients need both, queues and an address: RocketMQ answers "no route" without either.
        brokers = tuple(self._told(self._brokers[name], origin) for name in holders if name in self._brokers)
        return Route(topic, tuple(holders.values()), brokers) if brokers else None

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those at brokers of `cluster`, sorted."""
        if cluster is None:
            return sorted(self._queues)
        names = {name for name, data in self._brokers.items() if data.cluster == cluster}
        return sorted(topic for topic, holders in self._queues.items() if not names.isdisjoint(holders))

    def topics_flagged(self, keep: Iterable[int], drop: int = 0) -> list[str]:
        """Return the topics of which some queue data has a flag of `keep` and none of `drop` (unit topics)."""
        bits = 0
        for flag in keep:
            bits |= flag
        return sorted(
            topic
            for topic, holders in self._queues.items()
            if any(data.sys_flag & bits and not data.sys_flag & drop for data in holders.values())
        )

    def delete_topic(self, topic: str, cluster: str | None = None, broker: str | None = None) -> None:
        """Drop a topic, everywhere, at the brokers of one cluster or at one broker. Who still has it registers it again."""
        holders = self._queues.get(topic, {})
        for name in list(holders):
            data = self._brokers.get(name)
            if broker not in {None, name}:
                continue
            if cluster is None or (data and data.cluster == cluster):
                del holders[name]
                self._charges[name].add(-_size_of(topic))
        if not holders:
            self._queues.pop(topic, None)

    def set_writable(self, broker: str, *, writable: bool) -> int:
        """Remove or restore the write permission of all queues of a broker name, until it registers a change.

        Return the number of topics. Restoring sets read and write, whatever was there before, as RocketMQ does.
        """
        touched = 0
        for holders in self._queues.values():
            if (data := holders.get(broker)) is not None:
                perm = int(READ_WRITE) if writable else data.perm & ~Perm.WRITE
                holders[broker] = structs.replace(data, perm=perm)
                touched += 1
        return touched

    # ---------------------------------------------------------------- the cluster

    def clusters(self, origin: Origin = ANYWHERE) -> ClusterInfo:
        """Return every broker, with the addresses for clients of `origin`, and the brokers of each cluster."""
        clusters: dict[str, tuple[str, ...]] = {}
        for name, data in sorted(self._brokers.items()):
            clusters[data.cluster] = (*clusters.get(data.cluster, ()), name)
        told = {name: self._told(data, origin) for name, data in sorted(self._brokers.items())}
        return ClusterInfo(told, clusters)


def _size_of(topic: str) -> int:
    return _QUEUES_BYTES + len(topic)
