"""The consumers of a workload: members of groups, and readers that follow all queues."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from typing import Any, Final

from metaq.client.consumer.consumer import Consumer
from metaq.client.consumer.reader import Reader
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ClientClosed, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model import MessageQueue
from metaq.testing.checking import EndedByItself, Ledger, Place
from metaq.testing.workload.outcomes import key_of, place_of

COMMIT_SECONDS: Final = 0.5
_CALL_SECONDS: Final = 1.0


class GroupSeen:
    """The keys that all members of a group have got."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._keys: set[str] = set()

    def add(self, key: str) -> None:
        with self._changed:
            self._keys.add(key)
            self._changed.notify_all()

    def wait_for(self, keys: Collection[str], seconds: float) -> set[str]:
        """Return, when it has them all or after so many seconds, those that it has not got."""
        wanted = set(keys)
        with self._changed:
            self._changed.wait_for(lambda: wanted <= self._keys, seconds)
            return wanted - self._keys


class LoadConsumer:
    """A member of a group, which takes one message after the other and has its progress saved now and then."""

    def __init__(
        self,
        name: str,
        namesrv: str,
        group: str,
        topic: str,
        ledger: Ledger,
        seen: GroupSeen,
        options: dict[str, Any],
        *,
        orderly: bool = False,
    ) -> None:
        self._name, self._group, self._ledger, self._seen, self._orderly = name, group, ledger, seen, orderly
        self._shares = 0
        self._next: dict[MessageQueue, tuple[int, int]] = {}
        """Queue → the number of the share that it came with, and the offset behind what was handled in a row since."""
        self._consumer = Consumer[bytes](
            namesrv, group=group, topics=topic, start="earliest", instance_name=name, orderly=orderly, on_share=self._on_share,
            commit_interval=COMMIT_SECONDS, **options,
        )  # fmt: skip

    def run(self) -> None:
        """Consume until `close`."""
        asked = SYSTEM.monotonic()
        for message in self._consumer:
            place = place_of(message)
            with message:
                self._ledger.observed(self._name, place, key_of(message.body), self._group, orderly=self._orderly)
            self._seen.add(key_of(message.body))
            queue = MessageQueue(message.topic, message.broker, message.queue_id)
            share, behind = self._next.get(queue, (-1, 0))
            if share != self._shares or message.queue_offset <= behind:
                self._next[queue] = self._shares, message.queue_offset + 1
            if SYSTEM.monotonic() - asked > COMMIT_SECONDS:
                self._commit()
                asked = SYSTEM.monotonic()

    def close(self) -> None:
        """Leave the group; what was handled is saved."""
        try:
            self._consumer.close()
        except MetaqError as error:
            self._ledger.tell(f"{self._name} closes: {error}")

    def _commit(self) -> None:
        share, told = self._shares, dict(self._next)
        try:
            self._consumer.commit(_CALL_SECONDS)
        except MetaqError as error:
            self._ledger.tell(f"{self._name} saves its progress: {error}")
            return
        for queue, (since, behind) in told.items():
            # Of a queue that came or went meanwhile another member may know better.
            if since == share == self._shares:
                self._ledger.committed(self._name, self._group, Place(str(queue), behind))

    def _on_share(self, _topic: str, _all: list[MessageQueue], _mine: list[MessageQueue]) -> None:
        self._shares += 1


class LoadReader:
    """Follows all queues of the topic from their beginnings."""

    def __init__(self, name: str, namesrv: str, topic: str, ledger: Ledger, options: dict[str, Any]) -> None:
        self._name, self._topic, self._ledger = name, topic, ledger
        self._over = threading.Event()
        self._make: Callable[[], Reader[bytes]] = lambda: Reader(namesrv, topic, instance_name=name, **options)

    def run(self) -> None:
        """Read until `close`, from the beginning again where a broker could not be asked. What else fails ends it, and is noted."""
        for session in itertools.count(1):
            try:
                with self._make() as reader:
                    self._read(reader, f"{self._name}/{session}")
            except (BrokerError, ClientClosed, ConnectionFailed, NoRoute, RequestTimeout) as error:
                self._ledger.tell(f"{self._name}/{session}: {error}")
            except MetaqError as error:
                self._ledger.write(EndedByItself(self._ledger.now(), self._name, f"{type(error).__name__}: {error}"))
                return
            if self._over.wait(COMMIT_SECONDS):
                return

    def close(self) -> None:
        self._over.set()

    def _read(self, reader: Reader[bytes], name: str) -> None:
        while not self._over.is_set():
            message = reader.receive(COMMIT_SECONDS)
            if message is not None:
                self._ledger.observed(name, place_of(message), key_of(message.body))
