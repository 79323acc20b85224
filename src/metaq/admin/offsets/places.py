"""Places where groups of MetaQ 1.x have their offsets: ZooKeeper, or a table of a SQL database."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from metaq.errors import ConfigError
from metaq.registry.offset_table import TABLE, OffsetTable, PartitionOffset, statements_for
from metaq.registry.zookeeper.layout import Layout, OffsetNode, parse_offset
from metaq.registry.zookeeper.offsets import Key, add_offsets, read_texts
from metaq.worker import Waiting, Worker

if TYPE_CHECKING:
    from metaq.registry.zookeeper.client import ZookeeperClient

log = logging.getLogger(__name__)

SESSION_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 60.0
"""Longest wait for an answer of a database."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OffsetsInZookeeper:
    """Offsets in a ZooKeeper, under `root`. `connect`: `host:port`, `,`-separated."""

    connect: str
    root: str = "/meta"

    def __str__(self) -> str:
        return f"ZooKeeper {self.connect}{Layout(self.root).root}"


@dataclass(frozen=True, slots=True)
class OffsetsInDatabase:
    """Offsets in a table. `url`: `mysql://user@host:port/database` or `postgresql://...`."""

    url: str = field(repr=False)
    """May have the password."""
    table: str = TABLE
    """Name of the table."""
    password: str | None = field(default=None, repr=False)
    """Of the database, if it is not in the URL; None: none."""

    def __str__(self) -> str:
        return f"the table {self.table}"

    @property
    def statements(self) -> list[str]:
        """The statements that make the table, unless it is there. Raises ConfigError: no such address, or name."""
        return statements_for(self.url, self.table)


Place = OffsetsInZookeeper | OffsetsInDatabase


class Kept(Protocol):
    """Reads and adds offsets at one place. Raises ConnectionFailed, MetaqError, ConfigError."""

    async def rows(self, group: str | None, topic: str | None) -> tuple[list[PartitionOffset], dict[Key, str]]:
        """Return offsets, of all groups and topics or of one; and what stands there that is no offset."""
        ...

    async def add(self, rows: Collection[PartitionOffset]) -> dict[Key, str]:
        """Save offsets, except where something is already. Returns that."""
        ...


@contextlib.asynccontextmanager
async def kept_at(place: Place) -> AsyncIterator[Kept]:
    """The offsets of a place. Raises ConfigError: no such address, or a driver is missing."""
    if isinstance(place, OffsetsInZookeeper):
        try:
            from metaq.registry.zookeeper.client import ZookeeperClient  # only where it is asked: it is an extra
        except ModuleNotFoundError as error:
            raise ConfigError(f"{place} needs the package {error.name}: pip install 'pymetaq[zookeeper]'") from None

        client = ZookeeperClient(
            place.connect, SESSION_SECONDS, CONNECT_SECONDS, undone="no offset is read or saved there"
        )
        try:
            yield _Nodes(client, Layout(place.root))
        finally:
            await client.close()
        return
    async with _table(place) as (table, worker):
        yield _Rows(table, worker)


async def made(place: OffsetsInDatabase) -> dict[str, int]:
    """Make the table unless it is there. Returns column → the highest number that it takes, where that is too small."""
    async with _table(place) as (table, worker):
        with _waiting(table):
            await worker.run(table.create)
            return await worker.run(table.narrow_columns)


@contextlib.asynccontextmanager
async def _table(place: OffsetsInDatabase) -> AsyncIterator[tuple[OffsetTable, Worker]]:
    table = OffsetTable.of_url(place.url, password=place.password, name=place.table, answer_seconds=ANSWER_SECONDS)
    worker = Worker("offset table")
    try:
        yield table, worker
        await worker.run(table.close)
    finally:
        worker.end()


class _Nodes:
    def __init__(self, client: ZookeeperClient, layout: Layout) -> None:
        self._client, self._layout = client, layout

    async def rows(self, group: str | None, topic: str | None) -> tuple[list[PartitionOffset], dict[Key, str]]:
        texts = await self._client.ask(lambda session: read_texts(session, self._layout, group, topic))
        rows, odd = [], {}
        for key, text in texts.items():
            try:
                node = parse_offset(text)
                if node.position < 0:
                    raise ValueError(text)  # noqa: TRY301  one way for all
            except ValueError:
                odd[key] = text
            else:
                rows.append(PartitionOffset(*key, offset=node.position, message_id=node.message_id))
        return rows, odd

    async def add(self, rows: Collection[PartitionOffset]) -> dict[Key, str]:
        texts = {row.key: OffsetNode(row.message_id, row.offset).text for row in rows}
        return await self._client.ask(lambda session: add_offsets(session, self._layout, texts))


class _Rows:
    def __init__(self, table: OffsetTable, worker: Worker) -> None:
        self._table, self._worker = table, worker

    async def rows(self, group: str | None, topic: str | None) -> tuple[list[PartitionOffset], dict[Key, str]]:
        return await self._run(lambda: self._table.rows(group, topic)), {}

    async def add(self, rows: Collection[PartitionOffset]) -> dict[Key, str]:
        there = await self._run(lambda: self._table.add(rows))
        return {key: OffsetNode(row.message_id, row.offset).text for key, row in there.items()}

    async def _run(self, work: Callable[[], Result]) -> Result:
        with _waiting(self._table):
            return await self._worker.run(work)


def _waiting(table: OffsetTable) -> Waiting:
    return Waiting(log, "%r has not answered yet: it is waited for, each time %g s at most", table, ANSWER_SECONDS)
