"""A broker's process on its disk: started, and left without a word."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.channel import Notice, OnAnswer
from metaq.broker.environment import Environment
from metaq.clock import FakeClock
from metaq.model.access import Caller
from metaq.model.message import host_bytes
from metaq.model.notices import TransactionCheck
from metaq.options import BrokerOptions, StoreOptions
from metaq.saved_file import Done, JournalFound, SavedText, Step
from metaq.store.config_file import ConfigFile
from metaq.store.journalled_file import JournalledFile
from metaq.store.message_store import MessageStore
from metaq.testing.power import PowerLossDisk
from metaq.wire.files import LEADERSHIP

HOST = host_bytes("127.0.0.1", 10911)
SOMEBODY: Final = Caller("127.0.0.1", loopback=True)
BODY_BYTES_MAX: Final = 20_000
FILE_BYTES: Final = 64 * 1024
"""Of a log file."""
FOLD_BYTES: Final = 1000
"""So small that a life writes its tables anew several times."""


def _options(folder: Path, flush: str, file_bytes: int) -> StoreOptions:
    """Files so small that a life crosses their borders."""
    options = StoreOptions(
        store_path_root_dir=str(folder),
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=20 * 20,
        max_hash_slot_num=13,
        max_index_num=60,
        max_message_size=BODY_BYTES_MAX,
        flush_disk_type=flush,
        message_delay_level="1s 10s",
        file_reserved_time=1,
    )
    object.__setattr__(options, "mapped_file_size_commit_log", file_bytes)  # it may be smaller than the option allows
    return options


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


class Process:
    """One process of a broker, on a disk whose power can be cut.

    Args: more: options of the broker.
    """

    def __init__(self, disk: PowerLossDisk, clock: FakeClock, flush_type: str, **more: object) -> None:
        self.disk, self.clock, self.flush_type, self._more = disk, clock, flush_type, more
        self.file_bytes = FILE_BYTES
        self.store: MessageStore | None = None
        self.broker: Broker | None = None
        self.producer = Producer()
        self.saves: deque[Callable[[], None]] = deque()
        """Configuration files that wait for their turn to be written."""

    def open(self) -> None:
        """Open store and tables; no role is taken."""
        options = _options(self.disk.root, self.flush_type, self.file_bytes)
        config = self.disk.root / "config"
        disk = self.disk
        self.store = MessageStore(options, self.clock, HOST, "DefaultCluster", disk=disk, threads=False)
        table = BrokerOptions(
            broker_name="broker-a", broker_cluster_name="DefaultCluster",
            transaction_time_out=2000, transaction_check_interval=3000, transaction_check_max=3, **self._more,
        )  # fmt: skip
        self.producer = Producer()

        def open_file(name: str) -> SavedText:
            file = ConfigFile(config / name, disk)
            return file if name == LEADERSHIP.name else _LateFile(file, self.saves)  # whoever changes a role waits

        def open_table(name: str) -> SavedText:
            return _LateTable(JournalledFile(config / name, disk, fold_bytes=FOLD_BYTES), self.saves)

        self.saves.clear()
        environment = Environment(table, options, self.clock, self.store, "broker-a", HOST)
        self.broker = Broker(environment, broker_files(open_file, open_table))

    def leave(self) -> None:
        """Let go of a store without a word, as a killed process does."""
        if self.store is not None:
            self.store.folder.close()
            # A killed process's descriptors are closed for it; thousands of lives in one process would run out of them.
            self.store.log.let_go()
        self.store = self.broker = None

    def save(self) -> None:
        """Write the configuration files that wait for their turn."""
        while self.saves:
            self.saves.popleft()()
