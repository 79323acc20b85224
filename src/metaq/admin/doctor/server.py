"""A broker and name servers as a client finds them: who answers, access, clock, version, health, routes, advertised addresses."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metaq.address import split_address
from metaq.admin.doctor.finding import NOTICE, OK, WRONG, Finding
from metaq.admin.doctor.port import Look, look_at_port
from metaq.client.conversation.administration import GetRuntime, GetSettings, Identify
from metaq.client.conversation.call import FAULTS, Call
from metaq.client.conversation.driver import ask
from metaq.client.conversation.routes import GetCluster
from metaq.client.shared.transport import Transport
from metaq.errors import AccessDenied, BrokerError, ConfigError
from metaq.model import ClusterInfo
from metaq.model.acl.secret import Credentials
from metaq.net import probe
from metaq.wire.codes import ResponseCode

CLOCK_NOTICE_MS: Final = 2_000
CLOCK_WRONG_MS: Final = 30_000
"""Above this, delays, offsets by time and transaction checks are off by what people notice."""
_ROUNDING_MS: Final = 1_500
"""How exact the clock of a RocketMQ is told: by whole seconds of its runtime."""
_DISK_NOTICE, _DISK_WRONG = 0.75, 0.90
_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
BROKER_PORT, NAME_SERVER_PORT = 10911, 9876


class Asker(Struct, frozen=True):
    """Asks servers, within the time-out of a look."""

    transport: Transport
    look: Look

    async def instance(self, address: str) -> str | None:
        """Return the process that answers at an address; "": one that does not say which; None: nothing answers."""
        try:
            found = await ask(self.transport, address, Identify(), self.look.timeout)
        except BrokerError:
            return ""
        except (*FAULTS, ConfigError):
            return None
        return found.instance if found is not None else ""


async def examine_broker(
    address: str, name_servers: Sequence[str], look: Look, credentials: Credentials | None = None
) -> list[Finding]:
    """Return what is found at a broker's address. Raises ConfigError: that is no address."""
    findings, usable = await look_at_port(address, "broker", BROKER_PORT, look)
    if not usable:
        return findings
    transport = Transport(credentials=credentials, tls=look.tls.open() if look.tls is not None else None)
    try:
        asker = Asker(transport, look)
        found, settings = await _broker(asker, address, credentials)
        findings += found
        if settings:
            findings += await _advertised(asker, address, settings)
            for server in name_servers:
                findings += await _known_at(asker, address, settings, server)
    finally:
        await transport.close()
    return findings


async def _broker(asker: Asker, address: str, credentials: Credentials | None) -> tuple[list[Finding], dict[str, str]]:
    clock, look = asker.look.clock, asker.look
    findings: list[Finding] = []
    before = clock.now_ms()
    with contextlib.suppress(*FAULTS):
        identity = await ask(asker.transport, address, Identify(), look.timeout)
        if identity is not None:
            findings.append(_clock(identity.now_ms - (before + clock.now_ms()) // 2, 0))
    try:
        before = clock.now_ms()
        runtime = await ask(asker.transport, address, GetRuntime(), look.timeout)
        now = (before + clock.now_ms()) // 2
        settings = await ask(asker.transport, address, GetSettings(), look.timeout)
    except FAULTS as error:
        return [*findings, _refused(error, address, credentials)], {}
    if not findings and (told := _time_of(runtime)) is not None:
        findings.append(_clock(told - now, _ROUNDING_MS))
    findings.append(
        Finding("access", OK, "signed requests are taken" if credentials else "requests are taken unsigned")
    )
    return [*findings, *_health(runtime)], settings


def _refused(error: Exception, address: str, credentials: Credentials | None) -> Finding:
    if not isinstance(error, BrokerError):
        return Finding("access", WRONG, f"{address} does not answer a request: {error}: look into the broker's log")
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return Finding(
            "protocol", WRONG, f"{address} is a name server, not a broker: use the broker's port, 10911 by default"
        )
    if isinstance(error, AccessDenied) or error.code == ResponseCode.NO_PERMISSION:
        if credentials is None:
            text = (
                "unsigned requests are refused: the client needs an account (accessKey and secretKey, as in tools.yml)"
            )
        else:
            text = f"the account is refused: {error}: correct its key or its rights in the broker's plain_acl.yml"
        return Finding("access", WRONG, text)
    return Finding("access", WRONG, f"{error}: look into the broker's log")


def _clock(difference_ms: int, rounding_ms: int) -> Finding:
    off = max(0, abs(difference_ms) - rounding_ms)
    text = f"the server's is {abs(difference_ms) / 1000:.1f} s {'ahead' if difference_ms > 0 else 'behind'}"
    if off >= CLOCK_NOTICE_MS:
        state = WRONG if off >= CLOCK_WRONG_MS else NOTICE
        return Finding(
            "clock",
            state,
            f"{text}: delays and offsets by time are off by that; have NTP set the clocks of both machines",
        )
    return Finding("clock", OK, "both machines agree")


def _time_of(runtime: dict[str, str]) -> int | None:
    """Return a broker's time in ms, as far as a RocketMQ tells it: its start, and how long ago that was."""
    age, start = _RUNTIME.search(runtime.get("runtime", "")), runtime.get("bootTimestamp", "")
    if age is None or not start.isdecimal() or len(start) > 15:
        return None
    days, hours, minutes, seconds = map(int, age.groups())
    return int(start) + 1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))


def _health(runtime: dict[str, str]) -> list[Finding]:
    version = runtime.get("brokerVersionDesc", "unknown")
    ours = f", a MetaQ of level {runtime['METAQ']}" if "METAQ" in runtime else ""
    findings = [Finding("version", OK, f"RocketMQ {version}{ours}")]
    with contextlib.suppress(ValueError):
        used = float(runtime.get("commitLogDiskRatio", "0"))
        text = f"{used:.0%} of the broker's disk are used"
        step = runtime.get("metaqDiskStep")  # a RocketMQ does not say
        if step == "refuse" or (step is None and used >= _DISK_WRONG):
            findings.append(
                Finding("disk", WRONG, f"{text}: it refuses messages; make room, or lower fileReservedTime")
            )
        elif step in {"warn", "clean"} or (step is None and used >= _DISK_NOTICE):
            findings.append(Finding("disk", NOTICE, f"{text}: old messages go early; make room"))
        else:
            findings.append(Finding("disk", OK, text))
    for key, what in (("metaqTrouble", "store"), ("unsavedFiles", "files")):
        if trouble := runtime.get(key):
            findings.append(Finding(what, WRONG, f"{trouble}: look into the broker's log"))
    return findings


async def _advertised(asker: Asker, address: str, settings: dict[str, str]) -> list[Finding]:
    host, port = settings.get("brokerIP1", ""), settings.get("listenPort", "")
    if not host or not port.isdecimal():
        return []
    own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return [await _leads_to(asker, "advertised", own, address, f"the broker's own address (brokerIP1) is {own}")]


async def _leads_to(asker: Asker, what: str, told: str, address: str, said: str) -> Finding:
    """Return whether an address that clients are told leads to the broker at `address`."""
    if await asyncio.to_thread(_same_place, told, address):
        return Finding(what, OK, f"{said}, where you came in")
    here = await asker.instance(address)
    there = await asker.instance(told)
    if there is None:
        remedy = "set brokerIP1 to an address that clients reach, or an entry for your network in advertisedAddresses"
        return Finding(what, WRONG, f"{said}, which cannot be reached from here: {remedy} (docs/addresses.md)")
    if here != there:
        return Finding(what, WRONG, f"{said}, where another server answers: correct brokerIP1 or advertisedAddresses")
    return Finding(what, OK, f"{said}; it is reached from here, too")


def _same_place(one: str, other: str) -> bool:
    try:
        (one_host, one_port), (other_host, other_port) = split_address(one), split_address(other)
        return one_port == other_port and not set(probe.look_up(one_host)).isdisjoint(probe.look_up(other_host))
    except (OSError, ConfigError):
        return False


async def _known_at(asker: Asker, address: str, settings: dict[str, str], server: str) -> list[Finding]:
    """Return whether a name server leads clients to the broker at `address`."""
    name, number = settings.get("brokerName", ""), settings.get("brokerId", "0")
    info, failed = await _cluster(asker, server)
    if info is None:
        return failed
    data = info.brokers.get(name)
    told = data.addresses.get(int(number)) if data is not None and number.isdecimal() else None
    if told is None:
        configured = settings.get("namesrvAddr") or "not set"
        text = (
            f"the name server {server} does not know the broker {name} (id {number}): name it in the broker's namesrvAddr, which is "
            f"{configured}, and look into its log"
        )
        return [Finding("route", WRONG, text)]
    return [await _leads_to(asker, "route", told, address, f"the name server {server} tells you {told}")]


async def _cluster(asker: Asker, server: str) -> tuple[ClusterInfo | None, list[Finding]]:
    try:
        return await _ask(asker, server, GetCluster()), []
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            text = f"{server} is a broker, not a name server: use the name server's port, 9876 by default"
        else:
            text = f"the name server {server} refuses: {error}"
        return None, [Finding("route", WRONG, text)]
    except FAULTS as error:
        return None, [
            Finding(
                "route", WRONG, f"the name server {server} does not answer: {error}: start it, or correct its address"
            )
        ]


async def _ask(asker: Asker, address: str, call: Call[ClusterInfo]) -> ClusterInfo:
    return await ask(asker.transport, address, call, asker.look.timeout)


async def examine_name_servers(
    name_servers: Sequence[str], look: Look, credentials: Credentials | None = None
) -> list[Finding]:
    """Return what is found at name servers, and at the brokers that they lead to. Raises ConfigError: one is no address."""
    findings: list[Finding] = []
    lists: dict[str, ClusterInfo] = {}
    transport = Transport(credentials=credentials, tls=look.tls.open() if look.tls is not None else None)
    asker = Asker(transport, look)
    try:
        for server in name_servers:
            found, usable = await look_at_port(server, "name server", NAME_SERVER_PORT, look)
            findings += found
            if not usable:
                continue
            before = look.clock.now_ms()
            with contextlib.suppress(*FAULTS):
                identity = await ask(transport, server, Identify(), look.timeout)
                if identity is not None:
                    findings.append(_clock(identity.now_ms - (before + look.clock.now_ms()) // 2, 0))
            info, failed = await _cluster(asker, server)
            findings += failed
            if info is not None:
                lists[server] = info
                findings += await _led_to(asker, server, info)
    finally:
        await transport.close()
    return [*findings, *_differences(lists)]


async def _led_to(asker: Asker, server: str, info: ClusterInfo) -> list[Finding]:
    if not info.brokers:
        text = f"no broker is registered at {server}: start one, with this name server in its namesrvAddr"
        return [Finding("brokers", WRONG, text)]
    findings = []
    for name, data in sorted(info.brokers.items()):
        for number, address in data.addresses.items():
            said = f"{name} (id {number}) at {address}"
            if await asker.instance(address) is None:
                text = (
                    f"{said} cannot be reached from here: set its brokerIP1, or an entry for your network in advertisedAddresses "
                    "(docs/addresses.md), or open its port"
                )
                findings.append(Finding("broker", WRONG, text))
            else:
                findings.append(Finding("broker", OK, said))
    return findings


def _differences(lists: dict[str, ClusterInfo]) -> list[Finding]:
    """Return brokers that one name server knows and another one does not."""
    everybody = {name for info in lists.values() for name in info.brokers}
    return [
        Finding(
            "brokers",
            WRONG,
            f"{server} does not know {', '.join(sorted(missing))}: name all name servers in each namesrvAddr",
        )
        for server, info in lists.items()
        if (missing := everybody - info.brokers.keys()) and info.brokers
    ]
