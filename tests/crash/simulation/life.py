"""The broker that lives, on its disk, and what is known of it."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.channel import Notice, OnAnswer
from metaq.broker.environment import Environment
from metaq.clock import FakeClock, seeded
from metaq.errors import MetaqError
from metaq.model.access import Caller
from metaq.model.message import host_bytes
from metaq.model.notices import TransactionCheck
from metaq.options import BrokerOptions, StoreOptions
from metaq.saved import Pending, Saving
from metaq.saved_file import Done, JournalFound, SavedText, Step
from metaq.store.config_file import ConfigFile
from metaq.store.journalled_file import JournalledFile
from metaq.store.message_store import MessageStore
from metaq.testing.power import PowerLossDisk
from tests.crash.simulation.bare import BareRecord, read_log
from tests.crash.simulation.ledger import Broken, Ledger, short

HOST = host_bytes("127.0.0.1", 10911)
BORN = host_bytes("127.0.0.1", 50000)
SOMEBODY: Final = Caller("127.0.0.1", loopback=True)
START_MS: Final = 1_700_000_000_000
TOPICS: Final = ("orders", "bills", "mails")
GROUPS: Final = ("mailer", "audit", "stock")
QUEUES: Final = 2
BODY_BYTES_MAX: Final = 20_000
FOLD_BYTES: Final = 1000
"""So small that a life writes its tables anew several times."""
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


def _options(folder: Path, flush: str) -> StoreOptions:
    """Files so small that a life crosses their borders."""
    return StoreOptions(
        store_path_root_dir=str(folder),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 20,
        max_hash_slot_num=13,
        max_index_num=60,
        max_message_size=BODY_BYTES_MAX,
        flush_disk_type=flush,
        message_delay_level="1s 10s",
        file_reserved_time=1,
    )


class Producer:
    """The connection of a producer that is asked about transactions."""

    remote = "127.0.0.1:50000"
    caller = SOMEBODY
    congested = False

    def __init__(self) -> None:
        self.checks: list[TransactionCheck] = []

    def keep(self, more: int) -> None: ...

    def may_keep(self, more: int) -> bool:
        return True

    def tell(self, what: Notice) -> None:
        if isinstance(what, TransactionCheck):
            self.checks.append(what)

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:
        raise AssertionError(f"nobody asks {question} and waits {seconds} s for {done}")


class _LateFile:
    """A configuration file that is written when it is its turn: what is answered before is answered too early."""

    def __init__(self, file: SavedText, turns: deque[Callable[[], None]]) -> None:
        self._file, self._turns = file, turns

    @property
    def where(self) -> str:
        return self._file.where

    def load(self) -> str:
        return self._file.load()

    def save(self, text: str) -> None:
        self.save_soon(lambda: text, lambda _error: None)

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        self._turns.append(lambda: self._file.save_soon(text, done))

    def flush(self) -> None:
        while self._turns:
            self._turns.popleft()()


class _LateTable(_LateFile):
    """The same of a file with a journal."""

    def __init__(self, file: JournalledFile, turns: deque[Callable[[], None]]) -> None:
        super().__init__(file, turns)
        self._table = file

    @property
    def is_behind(self) -> bool:
        return self._table.is_behind

    def journals(self) -> Sequence[JournalFound]:
        return self._table.journals()

    def change_soon(self, step: Step, done: Done) -> None:
        self._turns.append(lambda: self._table.change_soon(step, done))

    def replace_soon(self, step: Step, done: Done) -> None:
        self._turns.append(lambda: self._table.replace_soon(step, done))

    @property
    def has_journal(self) -> bool:
        return self._table.has_journal

    def fold(self, step: Step) -> None:
        self._table.fold(step)

    def fold_soon(self, step: Step) -> None:
        self._turns.append(lambda: self._table.fold(step))


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
        self.disk = disk
        self._store: MessageStore | None = None
        self._broker: Broker | None = None
        self.power_was_cut = False
        self.had_error = False
        """A sync has failed since the start: what fails after it has its reason."""
        self.hints: dict[str, bytes] = {}
        """What some files that are hints only held at some time."""
        self.saves: deque[Callable[[], None]] = deque()
        """Configuration files that wait for their turn to be written."""
        self.outstanding: list[tuple[Pending, Callable[[], None]]] = []
        """Changes that are being saved, and what is true once they are."""

    def tell(self, text: str) -> None:
        self.told.append(text)
        if self._trace:
            self._trace(text)

    @property
    def store(self) -> MessageStore:
        assert self._store is not None
        return self._store

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def open(self) -> None:
        options = _options(self.disk.root, self.flush_type)
        config = self.disk.root / "config"
        disk = self.disk
        self._store = MessageStore(options, self.clock, HOST, "DefaultCluster", disk=disk, threads=False)
        table = BrokerOptions(
            broker_name="broker-a", broker_cluster_name="DefaultCluster",
            transaction_time_out=2000, transaction_check_interval=3000, transaction_check_max=3,
        )  # fmt: skip
        self.producer = Producer()

        def open_file(name: str) -> _LateFile:
            return _LateFile(ConfigFile(config / name, disk), self.saves)

        def open_table(name: str) -> _LateTable:
            return _LateTable(JournalledFile(config / name, disk, fold_bytes=FOLD_BYTES), self.saves)

        self.saves.clear()
        self.outstanding.clear()
        environment = Environment(table, options, self.clock, self._store, "broker-a", HOST)
        self._broker = Broker(environment, broker_files(open_file, open_table))
        self._broker.lead()
        self.save()

    def leave(self) -> None:
        """Let go of a store without a word, as a killed process does."""
        if self._store is not None:
            self._store.folder.close()
            # A killed process's descriptors are closed for it; thousands of lives in one process would run out of them.
            self._store.log.let_go()
        self._store = self._broker = None

    def change(self, pending: Pending, true: Callable[[], None]) -> None:
        """A change of a table was asked for: `true` says what holds once it is answered."""
        self.outstanding.append((pending, true))
        if self.chance.random() < 0.7:
            self.store.flusher.flush()  # a deletion waits for it
            self.save()
        self.answer()

    def save(self) -> None:
        """Write the configuration files that wait for their turn."""
        while self.saves:
            self.saves.popleft()()

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
