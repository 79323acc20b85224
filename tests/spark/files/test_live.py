"""Files of a broker that runs, and of one that was killed: every acknowledged message, and no error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq.model.transactions.staging import transaction_id
from metaq.testing import EmbeddedBroker
from tests.interop.metaq1 import OurServer, TextConnection
from tests.spark.files.support import FRAMES, put_frames, read
from tests.staged import PlannedPart, ask, stage
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

COLUMNS = ("topic", "queue_id", "queue_offset", "message_id", "body")
SMALL = {"mappedFileSizeCommitLog": 1024 * 1024}


def rows_of(folder, **options):
    """The rows by queue, whose offsets must follow each other without a gap; nothing may be damaged."""
    rows, damage = read(folder, COLUMNS, **options)
    assert damage == []
    offsets: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        offsets.setdefault((row["topic"], row["queue_id"]), []).append(row["queue_offset"])
    for found in offsets.values():
        assert found == list(range(len(found)))
    return rows


def test_a_folder_that_a_broker_writes_and_that_kill_9_leaves(tmp_path):
    """While it writes, each read has at least what was acknowledged before it, whole queues in their order; after the kill the
    files hold what the broker delivers when it is back."""
    acknowledged: list[str] = []
    with EmbeddedBroker(tmp_path / "data", options=SMALL) as broker:
        stop = threading.Event()

        def send() -> None:
            with metaq.Producer(broker.namesrv, timeout=10.0) as producer:
                number = 0
                while not stop.is_set():
                    pending = [producer.submit("orders", b"%d" % (number + i) * 300) for i in range(20)]
                    number += 20
                    try:
                        acknowledged.extend(receipt.result(PATIENCE).message_id for receipt in pending)
                    except metaq.errors.MetaqError:
                        return

        with ThreadPoolExecutor(1) as threads:
            sender = threads.submit(send)
            eventually(lambda: len(acknowledged) > 200 or sender.done())
            counts = []
            for _ in range(6):
                before = set(acknowledged)
                found = {row["message_id"] for row in rows_of(tmp_path / "data", maxBytesPerPartition=1 << 20)}
                assert before <= found
                counts.append(len(found))
            assert counts == sorted(counts)
            enough = len(acknowledged) + 500
            eventually(lambda: len(acknowledged) > enough or sender.done())
            broker.kill()
            stop.set()
            sender.result(PATIENCE)
            assert len(acknowledged) > enough
        rows = rows_of(tmp_path / "data")
        assert set(acknowledged) <= {row["message_id"] for row in rows}
        broker.start()
        assert in_broker(broker.namesrv, "orders") == keyed(rows)
        assert rows_of(tmp_path / "data") == rows


def keyed(rows):
    return sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in rows)


def in_broker(namesrv, topic):
    with metaq.Reader(namesrv, topic, start="earliest", stop_at_end=True) as reader:
        return sorted((message.queue_id, message.queue_offset, message.body) for message in reader)


def test_rows_are_what_consumers_get(tmp_path):
    """Of transactions, of several messages too, only what was committed; of delayed messages what became due; each once."""
    with EmbeddedBroker(tmp_path / "data", options=SMALL | {"messageDelayLevel": "1s 1h"}) as broker:
        with metaq.Producer(broker.namesrv) as producer:
            name = producer.send("orders", b"plain").queue.broker
            producer.send("orders", b"soon", delay_level=1)
            producer.send("orders", b"late", delay_level=2)
            with producer.atomic() as tx:
                tx.send("orders", b"atomic")
            with producer.atomic() as tx:
                tx.send("orders", b"aborted")
                tx.rollback()
        part = PlannedPart(name, "open", "orders", 0, ((b"open",),))
        ask(broker.broker, stage(transaction_id("open", name), [part]))
        with metaq.TransactionProducer(broker.namesrv, group="g", check=lambda _: None) as producer:
            with producer.transaction("orders", b"committed"):
                pass
            producer.transaction("orders", b"rolled back").begin().rollback()
            with producer.transaction("orders", b"half") as tx:
                tx.unknown()
        eventually(lambda: b"soon" in {body for *_, body in in_broker(broker.namesrv, "orders")})
        wanted = in_broker(broker.namesrv, "orders")
        assert {body for *_, body in wanted} == {b"plain", b"soon", b"atomic", b"committed"}
        rows = rows_of(tmp_path / "data")
        assert keyed(rows) == wanted
        halves, _ = read(tmp_path / "data", COLUMNS, topics="RMQ_SYS_TRANS_HALF_TOPIC")
        assert b"half" in {row["body"] for row in halves}


def test_messages_that_clients_of_metaq_1_x_have_put_show_their_attribute_and_id(tmp_path):
    """In a log of ours, where they have no position."""
    with OurServer(tmp_path, None, {"test": {}}) as server, TextConnection(server.text) as text:
        ids = [number for number, _ in put_frames(text)]
        rows, damage = read(server.data, ("attribute", "tag", "body", "metaq1_id", "position"), topics="test")
    assert damage == []
    assert [tuple(row.values()) for row in rows] == [(*wanted, ids[i], None) for i, wanted in enumerate(FRAMES)]
