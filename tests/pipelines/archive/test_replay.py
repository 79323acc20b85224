"""What the pipeline `archive` writes, read back as messages after the broker has let go of them: each is the same."""

from __future__ import annotations

import itertools
import json
import random
import subprocess

import pytest

import metaq
from metaq import Message, MessageQueue, Producer, Reader
from metaq.archive.folder import ArchiveFolder
from metaq.model import StoredMessage
from metaq.pipelines.archive.service import archive
from metaq.spark import table
from tests.pipelines.archive.support import publish
from tests.scripted import ScriptedCluster
from tests.spark.running import finished
from tests.support import PATIENCE, environment, metaq_command

pytestmark = [pytest.mark.slow, pytest.mark.spark]
TODAY = 1_700_006_400_000  # 2023-11-15, 00:00 UTC


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster", TODAY - 1000) as running:
        running.make_topic("orders", 3)
        yield running


def run(spark, cluster, output, **options) -> list:
    reports: list = []
    finished(
        lambda: archive(
            spark, name_servers=cluster.namesrv, topics="orders", output=output, once=True, on_batch=reports.append, **options
        )
    )  # fmt: skip
    return reports


def sent_in_all_ways(cluster) -> None:
    """With everything that a message can have."""
    with Producer(cluster.namesrv, compress_over=1000) as producer:
        for number in range(40):
            message = Message(
                "orders", b"%d" % number, f"tag-{number % 3}" if number % 4 else None, tuple(f"k{i}" for i in range(number % 3)),
                flag=number * 1000 - 7, properties={"näme": "wért", "empty is none": str(number)} if number % 2 else {},
            )  # fmt: skip
            producer.send(message)
        producer.send_batch([Message("orders", b"of a batch %d" % number, "batch") for number in range(20)])
        for number in range(3):
            producer.send("orders", b"long " * 5000 + b"%d" % number)
        producer.send("orders", "späte Zeile\N{SNOWMAN}".encode())
    with (
        metaq.TransactionProducer(cluster.namesrv, group="payments", check=lambda _: True, confirm=True) as producer,
        producer.transaction("orders", b"committed", tag="t"),
    ):
        pass
    cluster.clock.set_wall(TODAY + 1000)
    cluster.put("orders", 0, [b"without an id"], properties="KEYS\x01a b\x02")
    cluster.put("orders", 1, [b"odd"], properties="broken\x02a\x01\x02\x01b\x02c\x01d")


def whole(messages) -> dict[tuple[MessageQueue, int], dict]:
    """Every field but the queue's bounds, which are those of the moment of reading."""
    found = {}
    for message in messages:
        fields = {name: getattr(message, name) for name in StoredMessage.__slots__ if name[0] != "_"}
        del fields["min_offset"], fields["max_offset"]
        fields |= {
            name: getattr(message, name)
            for name in ("properties", "keys", "tag", "message_id", "offset_id", "born_host")
        }
        found[message.queue, message.queue_offset] = fields
    return found


def test_a_replayed_message_is_the_message_that_was_pulled(spark, cluster, tmp_path):
    """Field by field, in whatever way it was sent; compressed bodies, wild properties, two dates."""
    sent_in_all_ways(cluster)
    with Reader(cluster.namesrv, "orders", stop_at_end=True) as reader:
        pulled = whole(reader)
    assert len(pulled) == 67
    assert len({fields["sys_flag"] for fields in pulled.values()}) > 2
    assert any(fields["prepared_offset"] for fields in pulled.values())
    (report,) = run(spark, cluster, tmp_path / "out")
    assert report.rows == 67
    cluster.new_log_file()
    cluster.put("orders", 2, [b"live"])
    cluster.expire("orders", 0, sum(queue.queue_id == 0 for queue, _ in pulled))
    with Reader(cluster.namesrv, "orders", stop_at_end=True) as reader:
        assert [message.body for message in reader] == [b"live"]
    with Reader(cluster.namesrv, "orders", stop_at_end=True, archive=tmp_path / "out") as reader:
        messages = list(reader)
    replayed = whole(messages)
    assert [message.body for message in messages if (message.queue, message.queue_offset) not in pulled] == [b"live"]
    assert {place: replayed.get(place) for place in pulled} == pulled
    for _, mine in itertools.groupby(sorted(messages, key=lambda one: one.queue), key=lambda one: one.queue):
        offsets = [message.queue_offset for message in mine]
        assert offsets == list(range(len(offsets)))

    printed = subprocess.run(
        metaq_command("consume", "orders", "--from-archive", str(tmp_path / "out"), "-n", cluster.namesrv, "--json"),
        env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip
    found = [json.loads(line) for line in printed.splitlines()]
    assert len(found) == 68
    assert {one["message_id"] for one in found} == {message.message_id for message in messages}


def test_dropped_repeats_are_the_only_difference(spark, cluster, tmp_path):
    """As many as the manifests say."""
    twice = "UNIQ_KEY\x01" + "AB" * 16
    cluster.put("orders", 0, [b"first"], TODAY + 1000, twice)
    cluster.put("orders", 1, [b"again", b"and again"], TODAY + 2000, twice)
    cluster.put("orders", 1, [b"other"], TODAY + 3000)
    (report,) = run(spark, cluster, tmp_path / "out")
    assert (report.rows, report.repeats) == (2, 2)
    cluster.put("orders", 1, [b"again"], TODAY + 4000, twice)  # of the tail nothing is known to be one
    with Reader(cluster.namesrv, "orders", stop_at_end=True, archive=tmp_path / "out") as reader:
        assert {(message.queue_id, message.queue_offset): message.body for message in reader} == {
            (0, 0): b"first", (1, 2): b"other", (1, 3): b"again",
        }  # fmt: skip


def test_one_table_of_files_of_both_versions(spark, tmp_path):
    """An archive of an earlier release goes on; its table does not change."""
    folder = ArchiveFolder(tmp_path / "out")
    queue = MessageQueue("orders", "broker-a", 0)
    publish(folder, 1, {queue: range(10)})
    publish(folder, 2, {queue: range(10, 20)}, new=True)
    rows = table("orders", archive=tmp_path / "out", spark=spark).orderBy("queue_offset").collect()
    assert [row["queue_offset"] for row in rows] == list(range(20))
    assert {row["body"] for row in rows} == {b"body"}


def test_spark_does_not_read_flipped_bits_of_an_archived_body(spark, tmp_path):
    """The table of an archive: the query fails and names the file, for the page's checksum does not fit."""
    body = random.Random(1).randbytes(3000)
    publish(folder := ArchiveFolder(tmp_path / "out"), 0, {MessageQueue("orders", "broker-a", 0): range(5)}, body=body)
    found = table("orders", archive=folder.path, spark=spark)
    assert {bytes(row.body) for row in found.collect()} == {body}
    (path,) = folder.path.rglob("*.parquet")
    data = bytearray(path.read_bytes())
    data[data.index(body[100:200]) + 50] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"(?s)CRC|checksum"):
        found.collect()
