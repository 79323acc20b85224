"""A workload: a topic, producers and consumers in threads, and the looks at everything in the end."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from metaq.admin import Admin
from metaq.admin.groups import GroupNotFound
from metaq.client.consumer.reader import Reader
from metaq.clock import SYSTEM, seeded
from metaq.errors import ConfigError
from metaq.model import MessageQueue
from metaq.store.offline.reader import StoreReader
from metaq.testing.checking import GroupAt, Held, Ledger, Place, QueueHolds
from metaq.testing.waiting import eventually
from metaq.testing.workload.consumers import GroupSeen, LoadConsumer, LoadReader
from metaq.testing.workload.outcomes import key_of, place_of
from metaq.testing.workload.producers import PRODUCERS, LoadProducer

TOPIC: Final = "workload"
ROUTE_SECONDS: Final = 0.5
CLIENT_OPTIONS: Final[dict[str, Any]] = {
    "poll_name_server_interval": ROUTE_SECONDS, "heartbeat_broker_interval": ROUTE_SECONDS,
}  # fmt: skip
_JOIN_SECONDS: Final = 120.0


class Load(Struct, frozen=True):
    """What a workload does."""

    producers: tuple[str, ...] = ("sync", "aio", "submit", "batch", "atomic")
    """Kinds of `PRODUCERS`, one producer for each."""
    queues: int = 3
    """Of the topic, at each broker."""
    members: int = 2
    """Of each group."""
    orderly: bool = True
    """Whether a group consumes in order, beside the one that does not."""
    readers: int = 1
    """Readers without a group."""
    rate: float = 40.0
    """Sends a second of each producer, at most."""

    def groups(self, topic: str = TOPIC) -> dict[str, bool]:
        """Return its groups: name → whether it consumes in order."""
        kinds = {"pushed": False, **({"ordered": True} if self.orderly else {})}
        return {f"{topic}-{name}": orderly for name, orderly in kinds.items()}


class Workload:
    """Producers and consumers of one topic; every operation is in the ledger. Use it with `with`, or `start` and `stop`.

    Args:
        namesrv: name servers for clients.
        brokers: names of the brokers that have the topic, which is made here.
        ledger: gets every operation.
        load: what is done; None: `Load()`.
        seed: decides queues, sizes and pauses.
        topic: none that others use.
    Raises: ConfigError: an unknown kind of producer.
    """

    def __init__(
        self,
        namesrv: str,
        brokers: Sequence[str],
        ledger: Ledger,
        load: Load | None = None,
        seed: int = 0,
        topic: str = TOPIC,
    ) -> None:
        self.load = load or Load()
        if unknown := [kind for kind in self.load.producers if kind not in PRODUCERS]:
            raise ConfigError(f"producers {', '.join(unknown)}: need some of {', '.join(PRODUCERS)}")
        self._namesrv, self._ledger, self._topic = namesrv, ledger, topic
        self._queues = [MessageQueue(topic, broker, at) for broker in brokers for at in range(self.load.queues)]
        self._groups = {name: (orderly, GroupSeen()) for name, orderly in self.load.groups(topic).items()}
        self._seed = seed
        self._threads: list[threading.Thread] = []
        self._producing: list[tuple[LoadProducer, threading.Thread]] = []
        self._consumers: list[LoadConsumer | LoadReader] = []
        self._faults: list[BaseException] = []

    def start(self) -> None:
        """Make the topic, and start everybody."""
        with Admin(self._namesrv) as admin:
            eventually(lambda: admin.create_topic(self._topic, queues=self.load.queues), what=f"topic {self._topic}")
        for group, (orderly, seen) in self._groups.items():
            for number in range(self.load.members):
                name = f"{group}-{number}"
                made = LoadConsumer(
                    name, self._namesrv, group, self._topic, self._ledger, seen, CLIENT_OPTIONS, orderly=orderly
                )
                self._consumers.append(made)
                self._spawn(name, made.run)
        for number in range(self.load.readers):
            name = f"reader-{number}"
            reader = LoadReader(name, self._namesrv, self._topic, self._ledger, CLIENT_OPTIONS)
            self._consumers.append(reader)
            self._spawn(name, reader.run)
        for number, kind in enumerate(self.load.producers):
            name = f"{kind}{number}"
            chance = seeded(f"{self._seed} {name}")
            producer = PRODUCERS[kind](
                name, self._namesrv, self._queues, self._ledger, chance, self.load.rate, CLIENT_OPTIONS
            )
            self._producing.append((producer, self._spawn(name, producer.run)))

    def stop_producers(self) -> None:
        """End the producers, when what they have begun has its outcome. Raises what has ended one before."""
        for producer, _ in self._producing:
            producer.stop()
        self._join([thread for _, thread in self._producing])

    def stop(self) -> None:
        """End everybody. Raises what has ended one before."""
        for producer, _ in self._producing:
            producer.stop()
        for consumer in self._consumers:
            consumer.close()
        self._consumers = []
        self._join(self._threads)

    def finish(self, patience: float) -> None:
        """Read everything to its end, let the groups come so far, and note how far everybody is. To be called once the cluster is well.

        Args: patience: seconds to wait for what comes by itself; what has not come then, the checkers find.
        """
        self.stop_producers()
        keys = eventually(self._read_all, patience, what="all queues can be read")
        deadline = SYSTEM.monotonic() + patience
        for group, (_, seen) in self._groups.items():
            if missing := seen.wait_for(keys, max(0.0, deadline - SYSTEM.monotonic())):
                self._ledger.tell(f"the group {group} has not got {len(missing)} messages after {patience:g} s")
        self.stop()
        with Admin(self._namesrv) as admin:
            for group in self._groups:
                eventually(functools.partial(self._note_progress, admin, group), patience, what=f"progress of {group}")

    def note_replica(self, source: str, folder: Path) -> None:
        """Note what the files of a replica hold.

        Args: source: `broker name/process`. folder: its store.
        """
        reader = StoreReader(folder)
        events = [
            Held(self._ledger.now(), place_of(message), key_of(message.body), source)
            for message in reader.records()
            if message.topic == self._topic
        ]
        broker = source.partition("/")[0]
        # Records in files do not name their broker.
        self._ledger.write_all(
            [
                Held(one.at, Place(one.place.queue.replace("@:", f"@{broker}:"), one.place.offset), one.key, one.source)
                for one in events
            ]
        )

    def _read_all(self) -> set[str]:
        """Note what the queues hold. Returns the keys."""
        with Reader[bytes](
            self._namesrv, self._topic, stop_at_end=True, instance_name="final", **CLIENT_OPTIONS
        ) as reader:
            held = [Held(self._ledger.now(), place_of(message), key_of(message.body)) for message in reader]
            ranges = reader.ranges()
        if {str(queue) for queue in self._queues} - {str(queue) for queue in ranges}:
            raise AssertionError(f"only {len(ranges)} of {len(self._queues)} queues can be read")
        now = self._ledger.now()
        ends = [QueueHolds(now, str(queue), offsets.start, offsets.stop) for queue, offsets in ranges.items()]
        self._ledger.write_all([*ends, *held])
        return {one.key for one in held} or {""}

    def _note_progress(self, admin: Admin, group: str) -> bool:
        try:
            queues = admin.group_progress(group).queues
        except GroupNotFound:
            queues = ()
        now = self._ledger.now()
        found = [
            GroupAt(now, group, Place(str(one.queue), one.consumed)) for one in queues if one.queue.topic == self._topic
        ]
        if not found:
            raise AssertionError(f"no progress of {group} is known")
        self._ledger.write_all(found)
        return True

    def _spawn(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as fault:  # noqa: BLE001  `stop` raises it
                self._faults.append(fault)
                with contextlib.suppress(ValueError):  # the ledger is closed: nobody waits for this thread any more
                    self._ledger.tell(f"{name} fails: {type(fault).__name__}: {fault}")

        thread = threading.Thread(target=run, name=f"workload-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise AssertionError(f"{thread.name} does not end")
        if self._faults:
            raise self._faults[0]
