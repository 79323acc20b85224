"""RocketMQ's own administration tool, the commands that everybody uses."""

import contextlib
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from metaq import Consumer, Producer
from metaq.admin import Admin, GroupOnline
from metaq.servers.remoting.rocketmq_settings import DEFAULTS
from metaq.spark.cluster.client import ClusterClient
from tests.interop import maven
from tests.interop.driver import ForeignClient
from tests.interop.servers import CLUSTER, Server, mqadmin
from tests.support import PATIENCE, eventually
from tests.test_rocketmq_options import LISTED

pytestmark = pytest.mark.interop


def test_cluster_topics_and_progress(java: ForeignClient, server: Server, tmp_path: Path) -> None:
    """clusterList, topicList, topicStatus and consumerProgress read as with RocketMQ."""
    clusters = mqadmin(tmp_path, server, "clusterList")
    (row,) = [line.split() for line in clusters.splitlines() if line.startswith(CLUSTER)]
    assert server.broker in row

    java.producer("p", server.namesrv)
    java.call("create_topic", producer="p", cluster=CLUSTER, topic="by-admin", queues=3)
    assert "by-admin" in mqadmin(tmp_path, server, "topicList").split()
    java.send("p", "by-admin", [f"m{i}" for i in range(6)])
    status = mqadmin(tmp_path, server, "topicStatus", "-t", "by-admin").splitlines()
    rows = [line.split() for line in status if line and not line.startswith("#")]
    assert sorted((int(row[1]), int(row[2]), int(row[3])) for row in rows) == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]

    java.consumer("c", server.namesrv, "by-admin-group", {"by-admin": "*"})
    java.wait("c", 6)
    java.shutdown("c")  # which commits its offsets
    progress = mqadmin(tmp_path, server, "consumerProgress", "-g", "by-admin-group")
    assert "Diff Total: 0" in progress


def test_the_progress_of_a_spark_query_reads_like_a_consumers(server: Server, tmp_path: Path) -> None:
    """consumerProgress finds a group by the retry topic that its first member has made: the query's is made as well."""
    with Producer(server.namesrv) as producer:
        producer.send("read-by-spark", b"x")
    with contextlib.closing(ClusterClient(server.namesrv, PATIENCE)) as client:
        queues = client.queues(["read-by-spark"])
        client.report("spark-query", dict.fromkeys(queues, 0))

    def shown() -> bool:  # as soon as the name server knows the topic
        return "Diff Total: 1" in mqadmin(tmp_path, server, "consumerProgress", "-g", "spark-query")

    eventually(shown)


def test_the_configuration_has_every_key_of_rocketmqs_own_classes(server: Server, tmp_path: Path) -> None:
    """getBrokerConfig: tools look for brokerRole and its like; what we have nothing for has RocketMQ's default."""
    classpath = f"{maven.jars(*maven.SERVER)}/*"
    source = Path(__file__).parent / "java" / "Settings.java"
    subprocess.run(
        [maven.java(compiler=True), "-cp", classpath, "-d", str(tmp_path), str(source)], check=True, timeout=PATIENCE
    )
    command = [maven.java(), "-cp", f"{tmp_path}:{classpath}", "Settings"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    wanted = dict(line.split("=", 1) for line in printed.splitlines())
    assert len(wanted) > 150
    assert wanted.keys() - LISTED.keys() == set()
    shown = mqadmin(tmp_path, server, "getBrokerConfig", "-b", server.broker)
    told = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in shown.splitlines())}
    assert wanted.keys() - told.keys() == set()
    plain = DEFAULTS.keys() - {"bitMapLengthConsumeQueueExt"}  # which a RocketMQ works out at its start
    assert {key: told[key] for key in plain} == {key: wanted[key] for key in plain}
    assert told["listenPort"] == server.broker.rpartition(":")[2]
    assert told["brokerRole"] == "ASYNC_MASTER"


@pytest.mark.slow
def test_our_tool_sees_and_changes_a_group_of_java_clients(java: ForeignClient, server: Server) -> None:
    """Its lag and bytes, who reads the topic; it is reset while it runs, and copied, renamed and deleted when it has stopped."""
    topic, group, count = "our-tool", "our-tool-group", 10
    java.producer("p", server.namesrv)
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, queues=2)
        admin.set_group(group, retries=5)
        java.send("p", topic, [f"m{i}" for i in range(count)])
        java.consumer("c", server.namesrv, group, {topic: "*"})
        java.wait("c", count)
        eventually(
            lambda: sum(one.consumed for one in admin.group_progress(group).queues) == count
        )  # every five seconds
        stats = admin.topic_stats(topic)
        assert (stats.messages, stats.readers) == (count, (group,))
        assert stats.size is not None
        assert stats.size.bytes > count * 91
        with pytest.raises(GroupOnline):
            admin.delete_group(group)
        assert sum(one.repeated for one in admin.reset_group(group, topic, "earliest", dry_run=True)) == count
        assert all(one.online for one in admin.reset_group(group, topic, "earliest"))
        java.wait("c", 2 * count)
        java.shutdown("c")  # which commits its offsets
        admin.reset_group(group, topic, "earliest")
        [found] = [one for one in admin.list_groups() if one.group == group]
        assert (found.lag, found.waiting, found.members) == (count, stats.size, ())
        admin.reset_group(group, topic, "latest")
        assert sum(one.offset for one in admin.clone_group(group, f"{group}-2", topic)) == count
        admin.move_group(group, f"{group}-3")
        assert {one.retry_max for one in admin.set_group(f"{group}-3").values()} == {5}
        assert sum(one.consumed for one in admin.group_progress(f"{group}-3").queues) == count
        for name in (group, f"{group}-2", f"{group}-3"):
            admin.delete_group(name)
        assert not [one.group for one in admin.list_groups() if one.group.startswith(group)]


@pytest.mark.slow
def test_members_online_are_moved_by_an_administrator(java: ForeignClient, server: Server, tmp_path: Path) -> None:
    """resetOffsetByTime (222), told to Java and Python members alike (220): they consume everything once more."""
    topic, group = "moved-by-admin", "moved-by-admin-group"
    java.producer("p", server.namesrv)
    java.call("create_topic", producer="p", cluster=CLUSTER, topic=topic, queues=2)
    bodies = [f"m{i}" for i in range(10)]
    java.send("p", topic, bodies)
    java.consumer("c", server.namesrv, group, {topic: "*"})
    with Consumer(server.namesrv, group=group, topics=topic, start="first", instance_name="moved") as consumer:
        got: list[str] = []

        def arrived(each: int) -> bool:
            while (message := consumer.receive(0.1)) is not None:
                message.ack()
                got.append(message.body.decode())
            everything = Counter([*got, *(event["body"] for event in java.received("c"))])
            return all(everything[body] >= each for body in bodies)

        eventually(lambda: len([queue for queue in consumer.queues if queue.topic == topic]) == 1)
        eventually(lambda: arrived(1))
        consumer.commit()

        def moved() -> bool:  # a Java member commits every five seconds, and a group without progress cannot be moved
            told = mqadmin(tmp_path, server, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
            return "rollback" in told.lower() and "fail" not in told.lower()

        eventually(moved)
        eventually(lambda: arrived(2))
