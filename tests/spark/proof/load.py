"""Two producers that send until so many messages are acknowledged, and keep the ledger.

One is patient: it tries again by itself, with the same id, for as long as a broker is away, so a lost answer makes a repeat. The other
gives up at once, and sends the message as a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np

import metaq
from metaq.errors import MetaqError
from tests.spark.proof.ledger import ACKED, DOUBTFUL, REFUSED, Ledger
from tests.support import WHOLE_PATIENCE

CHUNK: Final = 1000
UNDER_WAY: Final = 6
"""Chunks of one producer that wait for their answers."""
_PAUSE: Final = 0.1

SMALL: Final = {"batch_bytes": 16 * 1024}
"""Many requests under way: the more, the more often an answer is lost that said that messages were stored."""
PATIENT: Final = {"timeout": WHOLE_PATIENCE, "retries": 1_000_000, **SMALL}
HASTY: Final = {"timeout": 2.0, "retries": 0, **SMALL}


class Load:
    """Begins at once; `wait` for its end."""

    def __init__(self, namesrv: str, topic: str, messages: int, ledger: Ledger, may_go_on: Callable[[], bool]) -> None:
        """Args: may_go_on: whether to send more now."""
        self._namesrv, self._topic, self._messages = namesrv, topic, messages
        self._ledger, self._may_go_on = ledger, may_go_on
        self._stop = threading.Event()
        self.faults: list[BaseException] = []
        self._left = messages
        self._busy = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(rules,), daemon=True) for rules in (PATIENT, HASTY)]
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self._stop.set()

    def _take(self) -> int:
        with self._busy:
            count = min(CHUNK, self._left)
            self._left -= count
        return count

    def _give_back(self, count: int) -> None:
        with self._busy:
            self._left += count

    def _run(self, rules: dict) -> None:
        try:
            with metaq.Producer(self._namesrv, **rules) as producer:
                self._send(producer)
        except BaseException as fault:
            self.faults.append(fault)

    def _send(self, producer: metaq.Producer) -> None:
        under_way: list = []
        while not self._stop.is_set():
            count = self._take() if self._may_go_on() else 0
            if count:
                numbers = self._ledger.begin(count)
                texts = self._ledger.bodies.make(numbers)
                under_way.append((numbers, [
                    producer.submit(self._topic, text.tobytes(), keys=str(number), tag=f"t{number % 7}")
                    for number, text in zip(numbers.tolist(), texts, strict=True)
                ]))  # fmt: skip
            if len(under_way) > UNDER_WAY or (under_way and not count):
                self._settle(*under_way.pop(0))
            elif not count:
                if self._ledger.acked >= self._messages:
                    return
                self._stop.wait(_PAUSE)

    def _settle(self, numbers: np.ndarray, futures: list) -> None:
        count, failed = len(futures), 0
        states, queues, offsets, ids = np.empty(count, np.int8), np.zeros(count, int), np.zeros(count, int), []
        for place, future in enumerate(futures):
            try:
                receipt = future.result(WHOLE_PATIENCE)
            except MetaqError as fault:
                states[place] = REFUSED if "nothing was stored" in str(fault) else DOUBTFUL
                failed += 1
                ids.append("")
            else:
                states[place], queues[place], offsets[place] = ACKED, receipt.queue.queue_id, receipt.offset
                ids.append(receipt.message_id)
        self._give_back(failed)
        self._ledger.settle(numbers, states, queues, offsets, ids)
        if failed:
            self._stop.wait(_PAUSE)  # There is nobody to send to.
