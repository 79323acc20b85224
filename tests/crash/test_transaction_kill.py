"""kill -9 of a broker in the middle of transactions: each that was committed is there once, none that was rolled back."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections import Counter

from metaq.broker.requests import EndTransaction, Send
from metaq.clock import FakeClock
from metaq.model import Heartbeat, TransactionOutcome
from metaq.model import properties as props
from metaq.model.access import Caller
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, FakeChannel, open_broker
from tests.support import process

STORE = {"mapped_file_size_commit_log": 256 << 10}
OPTIONS = {"transaction_time_out": 20, "transaction_check_interval": 50, "transaction_check_max": 1000}
KILLS = 3

BROKER = """
import pathlib, sys, threading
sys.path.insert(0, sys.argv[2])
from metaq.clock import SystemClock
from tests.broker.support import open_broker
from tests.crash.test_transaction_kill import OPTIONS, STORE, Producer

with open_broker(pathlib.Path(sys.argv[1]), SystemClock(), STORE, **OPTIONS) as broker:
    producer = Producer(broker)
    for number in range(int(sys.argv[3]), 1 << 30):
        producer.begin(number)
        print(number, flush=True)
        if number % 5:
            producer.end(number)
        if number % 10 == 0:
            broker.tick()
            producer.answer()
        if number % 50 == 0:
            broker.offsets.save()
            threading.Event().wait(0.01)
"""


class Producer:
    """Commits two of three, the same two whenever it is asked; of five it leaves one for the broker to ask about."""

    def __init__(self, broker):
        self.broker, self.channel = broker, FakeChannel()
        self._sent = {}

    def begin(self, number):
        pairs = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: "payers", props.UNIQUE_ID: f"{number:032X}"}
        send = Send(
            topic="orders", body=b"%d" % number, born_ms=self.broker.clock.now_ms(), born_host=BORN_HOST, queue_id=0,
            properties=props.join(pairs),
        )  # fmt: skip
        put = self.broker.sends.send(send).put
        self._sent[number] = put.queue_offset, put.log_offset

    def end(self, number):
        self._end(number, *self._sent[number])

    def _end(self, number, slot, log_offset):
        outcome = TransactionOutcome.COMMIT if number % 3 else TransactionOutcome.ROLLBACK
        end = EndTransaction(
            producer_group="payers", slot=slot, log_offset=log_offset, outcome=outcome, message_id=f"{number:032X}"
        )
        self.broker.transactions.end(end, Caller("127.0.0.1", loopback=True))

    def answer(self):
        """Be asked for a turn, and answer."""
        self.broker.beat(self.channel, "JAVA", 409, Heartbeat("c", (), ("payers",)))
        pause = self.broker.deliver()
        checks, self.channel.told = self.channel.told, []
        for check in checks:
            self._end(int(check.half.body), check.half.queue_offset, check.half.log_offset)
        return pause


def test_kills_lose_no_commit_and_multiply_none(tmp_path: pathlib.Path) -> None:
    """Three kills in full run; what was not ended is asked about afterwards."""
    root, repository, sent = tmp_path / "store", pathlib.Path(__file__).parents[2], [-2]
    for life in range(1, KILLS + 1):
        # The half message under way when the broker was killed may be stored, though nobody was told: it is not sent again.
        arguments = str(root), str(repository), str(sent[-1] + 2)
        with process(sys.executable, "-c", BROKER, *arguments) as broker:
            for line in broker.stdout:
                sent.append(int(line))
                if sent[-1] >= 1000 * life:
                    break
            assert sent[-1] >= 1000 * life, broker.stderr.read()
            os.kill(broker.pid, signal.SIGKILL)
            sent += (int(line) for line in broker.stdout if line.endswith("\n"))
    clock = FakeClock(time.time_ns() // 1_000_000 + 60_000)
    with open_broker(root, clock, STORE, **OPTIONS) as broker:
        producer = Producer(broker)
        for _ in range(10):
            clock.advance(1)
            broker.tick()
            while producer.answer() == 0:
                pass
        queue = broker.store.reader.queue("orders", 0)
        units = queue.units(0, 1 << 20)
        found = Counter(int(decode_record(broker.store.reader.record_at(unit.log_offset)).body) for unit in units)
        assert {number for number in sent[1:] if number % 3} <= set(found)
        assert set(found.values()) == {1}
        assert not [number for number in found if number % 3 == 0]
        assert (
            broker.transactions.progress.first_open
            == broker.store.reader.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0).max_offset
        )
