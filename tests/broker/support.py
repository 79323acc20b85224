"""A broker on a small real store, with a clock that the test owns."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from metaq.app.files import broker_files
from metaq.broker.acl import AccessControl
from metaq.broker.broker import Broker
from metaq.broker.channel import Notice
from metaq.broker.environment import Environment, ReadCold, read_at_once
from metaq.broker.gatekeeper import Gatekeeper, nobody
from metaq.broker.metaq1.filters import MakeFilterHelper
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.staged.peers import ALONE, Peers
from metaq.clock import FakeClock
from metaq.model.access import Authorise, Caller, everybody
from metaq.model.message import host_bytes
from metaq.net.address import is_loopback
from metaq.options import BrokerOptions, StoreOptions
from metaq.saved import at_once
from metaq.saved_file import SavedText
from metaq.store.config_file import ConfigFile
from metaq.store.disk import Disk
from metaq.store.journalled_file import JournalledFile
from metaq.store.message_store import MessageStore

STORE_HOST = host_bytes("127.0.0.1", 10911)
BORN_HOST = host_bytes("127.0.0.1", 50000)
JAVA = 409


class FakeChannel:
    """A client's connection that remembers what it was told."""

    def __init__(self, remote: str = "127.0.0.1:50000") -> None:
        self.remote = remote
        host = remote.rpartition(":")[0]
        self.caller = Caller(host, is_loopback(host))
        self.told: list[Notice] = []
        self.kept = 0
        """Bytes that services keep for it."""

    congested = False

    def keep(self, more: int) -> None:
        self.kept += more

    def may_keep(self, more: int) -> bool:
        return True

    def tell(self, what: Notice) -> None:
        self.told.append(what)


def small_store(root: pathlib.Path, **more: object) -> StoreOptions:
    sizes = {
        "mapped_file_size_commit_log": 4 << 20, "mapped_file_size_consume_queue": 20 * 4096,
        "max_hash_slot_num": 1000, "max_index_num": 4000, "max_message_size": 1 << 20,
    }  # fmt: skip
    return StoreOptions(store_path_root_dir=str(root), **{**sizes, **more})


@contextmanager
def open_broker(
    root: pathlib.Path,
    clock: FakeClock | None = None,
    store: dict[str, object] | None = None,
    disk: Disk | None = None,
    files: Mapping[str, SavedText] | None = None,
    read_cold: ReadCold = read_at_once,
    authorise: Authorise = everybody,
    trusted: Callable[[Caller], bool] = nobody,
    peers: Peers = ALONE,
    call_soon: Callable[[Callable[[], None]], None] = at_once,
    metaq1: Metaq1Settings | None = None,
    make_filter_helper: MakeFilterHelper | None = None,
    leading: bool = True,
    access: AccessControl | None = None,
    **options: object,
) -> Iterator[Broker]:
    """A broker over the folder `root`; closed in order at the end. `files`: what stands for files of the folder."""
    clock = clock or FakeClock()
    store_options = small_store(root, **(store or {}))
    table = BrokerOptions(broker_name="broker-a", broker_cluster_name="DefaultCluster", **options)

    def open_file(name: str) -> SavedText:
        return (files or {}).get(name) or ConfigFile(root / "config" / name, disk)

    def open_table(name: str) -> SavedText:
        return (files or {}).get(name) or JournalledFile(root / "config" / name, disk)

    with MessageStore(store_options, clock, STORE_HOST, table.broker_cluster_name, disk=disk) as opened:
        environment = Environment(table, store_options, clock, opened, "broker-a", STORE_HOST)
        broker = Broker(
            environment, broker_files(open_file, open_table), call_soon, read_cold=read_cold,
            gatekeeper=access.gatekeeper if access is not None else Gatekeeper(authorise, trusted), peers=peers,
            metaq1=metaq1, make_filter_helper=make_filter_helper,
        )  # fmt: skip
        broker.lead() if leading else broker.follow()
        yield broker
        broker.close()


class MemoryFile:
    """A configuration file in memory. `error`: what every save fails with."""

    where = "memory.json"

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.saves = 0
        self.error: OSError | None = None

    def load(self) -> str:
        return self.text

    def save(self, text: str) -> None:
        self.text = text
        self.saves += 1

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        if self.error is None:
            self.save(text())
        done(self.error)

    def flush(self) -> None:
        pass


class SlowFile(MemoryFile):
    """A file whose saves end when the test says so."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.under_way: list[tuple[str, Callable[[OSError | None], None]]] = []
        self.slow = True

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        if self.slow:
            self.under_way.append((text(), done))
        else:
            super().save_soon(text, done)

    def end(self, error: OSError | None = None) -> None:
        """End the oldest save."""
        text, done = self.under_way.pop(0)
        if error is None:
            self.save(text)
        done(error)
