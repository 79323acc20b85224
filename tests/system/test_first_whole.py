"""The whole on one machine, from the user's side: broker and name server in their own process, the Python client here.

Runs on the native compiled extension and, by `make test-plain`, on its pure-Python fallback.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, eventually, run_metaq

pytestmark = pytest.mark.slow

LADDER = " ".join(["1s"] * 18)


@pytest.fixture(scope="module")
def broker():
    """A broker whose retries come after a second."""
    with EmbeddedBroker(options={"messageDelayLevel": LADDER}) as running:
        yield running


def consume(broker, topic, group, count, **options):
    """Bodies of the next `count` messages for the group."""
    got = []
    with metaq.Consumer(broker.namesrv, group=group, topics=topic, start="first", **options) as consumer:
        for message in consumer:
            with message:
                got.append(message.body)
            if len(got) == count:
                break
    return got


def stored(broker, topic):
    """Bodies in the log, read from the folder without the broker."""
    dumped = run_metaq("store", "dump", str(broker.data), "--topic", topic)
    assert dumped.returncode == 0, dumped.stderr
    return [json.loads(line)["body"].encode() for line in dumped.stdout.splitlines()]


def test_what_was_acknowledged_is_consumed_once_by_each_group(broker):
    """Sync sends, futures and a batch, to two groups; nothing missing, nothing twice."""
    bodies = [b"%05d" % number for number in range(3000)]
    with metaq.Producer(broker.namesrv) as producer:
        for body in bodies[:20]:
            assert producer.send("whole", body).status is metaq.SendStatus.SEND_OK
        for future in [producer.submit("whole", body) for body in bodies[20:2000]]:
            future.result()
        producer.send_batch([metaq.Message("whole", body) for body in bodies[2000:]])
    for group in ("whole-1", "whole-2"):
        assert Counter(consume(broker, "whole", group, len(bodies))) == Counter(bodies)
    assert Counter(stored(broker, "whole")) == Counter(bodies)


def test_failing_message_is_retried_and_ends_in_the_dead_letters(broker):
    """Given back twice, then filed under %DLQ%group; the others are not held up."""
    seen = Counter()
    with metaq.Producer(broker.namesrv) as producer:
        for body in (b"good", b"bad", b"rejected"):
            producer.send("failing", body)
    with metaq.Consumer(
        broker.namesrv, group="failing-group", topics="failing", start="first", max_reconsume_times=2
    ) as consumer:

        def handle(message):
            seen[message.body] += 1
            assert message.topic == "failing"
            if message.body == b"rejected":
                raise metaq.Reject
            if message.body == b"bad":
                raise ValueError("cannot be handled")

        runner = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 2})
        runner.start()
        eventually(lambda: len(stored(broker, "%DLQ%failing-group")) == 2, what="two dead letters")
        consumer.stop()
        runner.join(PATIENCE)
        assert not runner.is_alive()
    assert seen == {b"good": 1, b"bad": 3, b"rejected": 1}
    assert Counter(stored(broker, "%DLQ%failing-group")) == Counter([b"bad", b"rejected"])


def test_delayed_message_comes_when_it_is_due(broker):
    """A delay level of one second is kept, and survives a kill -9 in between."""
    with metaq.Producer(broker.namesrv) as producer:
        receipt = producer.send("delayed", b"later", delay_level=1)
        assert receipt.status is metaq.SendStatus.SEND_OK
    broker.kill()
    broker.start()
    with metaq.Consumer(broker.namesrv, group="delayed-group", topics="delayed", start="first") as consumer:
        message = next(iter(consumer))
        with message:
            assert message.body == b"later"
            assert message.store_ms - message.born_ms >= 1000


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_progress_and_messages_survive_a_restart(broker, end):
    """A group goes on behind what it acknowledged, after a clean stop and after kill -9 of the broker."""
    topic = f"restart-{end}"
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, retries=100) as producer:
        for number in range(100):
            producer.send(topic, b"%03d" % number)
        first = consume(broker, topic, f"{topic}-group", 40)
        (broker.stop if end == "stop" else broker.kill)()
        broker.start()
        for number in range(100, 120):
            producer.send(topic, b"%03d" % number)
    everything = {b"%03d" % number for number in range(120)}
    second = []
    with metaq.Consumer(broker.namesrv, group=f"{topic}-group", topics=topic, start="first") as consumer:
        for message in consumer:
            with message:
                second.append(message.body)
            if set(first) | set(second) == everything:
                break
    repeated = len(first) + len(second) - len(everything)
    if end == "stop":
        assert repeated == 0
    else:  # the last seconds of progress may be lost with the process: those come again
        assert repeated <= len(first)
    assert Counter(stored(broker, topic)) == Counter(everything)


def test_no_acknowledged_message_is_lost_by_kill_9_under_load(broker):
    """Sends are under way when the broker is killed: each either failed or is stored; repeats carry the same id."""
    futures = []
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, retries=200) as producer:
        for round_ in range(3):
            futures += [producer.submit("load", b"%d-%05d" % (round_, number)) for number in range(2000)]
            broker.kill()
            broker.start()
        acknowledged = {future.result().message_id for future in futures}
    assert len(acknowledged) == 6000
    dumped = run_metaq("store", "dump", str(broker.data), "--topic", "load")
    ids = Counter(json.loads(line)["message_id"] for line in dumped.stdout.splitlines())
    assert acknowledged <= set(ids)
