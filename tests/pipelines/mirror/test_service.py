"""The mirror between two brokers of ours. The oracle is `metaq.Reader` and the admin's figures, never Spark."""

from __future__ import annotations

import json
import shutil

import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import ConfigError, NotSupported
from metaq.spark.cluster.client import ClusterClient
from metaq.testing import EmbeddedBroker
from tests.interop.servers import RocketmqServer
from tests.pipelines.mirror.support import bodies, consume, place_of, run, send, stored
from tests.staged import send_empty

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(scope="module")
def target():
    """The cluster that is written to."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.mark.all
@pytest.mark.spark_all
def test_messages_arrive_whole_once_and_in_order_and_a_second_run_adds_what_is_new(
    spark, metaq_broker, target, tmp_path
):
    """With their ids, keys, tags and properties; large ones too; each queue as it was."""
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic("mirrored", queues=3)
    send(metaq_broker, "mirrored", 300)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send("mirrored", b"x" * 300_000)
    told = run(spark, metaq_broker, target, tmp_path, topics="mirrored", maxOffsetsPerTrigger=200)
    assert sum(one["rows"] for one in told) == 301
    assert bodies(target, "mirrored") == bodies(metaq_broker, "mirrored")
    here, there = (
        {one.message_id: one for messages in stored(broker, "mirrored").values() for one in messages}
        for broker in (metaq_broker, target)
    )
    assert here.keys() == there.keys()
    with Admin(metaq_broker.namesrv) as admin:
        (broker,) = {queue.broker for queue in admin.describe_topic("mirrored").queues}
    for name, message in here.items():
        copy = there[name]
        assert (copy.tag, copy.keys, copy.properties.get("n")) == (
            message.tag,
            message.keys,
            message.properties.get("n"),
        )
        assert copy.properties["MIRROR_SOURCE"] == f"a/mirrored/{broker}/{message.queue_id}/{message.queue_offset}"
        assert copy.properties["MIRROR_BORN"].split(" ")[0] == str(message.born_ms)
    assert run(spark, metaq_broker, target, tmp_path, topics="mirrored") == []
    send(metaq_broker, "mirrored", 7, b"new ")
    assert [one["rows"] for one in run(spark, metaq_broker, target, tmp_path, topics="mirrored")] == [7]
    assert bodies(target, "mirrored") == bodies(metaq_broker, "mirrored")
    tables = json.loads((tmp_path / "_mirror.json").read_text())["tables"]
    assert [len(runs) for _, _, runs in tables] == [1, 1, 1]


def test_large_and_empty_messages_are_mirrored_in_their_place(spark, metaq_broker, target, tmp_path):
    """As large as the target takes them, and what a client of another make has sent without a body."""
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic("heavy", queues=1)
        (queue,) = admin.describe_topic("heavy").queues
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for size in (1, 2 << 20, 2, 4 << 20, 3):
            producer.send("heavy", b"x" * size)
            send_empty(metaq_broker, queue)
    told = run(spark, metaq_broker, target, tmp_path, topics="heavy")
    assert sum(one["rows"] for one in told) == 10
    assert sum(one["unfit"] for one in told) == 0
    sizes = [len(body) for body in bodies(target, "heavy")[queue.queue_id]]
    assert sizes == [1, 0, 2 << 20, 0, 2, 0, 4 << 20, 0, 3, 0]
    assert bodies(target, "heavy") == bodies(metaq_broker, "heavy")


def test_a_group_goes_on_in_the_target_where_it_was_in_the_source(spark, metaq_broker, target, tmp_path):
    """Nothing twice and nothing left out, as long as the mirror alone writes there; the messages are those of the source."""
    topic, group = "moving", "movers"
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=2)
    send(metaq_broker, topic, 100)
    here = consume(metaq_broker, group, topic, 60)
    run(spark, metaq_broker, target, tmp_path, topics=topic, groups=group)
    assert place_of(target, group, topic) == place_of(metaq_broker, group, topic)
    there = consume(target, group, topic, 40)
    assert sorted(here + there) == sorted(b"%d" % i for i in range(100))
    assert bodies(target, topic) == bodies(metaq_broker, topic)
    (told,) = json.loads((tmp_path / "groups.json").read_text())["groups"]
    assert (told["group"], told["why"]) == (group, "")


def test_a_group_is_carried_over_though_its_messages_are_in_the_targets_queues_only_later(
    spark, metaq_broker, target, tmp_path, monkeypatch
):
    """A RocketMQ puts into a queue some time later what it has acknowledged. No further batch comes that could find it."""
    topic, group = "queues_later", "queues-later"
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=2)
    send(metaq_broker, topic, 40)
    consume(metaq_broker, group, topic, 30)
    ends, early = ClusterClient.ends, [6]

    def later(client, queues, *args):
        found = ends(client, queues, *args)
        if not early[0]:
            return found
        early[0] -= 1
        return dict.fromkeys(found, 0)

    monkeypatch.setattr(ClusterClient, "ends", later)
    run(spark, metaq_broker, target, tmp_path, topics=topic, groups=group)
    assert not early[0]  # In the driver nobody else asks where queues end.
    assert place_of(target, group, topic) == place_of(metaq_broker, group, topic)


@pytest.mark.all
@pytest.mark.spark_all
def test_what_came_from_the_target_is_not_sent_back(spark, metaq_broker, target, tmp_path):
    """Two mirrors, one each way: everything is in both clusters once."""
    topic = "both_ways"
    for broker, prefix in ((metaq_broker, b"here "), (target, b"there ")):
        with Admin(broker.namesrv) as admin:
            admin.create_topic(topic, queues=2)
        send(broker, topic, 20, prefix)
    for _ in range(2):
        run(spark, metaq_broker, target, tmp_path / "to", topics=topic)
        told = run(spark, target, metaq_broker, tmp_path / "fro", topics=topic, sourceName="b", targetName="a")
    everything = sorted(b"%s%d" % (prefix, i) for prefix in (b"here ", b"there ") for i in range(20))
    for broker in (metaq_broker, target):
        assert sorted(body for queue in bodies(broker, topic).values() for body in queue) == everything
    assert told == []


@pytest.mark.all
@pytest.mark.spark_all
def test_a_mirror_that_has_only_left_messages_out_goes_on(spark, metaq_broker, target, tmp_path):
    """No broker remembers batches of which nothing was copied, and nothing is wrong."""
    topic = "one_way"
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    for count in (5, 3):
        send(metaq_broker, topic, count)
        run(spark, metaq_broker, target, tmp_path / "to", topics=topic)
        told = run(spark, target, metaq_broker, tmp_path / "fro", topics=topic, sourceName="b", targetName="a")
        assert [(one["rows"], one["came_around"]) for one in told] == [(0, count)]
    assert len(bodies(metaq_broker, topic)[0]) == 8


@pytest.mark.all
@pytest.mark.spark_all
def test_a_rocketmq_is_written_to_if_repeats_are_allowed(spark, metaq_broker, tmp_path):
    """Refused by name otherwise; ids and order are kept, and groups carried over there as well."""
    topic, group, rocketmq = "to_rocketmq", "to-rocketmq", RocketmqServer(tmp_path / "rocketmq")
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=2)
    send(metaq_broker, topic, 100)
    consume(metaq_broker, group, topic, 30)
    rocketmq.start()
    try:
        with pytest.raises(NotSupported, match="delivery = 'at-least-once'"):
            run(spark, metaq_broker, rocketmq, tmp_path / "exact", topics=topic)
        run(spark, metaq_broker, rocketmq, tmp_path / "loose", topics=topic, delivery="at-least-once", groups=group)
        assert bodies(rocketmq, topic) == bodies(metaq_broker, topic)
        assert [one.message_id for one in stored(rocketmq, topic)[0]] == [
            one.message_id for one in stored(metaq_broker, topic)[0]
        ]
        assert place_of(rocketmq, group, topic) == place_of(metaq_broker, group, topic)
    finally:
        rocketmq.kill()


@pytest.mark.all
@pytest.mark.spark_all
def test_a_target_with_too_few_queues_or_an_earlier_mirrors_messages_is_refused(spark, metaq_broker, target, tmp_path):
    """With what to do; shared queues keep the order of each source queue."""
    topic = "shared"
    for broker, queues in ((metaq_broker, 4), (target, 2)):
        with Admin(broker.namesrv) as admin:
            admin.create_topic(topic, queues=queues)
    send(metaq_broker, topic, 80)
    with pytest.raises(ConfigError, match=r"has 2 there, and 4 are needed"):
        run(spark, metaq_broker, target, tmp_path / "one", topics=topic)
    run(spark, metaq_broker, target, tmp_path / "one", topics=topic, mergeQueues=True)
    source = bodies(metaq_broker, topic)
    for queue, found in bodies(target, topic).items():
        for origin in (queue, queue + 2):
            assert [body for body in found if body in set(source[origin])] == source[origin]
    with pytest.raises(Exception, match=r"another mirror has put there.*startingOffsets = .*again = true"):
        run(spark, metaq_broker, target, tmp_path / "two", topics=topic, mergeQueues=True)
    assert sum(map(len, bodies(target, topic).values())) == 80


@pytest.mark.all
@pytest.mark.spark_all
def test_a_batch_that_was_decided_before_a_crash_is_not_copied_again(spark, metaq_broker, target, tmp_path):
    """Before its place was saved, and before Spark knew of it: a crash at each point, made by taking back what is later."""
    topic, folder = "replayed", tmp_path / "mirror"
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=2)
    send(metaq_broker, topic, 50)
    (told,) = run(spark, metaq_broker, target, folder, topics=topic)
    whole = (folder / "_mirror.json").read_text()
    tables, batch = json.loads(whole)["tables"], told["batch"]

    def crash(state: str) -> None:
        for name in (f"{batch}", f".{batch}.crc"):
            (folder / "_checkpoint" / "commits" / name).unlink(missing_ok=True)
        (folder / "_mirror.json").write_text(state)

    crash(whole)
    assert [(one["rows"], one["replayed"]) for one in run(spark, metaq_broker, target, folder, topics=topic)] == [
        (0, True)
    ]
    parts = json.loads(whole)
    earlier = {
        **parts, "batch": -1, "tables": [[queue, begin, []] for queue, begin, _ in tables],
        "seen": [[queue, 0, None] for queue, _, _ in parts["seen"]],
    }  # fmt: skip
    crash(json.dumps(earlier))
    assert [one["rows"] for one in run(spark, metaq_broker, target, folder, topics=topic)] == [50]
    assert bodies(target, topic) == bodies(metaq_broker, topic)
    assert json.loads((folder / "_mirror.json").read_text())["tables"] == tables


@pytest.mark.all
@pytest.mark.spark_all
def test_a_folder_without_its_checkpoint_is_refused(spark, metaq_broker, target, tmp_path):
    """It would mirror everything again."""
    send(metaq_broker, "guarded", 5)
    run(spark, metaq_broker, target, tmp_path, topics="guarded")
    shutil.rmtree(tmp_path / "_checkpoint")
    with pytest.raises(ConfigError, match="its checkpoint is gone or of another query"):
        run(spark, metaq_broker, target, tmp_path, topics="guarded")
