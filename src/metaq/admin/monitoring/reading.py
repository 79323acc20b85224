"""Looks at one server of MetaQ 1.x over the network: a message there and back, its `stats`, and what our broker tells."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from msgspec import Struct

from metaq.address import split_address
from metaq.admin import branches, brokers
from metaq.admin.figures.metaq1 import converse, figures_of
from metaq.admin.monitoring.judging import SeenServer, UnknownFigure
from metaq.client.shared.core import ClientCore
from metaq.errors import MetaqError, RemoteProtocolError, RequestTimeout
from metaq.model.transactions.metaq1 import BranchPhase
from metaq.wire.metaq1.commands import ANY_PARTITION, Code, GetLine, PutLine, ResultLine, ValueLine, put_place
from metaq.wire.metaq1.frame import checksum, frames

GROUP: Final = "metaq-monitor"
"""Group of the probe, for the server's figures: it keeps no offsets."""
_GET_BYTES: Final = 1 << 20
_PAUSE_SECONDS: Final = 0.2
"""Between two gets, while the message is not to be seen yet."""
_REMOTE: Final = "the protocol does not tell: only of a server on this machine"


class WatchedServer(Struct, frozen=True, kw_only=True):
    """A server to look at."""

    address: str
    """`host:port` of its text protocol."""
    topic: str | None = None
    """Gets the messages of the probe; None: there is no probe."""
    broker: str | None = None
    """`host:port` of our broker's remoting server; None: the original, or unknown."""
    wait: float = 15.0
    """Longest wait until the message of the probe is back, seconds."""


async def look(core: ClientCore, place: WatchedServer) -> SeenServer:
    """Return what is to be seen. A server that does not answer is a probe that failed. Raises ConfigError: no address."""
    split_address(place.address)
    fault, probe = "", UnknownFigure("no topic is given that its messages may go to (--topic)")
    told: float | UnknownFigure | None = probe
    if place.topic is not None:
        try:
            told = await round_trip(core, place, place.topic)
        except MetaqError as error:
            told, fault = None, str(error)
    try:
        figures = await figures_of(place.address)
    except MetaqError as error:
        figures, silent = None, UnknownFigure(f"it does not answer: {error}")
        told, fault = None, fault or str(error)
    else:
        silent = UnknownFigure("it does not tell")
    connections: int | UnknownFigure = silent
    failed: int | UnknownFigure = silent
    if figures is not None:
        with contextlib.suppress(KeyError, ValueError):
            connections = int(figures.broker["curr_connections"])
        counted = figures.traffic.get("put_failed")
        failed = counted.events if counted is not None else 0
    prepared, disk = await _of_our_broker(core, place.broker)
    return SeenServer(
        server=place.address,
        probe=told,
        fault=fault,
        put_failed=failed,
        load=UnknownFigure(_REMOTE),
        disk=disk,
        memory=UnknownFigure(_REMOTE),
        connections=connections,
        per_ip=UnknownFigure(_REMOTE),
        prepared=prepared,
    )


async def _of_our_broker(core: ClientCore, broker: str | None) -> tuple[int | UnknownFigure, float | UnknownFigure]:
    """Return prepared transactions and the share of the disk that is used."""
    if broker is None:
        return (
            UnknownFigure("the original tells it by JMX alone; of a broker of ours: --broker"),
            UnknownFigure(
                "the server does not tell; of a folder on this machine: --data-dir, of a broker of ours: --broker"
            ),
        )
    listed = await branches.listing(core, broker=broker, limit=1 << 30)
    for why in listed.unreached.values():
        return UnknownFigure(f"{broker} does not answer: {why}"), UnknownFigure(f"{broker} does not answer: {why}")
    prepared = sum(state.phase is BranchPhase.PREPARED for states in listed.branches.values() for state in states)
    (status,) = await brokers.ask_all(core, [brokers.BrokerStatus("", broker, 0, broker)])
    return prepared, status.disk_used if status.disk_used is not None else UnknownFigure(f"{broker} does not tell")


async def round_trip(core: ClientCore, place: WatchedServer, topic: str) -> float:
    """Send a message, and return after how many seconds it was received.

    Raises ConnectionFailed; RequestTimeout: it was not received in time; RemoteProtocolError: the server refuses it.
    """
    clock, address = core.clock, place.address
    begun = clock.monotonic()
    body = f"metaq meta1 monitor {clock.token()}".encode()
    try:
        async with asyncio.timeout(place.wait):
            async with converse(address) as ask:
                put = await ask(PutLine(topic, ANY_PARTITION, 0, body, 1, checksum(body)))
                if not isinstance(put, ResultLine) or put.code != Code.SUCCESS:
                    raise RemoteProtocolError(f"{address} does not take a message of {topic}: {_text(put)}")
                message_id, partition, offset = put_place(put.body)
                while True:
                    got = await ask(GetLine(topic, GROUP, partition, offset, _GET_BYTES, 2))
                    if isinstance(got, ValueLine):
                        if any(one.message_id == message_id and one.body == body for one in frames(got.body)):
                            return clock.monotonic() - begun
                        raise RemoteProtocolError(
                            f"{address} has another message at {offset} of partition {partition} of {topic} than the one that was put there"
                        )
                    # 404: it is not flushed yet.
                    if got.code != Code.NOT_FOUND:
                        raise RemoteProtocolError(f"{address} does not give a message of {topic}: {_text(got)}")
                    await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise RequestTimeout(
            f"a message to {topic} at {address} was not sent and received within {place.wait:g} s"
        ) from None


def _text(answer: ResultLine | ValueLine) -> str:
    code = answer.code if isinstance(answer, ResultLine) else "value"
    return f"{code} {answer.body[:200].decode(errors='replace')}"
