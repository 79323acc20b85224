"""kill -9 of a broker that delivers delayed messages and retries: each comes, and no kill multiplies it."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections import Counter

import pytest

from metaq.clock import FakeClock
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.wire.record import decode_record
from tests.broker.support import open_broker
from tests.support import process

pytestmark = pytest.mark.slow

OPTIONS = {"message_delay_level": "1s 1s 1s 1s 1s 1s 1s", "mapped_file_size_commit_log": 256 << 10}
RETRIES, KILLS = 2, 3

BROKER = """
import pathlib, sys, threading
sys.path.insert(0, sys.argv[2])
from metaq.clock import SystemClock
from metaq.servers.remoting.messages import send_back_of, send_of
from metaq.model import GroupConfig
from metaq.wire.headers import SendBackHeader
from tests.broker.support import BORN_HOST, JAVA, open_broker
from tests.crash.test_delay_kill import OPTIONS, RETRIES
from tests.servers.support import send_header

root, first = pathlib.Path(sys.argv[1]), int(sys.argv[3])
consumed = root.parent / "consumed"  # how far the consumer has come: saved now and then, so a kill sets it back
with open_broker(root, SystemClock(), OPTIONS) as broker:
    broker.groups.update(GroupConfig("G", retry_max=RETRIES))
    places = eval(consumed.read_text()) if consumed.exists() else {"orders": 0, "%RETRY%G": 0}
    for number in range(first, 1 << 30):
        level = 1 + number % 3
        header = send_header("orders", 0, properties={"DELAY": str(level)})
        broker.sends.send(send_of(header, b"%d" % number, BORN_HOST, JAVA))
        print(number, flush=True)
        broker.schedule.step()
        for topic in places:
            queue = broker.store.reader.existing_queue(topic, 0)
            for unit in queue.units(places[topic], 100) if queue else []:
                back = SendBackHeader(offset=unit.log_offset, group="G", delay_level=0)
                broker.retries.send_back(send_back_of(back, JAVA))
                places[topic] += 1
        if number % 40 == 0:
            fresh = consumed.with_suffix(".new")
            fresh.write_text(repr(places))
            fresh.rename(consumed)  # a kill in the middle must not leave half of it
        if number % 100 == 0:
            broker.schedule.positions.save()
        broker.schedule.positions.settle()
        threading.Event().wait(0.003)
"""


def counted(broker, topic):
    queue = broker.store.reader.existing_queue(topic, 0)
    units = queue.units(0, 1 << 20) if queue else []
    return Counter(int(decode_record(broker.store.reader.record_at(unit.log_offset)).body) for unit in units)


def test_kills_lose_no_delayed_message_and_multiply_none(tmp_path: pathlib.Path) -> None:
    """Three kills in full run: every message is delivered exactly once, and its retries and dead letters at most once more
    for each kill, even though the consumer is set back each time."""
    root, repository, sent = tmp_path / "store", pathlib.Path(__file__).parents[2], [-2]
    for life in range(1, KILLS + 1):
        # The message under way when the broker was killed may be stored, though nobody was told: it is not sent again.
        arguments = str(root), str(repository), str(sent[-1] + 2)
        with process(sys.executable, "-c", BROKER, *arguments) as broker:
            for line in broker.stdout:
                sent.append(int(line))
                if sent[-1] >= 500 * life:
                    break
            assert sent[-1] >= 500 * life, broker.stderr.read()
            os.kill(broker.pid, signal.SIGKILL)
            # Not `communicate`: it passes over what the iterator has read ahead, and those numbers would be sent again.
            sent += (int(line) for line in broker.stdout if line.endswith("\n"))
    clock = FakeClock(time.time_ns() // 1_000_000 + 3_600_000)
    with open_broker(root, clock, OPTIONS) as broker:
        for _ in range(3):
            while broker.schedule.step() == 0:
                pass
            clock.advance(10)
        orders = counted(broker, "orders")
        assert set(sent[1:]) <= set(orders)
        assert set(orders.values()) == {1}
        retries, dead = counted(broker, RETRY_PREFIX + "G"), counted(broker, DEAD_LETTER_PREFIX + "G")
        assert len(dead) > 100, "the consumer has come to dead letters"
        assert max(retries.values()) <= RETRIES * (1 + KILLS)
        assert max(dead.values()) <= 1 + KILLS
        repeated = sum(retries.values()) - RETRIES * len(retries)
        assert repeated <= 0.1 * len(retries), f"{repeated} retries too many"
