"""One broker of a pair: its process, its ends, and what its log must hold after them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from metaq.broker.broker import Broker
from metaq.client.conversation.call import Call
from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums
from metaq.clock import Chance, FakeClock
from metaq.model.leadership import SLAVE
from metaq.model.scrub import RANGE_BYTES, RANGES_MAX, LogChecksums
from metaq.option_table import decide
from metaq.store.log import ranges
from metaq.store.message_store import MessageStore
from metaq.testing.power import PowerLossDisk
from tests.crash.simulation.ledger import Broken
from tests.crash.simulation.process import Process
from tests.crash.simulation.simulation import PowerOff

NUMBER: Final = 1
"""BrokerId of whichever of the two is the slave."""


class Side(Process):
    """A broker of a pair, up or down."""

    def __init__(self, name: str, folder: Path, clock: FakeClock, flush_type: str, role: str, file_bytes: int) -> None:
        self.name, self._folder, self._roots = name, folder, 0
        disk = PowerLossDisk(self._next_root(), f"disk {folder.name} {name}")
        super().__init__(disk, clock, flush_type, broker_role=role, broker_id=NUMBER if role == SLAVE else 0)
        self.file_bytes = file_bytes
        self._after: PowerLossDisk | None = None
        self.held = 0
        """LogOffset up to which the log must be there at the next start."""
        self.may_hold = 0
        """The same up to which it may be there: a power cut may leave what was not durable."""
        self.reported = 0
        """LogOffset up to which it has promised its master the log."""
        self.lost_power = False
        """Whether a power cut may have taken of its log what it had promised, and it was not copied again."""
        self.power_was_cut = False
        """Since its last start."""
        self.forgotten = set[str]()
        """Topics of whose deletion it had heard, which an end has taken from its memory: its log had not come so far, or the mark was not saved."""

    def _next_root(self) -> Path:
        self._roots += 1
        return self._folder / f"{self.name}{self._roots}"

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    @property
    def is_dying(self) -> bool:
        return self._after is not None

    @property
    def there(self) -> Broker:
        assert self.broker is not None
        return self.broker

    @property
    def log_store(self) -> MessageStore:
        assert self.store is not None
        return self.store

    def take_role(self, role: str, broker_id: int) -> None:
        decide(self.there.options, broker_role=role, broker_id=broker_id)

    @property
    def leads(self) -> bool:
        return self.broker is not None and self.broker.leads

    def piece_of_log(self, call: Call[Any]) -> Any:
        """The outcome of GetLogChecksums or GetLogBytes, as `LogRanges` reads it in its thread."""
        log, flushed = self.log_store.log, self.log_store.state.flushed
        if isinstance(call, GetLogBytes):
            return ranges.piece(log, call.offset, min(call.offset + min(call.size, RANGE_BYTES), flushed))
        assert isinstance(call, GetLogChecksums)
        stop = min(call.stop, call.offset + RANGES_MAX * RANGE_BYTES, flushed)
        return LogChecksums(
            log.min, flushed, log.file_bytes, "", tuple(ranges.checksums(log, call.offset, stop, RANGE_BYTES))
        )

    # ------------------------------------------------------------------ starts

    def start(self) -> None:
        """Open the folder; the caller has the broker lead or follow. Raises Broken: the log has lost what it held."""
        self.open()
        self.power_was_cut = False
        end = self.log_store.log.end
        if end < self.held:
            raise Broken(f"the log of {self.name} ends at {end} after its start, and held all up to {self.held}")
        if self.flush_type == "SYNC_FLUSH" and end < self.reported:
            raise Broken(
                f"the log of {self.name} ends at {end}, and it has promised from its disk all up to {self.reported}"
            )
        kept = self.there.roles.kept
        if kept.role:
            self.take_role(kept.role, kept.broker_id)

    # ------------------------------------------------------------------ ends

    @contextlib.contextmanager
    def mortal(self, chance: Chance, likely: float, tell: object = None) -> Iterator[None]:
        """With luck, kill the process or cut its power at one of the calls of its disk from here on. It is down then."""
        disk, before = self.disk, self.disk.on_call
        if chance.random() < likely:
            calls = disk.calls + int(chance.choice((1, 3, 10, 40)) * (0.3 + chance.random()))
            cut = chance.random() < 0.5

            def on_call(name: str) -> None:
                if disk.calls >= calls:
                    if callable(tell):
                        tell(f"{self.name}: {'the power is cut' if cut else 'killed'} at {name}, call {disk.calls}")
                    disk.on_call = _dead
                    self.die(cut=cut)
                    raise PowerOff
                if before:
                    before(name)

            disk.on_call = on_call
        try:
            yield
        except PowerOff:
            if callable(tell):
                tell("... in the middle of that")
        finally:
            if self.is_dying:
                self.bury()
            else:
                disk.on_call = before

    def die(self, *, cut: bool) -> None:
        """End the process now, or the power with it. `bury` lets go of it."""
        if self.is_dying:
            return
        self.power_was_cut |= cut
        if self.store is not None and self.broker is not None:
            log = self.store.log
            self.held, self.may_hold = min(self.store.state.flushed, log.end) if cut else log.end, log.end
            if log.min == log.end:  # cut where its first file began: without any file, nothing says where it ended
                self.held = self.reported = 0
            self.forgotten |= set(self.broker.followed._marks.waiting)
        elif cut:
            self.held = min(self.held, self.durable)
        self.lost_power |= cut and self.held < self.reported
        to = self._next_root()
        self._after = self.disk.cut(to) if cut else self.disk.kill(to)

    durable = 0
    """LogOffset up to which the log was durable when it was last seen."""

    def note(self) -> None:
        """Note what is durable: a start that ends in a power cut must find it."""
        if self.store is not None:
            self.durable = min(self.store.state.flushed, self.store.log.end)

    def bury(self) -> None:
        """The process has ended: let go of it, and find its folder as the end has left it."""
        assert self._after is not None
        self.leave()
        self.disk.close()
        shutil.rmtree(self.disk.root, ignore_errors=True)
        self.disk, self._after = self._after, None
        self.disk.restart()

    def close(self) -> None:
        """End in order."""
        self.flush()
        self.there.close()
        self.save()
        self.log_store.close()
        self.held = self.may_hold = self.durable = self.log_store.log.end
        self.store = self.broker = None
        self.disk.restart()

    def flush(self) -> None:
        """Make all durable, and settle the changes of tables that wait for that."""
        for _ in range(4):  # each step of a deletion waits for the one before
            self.log_store.flusher.flush()
            self.save()
        self.note()

    def wipe(self) -> None:
        """Start anew with an empty folder."""
        if self.is_up:
            self.leave()
        self.disk.close()
        shutil.rmtree(self.disk.root, ignore_errors=True)
        self.disk = PowerLossDisk(self._next_root(), f"disk {self._folder.name} {self.name} {self._roots}")
        self.held = self.may_hold = self.durable = self.reported = 0

    def let_go(self) -> None:
        """The end of the simulation."""
        self.leave()
        self.disk.close()
        if self._after is not None:
            self._after.close()


def _dead(_name: str) -> None:
    raise PowerOff
