"""One `tls.properties` and one set of certificates in RocketMQ 4.9.7 and in ours: Java's client, ours and the command line at both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import MetaqError
from tests.certificates import Authority, Issued
from tests.interop.driver import DriverError, ForeignClient, java_client
from tests.interop.servers import MetaqNamesrv, MetaqServer, RocketmqServer, Server
from tests.support import PATIENCE, eventually, run_metaq

pytestmark = pytest.mark.interop

SERVERS = ("metaq", "rocketmq")


def as_client(authority: Authority, shown: Issued) -> str:
    """The lines of a `tls.properties` by which one shows a certificate and verifies the server's."""
    return (
        f"tls.test.mode.enable=false\ntls.client.certPath={shown.cert}\ntls.client.keyPath={shown.key}\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={authority.cert}\n"
    )


class World(NamedTuple):
    """Both servers with the same file, each a broker and a name server that take TLS only, and who may connect."""

    file: Path
    authority: Authority
    servers: dict[str, Server]
    tls: dict[str, Any]
    """How our clients connect."""

    def options(self) -> list[str]:
        """How a server of ours is started with the file."""
        return [f"tls.config.file={self.file}", "tls.server.mode=enforcing"]

    def jvm(self) -> list[str]:
        """And one of RocketMQ."""
        return [f"-Dtls.config.file={self.file}", "-Dtls.server.mode=enforcing"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    shown, ours = authority.issue("server"), authority.issue("ours")
    file = folder / "tls.properties"
    file.write_text(
        as_client(authority, authority.issue("broker-as-client"))
        + f"tls.server.certPath={shown.cert}\ntls.server.keyPath={shown.key}\ntls.server.authClient=true\n"
        f"tls.server.need.client.auth=require\ntls.server.trustCertPath={authority.cert}\n"
    )
    tls = {"tls": True, "ca": str(authority.cert), "cert": str(ours.cert), "key": str(ours.key)}
    found = World(file, authority, {}, tls)
    for name in SERVERS:
        (folder / name).mkdir()
    found.servers["metaq"] = MetaqServer(folder / "metaq", options=found.options())
    found.servers["rocketmq"] = RocketmqServer(folder / "rocketmq", jvm=found.jvm())
    try:
        for server in found.servers.values():
            server.start()
        yield found
    finally:
        for server in found.servers.values():
            server.kill()


@pytest.fixture(scope="module")
def java(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    """Java's client with a certificate, which verifies the servers'."""
    folder = tmp_path_factory.mktemp("java")
    file = folder / "tls.properties"
    file.write_text(as_client(world.authority, world.authority.issue("java")))
    client = java_client(folder, "-Dtls.enable=true", f"-Dtls.config.file={file}")
    yield client
    client.close()


@pytest.mark.parametrize("name", SERVERS)
def test_rocketmqs_java_client_sends_and_consumes(world: World, java: ForeignClient, name: str) -> None:
    """Both show certificates, both verify; also what is larger than a record of TLS."""
    server, topic = world.servers[name], "of-java"
    producer, consumer = f"p-{name}", f"c-{name}"
    with Admin(server.namesrv, **world.tls) as admin:
        eventually(lambda: admin.list_brokers(), what="the broker's registration")
        admin.create_topic(topic, queues=2)
    java.producer(producer, server.namesrv)
    java.consumer(consumer, server.namesrv, "tls-group", {topic: "*"})
    bodies = [f"{number}" for number in range(50)]
    assert {receipt["status"] for receipt in java.send(producer, topic, bodies)} == {"SEND_OK"}
    assert {receipt["status"] for receipt in java.send(producer, topic, ["x" * 300_000])} == {"SEND_OK"}
    got = sorted(event["body"] for event in java.wait(consumer, 51))
    assert got == sorted([*bodies, "x" * 300_000])
    java.shutdown_all()


@pytest.mark.parametrize("name", SERVERS)
def test_our_client_sends_reads_and_consumes(world: World, name: str) -> None:
    """It verifies the certificates with the address; singly, in batches, large, and as a group whose progress is kept."""
    server, topic = world.servers[name], "of-ours"
    bodies = [b"%d" % number for number in range(20)]
    with Admin(server.namesrv, **world.tls) as admin:
        eventually(lambda: admin.list_brokers(), what="the broker's registration")
        admin.create_topic(topic, queues=2)
        with metaq.Producer(server.namesrv, timeout=PATIENCE, **world.tls) as producer:
            for body in bodies:
                producer.send(topic, body)
            producer.send_batch([metaq.Message(topic, b"batched"), metaq.Message(topic, b"batched too")])
            producer.send(topic, bytes(300_000))
        wanted = sorted([*bodies, b"batched", b"batched too", bytes(300_000)])
        with metaq.Reader(server.namesrv, topic, stop_at_end=True, **world.tls) as reader:
            assert sorted(message.body for message in reader) == wanted
        got = []
        with metaq.Consumer(server.namesrv, group="g", topics=topic, start="earliest", **world.tls) as consumer:
            for message in consumer:
                with message:
                    got.append(message.body)
                if len(got) == len(wanted):
                    break
        assert sorted(got) == wanted
        eventually(lambda: admin.group_progress("g").lag == 0, what="the group's progress")


@pytest.mark.parametrize("name", SERVERS)
def test_the_command_line(world: World, name: str) -> None:
    """By its options, which stand in front of the command."""
    server = world.servers[name]
    files = ("--ca", world.tls["ca"], "--cert", world.tls["cert"], "--key", world.tls["key"])

    def asked(*words: str) -> str:
        done = run_metaq("--tls", *files, *words, "-n", server.namesrv)
        assert done.returncode == 0, done.stderr
        return done.stdout

    eventually(lambda: server.broker in asked("cluster"), what="the broker's registration")
    asked("topic", "create", "of-commands", "--queues", "1")
    asked("send", "of-commands", "by the command line")
    assert asked("consume", "of-commands", "--count", "1").strip().endswith("by the command line")
    without = run_metaq("topic", "list", "-n", server.namesrv)
    assert without.returncode != 0


@pytest.mark.parametrize("name", SERVERS)
def test_who_is_refused(world: World, tmp_path: Path, name: str) -> None:
    """The same clients by both: without TLS, without a certificate, with another authority's."""
    server = world.servers[name]
    stranger = Authority(tmp_path, "others").issue("stranger")
    trusting = {"tls": True, "ca": world.tls["ca"]}
    with Admin(server.namesrv, **world.tls) as admin:
        eventually(lambda: admin.list_brokers(), what="the broker's registration")
        admin.create_topic("guarded", queues=1)
        for way in ({}, trusting, {**trusting, "cert": str(stranger.cert), "key": str(stranger.key)}):
            with metaq.Producer(server.namesrv, timeout=1.0, **way) as producer, pytest.raises(MetaqError):
                producer.send("guarded", b"never")
        with metaq.Producer(server.namesrv, timeout=PATIENCE, **world.tls) as producer:
            producer.send("guarded", b"by who may")
        # RocketMQ puts what it has acknowledged into its queue a moment later.
        eventually(lambda: admin.describe_topic("guarded").messages, what="the message is in its queue")
        assert admin.describe_topic("guarded").messages == 1


@pytest.mark.all  # it tries for some seconds
def test_a_java_client_without_a_certificate_is_refused(world: World, tmp_path: Path) -> None:
    java = java_client(tmp_path, "-Dtls.enable=true")
    try:
        for name, server in world.servers.items():
            java.producer(name, server.namesrv)
            with pytest.raises(DriverError):
                java.send(name, "never", ["never"])
    finally:
        java.close()


def _registered(server: Server, world: World) -> None:
    """What is sent to a topic of that broker by its name server's route arrives."""
    with Admin(server.namesrv, **world.tls) as admin:
        eventually(lambda: server.broker in str(admin.list_brokers()), what="the broker's registration")
    with metaq.Producer(server.namesrv, timeout=PATIENCE, **world.tls) as producer:
        producer.send("of-mixed-servers", b"registered")


def test_our_broker_registers_at_rocketmqs_name_server(world: World, tmp_path: Path) -> None:
    """It shows the certificate of the file and verifies the name server's."""
    broker = MetaqServer(tmp_path, namesrv=world.servers["rocketmq"].namesrv, options=world.options())
    broker.start()
    try:
        _registered(broker, world)
    finally:
        broker.stop()


def test_rocketmqs_broker_registers_at_our_name_server(world: World, tmp_path: Path) -> None:
    namesrv = MetaqNamesrv(tmp_path, options=world.options())
    namesrv.start()
    (tmp_path / "rocketmq").mkdir()
    broker = RocketmqServer(tmp_path / "rocketmq", namesrv=namesrv.address, jvm=world.jvm())
    try:
        broker.start()
        _registered(broker, world)
    finally:
        broker.kill()
        namesrv.stop()
