"""RocketMQ's mqadmin 4.9.8 asks a Python consumer at our broker for its state, and has it consume a message."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator

import pytest

import metaq
from tests.interop.admin_tool import admin_tool
from tests.interop.driver import ForeignClient
from tests.interop.servers import MetaqServer
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

TOPIC, GROUP = "asked", "askers"


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    running = admin_tool(tmp_path_factory.mktemp("admin-tool"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaqServer]:
    running = MetaqServer(tmp_path_factory.mktemp("members"))
    running.start()
    yield running
    running.stop()


def run(tool: ForeignClient, server: MetaqServer, command: str) -> str:
    name, *arguments = command.split()
    text: str = tool.call("admin", arguments=[name, "-n", server.namesrv, *arguments])
    return text


@contextlib.contextmanager
def consuming(server: MetaqServer, topic: str, group: str, **options: bool) -> Iterator[list[bytes]]:
    """A consumer of ours that refuses the message `bad`; what its handler got."""
    got: list[bytes] = []

    def handler(message: metaq.ReceivedMessage) -> metaq.Later | None:
        got.append(message.body)
        return metaq.Later() if message.body == b"bad" else None

    consumer = metaq.Consumer(
        server.namesrv, group=group, topics=topic, start="earliest", instance_name="python-member", **options
    )
    thread = threading.Thread(target=consumer.run, args=(handler,), name="runs-the-consumer")
    with consumer:
        thread.start()
        yield got
        consumer.stop()
        thread.join(PATIENCE)


@pytest.mark.parametrize("orderly", [False, True])
def test_mqadmin_asks_a_python_consumer(tool: ForeignClient, server: MetaqServer, orderly: bool) -> None:
    """consumerStatus shows options, queues, rates and stacks; queryMsgByUniqueKey -d has it consume, which shows what came of it."""
    topic, group = f"{TOPIC}-{orderly}", f"{GROUP}-{orderly}"
    run(tool, server, f"updateTopic -b {server.broker} -t {topic} -r 2 -w 2")
    with metaq.Producer(server.namesrv) as producer, consuming(server, topic, group, orderly=orderly) as got:
        good = producer.send(topic, b"good")
        eventually(lambda: b"good" in got, what="the delivery")

        def member() -> str | None:
            found = re.search(
                r"^(\S+@python-member)\s", run(tool, server, f"consumerConnection -g {group}"), re.MULTILINE
            )
            return found[1] if found else None

        client = eventually(member, what="the member at the broker")
        plain = run(tool, server, f"consumerStatus -g {group} -i {client}")
        assert re.search(r"^PROP_CONSUMEORDERLY +: " + str(orderly).lower(), plain, re.MULTILINE), plain
        assert re.search(r"^pullBatchSize +: 500", plain, re.MULTILINE)
        assert re.search(rf"Topic: {topic} +ClassFilter: false +SubExpression: \*", plain), plain
        assert re.search(rf"^{topic} +\S+ +{good.queue.queue_id} +1 *$", plain, re.MULTILINE), plain
        assert "#Consumer RT&TPS#" in plain
        assert "TID" not in plain
        stacks = run(tool, server, f"consumerStatus -g {group} -i {client} -s")
        assert "runs-the-consumer TID" in stacks

        got.clear()
        told = run(tool, server, f"queryMsgByUniqueKey -t {topic} -i {good.message_id} -g {group} -d {client}")
        assert "consumeResult=CR_SUCCESS" in told, told
        assert f"order={str(orderly).lower()}" in told
        assert got == [b"good"]

        bad = producer.send(topic, b"bad")
        eventually(lambda: b"bad" in got, what="its delivery")
        told = run(tool, server, f"queryMsgByUniqueKey -t {topic} -i {bad.message_id} -g {group} -d {client}")
        assert "consumeResult=CR_LATER" in told, told
