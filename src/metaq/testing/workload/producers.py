"""The producers of a workload: one after the other, in an event loop, pipelined, in batches, and several messages all or none."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from metaq.client.producing import producer_async
from metaq.client.producing.producer import Producer
from metaq.client.shared.futures import SendFuture
from metaq.clock import SYSTEM, Chance
from metaq.errors import MetaqError, TransactionFailed
from metaq.model import Message, MessageQueue, TransactionOutcome
from metaq.model.transactions.staging import Phase
from metaq.testing.checking import Ledger
from metaq.testing.workload.outcomes import body_of, outcome_of, places_of

SEND_SECONDS: Final = 1.0
RETRIES: Final = 1
_SIZES: Final = (60, 60, 300, 2000, 8000)
_WINDOW: Final = 20
"""Sends under way of a pipelined producer."""
_SETTLE_SECONDS: Final = 60.0


class LoadProducer:
    """One producer, which sends until it is told to end. Subclasses say how.

    Args:
        name: the process of its events, and what its keys begin with.
        queues: where to.
        rate: sends a second at most.
        options: of the client.
    """

    def __init__(
        self,
        name: str,
        namesrv: str,
        queues: Sequence[MessageQueue],
        ledger: Ledger,
        chance: Chance,
        rate: float,
        options: dict[str, Any],
    ) -> None:
        self._name, self._namesrv, self._queues, self._ledger = name, namesrv, queues, ledger
        self._chance, self._pause = chance, 1 / rate
        self._options: dict[str, Any] = {
            "timeout": SEND_SECONDS,
            "retries": RETRIES,
            "compress_over": 1 << 20,
            "instance_name": name,
        } | options
        self._numbers = itertools.count()
        self._over = threading.Event()

    def run(self) -> None:
        """Send until `stop`. Raises what no send should."""
        with Producer[bytes](self._namesrv, **self._options) as producer:
            while self._goes_on():
                self._send(producer, self._chance.choice(self._queues))
            self._settle(producer)

    def stop(self) -> None:
        """Have `run` end, in another thread."""
        self._over.set()

    def _send(self, producer: Producer[bytes], queue: MessageQueue) -> None:
        raise NotImplementedError

    def _settle(self, producer: Producer[bytes]) -> None:
        """Wait until the outcome of everything is known."""

    def _goes_on(self) -> bool:
        return not self._over.wait(self._pause * 2 * self._chance.random())

    def _message(self, queue: MessageQueue) -> tuple[str, Message]:
        key = f"{self._name}-{next(self._numbers)}"
        return key, Message(queue.topic, body_of(key, self._chance.choice(_SIZES)))

    def _begin(self, keys: Sequence[str], queue: MessageQueue) -> int:
        return self._ledger.begin(self._name, keys, str(queue), copies_max=1 + RETRIES)

    def _failed(self, op: int, error: MetaqError) -> None:
        self._ledger.end(self._name, op, outcome_of(error), why=str(error))


class OneByOne(LoadProducer):
    """Waits for the acknowledgement of each message before it sends the next."""

    def _send(self, producer: Producer[bytes], queue: MessageQueue) -> None:
        key, message = self._message(queue)
        op = self._begin([key], queue)
        try:
            receipt = producer.send(message, queue=queue)
        except MetaqError as error:
            self._failed(op, error)
        else:
            self._ledger.end(self._name, op, "acked", places_of([receipt]), receipt.status.name)


class Batches(LoadProducer):
    """Sends some messages in one request."""

    def _send(self, producer: Producer[bytes], queue: MessageQueue) -> None:
        made = [self._message(queue) for _ in range(self._chance.randint(2, 6))]
        op = self._begin([key for key, _ in made], queue)
        try:
            receipts = producer.send_batch([message for _, message in made], queue=queue)
        except MetaqError as error:
            self._failed(op, error)
        else:
            self._ledger.end(self._name, op, "acked", places_of(receipts), receipts[0].status.name)


class Pipelined(LoadProducer):
    """Sends on while acknowledgements are under way."""

    _free: threading.Semaphore | None = None

    def _send(self, producer: Producer[bytes], queue: MessageQueue) -> None:
        free = self._free = self._free or threading.Semaphore(_WINDOW)
        free.acquire()
        key, message = self._message(queue)
        op = self._begin([key], queue)
        try:
            future = producer.submit(message, queue=queue)
        except MetaqError as error:
            self._failed(op, error)
            free.release()
        else:
            future.add_done_callback(functools.partial(self._answered, op, free))

    def _answered(self, op: int, free: threading.Semaphore, future: SendFuture) -> None:
        try:
            receipt = future.result()
        except MetaqError as error:
            self._failed(op, error)
        else:
            self._ledger.end(self._name, op, "acked", places_of([receipt]), receipt.status.name)
        finally:
            free.release()

    def _settle(self, producer: Producer[bytes]) -> None:
        producer.flush(_SETTLE_SECONDS)


class InALoop(LoadProducer):
    """`metaq.aio`, some tasks beside each other."""

    _TASKS: Final = 3

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with producer_async.Producer[bytes](self._namesrv, **self._options) as producer:
            await asyncio.gather(*(self._one_task(producer) for _ in range(self._TASKS)))

    async def _one_task(self, producer: producer_async.Producer[bytes]) -> None:
        while not self._over.is_set():
            await asyncio.sleep(self._pause * 2 * self._TASKS * self._chance.random())
            queue = self._chance.choice(self._queues)
            key, message = self._message(queue)
            op = self._begin([key], queue)
            try:
                receipt = await producer.send(message, queue=queue)
            except MetaqError as error:
                self._failed(op, error)
            else:
                self._ledger.end(self._name, op, "acked", places_of([receipt]), receipt.status.name)


class AllOrNone(LoadProducer):
    """Several messages for several queues in one transaction. Now and then it is rolled back."""

    _ATOMIC_SECONDS: Final = 5.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unsettled: list[tuple[int, str]] = []
        """Sends of which it is not known that all is delivered: op and transaction id."""

    def _send(self, producer: Producer[bytes], queue: MessageQueue) -> None:  # noqa: ARG002  it takes several
        targets = [self._chance.choice(self._queues) for _ in range(self._chance.randint(2, 5))]
        made = [(target, *self._message(target)) for target in targets]
        rolls_back = self._chance.random() < 0.1
        op = self._ledger.begin(self._name, [key for _, key, _ in made], atomic=True)
        name = ""
        try:
            with producer.atomic(timeout=self._ATOMIC_SECONDS) as tx:
                for target, _, message in made:
                    tx.send(message, queue=target)
                    name = tx.id
                if rolls_back:
                    tx.rollback()
        except TransactionFailed as error:
            self._end_or_ask(op, error, error.transaction_id)
        except MetaqError as error:
            self._end_or_ask(op, error, name)
        else:
            if rolls_back or tx.outcome is TransactionOutcome.ROLLBACK:
                self._ledger.end(self._name, op, "refused", why="rolled back")
            elif tx.result is not None and tx.result.delivered:
                self._ledger.end(self._name, op, "acked")
            else:
                self._unsettled.append((op, name))

    def _end_or_ask(self, op: int, error: MetaqError, name: str) -> None:
        if outcome_of(error) == "refused":
            self._ledger.end(self._name, op, "refused", why=str(error))
        elif name:
            self._unsettled.append((op, name))
        else:
            self._ledger.end(self._name, op, "ambiguous", why=str(error))

    def _settle(self, producer: Producer[bytes]) -> None:
        """Have each decided, and wait until what is committed is delivered."""
        deadline = SYSTEM.monotonic() + _SETTLE_SECONDS
        for op, name in self._unsettled:
            committed = self._decided(producer, name, deadline)
            if committed is None:
                self._ledger.end(self._name, op, "ambiguous", why=f"{name} could not be settled")
            else:
                self._ledger.end(self._name, op, "acked" if committed else "refused", why=f"settled: {name}")

    def _decided(self, producer: Producer[bytes], name: str, deadline: float) -> bool | None:
        pause = threading.Event()
        for _ in _until(deadline):
            try:
                if producer.settle(name, commit=False) is not TransactionOutcome.COMMIT:
                    return False
                if producer.outcome(name) is Phase.COMMITTED:
                    return True
            except MetaqError as error:
                self._ledger.tell(f"{self._name} asks for {name}: {error}")
            pause.wait(0.2)
        return None


def _until(deadline: float) -> Iterator[None]:
    """Once, and again until the time has come."""
    yield
    while SYSTEM.monotonic() < deadline:
        yield


PRODUCERS: Final[dict[str, Callable[..., LoadProducer]]] = {
    "sync": OneByOne,
    "aio": InALoop,
    "submit": Pipelined,
    "batch": Batches,
    "atomic": AllOrNone,
}
"""Name → what makes one."""
