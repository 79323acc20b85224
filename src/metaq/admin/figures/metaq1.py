"""Figures of a broker for MetaQ 1.x, by the `stats` command of its text protocol: also of the original Java server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from metaq.address import split_address
from metaq.errors import ConfigError, ConnectionFailed, RemoteProtocolError, RequestTimeout
from metaq.wire.metaq1.commands import PORT, Code, Command, ResultLine, StatsLine, ValueLine, encode
from metaq.wire.metaq1.one_answer import OneAnswer
from metaq.wire.metaq1.stats import OWN_ITEMS, PARTITIONS, stats_lines, topic_figures

SECONDS: Final = 10.0
"""Longest wait for all answers together."""
BODY_BYTES_MAX: Final = 16 << 20
_READ_BYTES: Final = 1 << 16
_UNKNOWN_TOPIC: Final = "1"
_INVALID: Final = "invalid"


class Metaq1Traffic(Struct, frozen=True):
    """Recent events of one kind, `seconds` long: since the counters began anew, each 30 minutes. `value`: their sum, bytes for sizes."""

    events: int
    """How many there were."""
    value: int
    seconds: int

    @property
    def per_second(self) -> float | None:
        """Events a second; None: less than a second has passed."""
        return self.events / self.seconds if self.seconds else None


class Metaq1Topic(Struct, frozen=True):
    """A topic. `messages`: puts, where a transaction is one; of the original, after its start, those of the last file only.

    Without a partition nothing was put yet, and `publish` and `subscribe` are not told: None.
    """

    topic: str
    """Its name."""
    partitions: int = 0
    """How many partitions it has at this broker."""
    messages: int = 0
    bytes: int = 0
    """Bytes of its messages that are stored."""
    publish: bool | None = None
    subscribe: bool | None = None


class Metaq1Partition(Struct, frozen=True):
    """Bounds of a partition, byte positions; -1: a broker of ours has none yet."""

    topic: str
    """Its topic."""
    partition: int
    """Its number at this broker."""
    low: int
    """Where its first message begins."""
    high: int
    """Where its next message will begin."""


class Metaq1Figures(Struct, frozen=True):
    """What a broker tells of itself. `broker`: figures of the broker under their names in the protocol.

    `traffic`: kind (`put`, `get`, `offset`, `get_miss`, `put_failed`, `message_size`) → recent events, of topics with `stat=true` only;
    None: nothing was counted.
    """

    broker: dict[str, str]
    topics: tuple[Metaq1Topic, ...]
    """All topics that the broker tells of."""
    partitions: tuple[Metaq1Partition, ...]
    """All their partitions at this broker."""
    traffic: dict[str, Metaq1Traffic | None]


async def figures_of(address: str, topic: str | None = None) -> Metaq1Figures | None:
    """Return the figures of the server at `host:port`, of a topic or of all. None: it has no such topic.

    Raises ConfigError: no address, or `topic` is a word of the protocol; ConnectionFailed, RequestTimeout; RemoteProtocolError: what
    listens there answers otherwise.
    """
    if topic is not None and (topic in OWN_ITEMS or not topic or set(topic) & set(" \r\n")):
        raise ConfigError(f"{topic!r} is no name of a topic that the stats of MetaQ 1.x can be asked for")
    host, port = split_address(address)
    items = [None, "topics", "offsets", "realtime"] if topic is None else [None, "topics", "offsets", topic]
    try:
        async with asyncio.timeout(SECONDS):
            broker, topics, offsets, last = await _ask(host, port, address, items)
    except TimeoutError:
        raise RequestTimeout(
            f"{address} has not answered `stats` within {SECONDS:g} s: is it the port of a MetaQ 1.x server ({PORT} by default)?"
        ) from None
    if topic is not None and ["resultCode", _UNKNOWN_TOPIC] in last:
        return None
    prefix = "realtime_" if topic is None else "topic_realtime_"
    try:
        return Metaq1Figures(
            {words[0]: " ".join(words[1:]) for words in broker},
            tuple(one for one in _topics(topics) if topic in (None, one.topic)),
            tuple(one for one in _partitions(offsets) if topic in (None, one.topic)),
            {words[0].removeprefix(prefix): _traffic(words[1]) for words in last if words[0].startswith(prefix)},
        )
    except (ValueError, IndexError):
        raise _foreign(address, "its figures cannot be read") from None


async def _ask(host: str, port: int, address: str, items: Iterable[str | None]) -> list[list[list[str]]]:
    """Return the words of each line of the answers, one item after the other: the original's answers may come in any order."""
    async with _connected(host, port, address) as (reading, writing):
        return [await _answer(reading, writing, address, item) for item in items]


@contextlib.asynccontextmanager
async def converse(address: str) -> AsyncIterator[Callable[[Command], Awaitable[ResultLine | ValueLine]]]:
    """Connect to the server at `host:port`; what the block gets sends one command and returns its answer. One at a time.

    Raises ConfigError: no address; ConnectionFailed; RemoteProtocolError: what listens there answers otherwise. Sets no time-out.
    """
    async with _connected(*split_address(address), address) as (reading, writing):
        yield lambda command: _exchange(reading, writing, address, command)


@contextlib.asynccontextmanager
async def _connected(
    host: str, port: int, address: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        reading, writing = await asyncio.open_connection(host, port)
    except OSError as error:
        raise ConnectionFailed(f"{address} cannot be reached: {error.strerror or error}") from None
    try:
        yield reading, writing
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise ConnectionFailed(f"the connection to {address} broke: {error.strerror or error}") from None
    finally:
        writing.close()
        with contextlib.suppress(OSError):
            await writing.wait_closed()


async def _answer(
    reading: asyncio.StreamReader, writing: asyncio.StreamWriter, address: str, item: str | None
) -> list[list[str]]:
    line = await _exchange(reading, writing, address, StatsLine(item, 1))
    if not isinstance(line, ResultLine):
        raise _foreign(address, "its answer is no result")
    if line.code != Code.SUCCESS:
        raise _foreign(address, f"it has answered {line.code} {line.body[:200].decode(errors='replace')}")
    try:
        return stats_lines(line.body)
    except RemoteProtocolError as error:
        raise _foreign(address, str(error)) from None


async def _exchange(
    reading: asyncio.StreamReader, writing: asyncio.StreamWriter, address: str, command: Command
) -> ResultLine | ValueLine:
    writing.write(encode(command))
    receiving = OneAnswer(BODY_BYTES_MAX)
    while data := await reading.read(_READ_BYTES):
        try:
            if (answer := receiving.receive(data)) is not None:
                return answer
        except RemoteProtocolError as error:
            raise _foreign(address, str(error)) from None
    raise _foreign(address, "it has closed the connection without an answer")


def _foreign(address: str, why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{address} does not answer `stats` as a MetaQ 1.x server: {why}; its port is {PORT} by default (serverPort in server.ini)"
    )


def _topics(lines: Iterable[Sequence[str]]) -> Iterable[Metaq1Topic]:
    for topic, told in topic_figures(lines).items():
        if not told:
            yield Metaq1Topic(topic)
            continue
        yield Metaq1Topic(
            topic,
            int(told.get(PARTITIONS, "0")),
            int(told.get("message_count", "0")),
            int(told.get("message_bytes", "0")),
            told.get("accept_publish") == "true",
            told.get("accept_subscribe") == "true",
        )


def _partitions(lines: Iterable[Sequence[str]]) -> Iterable[Metaq1Partition]:
    for topic, _, partition, _, low, _, high in lines:
        yield Metaq1Partition(topic, int(partition), int(low), int(high))


def _traffic(text: str) -> Metaq1Traffic | None:
    """Read `Count=5,Value=25,Value/Count=5,Count/Duration=0.09,Duration=58`; None: `null`, or nothing was counted."""
    told = dict(part.partition("=")[::2] for part in text.split(","))
    if "Count" not in told:
        return None
    return Metaq1Traffic(
        *(int(float(told[key])) if told[key] != _INVALID else 0 for key in ("Count", "Value", "Duration"))
    )
