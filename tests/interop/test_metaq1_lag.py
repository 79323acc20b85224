"""Groups of MetaQ 1.x in our commands: how many messages they are behind, from a real ZooKeeper."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from metaq import Reader
from metaq.admin import Admin
from metaq.admin.tracks import TrackState
from metaq.clock import SYSTEM
from metaq.metaq1 import (
    ConsumerConfig,
    Message,
    MetaClientConfig,
    MetaMessageSessionFactory,
    MysqlOffsetStorage,
    Partition,
    PostgresqlOffsetStorage,
    StoredOffset,
)
from metaq.metaq1.storages.sql import SqlOffsetStorage
from metaq.pipelines.metrics.sampling import Sampler
from metaq.spark.cluster.client import ClusterClient
from metaq.sql.opening import opened
from metaq.testing import EmbeddedBroker
from tests.interop.mariadb import MariaDbServer
from tests.interop.metaq1 import Metaq1Client, OurServer, Zookeeper
from tests.interop.postgresql import PostgresqlServer
from tests.support import PATIENCE, eventually, run_metaq

pytestmark = pytest.mark.interop


def test_group_show_counts_the_messages_that_a_java_group_is_behind(
    java1: Metaq1Client, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """After a consumer has read what there was, and others came; the unknown group is unknown."""
    root = {"zk.zkRoot": "/lag", "zk.zkSessionTimeoutMs": 2000}
    with EmbeddedBroker() as names:
        ours = OurServer(tmp_path / "ours", zookeeper, {"test": {}}, registry=root)
        ours.options = [f"namesrvAddr={names.namesrv}"]
        with ours, zookeeper.nodes() as nodes:
            eventually(lambda: nodes.text("/lag/brokers/topics-sub/test/0-m"))
            java1.factory("f", zookeeper.address, root="/lag")
            java1.publisher("p", "f", ["test"])
            java1.send("p", "test", [f"{number:02d}" for number in range(10)])
            java1.subscriber("c", "f", "readers", {"test": 1 << 20})
            assert len(java1.wait("c", 10)) == 10
            eventually(lambda: (nodes.text("/lag/consumers/readers/offsets/test/0-0") or "").endswith("-220"))
            java1.shutdown_all()
            java1.factory("f", zookeeper.address, root="/lag")
            java1.publisher("p", "f", ["test"])
            java1.send("p", "test", ["ab"] * 7)

            def shown() -> dict[str, int]:
                done = run_metaq("group", "show", "readers", "-n", names.namesrv, "--json")
                assert done.returncode == 0, done.stderr
                return {queue["topic"]: queue["lag"] for queue in json.loads(done.stdout)["queues"]}

            assert shown() == {"test": 7}
            listed = run_metaq("group", "list", "-n", names.namesrv, "--json")
            assert listed.returncode == 0, listed.stderr
            assert [(one["group"], one["lag"]) for one in json.loads(listed.stdout)] == [("readers", 7)]
            assert sampled(names.namesrv) == {("test", "readers"): 7}
            with Admin(names.namesrv) as admin:
                with Reader(names.namesrv, "test", start="earliest", stop_at_end=True) as reader:
                    read, unread = list(reader)[9:11]
                for message, state in ((read, TrackState.CONSUMED), (unread, TrackState.NOT_CONSUME_YET)):
                    (of_group,) = admin.track_message(message.message_id, "test").groups
                    assert (of_group.group, of_group.state) == ("readers", state)
            (broker,) = {queue.broker for queue in (read.queue, unread.queue)}
            for change in (
                ("reset", "readers", "test", "--to", "earliest"),
                ("move", "readers", "others"),
                ("delete", "readers", "--yes"),
            ):
                refused = run_metaq("group", *change, "-n", names.namesrv)
                assert refused.returncode == 1 and "is of MetaQ 1.x" in refused.stderr, (change, refused)
            # Whoever drains the broker waits for them.
            drained = run_metaq("broker", "drain", broker, "--force", "--timeout", "0", "-n", names.namesrv)
            assert "group readers has 7 messages to consume" in drained.stderr, drained.stderr
            unknown = run_metaq("group", "show", "nobody", "-n", names.namesrv)
            assert unknown.returncode == 3


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_groups_with_offsets_in_a_database_are_counted_in_messages_too(kind: str, tmp_path: Path) -> None:
    """D23. Beside the offsets of other brokers in the same table; a password in a file is used and shown nowhere; a database that is away
    takes nothing but these figures."""
    with contextlib.ExitStack() as stack:
        if kind == "mysql":
            server: MariaDbServer | PostgresqlServer = MariaDbServer(tmp_path)
            url = f"mysql://{server.address}/shop"
            server.start()
            with opened(f"mysql://{server.address}/information_schema") as connection:
                connection.cursor().execute("CREATE DATABASE shop")
            storage: SqlOffsetStorage = MysqlOffsetStorage(url)
        else:
            server = PostgresqlServer()
            stack.callback(server.remove)
            server.start()
            with opened(f"postgresql://{server.address}/postgres") as connection:
                connection.cursor().execute("CREATE ROLE metaq LOGIN SUPERUSER PASSWORD 'h1dden'")
                connection.commit()
            # From now on a password is asked for.
            pg_hba = server.folder / "data" / "pg_hba.conf"
            server.stop()
            pg_hba.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
            server.start()
            url = f"postgresql://metaq@{server.address.partition('@')[2]}/postgres"
            storage = PostgresqlOffsetStorage(url, password="h1dden")
        stack.callback(server.stop)
        storage.create_table()
        password = tmp_path / "password"
        password.write_text("h1dden\n")
        names = stack.enter_context(EmbeddedBroker())
        system = {"offsetDatabase": url, "offsetPasswordFile": password}
        ours = OurServer(tmp_path / "ours", None, {"test": {"numPartitions": 1}}, system)
        ours.options = [f"namesrvAddr={names.namesrv}"]
        stack.enter_context(ours)
        config = MetaClientConfig(server_url=f"meta://{ours.text}")
        with MetaMessageSessionFactory(config) as factory:
            with factory.create_producer() as producer:
                producer.publish("test")
                for _ in range(4):
                    producer.send_message(Message("test", b"ab"))
            heard: list[bytes] = []
            consumer = factory.create_consumer(ConsumerConfig("readers", commit_offset_period=0.1, offset=0), storage)
            consumer.subscribe("test", 1 << 20, lambda message: heard.append(message.data))
            consumer.complete_subscribe()
            eventually(lambda: len(heard) == 4)
            consumer.shutdown()
            storage.commit_offset("elsewhere", [StoredOffset("test", Partition(9, 0), 22)])
            with factory.create_producer() as producer:
                producer.publish("test")
                for _ in range(3):
                    producer.send_message(Message("test", b"ab"))
        storage.close()

        def listed() -> list[tuple[str, int]]:
            done = run_metaq("group", "list", "-n", names.namesrv, "--json")
            assert done.returncode == 0, done.stderr
            return [(one["group"], one["lag"]) for one in json.loads(done.stdout)]

        shown = run_metaq("group", "show", "readers", "-n", names.namesrv, "--json")
        assert shown.returncode == 0, shown.stderr
        assert sum(queue["lag"] for queue in json.loads(shown.stdout)["queues"]) == 3
        assert listed() == [("readers", 3)]
        assert sampled(names.namesrv) == {("test", "readers"): 3}
        server.kill()
        eventually(lambda: listed() == [])
        server.start()
        eventually(lambda: listed() == [("readers", 3)])
        assert "h1dden" not in ours.log.read_text()
        assert "how far groups of MetaQ 1.x are is not known" in ours.log.read_text()


def sampled(name_servers: str) -> dict[tuple[str, str], int]:
    """Topic and group → lag in messages, as the pipeline `metrics` samples it."""
    sampler = Sampler(ClusterClient(name_servers, PATIENCE), ["test"], "", [], SYSTEM)
    try:
        return {(one.topic, one.group): one.lag_messages for one in sampler.sample().groups}
    finally:
        sampler.close()
