"""kill -9 of the broker under a consumer whose handler always fails: each message is tried its number of times and
filed with the dead letters, and no kill adds more than one repetition to a message.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, WHOLE_PATIENCE, eventually

MESSAGES, RETRIES, KILLS = 1000, 2, 2
OPTIONS = {"messageDelayLevel": "1s 1s 1s 1s 1s 1s"}


@pytest.mark.slow
def test_kills_repeat_no_message_twice_each(tmp_path):
    """The client that lost an answer asks again instead of sending a new message, and the broker recognises it."""
    attempts: Counter[str] = Counter()
    lock = threading.Lock()

    def fails(message: metaq.ReceivedMessage) -> None:
        with lock:
            attempts[message.keys[0]] += 1
        raise ValueError("on purpose")

    with EmbeddedBroker(tmp_path / "data", options=OPTIONS) as broker:
        with metaq.Producer(broker.namesrv) as producer:
            pending = [producer.submit("bad", b"x", keys=[str(number)]) for number in range(MESSAGES)]
            for future in pending:
                future.result(PATIENCE)
        consumer = metaq.Consumer(
            broker.namesrv, group="failing", topics="bad", start="earliest", max_reconsume_times=RETRIES
        )
        running = threading.Thread(target=consumer.run, args=(fails,), kwargs={"threads": 4})
        running.start()
        try:
            for kill in range(KILLS):
                enough = MESSAGES * (0.4 + kill)
                eventually(lambda: attempts.total() > enough, WHOLE_PATIENCE, what="enough attempts")  # noqa: B023  used at once
                broker.kill()
                broker.start()
            eventually(lambda: len(buried(broker)) == MESSAGES, WHOLE_PATIENCE, what="a dead letter of each message")
        finally:
            consumer.close()
            running.join(PATIENCE)
        assert min(attempts.values()) >= 1 + RETRIES
        assert max(attempts.values()) <= 1 + RETRIES + KILLS
        assert max(buried(broker).values()) <= 1 + KILLS


def buried(broker: EmbeddedBroker) -> Counter[str]:
    """Dead letters by key."""
    try:
        with metaq.Reader(broker.namesrv, "%DLQ%failing", start="earliest", stop_at_end=True) as reader:
            return Counter(message.keys[0] for message in reader)
    except metaq.NoRoute:
        return Counter()
