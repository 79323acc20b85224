"""Name servers and routes: any one will do, the cluster lives on without them, automatic topics become real ones."""

from __future__ import annotations

import pytest

import metaq
from metaq import Producer
from metaq.client.conversation.name_servers import parse_addresses
from metaq.testing import free_port
from metaq.wire.codes import RequestCode
from tests.client.cluster import FakeCluster, swallow
from tests.support import PATIENCE, eventually

SINGLE = RequestCode.SEND_MESSAGE_V2


def test_addresses_are_parsed_and_checked():
    """`;` or `,`, blanks, repeated and portless ones; garbage is named."""
    assert parse_addresses("a:1; b:2,a:1 ;c") == ("a:1", "b:2", "c:9876")
    for wrong in ("", ";", "a:b", "a:0", "a:99999", ":9876"):
        with pytest.raises(metaq.ConfigError):
            parse_addresses(wrong)


def test_environment_names_the_name_servers(monkeypatch):
    """NAMESRV_ADDR serves where no argument is given."""
    with FakeCluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        with Producer() as producer:
            assert producer.send("orders", b"x")


def test_dead_name_server_is_passed_over():
    """With one of two dead, every request finds the other."""
    with FakeCluster() as cluster, Producer(f"127.0.0.1:{free_port()};{cluster.namesrv}") as producer:
        assert producer.send("orders", b"x")


def test_known_routes_outlive_the_name_servers():
    """A producer goes on when no name server answers, also through a retry, which asks for the route again."""
    with FakeCluster() as cluster, Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        producer.send("orders", b"1")
        cluster.drop_connections(to_name_server=True)
        cluster.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda session, command: session.peer.abort("gone")
        cluster.drop_connections()
        eventually(lambda: not cluster.sessions)
        assert producer.send("orders", b"2").offset >= 0


def test_automatic_topic_gets_its_own_route():
    """After the first send the template's route gives way to the topic's own."""
    with FakeCluster() as cluster, Producer(cluster.namesrv) as producer:
        cluster.topics["TBW102"] = 8
        producer.send("fresh", b"x")
        cluster.topics["fresh"] = 2
        producer.send("fresh", b"y")
        eventually(lambda: len(producer._core.routes.publish_queues_now("fresh")) == 2)


def test_topic_without_writable_queue_says_so():
    """All brokers read-only: the error names them."""
    with FakeCluster() as cluster, Producer(cluster.namesrv, retries=0) as producer:
        cluster.topics["orders"] = 0
        with pytest.raises(metaq.NoRoute, match="broker-a"):
            producer.send("orders", b"x")


def test_silent_name_server_ends_in_time():
    """A name server that accepts and says nothing does not hold a send beyond its timeout."""
    with FakeCluster() as cluster, Producer(cluster.namesrv, timeout=0.3) as producer:
        cluster.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = swallow
        with pytest.raises(metaq.ClientError, match="in time"):
            producer.send("orders", b"x")
