"""What a broker that has stepped down relays to the one that leads: order, limits, loops, access control, and a leader that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from metaq.app.broker import RunningBroker, start_broker
from metaq.model import QueueLocks
from metaq.model.acl.secret import Credentials, Secret
from metaq.model.message import MessageQueue
from metaq.options import BrokerOptions
from metaq.servers.remoting import relaying
from metaq.testing import free_port
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import LENGTH_BYTES, Command, decode, encode, reply, request
from metaq.wire.extensions import LEADING, NOT_LEADING, RELAYED_FIELD
from metaq.wire.signing import sign
from tests.accounts import ACCOUNTS, SECRET
from tests.app.test_pair import until
from tests.broker.support import small_store
from tests.servers.support import send_header
from tests.support import PATIENCE

REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE
WHY = "this broker has stepped down"


async def read_frame(reader: asyncio.StreamReader) -> Command:
    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return decode(await reader.readexactly(size))


class Client:
    """A client's connection, which sends as many requests at once as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._opaque = 1000
        self._kept: dict[int, Command] = {}

    def send(self, command: Command) -> int:
        self._opaque += 1
        command.opaque = self._opaque
        self.writer.write(encode(command))
        return self._opaque

    async def answer(self, opaque: int) -> Command:
        while opaque not in self._kept:
            command = await asyncio.wait_for(read_frame(self._reader), PATIENCE)
            self._kept[command.opaque] = command
        return self._kept.pop(opaque)

    async def ask(self, command: Command) -> Command:
        return await self.answer(self.send(command))


@contextlib.asynccontextmanager
async def client_of(address: str, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]), local_addr=(host, 0))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


class Leader:
    """Answers as a test says: by a response, or None for none at all.

    `leads`: says whether it leads; None: it does not tell, as an earlier release.
    """

    def __init__(
        self, answer: Callable[[Command], Command | None], leads: Callable[[], bool] | None = lambda: True
    ) -> None:
        self.answer, self.leads = answer, leads
        self.asked = 0
        self.got: list[Command] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                command = await read_frame(reader)
                if command.code == RequestCode.IDENTIFY:
                    self.asked += 1
                    said = {} if self.leads is None else {RELAYED_FIELD: LEADING if self.leads() else NOT_LEADING}
                    writer.write(encode(reply(command, 0, said, body=b"{}")))
                    continue
                self.got.append(command)
                if (answer := self.answer(command)) is not None:
                    writer.write(encode(answer))

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    def bodies(self) -> list[bytes]:
        return [bytes(one.body) for one in self.got]

    async def close(self) -> None:
        self.cut()
        self._server.close()


def stored(command: Command) -> Command:
    return reply(command, 0, {"msgId": "x", "queueId": "0", "queueOffset": "7"})


def not_leading(command: Command) -> Command:
    return reply(command, REFUSED, {RELAYED_FIELD: NOT_LEADING}, remark="not yet")


@contextlib.asynccontextmanager
async def led_by(
    answer: Callable[[Command], Command | None], leads: Callable[[], bool] | None = lambda: True
) -> AsyncIterator[Leader]:
    leader = Leader(answer, leads)
    await leader.start()
    try:
        yield leader
    finally:
        await leader.close()


@contextlib.asynccontextmanager
async def running(folder: pathlib.Path, **options: Any) -> AsyncIterator[RunningBroker]:
    broker = await start_broker(
        BrokerOptions(broker_name="pair", listen_port=0, vip_port_enable=False, **options), small_store(folder)
    )
    try:
        yield broker
    finally:
        await broker.close()


@contextlib.asynccontextmanager
async def stepped_down(folder: pathlib.Path, leader: str, **options: Any) -> AsyncIterator[RunningBroker]:
    """A broker that has led until now. The one at `leader` is next."""
    async with running(folder, **options) as broker:
        broker._broker.roles.leader_address = leader
        broker._broker.step_down(WHY)
        yield broker


def send(body: bytes, **more: Any) -> Command:
    return request(RequestCode.SEND_MESSAGE_V2, send_header("orders", **more), body)


def run(body: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE))


@pytest.mark.parametrize("tells", [True, False])
def test_requests_wait_for_a_leader_that_does_not_lead_yet_and_keep_their_order(tmp_path, tells):
    """Of one that does not tell, only the first is tried, until it is carried out. Each answer comes back under the client's number."""

    async def body() -> None:
        def answer(command: Command) -> Command:
            return reply(command, REFUSED, remark="a slave") if not tells and len(leader.got) <= 5 else stored(command)

        async with (
            led_by(answer, (lambda: leader.asked > 5) if tells else None) as leader,
            stepped_down(tmp_path, leader.address) as broker,
        ):
            async with client_of(broker.address) as client, client_of(broker.address) as other:
                sent = [client.send(send(b"%d" % number)) for number in range(200)]
                await client.writer.drain()
                answers = [await client.answer(opaque) for opaque in sent]
                assert {one.code for one in answers} == {0}
                assert answers[0].ext == {"msgId": "x", "queueId": "0", "queueOffset": "7"}
                assert leader.bodies() == [b"0"] * (0 if tells else 5) + [b"%d" % number for number in range(200)]
                first = leader.got[0]
                assert first.ext[RELAYED_FIELD].startswith("127.0.0.1:")
                assert headers.SendHeader.from_ext(first.ext).topic == "orders"
                assert (await other.ask(send(b"x"))).code == 0
            relay = broker._serving._started[0]._sessions.relay
            await until(lambda: not len(relay))

    run(body)


def test_what_a_leader_refuses_since_it_leads_no_more_goes_to_the_next_one_in_order(tmp_path):
    """Some are under way when it steps down."""

    async def body() -> None:
        def until_it_steps_down(command: Command) -> Command:
            if len(first.got) > 5:
                broker._broker.roles.leader_address = second.address
                return not_leading(command)
            return stored(command)

        async with (
            led_by(until_it_steps_down) as first,
            led_by(stored) as second,
            stepped_down(tmp_path, first.address) as broker,
            client_of(broker.address) as client,
        ):
            sent = [client.send(send(b"%d" % number)) for number in range(100)]
            assert {(await client.answer(opaque)).code for opaque in sent} == {0}
            assert second.bodies() == [b"%d" % number for number in range(5, 100)]

    run(body)


def test_all_that_only_a_leader_does_is_relayed(tmp_path):
    """Also what the fast paths would take, and oneway requests, which get no answer."""

    async def body() -> None:
        async with led_by(stored) as leader, stepped_down(tmp_path, leader.address) as broker:
            locks = bodies.queue_locks(QueueLocks("g", "c", (MessageQueue("orders", "pair", 0),)))
            asked = [
                send(b"plain"),
                request(RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendBackHeader(group="g", offset=0, delay_level=0)),
                request(
                    RequestCode.END_TRANSACTION,
                    headers.EndTransactionHeader(producer_group="p", half_queue_offset=0, log_offset=0, outcome=8),
                ),
                request(RequestCode.LOCK_BATCH_MQ, body=locks),
                request(RequestCode.UNLOCK_BATCH_MQ, body=locks),
                request(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    headers.UpdateOffsetHeader(group="g", topic="orders", queue_id=0, commit_offset=3),
                ),
                request(
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    headers.QueryOffsetHeader(group="g", topic="orders", queue_id=0),
                ),
                request(RequestCode.STAGED_STATE, headers.StagedSubjectHeader(transaction="x")),
            ]
            async with client_of(broker.address) as client:
                for command in asked:
                    assert (await client.ask(command)).code == 0, command
                oneway = send(b"oneway")
                oneway.flag |= 2
                client.send(oneway)
                assert (await client.ask(send(b"last"))).code == 0
            assert [one.code for one in leader.got] == [one.code for one in asked] + [RequestCode.SEND_MESSAGE_V2] * 2

    run(body)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "HOLD_SECONDS", 0.3)
    monkeypatch.setattr(relaying, "ANSWER_SECONDS", 0.3)


def test_a_leader_that_is_not_there_is_waited_for_a_while(tmp_path, short):
    """Then the client is refused, and those that come next at once. What a slave answers, too, is answered here."""

    async def body() -> None:
        port = free_port()
        async with stepped_down(tmp_path, f"127.0.0.1:{port}") as broker, client_of(broker.address) as client:
            refused = await client.ask(send(b"x"))
            assert refused.code == REFUSED
            assert WHY in refused.remark
            assert "cannot connect" in refused.remark
            loop = asyncio.get_running_loop()
            began = loop.time()
            codes = [(await client.ask(send(b"x"))).code for _ in range(3)]
            assert codes == [REFUSED] * 3
            assert loop.time() - began < 0.3
            query = headers.QueryOffsetHeader(group="g", topic="orders", queue_id=0)
            assert (
                await client.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, query))
            ).code == ResponseCode.TOPIC_NOT_EXIST
            locks = bodies.queue_locks(QueueLocks("g", "c", (MessageQueue("orders", "pair", 0),)))
            assert (await client.ask(request(RequestCode.LOCK_BATCH_MQ, body=locks))).code == REFUSED
            # It is there now.
            async with led_by(stored) as leader:
                broker._broker.roles.leader_address = leader.address
                assert (await client.ask(send(b"y"))).code == 0

    run(body)


@pytest.mark.parametrize("leads", [None, lambda: False], ids=["silent", "follows"])
def test_a_leader_that_never_leads_is_told_to_the_client(tmp_path, short, leads):
    async def body() -> None:
        async with led_by(not_leading, leads) as leader, stepped_down(tmp_path, leader.address) as broker:
            async with client_of(broker.address) as client:
                sent = [client.send(send(b"%d" % number)) for number in range(10)]
                answers = [await client.answer(opaque) for opaque in sent]
            assert {one.code for one in answers} == {REFUSED}
            assert max(len(leader.got), leader.asked) > 1
            assert RELAYED_FIELD not in answers[0].ext

    run(body)


def test_what_waits_for_a_leader_is_carried_out_here_when_this_broker_leads_itself(tmp_path):
    """At once and in order, before what comes then: a position that waited must not be written over a later one."""

    def commit(offset: int) -> Command:
        header = headers.UpdateOffsetHeader(group="g", topic="orders", queue_id=0, commit_offset=offset)
        return request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def body() -> None:
        async with (
            running(tmp_path, auto_create_topic_enable=True) as running_broker,
            contextlib.AsyncExitStack() as stack,
        ):
            broker = running_broker._broker
            client, other, gone = [await stack.enter_async_context(client_of(running_broker.address)) for _ in range(3)]
            assert (await client.ask(send(b"first"))).code == 0
            broker.roles.always_relays = True
            broker._take_role(WHY)
            relay = running_broker._serving._started[0]._sessions.relay
            early = [client.send(command) for command in (commit(1), send(b"second"), commit(2))]
            await until(lambda: len(relay) == 3)
            gone.send(send(b"third"))
            await until(lambda: len(relay) == 4)
            gone.writer.close()
            broker._take_role(None)
            broker.roles.begun()
            assert len(relay) == 0
            assert (await other.ask(commit(3))).code == 0
            assert [(await client.answer(one)).code for one in early] == [0, 0, 0]
            relay.tick()
            assert broker.offsets.get("g", "orders", 0) == 3
            await until(lambda: broker.store.reader.queue("orders", 0).max_offset == 3)

    run(body)


def test_a_request_whose_answer_is_lost_is_not_sent_again(tmp_path, short):
    """Whether it was carried out is not known, and that is what the client is told: by code 1, not by that of a refusal."""

    async def body() -> None:
        def answer(command: Command) -> Command | None:
            return stored(command) if command.body == b"first" else None

        async with led_by(answer) as leader, stepped_down(tmp_path, leader.address) as broker:
            async with client_of(broker.address) as client:
                assert (await client.ask(send(b"first"))).code == 0
                late = await client.ask(send(b"silence"))
                assert (late.code, "not known" in late.remark) == (ResponseCode.SYSTEM_ERROR, True)
                opaque = client.send(send(b"cut"))
                await until(lambda: leader.bodies()[-1] == b"cut")
                leader.cut()
                lost = await client.answer(opaque)
                assert (lost.code, "not known" in lost.remark) == (ResponseCode.SYSTEM_ERROR, True)
                assert (await client.ask(send(b"first"))).code == 0
            assert leader.bodies() == [b"first", b"silence", b"cut", b"first"]

    run(body)


def test_a_relayed_request_is_not_relayed_again(tmp_path, short):
    """Two that have stepped down, each for the other one."""

    async def body() -> None:
        async with stepped_down(tmp_path / "a", "") as a, stepped_down(tmp_path / "b", a.address) as b:
            a._broker.roles.leader_address = b.address
            async with client_of(a.address) as client:
                told = send(b"x")
                told.ext[RELAYED_FIELD] = "10.0.0.1:5"
                answer = await client.ask(told)
                assert (answer.code, answer.ext[RELAYED_FIELD]) == (REFUSED, NOT_LEADING)
                assert (await client.ask(send(b"x"))).code == REFUSED
            assert not len(b._serving._started[0]._sessions.relay)
            assert b._broker.store.log.end == 0

    run(body)


def test_a_slave_that_never_led_refuses_as_ever(tmp_path):
    async def body() -> None:
        async with led_by(stored) as leader, stepped_down(tmp_path, leader.address) as broker:
            broker._broker.roles.stepped_down = False
            async with client_of(broker.address) as client:
                assert (await client.ask(send(b"x"))).code == REFUSED
            assert leader.got == []

    run(body)


def test_one_client_cannot_fill_the_relay(tmp_path, monkeypatch):
    """Nor can all together. What is above a limit is refused, and the others are not touched."""
    monkeypatch.setattr(relaying, "PEER_COUNT_MAX", 5)
    monkeypatch.setattr(relaying, "COUNT_MAX", 8)
    monkeypatch.setattr(relaying, "PEER_BYTES_MAX", 20_000)

    async def body() -> None:
        def answer(command: Command) -> Command | None:
            return stored(command) if command.body == b"first" else None

        async with led_by(answer) as leader, stepped_down(tmp_path, leader.address) as broker:
            relay = broker._serving._started[0]._sessions.relay
            async with (
                client_of(broker.address) as one,
                client_of(broker.address) as other,
                client_of(broker.address) as third,
            ):
                assert (await third.ask(send(b"first"))).code == 0  # it leads, and silence holds up nobody
                for number in range(5):
                    one.send(send(b"%d" % number))
                refused = await one.ask(send(b"6"))
                assert (refused.code, "try again" in refused.remark) == (REFUSED, True)
                assert (await other.ask(send(b"x" * 20_000))).code == REFUSED
                for number in range(3):
                    other.send(send(b"%d" % number))
                await until(lambda: len(relay) == 8)
                assert (await third.ask(send(b"x"))).code == REFUSED
                leader.cut()
                await until(lambda: not len(relay))
            assert (relay._bytes, relay._of_peers) == (0, {})

    run(body)


@pytest.mark.parametrize("white", [False, True])
def test_with_access_control_the_leader_judges_what_the_client_has_signed(tmp_path, white):
    """The relaying broker judges first. Whom a white list has let in is not relayed: the leader would not see its address."""
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS + ("globalWhiteRemoteAddresses: [127.0.0.1]\n" if white else ""))
    options = {"acl_enable": True, "acl_path": str(accounts)}

    async def body() -> None:
        async with (
            running(tmp_path / "leader", **options) as leader,
            stepped_down(tmp_path / "old", leader.address, **options) as broker,
            client_of(broker.address) as client,
        ):
            plain = await client.ask(send(b"unsigned"))
            signed, forged = send(b"signed"), send(b"forged")
            sign(signed, Credentials("account-writer", Secret(SECRET)))
            sign(forged, Credentials("account-writer", Secret("another secret")))
            answer, denied = await client.ask(signed), await client.ask(forged)
            end = leader._broker.store.log.end
        if white:
            assert (plain.code, answer.code, end) == (REFUSED, REFUSED, 0)
            assert "white list" in plain.remark
        else:
            assert (plain.code, denied.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR)
            assert (answer.code, end > 0) == (0, True)

    run(body)


def test_a_lock_that_was_relayed_is_the_clients_own(tmp_path):
    """It renews it at the leader when it knows that one. A stranger who says that he relays is not believed."""

    async def body() -> None:
        locks = bodies.queue_locks(QueueLocks("g", "c", (MessageQueue("orders", "pair", 0),)))

        async def granted(client: Client, **ext: str) -> int:
            command = request(RequestCode.LOCK_BATCH_MQ, body=locks)
            command.ext |= ext
            return len(bodies.locked_queues_of((await client.ask(command)).body))

        async with running(tmp_path / "leader") as leader, stepped_down(tmp_path / "old", leader.address) as old:
            leader._broker.roles.predecessor = old.address
            async with (
                client_of(old.address, "127.0.0.2") as client,
                client_of(leader.address, "127.0.0.3") as stranger,
            ):
                assert (await client.ask(send(b"x"))).code == 0  # makes the topic
                assert await granted(client) == 1
                assert await granted(stranger, **{RELAYED_FIELD: "127.0.0.2:5"}) == 0
                async with client_of(leader.address, "127.0.0.2") as later:
                    assert await granted(later) == 1

    run(body)
