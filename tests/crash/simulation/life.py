"""The broker that lives, on its disk, and what is known of it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from metaq.broker.broker import Broker
from metaq.clock import FakeClock, seeded
from metaq.errors import MetaqError
from metaq.model.message import host_bytes
from metaq.saved import Pending, Saving
from metaq.store.message_store import MessageStore
from metaq.testing.power import PowerLossDisk
from tests.crash.simulation.bare import BareRecord, read_log
from tests.crash.simulation.ledger import Broken, Ledger, short
from tests.crash.simulation.process import BODY_BYTES_MAX, SOMEBODY, Process, Producer

__all__ = ["BODY_BYTES_MAX", "BORN", "GROUPS", "HINTS", "QUEUES", "SOMEBODY", "TOPICS", "Life", "Report"]

BORN = host_bytes("127.0.0.1", 50000)
START_MS: Final = 1_700_000_000_000
TOPICS: Final = ("orders", "bills", "mails")
GROUPS: Final = ("mailer", "audit", "stock")
QUEUES: Final = 2
HINTS: Final = ("config/metaqTails.json", "config/metaqTails.json.bak", "checkpoint", "abort")


@dataclass(slots=True)
class Report:
    """What a life was like."""

    seed: int
    starts: int = 0
    kills: int = 0
    cuts: int = 0
    stored: int = 0
    lost: int = 0
    """Not yet durable when the power was cut."""
    faults: int = 0


class Life:
    """A broker on a disk whose power can be cut, the clock and the chance of its seed, and the ledger of what it promised."""

    def __init__(self, seed: int, disk: PowerLossDisk, trace: Callable[[str], None] | None) -> None:
        self.report = Report(seed)
        self.told: list[str] = []
        self._trace = trace
        self.chance = seeded(f"life {seed}")
        self.clock = FakeClock(START_MS)
        self.flush_type = self.chance.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self.ledger = Ledger()
        self.process = Process(disk, self.clock, self.flush_type)
        self.power_was_cut = False
        self.had_error = False
        """A sync has failed since the start: what fails after it has its reason."""
        self.hints: dict[str, bytes] = {}
        """What some files that are hints only held at some time."""
        self.outstanding: list[tuple[Pending, Callable[[], None]]] = []
        """Changes that are being saved, and what is true once they are."""

    def tell(self, text: str) -> None:
        self.told.append(text)
        if self._trace:
            self._trace(text)

    @property
    def disk(self) -> PowerLossDisk:
        return self.process.disk

    @disk.setter
    def disk(self, disk: PowerLossDisk) -> None:
        self.process.disk = disk

    @property
    def producer(self) -> Producer:
        return self.process.producer

    @property
    def store(self) -> MessageStore:
        assert self.process.store is not None
        return self.process.store

    @property
    def broker(self) -> Broker:
        assert self.process.broker is not None
        return self.process.broker

    def open(self) -> None:
        self.process.open()
        self.outstanding.clear()
        self.broker.lead()
        self.save()

    def leave(self) -> None:
        """Let go of a store without a word, as a killed process does."""
        self.process.leave()

    def change(self, pending: Pending, true: Callable[[], None]) -> None:
        """A change of a table was asked for: `true` says what holds once it is answered."""
        self.outstanding.append((pending, true))
        if self.chance.random() < 0.7:
            self.store.flusher.flush()  # a deletion waits for it
            self.save()
        self.answer()

    def save(self) -> None:
        """Write the configuration files that wait for their turn."""
        self.process.save()

    def answer(self) -> None:
        waiting, self.outstanding = self.outstanding, []
        for pending, true in waiting:
            if not pending.done:
                self.outstanding.append((pending, true))
            elif pending.error is None:
                true()
            else:
                with self.refusals():
                    raise pending.error

    @property
    def is_troubled(self) -> bool:
        return self.disk_is_bad or self.store.state.failed is not None

    @property
    def disk_is_bad(self) -> bool:
        return self.disk.room is not None or self.disk.open_error != 0

    @contextlib.contextmanager
    def refusals(self) -> Iterator[None]:
        """A refusal is right when the disk is in trouble, and only then."""
        try:
            yield
        except Saving:
            self.tell("... has to wait for a file")
        except (MetaqError, OSError) as error:
            if not self.is_troubled and not self.had_error:
                raise
            self.tell(f"... refused: {error}")

    def absorb(self, bodies: list[bytes]) -> list[BareRecord]:
        """Enter what was stored since into the ledger; it must be these bodies, or copies of delayed ones."""
        ledger, store = self.ledger, self.store
        if store.log.end == ledger.log_end:
            return []
        start = max(ledger.log_end, store.log.min)
        found = read_log(self.disk.root, start, store.log.end)
        for record in found:
            if not ledger.may_be_new(record, bodies):
                raise Broken(f"{short(record)} was stored, and nobody has just sent it")
        ledger.added(found, store.log.end)
        self.report.stored += len(found)
        return found

    def one_error(self, disk: PowerLossDisk, calls: int) -> None:
        """Fail one sync, some calls from now."""
        at = disk.calls + calls

        def on_call(name: str) -> None:
            if disk.calls >= at and name.startswith("sync"):
                disk.on_call = None
                self.had_error = True
                self.tell(f"{name} fails, call {disk.calls}")
                raise OSError(errno.EIO, "Input/output error")

        disk.on_call = on_call
