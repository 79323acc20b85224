"""The options of running servers: of ours with where they come from (30022), of a RocketMQ their values (26, 319)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound
from metaq.client.conversation.administration import GetOptions, GetSettings
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.routes import NAME_SERVER_OF_OURS, GetNameServerSettings
from metaq.client.shared.core import ClientCore
from metaq.errors import MetaqError
from metaq.model.servers.option_state import OptionState
from metaq.model.topics.route import MASTER_ID

EACH_ITS_OWN: Final = frozenset(
    {
        "brokerName", "brokerId", "brokerRole", "brokerIP1", "brokerIP2", "listenPort", "haListenPort", "haMasterAddress", "bindAddress",
        "listeners", "advertisedAddresses", "advertisedHaAddresses", "storePathRootDir", "storePathCommitLog", "storePathConsumeQueue",
        "storePathIndex", "storeCheckpoint", "abortFile", "rocketmqHome", "aclPath", "aclCredentials", "auditLogPath", "kvConfigPath",
        "configStorePath", "addressPagePort", "metaq1.brokerId", "metaq1.hostName", "metaq1.serverPort", "metaq1.dashboardHttpPort",
        "metaq1.dataPath", "metaq1.dataLogPath", "metaq1.archivePath", "tlsServerCertPath", "tlsServerKeyPath",
    }
)  # fmt: skip
"""Options in which the servers of a cluster are meant to differ."""
_UNNAMED: Final = ("broker", "store", "namesrv", "tls", "")


class ServerOptions(Struct, frozen=True):
    """The options of one running server."""

    server: str
    """Name of a broker, with `/` and its brokerId if that is not 0; or `name server` and its address."""
    address: str
    """Where it was asked, `host:port`."""
    is_ours: bool
    """It says where values come from. A RocketMQ, or an earlier release, tells values alone."""
    options: list[OptionState]
    """All of them, in the server's order."""

    def by_key(self) -> dict[str, OptionState]:
        """Return the options by key; with `metaq1.` in front of those of [metaq1]."""
        return {key_of(state): state for state in self.options}


class OptionDifferences(Struct, frozen=True):
    """How servers differ in their options."""

    servers: list[str]
    """Those that were compared, as `ServerOptions.server` names them."""
    different: dict[str, dict[str, str | None]]
    """Key → server → value, of the options that should be the same. A server that does not know an option is left out."""
    own: dict[str, dict[str, str | None]]
    """The same of options in which servers of a cluster are meant to differ, such as their ports."""
    failed: dict[str, str]
    """Server → why it could not be asked."""


def key_of(state: OptionState) -> str:
    """Return the key, which is unique at a server."""
    return state.key if state.section in _UNNAMED else f"{state.section}.{state.key}"


async def read(core: ClientCore, server: str, address: str, *, namesrv: bool = False) -> ServerOptions:
    """Return the options of the server at an address."""
    settings: dict[str, str] | None = None
    if namesrv:  # a RocketMQ's leaves requests that it does not know without an answer
        settings = await core.ask(address, GetNameServerSettings())
    if settings is None or NAME_SERVER_OF_OURS in settings:
        states = await core.ask(address, GetOptions())
        if states is not None:
            return ServerOptions(server, address, True, sorted(states, key=key_of))
    if settings is None:
        settings = await core.ask(address, GetSettings())
    plain = [OptionState(key, "", value, None, "", "") for key, value in sorted(settings.items())]
    return ServerOptions(server, address, False, plain)


async def find(core: ClientCore, broker: str) -> tuple[str, str]:
    """Return name and address of a broker that is given by its name, or by its address.

    A name means the master; without one, the slave with the lowest number. Raises BrokerNotFound.
    """
    if ":" in broker:
        return broker, broker
    info = await core.consult(core.name_servers.cluster())
    data = info.brokers.get(broker)
    if data is None or not data.addresses:
        known = ", ".join(sorted(info.brokers)) or "none"
        raise BrokerNotFound(
            f"no broker {broker[:100]!r} is registered at name servers {core.name_servers}; registered: {known}"
        )
    number = MASTER_ID if MASTER_ID in data.addresses else min(data.addresses)
    return _called(broker, number), data.addresses[number]


def _called(broker: str, number: int) -> str:
    return broker if number == MASTER_ID else f"{broker}/{number}"


async def all_brokers(core: ClientCore, cluster: str | None) -> dict[str, str]:
    """Return name → address of every broker, slaves too, of one cluster or of all. Raises BrokerNotFound."""
    info = await core.consult(core.name_servers.cluster())
    found = {
        _called(data.broker, number): address
        for data in info.brokers.values()
        if cluster is None or data.cluster == cluster
        for number, address in sorted(data.addresses.items())
    }
    if not found:
        what = f"broker of cluster {cluster}" if cluster is not None else "broker"
        known = ", ".join(sorted(info.clusters)) or "none"
        raise BrokerNotFound(f"no {what} is registered at name servers {core.name_servers}; clusters there: {known}")
    return dict(sorted(found.items()))


async def compare(core: ClientCore, servers: Mapping[str, str], *, namesrv: bool = False) -> OptionDifferences:
    """Return how these servers (name → address) differ."""
    asked = await asyncio.gather(
        *(read(core, name, address, namesrv=namesrv) for name, address in servers.items()), return_exceptions=True
    )
    found, failed = list[ServerOptions](), dict[str, str]()
    for name, outcome in zip(servers, asked, strict=True):
        if isinstance(outcome, ServerOptions):
            found.append(outcome)
        elif isinstance(outcome, MetaqError) and isinstance(outcome, FAULTS):
            failed[name] = str(outcome)
        else:
            raise outcome
    different = dict(differences(found))
    own = {key: different.pop(key) for key in list(different) if key in EACH_ITS_OWN}
    return OptionDifferences([one.server for one in found], different, own, failed)


def differences(found: Sequence[ServerOptions]) -> Iterable[tuple[str, dict[str, str | None]]]:
    """Yield key → server → value of each option that has not one value at all servers that know it."""
    tables = {one.server: one.by_key() for one in found}
    for key in sorted({key for table in tables.values() for key in table}):
        values = {server: table[key].value for server, table in tables.items() if key in table}
        if len({value or None for value in values.values()}) > 1:  # a RocketMQ has empty texts where ours have none
            yield key, values
