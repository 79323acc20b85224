"""Requests between Python and the foreign clients, each asking the other, by way of our broker and of RocketMQ's."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq.admin import Admin
from tests.differential.foreign import MAKERS
from tests.differential.program import ForeignError, ForeignProgram
from tests.interop.servers import CLUSTER, Server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

_numbers = itertools.count()


@pytest.fixture(scope="module", params=["java", "go"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignProgram]:
    made = MAKERS[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.close()


@pytest.fixture
def topic(server: Server) -> str:
    name = f"python-requests-{next(_numbers)}"
    with Admin(server.namesrv) as admin:
        admin.create_topic(name, queues=2)
        eventually(lambda: name in admin.list_topics())
    return name


def test_python_asks_and_a_foreign_client_replies(program: ForeignProgram, server: Server, topic: str) -> None:
    """Short and long bodies, which the foreign client compresses if it does."""
    program.call("producer", name="by", namesrv=server.namesrv, group=f"{topic}-by", options={})
    bodies = iter(["pong", "long " * 4000])

    def listen(event: dict[str, object]) -> dict[str, object]:
        return {"status": "ok", "reply": next(bodies), "by": "by"}

    program.when("c", "consume", listen)
    options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    program.call("push", name="c", namesrv=server.namesrv, group=f"{topic}-g", topics={topic: "*"}, options=options)
    try:
        with metaq.Producer(server.namesrv, instance_name="asker") as producer:
            first = producer.request(topic, b"ping", timeout=PATIENCE)
            second = producer.request(topic, b"ping" * 5000, timeout=PATIENCE)
    finally:
        program.call("shutdown", name="c")
        program.call("shutdown", name="by")
        program.forget("c")
    assert (first.body, second.body) == (b"pong", b"long " * 4000)
    assert first.topic == f"{CLUSTER}_REPLY_TOPIC"


def test_a_foreign_client_asks_and_python_replies(program: ForeignProgram, server: Server, topic: str) -> None:
    """By `run` and a handler; a Go client's first requests come before brokers know where it is."""
    program.call("producer", name="asker", namesrv=server.namesrv, group=f"{topic}-askers", options={})
    consumer = metaq.Consumer(
        server.namesrv, group=f"{topic}-g", topics=topic, start="earliest", instance_name="responder"
    )
    thread = threading.Thread(target=consumer.run, args=(lambda message: message.reply(message.body * 2000) and None,))
    thread.start()
    try:

        def answered() -> dict[str, object] | None:
            try:
                return program.call("request", name="asker", topic=topic, body="pong", timeout_ms=5000)
            except ForeignError:
                return None

        reply = eventually(answered)
    finally:
        consumer.close()
        thread.join()
        program.call("shutdown", name="asker")
    assert reply["body"] == "pong" * 2000
    assert reply["properties"]["MSG_TYPE"] == "reply"


def test_python_asks_python_by_way_of_any_broker(server: Server, topic: str) -> None:
    """RocketMQ's broker among them."""
    with (
        metaq.Producer(server.namesrv, instance_name="asker") as producer,
        metaq.Consumer(
            server.namesrv, group=f"{topic}-g", topics=topic, start="earliest", instance_name="responder"
        ) as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        asked = thread.submit(producer.request, topic, b"ping", timeout=PATIENCE)
        with consumer.receive(PATIENCE) as message:
            message.reply(b"pong" * 5000).result(PATIENCE)
        assert asked.result(PATIENCE).body == b"pong" * 5000
