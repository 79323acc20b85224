"""How far groups of MetaQ 1.x are that keep it in a table of a SQL database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from metaq.app.progress.asking import Asking
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, MetaqError
from metaq.named_file import read_named
from metaq.servers.server import BrokerServices
from metaq.worker import Worker

if TYPE_CHECKING:
    from metaq.broker.metaq1.progress import OnGroups, OnPositions
    from metaq.registry.offset_table import OffsetTable

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""Longest wait for an answer of the database."""
PAUSE_SECONDS: Final = 5.0
"""After a failure the database is not asked for so long: many questions would wait one behind the other."""
_PASSWORD_BYTES_MAX: Final = 4096

Result = TypeVar("Result")


class OffsetTableProgress:
    """Tells a broker how far groups are by the table of `offsetDatabase`; does nothing without one. A `Registration`: begins when clients
    come.

    Raises ConfigError: no such address, it has a password in it, its file cannot be read, or the driver is missing.
    """

    def __init__(self, settings: Metaq1Settings, clock: Clock = SYSTEM) -> None:
        options = settings.options
        self._table: OffsetTable | None = None
        self._broker_id, self._clock = options.broker_id, clock
        self._asking = Asking()
        self._worker: Worker | None = None
        self._not_before = 0.0
        self._said = False
        if not options.offset_database:
            return
        from metaq.registry.offset_table import OffsetTable, password_in

        if password_in(options.offset_database):
            raise ConfigError(
                "offsetDatabase has a password, which `stats config` would show to everybody: write it into a file, and the name of "
                "the file as offsetPasswordFile"
            )
        password = None
        if options.offset_password_file:
            text = read_named(options.offset_password_file, _PASSWORD_BYTES_MAX, "offsetPasswordFile")
            password = text.decode(errors="replace").rstrip("\r\n")
        self._table = OffsetTable.of_url(
            options.offset_database, password=password, name=options.offset_table, option="offsetDatabase",
            answer_seconds=ANSWER_SECONDS,
        )  # fmt: skip

    async def start(self, services: BrokerServices) -> None:
        """Answer questions from now on."""
        served = services.broker.metaq1
        if served is None or self._table is None:
            return
        self._worker = Worker("offset table")
        served.progress.ask_by(self._ask, self._ask_groups)

    async def again(self, services: BrokerServices) -> None:
        """Go on: offsets are the same, whoever leads."""

    async def stop(self) -> None:
        """Close the connection, behind what is being asked."""
        if self._worker is not None and self._table is not None:
            table = self._table
            self._not_before = float("inf")
            await self._worker.run(table.close)
            self._worker.end()

    def _ask(self, group: str, topic: str | None, tell: OnPositions) -> None:
        self._asking.tell(self._answer(lambda table: self._positions(table, group, topic)), tell)

    def _ask_groups(self, tell: OnGroups) -> None:
        self._asking.tell(self._answer(lambda table: table.groups()), tell)

    def _positions(self, table: OffsetTable, group: str, topic: str | None) -> dict[tuple[str, int], int]:
        found = {}
        for row in table.rows(group, topic):
            broker, _, number = row.partition.partition("-")
            # Other brokers' groups keep their offsets in the same table.
            if broker == str(self._broker_id) and number.isdecimal() and number.isascii():
                found[row.topic, int(number)] = row.offset
        return found

    async def _answer(self, ask: Callable[[OffsetTable], Result]) -> Result | None:
        table, worker = self._table, self._worker
        assert table is not None, "asked when it is there"
        assert worker is not None, "asked after the start"

        def asked() -> Result | None:
            # In the thread: those who waited behind a failure learn of it.
            if self._clock.monotonic() < self._not_before:
                return None
            try:
                found = ask(table)
            except MetaqError as error:
                self._not_before = self._clock.monotonic() + PAUSE_SECONDS
                if not self._said:
                    log.warning("how far groups of MetaQ 1.x are is not known: %s", error)
                self._said = True
                return None
            if self._said:
                log.info("the table %s tells again how far groups of MetaQ 1.x are", table.name)
            self._said = False
            return found

        return await worker.run(asked)
