"""Session factories: what they tell of servers, what they share, and how they end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings

import pytest

from metaq.errors import ClientForked, ConfigError, InvalidMessage, NoRoute
from metaq.metaq1 import Message, MetaClientConfig, MetaMessageSessionFactory, Partition, ZKConfig
from tests.metaq1.conftest import at
from tests.metaq1.stored import payloads
from tests.support import PATIENCE, environment


def test_partitions_of_a_topic_are_those_that_the_server_tells(factory, topic):
    """Whether or not it is published; of an unknown topic there are none."""
    assert factory.get_partitions(topic) == []
    producer = factory.create_producer(at(1))
    producer.publish(topic)
    producer.send_message(Message(topic, b"x"))
    assert factory.get_partitions(topic) == [Partition(-1, 1)]
    assert factory.get_partitions(f"{topic}-none") == []
    with pytest.raises(InvalidMessage):
        factory.get_partitions("")


def test_figures_of_the_server_and_of_an_item(factory, topic, server):
    producer = factory.create_producer(at(0))
    producer.publish(topic)
    producer.send_message(Message(topic, b"x"))
    figures = factory.get_stats()
    assert set(figures) == {server.text}
    assert figures[server.text]["broker_id"] == "0"
    assert factory.get_stats("topics")[server.text][topic].startswith("partitions ")
    assert factory.get_stats(topic, broker=f"meta://{server.text}")[server.text]["message_count"] == "1"
    assert factory.get_stats("help")[server.text]
    with pytest.raises(NoRoute, match=r"10\.0\.0\.5:8123 is no server"):
        factory.get_stats(broker="10.0.0.5")
    with pytest.raises(ConfigError):
        factory.get_stats("config")
    with pytest.raises(InvalidMessage):
        factory.get_stats("two words")


def test_all_children_share_one_connection(factory, topic, server):
    """As long as one of them is there, and its figures show no other."""
    before = int(factory.get_stats()[server.text]["curr_connections"])
    producers = [factory.create_producer() for _ in range(5)]
    for producer in producers:
        producer.publish(topic)
        producer.send_message(Message(topic, b"x"))
    assert int(factory.get_stats()[server.text]["curr_connections"]) == before
    assert len({producer._session_id for producer in producers}) == 5


def test_a_factory_needs_a_config():
    with pytest.raises(TypeError, match="pass a MetaClientConfig"):
        MetaMessageSessionFactory("localhost:2181")


def test_a_forgotten_factory_warns(config):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MetaMessageSessionFactory(config)
        gc.collect()
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == [
        "MetaMessageSessionFactory was not shut down"
    ]


def test_a_zookeeper_that_is_away_is_named(topic):
    """By the first call that needs it, within its time."""
    pytest.importorskip("kazoo")
    from metaq.errors import ConnectionFailed
    from metaq.testing import free_port

    zookeeper = ZKConfig(zk_connect=f"127.0.0.1:{free_port()}", zk_connection_timeout=0.3)
    with MetaMessageSessionFactory(MetaClientConfig(zk_config=zookeeper)) as factory:
        producer = factory.create_producer()
        with pytest.raises(ConnectionFailed, match=f"ZooKeeper {zookeeper.zk_connect} cannot be reached within 0.3 s"):
            producer.publish(topic)
        with pytest.raises(NoRoute):
            producer.send_message(Message(topic, b"x"))
        with pytest.raises(ConnectionFailed, match="ZooKeeper"):
            factory.get_partitions(topic)


def test_without_kazoo_a_fixed_server_works_and_zookeeper_says_what_to_install(server, topic):
    program = f"""
import sys
sys.modules["kazoo"] = None
from metaq.metaq1 import *
with MetaMessageSessionFactory(MetaClientConfig(server_url="{server.text}")) as factory:
    producer = factory.create_producer()
    producer.publish("{topic}")
    print(producer.send_message(Message("{topic}", b"x")).partition.broker_id)
try:
    MetaMessageSessionFactory(MetaClientConfig(zk_config=ZKConfig()))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.startswith("-1\nConfigError zk_config needs kazoo")
    assert "pymetaq[zookeeper]" in done.stdout
    assert done.stderr == ""


def test_a_child_process_needs_a_factory_of_its_own(config, topic):
    """The parent's goes on."""
    with MetaMessageSessionFactory(config) as factory:
        producer = factory.create_producer()
        producer.publish(topic)
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads beside a fork
            child = os.fork()
        if child == 0:
            try:
                producer.send_message(Message(topic, b"x"))
            except ClientForked:
                factory.shutdown()
                with MetaMessageSessionFactory(config) as own:
                    again = own.create_producer()
                    again.publish(topic)
                    again.send_message(Message(topic, b"child"))
                os.write(write, b"ok")
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 10) == b"ok"
        os.waitpid(child, 0)
        os.close(read)
        producer.send_message(Message(topic, b"parent"))


def test_a_program_that_forgets_everything_ends_when_its_sends_are_done(server, topic):
    """And does not wait for a server that is away."""
    program = f"""
from metaq.metaq1 import *
away = MetaMessageSessionFactory(MetaClientConfig(server_url="127.0.0.1:1"))
away.create_producer().publish("t")
factory = MetaMessageSessionFactory(MetaClientConfig(server_url="{server.text}"))
producer = factory.create_producer(lambda topic, partitions, message: Partition(-1, 0))
producer.publish("{topic}")
for number in range(200):
    producer.submit(Message("{topic}", b"%d" % number))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "Traceback" not in done.stderr
    assert payloads(server.text, topic)[0] == [b"%d" % number for number in range(200)]
