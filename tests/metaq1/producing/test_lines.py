"""What a producer says to a server, line by line, as it was recorded of the Java client."""

from __future__ import annotations

import asyncio

from metaq.metaq1 import Message, MetaClientConfig, Partition, aio
from metaq.wire.metaq1.commands import PutLine, StatsLine, encode
from tests.metaq1.stub import Stub, StubConnection
from tests.support import PATIENCE

TOPICS = b"STATS\r\ntest part 0 min_offset 0 max_offset 25\r\ntest part 1 min_offset 0 max_offset 0\r\nEND\r\n"
KEY, GIVEN = "TX:SESSION", 20
RECORDED = [
    "put test -1 11 1 1871851234 -2147483648\r\n\0\0\0\5attr1hi",
    "stats offsets -2147483647\r\n",
    f"transaction {KEY}:1 SESSION BEGIN {GIVEN} -2147483646\r\n",
    f"put test 0 2 0 1532276279 {KEY}:1 -2147483645\r\nt1",
    f"put test 1 2 0 1113456525 {KEY}:1 -2147483644\r\nt2",
    f"transaction {KEY}:1 SESSION COMMIT_ONE_PHASE -2147483643\r\n",
    "stats offsets -2147483642\r\n",
    f"transaction {KEY}:2 SESSION BEGIN -2147483641\r\n",
    f"put test 0 2 0 1532276279 {KEY}:2 -2147483640\r\nt1",
    f"transaction {KEY}:2 SESSION ROLLBACK -2147483639\r\n",
]
"""The Java client asks no server for its figures: it has no transactions with a fixed server."""


def answering(connection: StubConnection, line: object) -> None:
    if isinstance(line, PutLine):
        connection.answer(200, b"7 %d 0" % max(line.partition, 0), line.opaque)
    else:
        connection.answer(200, TOPICS if isinstance(line, StatsLine) else b"", line.opaque)  # type: ignore[attr-defined]


def test_lines_and_their_order_are_those_of_the_java_client() -> None:
    """Numbers from the least on; BEGIN comes with the first message and alone, its time-out only if there is one."""

    def selector(topic, partitions, message):
        return Partition(-1, message.data[-1] - ord("1")) if message.attribute is None else partitions[0]

    async def main(stub: Stub) -> str:
        async with aio.MetaMessageSessionFactory(MetaClientConfig(server_url=stub.address)) as factory:
            producer = factory.create_producer(selector)
            await producer.publish("test")
            await producer.send_message(Message("test", b"hi", "attr1"))
            async with producer.transaction(timeout=GIVEN):
                await producer.send_message(Message("test", b"t1"))
                await producer.send_message(Message("test", b"t2"))
            await producer.begin_transaction()
            await producer.send_message(Message("test", b"t1"))
            await producer.rollback()
            return producer._session_id

    async def run() -> tuple[str, list[bytes]]:
        async with asyncio.timeout(PATIENCE), Stub(answering) as stub:
            return await main(stub), [encode(line) for line in stub.lines]

    session, lines = asyncio.run(run())
    assert [line.decode().replace(session, "SESSION") for line in lines] == RECORDED
