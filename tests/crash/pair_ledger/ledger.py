"""What producers were told of each message, and the producers."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import metaq
from metaq.clock import Chance, seeded
from metaq.errors import BrokerError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout, SendFailed
from metaq.model import Message, MessageQueue, SendReceipt, SendStatus

BROKER, TOPIC = "pair", "ledger"
QUEUES = 3
SEND_SECONDS = 1.0
RETRIES = 1
PACE_SECONDS = 0.008
ROUTE_SECONDS = 0.5
Key = tuple[str, int]
"""(producer, number of the message)."""
Place = tuple[int, int]
"""(queue id, queue offset)."""


class Broken(AssertionError):
    """A promise was not kept. The text says which, and how to repeat it."""


class Outcome(enum.Enum):
    """What a producer knows of one send."""

    ACKED = "acked"
    AMBIGUOUS = "ambiguous"
    """No answer: it may be stored, once for each try."""
    REFUSED = "refused"
    """The client says that nothing was stored."""


@dataclass(slots=True)
class Entry:
    """One message."""

    key: Key
    queue_id: int
    outcomes: list[Outcome] = field(default_factory=list)
    place: Place | None = None
    """Where it is stored, as the acknowledgement says."""
    status: SendStatus | None = None
    refusals: list[str] = field(default_factory=list)
    """The words of those that refused it."""

    @property
    def copies_max(self) -> int:
        """How often it may be in the log."""
        tries = {Outcome.ACKED: RETRIES + 1, Outcome.AMBIGUOUS: RETRIES + 1, Outcome.REFUSED: 0}
        return sum(tries[outcome] for outcome in self.outcomes)


def body_of(key: Key, size: int) -> bytes:
    return f"{key[0]} {key[1]} ".encode().ljust(size, b".")


def key_of(body: bytes) -> Key:
    producer, number, _ = body.split(b" ", 2)
    return producer.decode(), int(number)


class Load:
    """Producers, each in a thread of its own: one message after the other, or a few in one request, until it is over."""

    def __init__(self, namesrv: str, seed: int, producers: int) -> None:
        self._over = threading.Event()
        self._ended = threading.Condition()
        self._count = 0
        self.entries: dict[Key, Entry] = {}
        self.faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(namesrv, f"p{number}", seeded(f"{seed} producer {number}")))
            for number in range(producers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the producers. Raises what has ended one before."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def pass_sends(self, count: int, seconds: float) -> None:
        """Return when so many more sends have ended, in whatever way; after so many seconds at the latest."""
        with self._ended:
            wanted = self._count + count
            self._ended.wait_for(lambda: self._count >= wanted or self.faults, seconds)

    def _run(self, namesrv: str, name: str, chance: Chance) -> None:
        try:
            with metaq.Producer(
                namesrv, timeout=SEND_SECONDS, retries=RETRIES, compress_over=1 << 20,
                instance_name=name, poll_name_server_interval=ROUTE_SECONDS,
            ) as producer:  # fmt: skip
                number = 0
                while not self._over.wait(PACE_SECONDS * chance.random()):
                    count = chance.choice((1, 1, 1, 1, 5))
                    self._send(producer, [(name, number + at) for at in range(count)], chance)
                    number += count
        except BaseException as fault:
            self.faults.append(fault)

    def _send(self, producer: metaq.Producer, keys: Sequence[Key], chance: Chance) -> None:
        """Send messages of one queue until they are acknowledged, or given up."""
        queue_id, size = chance.randrange(QUEUES), chance.choice((60, 300, 2000, 8000))
        entries = [Entry(key, queue_id) for key in keys]
        self.entries |= {entry.key: entry for entry in entries}
        messages = [Message(TOPIC, body_of(key, size)) for key in keys]
        queue, patience = MessageQueue(TOPIC, BROKER, queue_id), chance.choice((1, 3, 1000, 1000))
        for _ in range(patience):
            outcome, receipts, why = self._try(producer, messages, queue)
            for entry in entries:
                entry.outcomes.append(outcome)
                if outcome is Outcome.REFUSED:
                    entry.refusals.append(why)
            for entry, receipt in zip(entries, receipts, strict=False):
                entry.place, entry.status = (receipt.queue.queue_id, receipt.offset), receipt.status
            with self._ended:
                self._count += 1
                self._ended.notify_all()
            if outcome is Outcome.ACKED or self._over.wait(PACE_SECONDS):
                return

    @staticmethod
    def _try(
        producer: metaq.Producer, messages: list[Message], queue: MessageQueue
    ) -> tuple[Outcome, Sequence[SendReceipt], str]:
        """Send once. Returns what is known of it, the receipts, and the error's text."""
        try:
            if len(messages) == 1:
                return Outcome.ACKED, [producer.send(messages[0], queue=queue)], ""
            return Outcome.ACKED, producer.send_batch(messages, queue=queue), ""
        except (NoRoute, BrokerError) as error:
            return Outcome.REFUSED, (), str(error)
        except (ConnectionFailed, RequestTimeout) as error:
            return Outcome.AMBIGUOUS if error.sent else Outcome.REFUSED, (), str(error)
        except SendFailed as error:
            is_sure = str(error).endswith("so nothing was stored")
            return Outcome.REFUSED if is_sure else Outcome.AMBIGUOUS, (), str(error)


Seen = Mapping[Key, Sequence[Place]]
"""What a group has consumed, and where it lay each time."""


class Live(Protocol):
    """A group that consumes during the whole schedule, from the first message on."""

    name: str

    def seen_when(self, enough: Callable[[Seen], bool], seconds: float) -> Seen:
        """Return what it has consumed, as soon as that is enough, or after so many seconds. Raises what has ended it."""
        ...

    def stop(self) -> None: ...


class LiveConsumer:
    """`Live`, in Python."""

    name = "the group in Python"

    def __init__(self, namesrv: str) -> None:
        self._changed = threading.Condition()
        self._seen: dict[Key, list[Place]] = {}
        self._faults: list[MetaqError] = []
        self._consumer = metaq.Consumer(
            namesrv, group="live", topics=TOPIC, start="earliest", instance_name="live",
            poll_name_server_interval=ROUTE_SECONDS, heartbeat_broker_interval=ROUTE_SECONDS,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._consumer:
                with message, self._changed:
                    self._seen.setdefault(key_of(message.body), []).append((message.queue_id, message.queue_offset))
                    self._changed.notify_all()
        except MetaqError as fault:
            self._faults.append(fault)

    def seen_when(self, enough: Callable[[Seen], bool], seconds: float) -> Seen:
        with self._changed:
            self._changed.wait_for(lambda: self._faults or enough(self._seen), seconds)
            if self._faults:
                raise self._faults[0]
            return {key: list(places) for key, places in self._seen.items()}

    def stop(self) -> None:
        self._consumer.close()
        self._thread.join()
