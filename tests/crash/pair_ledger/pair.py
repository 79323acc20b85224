"""The machines of a schedule: a name server, a master `a` and a slave `b`, and the links between them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaq.admin import Admin
from metaq.app.namesrv import RunningNamesrv, start_namesrv
from metaq.errors import StoreForeign
from metaq.model import StoredMessage
from metaq.model.leadership import Epoch, ReplicaState
from metaq.options import NamesrvOptions
from metaq.store.offline.reader import StoreReader
from metaq.testing import FlakyNetwork
from metaq.testing.network import NetworkThread
from metaq.testing.process import ServerProcess, option_flags
from tests.crash.pair_ledger.broker import CUT, PROGRAM, ROOM, SEED
from tests.crash.pair_ledger.ledger import BROKER, QUEUES, TOPIC, Key, Place, key_of
from tests.support import ROOT, eventually, kept_port

NETWORK_HOST = "127.0.0.2"
"""What brokers tell of themselves: the same ports, behind links that can fail."""
FILE_BYTES = 1 << 20
OPTIONS = {
    "bindAddress": "127.0.0.1", "brokerIP1": NETWORK_HOST, "vipPortEnable": "false", "brokerName": BROKER,
    "registerNameServerPeriod": 1000, "haSendHeartbeatInterval": 200, "haHousekeepingInterval": 1000,
    "mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 60_000, "maxHashSlotNum": 2000, "maxIndexNum": 8000,
    "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": "false", "slaveTimeout": 3_600_000, "flushIntervalCommitLog": 100,
    "autoCreateTopicEnable": "false",
}  # fmt: skip
Lost = set[tuple[Place, Key]]


class Side(ServerProcess):
    """One broker, and the machine that it runs on."""

    program = PROGRAM

    def __init__(self, name: str, folder: Path, seed: int, options: dict[str, object], links: NetworkThread) -> None:
        super().__init__(name, folder / f"{name}.log")
        self.data = folder / name
        self._seed, self._boots = seed, 0
        self._options = {**OPTIONS, **options}
        self.port = _kept_port(self)
        self.clients = FlakyNetwork(f"127.0.0.1:{self.port}", listen=f"{NETWORK_HOST}:{self.port}", thread=links)
        """The way to its remoting server, of clients and of the other side."""
        self.copies = FlakyNetwork(f"127.0.0.1:{self.port + 1}", listen=f"{NETWORK_HOST}:{self.port + 1}", thread=links)
        """The way to its log, of the other side."""
        self.names: FlakyNetwork | None = None
        """Its way to the name server."""
        self._links = links
        self.lost_by_power: Lost = set()
        """Messages that its log held when the power was cut, and not any more when it came back."""
        self.asleep = False

    @property
    def address(self) -> str:
        """Of its remoting server, past all links."""
        return f"127.0.0.1:{self.port}"

    def connect(self, namesrv: str) -> None:
        """Make its links."""
        self.names = FlakyNetwork(namesrv, thread=self._links).start()
        for link in (self.clients, self.copies):
            link.start()

    def links(self) -> tuple[FlakyNetwork, ...]:
        return tuple(link for link in (self.clients, self.copies, self.names) if link is not None)

    def _arguments(self) -> Sequence[str]:
        assert self.names is not None, "it is connected"
        return [
            "broker",
            "--data",
            str(self.data),
            "-n",
            self.names.address,
            "--port",
            str(self.port),
            *option_flags(self._options),
        ]

    def start(self) -> None:
        paths = [str(ROOT / "src"), str(ROOT)]
        self._environment = {"PYTHONPATH": os.pathsep.join(paths), SEED: f"{self._seed} {self.name} {self._boots}"}
        self.launch()
        self.wait_ready()
        self.asleep = False
        for link in (self.clients, self.copies):
            link.accept()

    def kill(self) -> None:
        self._refuse()
        super().kill()

    def stop(self, timeout: float = 300.0) -> None:
        self._refuse()
        super().stop(timeout)

    def _refuse(self) -> None:
        # Else a connection to a process that is gone would look made, and break later.
        for link in (self.clients, self.copies):
            link.refuse()

    def pause(self) -> None:
        super().pause()
        self.asleep = True

    def resume(self) -> None:
        super().resume()
        self.asleep = False

    def cut_power(self) -> None:
        """Kill it, and leave in its folder what a machine without power has on its disk."""
        process = self._running()
        self._refuse()
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGCONT)
        self.wait_ended()
        self._boots += 1
        before, after = self.data.with_name(f"{self.name}.lost-{self._boots}"), self.data.with_name(self.name + CUT)
        self.data.rename(before)
        after.rename(self.data)
        self.lost_by_power |= set(messages_in(before)) - set(messages_in(self.data, to_damage=True))

    def set_room(self, room: str) -> None:
        """Leave so much room on its disk, `<bytes> [no-files]`; empty: no limit."""
        self.data.with_name(self.name + ROOM).write_text(room)
        self._running().send_signal(signal.SIGUSR2)


class Pair:
    """Everything that a schedule runs on.

    Args:
        role: the master's.
        options: of both brokers.
        patience: seconds to wait for what comes by itself.
    """

    def __init__(self, folder: Path, seed: int, role: str, options: dict[str, object], patience: float) -> None:
        self._patience = patience
        self._thread = NetworkThread()
        roles: dict[str, dict[str, object]] = {
            "a": {"brokerRole": role},
            "b": {"brokerRole": "SLAVE", "brokerId": 1},
        }
        self.sides = [Side(name, folder, seed, {**options, **more}, self._thread) for name, more in roles.items()]
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._names: RunningNamesrv | None = None
        self.namesrv = ""
        self._admin: Admin | None = None

    def start(self) -> None:
        options = NamesrvOptions(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(self._folder / "kv.json"))
        self._names = self._thread.call(start_namesrv(options))
        self.namesrv = self._names.address
        self._admin = Admin(self.namesrv)
        for side in self.sides:
            side.connect(self.namesrv)
        for side in self.sides:  # one after the other: a slave asks who else has its number
            side.start()

    def close(self) -> None:
        """End everything, whatever its state."""
        for side in self.sides:
            side.end()
        if self._admin is not None:
            self._admin.close()
        for side in self.sides:
            for link in side.links():
                link.close()
        if self._names is not None:
            self._thread.call(self._names.close())
        self._thread.close()

    @property
    def admin(self) -> Admin:
        assert self._admin is not None, "it is started"
        return self._admin

    def state(self, side: Side) -> ReplicaState | None:
        """What a side says of itself; None: it does not answer."""
        if not side.alive or side.asleep:
            return None
        (replica,) = self.admin.list_replicas(side.address)
        return replica.state

    def leader(self) -> Side | None:
        """The side that leads, and answers. Raises AssertionError: both do."""
        leading = [side for side in self.sides if (state := self.state(side)) is not None and state.leads]
        return leading[0] if len(leading) == 1 else None

    def other(self, side: Side) -> Side:
        return next(one for one in self.sides if one is not side)

    def create_topic(self) -> None:
        """Make the topic, and return when both sides know it: tables are not copied before they are acknowledged."""
        self.admin.create_topic(TOPIC, queues=QUEUES)
        files = [side.data / "config" / "topics.json" for side in self.sides]
        eventually(lambda: all(f'"{TOPIC}"' in file.read_text() for file in files), what="the slave knows the topic")
        self.settle()

    def settle(self) -> None:
        """Wait until one leads, and the other has its log as it is now. What nobody leads gets a leader."""
        wanted: tuple[tuple[Epoch, ...], int] | None = None

        def even() -> bool:
            nonlocal wanted
            states = [self.state(side) for side in self.sides]
            told = "; ".join(map(_told, states))
            found = sorted((state for state in states if state is not None), key=lambda state: not state.leads)
            if len(found) < 2:
                raise AssertionError(told)
            leader, follower = found
            if not leader.leads:
                self.admin.promote(BROKER, force=True)
            if not leader.leads or follower.leads:
                raise AssertionError(told)
            if wanted is None or wanted[0] != leader.epochs:
                wanted = leader.epochs, leader.log_end
            if follower.epochs != leader.epochs or follower.log_end < wanted[1]:
                raise AssertionError(told)
            return True

        eventually(even, self._patience, what="the pair is even")


def _kept_port(owner: object) -> int:
    """A port that is free, with the next one, for the broker and for the links to it."""
    while True:
        port = kept_port(owner, 1)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for number in (port, port + 1):
                probes.enter_context(socket.create_server((NETWORK_HOST, number)))
            return port


def _told(state: ReplicaState | None) -> str:
    if state is None:
        return "no answer"
    epochs = ", ".join(f"{one.number} from {one.start}" for one in state.epochs)
    return f"{'leads' if state.leads else 'follows'} as {state.broker_id}, log end {state.log_end}, epochs {epochs or 'none'}"


def messages_in(folder: Path, *, to_damage: bool = False) -> Iterator[tuple[Place, Key]]:
    """Yield the messages of a store's log, or of a folder of log files. `to_damage`: up to a broken record, where a start cuts it."""
    try:
        reader = StoreReader(folder)
    except StoreForeign:
        return
    for message in reader.records():
        if to_damage and reader.damage:
            return
        if message.topic == TOPIC:
            yield placed(message)


def placed(message: StoredMessage) -> tuple[Place, Key]:
    return (message.queue_id, message.queue_offset), key_of(message.body)
