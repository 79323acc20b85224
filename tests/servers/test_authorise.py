"""Who may what is asked in one place, whichever path a request takes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop
from msgspec import structs

from metaq.broker.broker import Broker
from metaq.client.conversation.staged.staging import Decide, ForgetStaged, SealPart
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import MessageQueue, QueueLocks
from metaq.model.access import Action, Caller
from metaq.model.transactions.staging import DecisionOutcome
from metaq.net import sweep as sweeps
from metaq.net.listener import listen
from metaq.net.peer import Peer
from metaq.servers.metaq1 import session as text_session
from metaq.servers.remoting import dispatch
from metaq.servers.remoting.server import RemotingServer
from metaq.servers.server import caller_of
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, SerializeType, decode, encode, request
from metaq.wire.headers import SendHeader
from metaq.wire.staging import DecideBody
from tests import staged
from tests.broker.support import open_broker
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.servers.remoting.test_transaction_fast_path import end, half
from tests.servers.support import Client, open_server, pull_header, send_header
from tests.staged import PlannedPart
from tests.support import PATIENCE


def forbid(action: Action, topic: str):
    def authorise(_who: Caller, what: Action, resource: str) -> None:
        if (what, resource) == (action, topic):
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours")

    return authorise


def ask(client: Client, code: int, header: object, *, fast: bool, body: bytes = b"x"):
    """One request; in the slow path because its header is spelled in a way that the compiled extension leaves to it."""
    ext = header.to_long_ext() if isinstance(header, SendHeader) and not fast else header.to_ext()
    if not fast:
        ext |= {"queueId": " " + ext["queueId"]}  # a blank is for the slow path to judge
    return client.ask(code, ext, body)


@pytest.mark.parametrize("fast", [True, False])
def test_a_send_is_refused_in_both_paths(tmp_path, fast) -> None:
    """And the others go on."""
    with open_server(tmp_path, authorise=forbid(Action.PUBLISH, "secret")) as (broker, server):
        broker.topics.ensure("secret")
        client = Client(server)
        for topic, code in (("orders", 0), ("secret", ResponseCode.NO_PERMISSION), ("orders", 0)):
            answer = ask(
                client,
                RequestCode.SEND_MESSAGE if not fast else RequestCode.SEND_MESSAGE_V2,
                send_header(topic),
                fast=fast,
            )
            assert answer.code == code
        assert broker.lookup.max_offset("secret", 0) == 0
        assert client.session.gates.table.keys() == ({b"orders"} if fast else set())


@pytest.mark.parametrize("fast", [True, False])
def test_a_pull_is_refused_in_both_paths(tmp_path, fast) -> None:
    """Though the topic may be sent to."""
    with open_server(tmp_path, authorise=forbid(Action.SUBSCRIBE, "secret")) as (_, server):
        client = Client(server)
        for topic, code in (("orders", 0), ("secret", ResponseCode.NO_PERMISSION)):
            assert client.send(topic).code == 0
            answer = ask(client, RequestCode.PULL_MESSAGE, pull_header(topic), fast=fast, body=b"")
            assert answer.code == code
        assert "secret is not yours" in answer.remark


def test_staged_transactions_may_what_their_topics_allow(tmp_path) -> None:
    """Chunks, seals and decisions are sends; a part of a topic that is closed meanwhile cannot be committed by this client."""
    closed: set[str] = {"secret"}

    def authorise(_who: Caller, what: Action, resource: str) -> None:
        if (what is Action.PUBLISH and resource in closed) or what is Action.ADMINISTER:
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours")

    with open_server(tmp_path, authorise=authorise) as (broker, server):
        client = Client(server)
        broker.topics.ensure("secret")
        client.send("orders")

        def told(call) -> int:
            asked = call.request()
            return client.ask(asked.code, asked.ext, asked.body).code

        secret, orders = (PlannedPart("broker-a", "p", topic, 0, ((b"x",),)) for topic in ("secret", "orders"))
        assert told(staged.stage("t1@broker-a", [secret])) == ResponseCode.NO_PERMISSION
        assert told(staged.stage("t1@broker-a", [orders])) == 0
        closed.add("orders")
        broker.gatekeeper.changed()
        commit = Decide("t1@broker-a", DecideBody(DecisionOutcome.COMMIT, (orders.manifest,)))
        assert told(commit) == ResponseCode.NO_PERMISSION
        assert told(SealPart("t1@broker-a", "p", orders.seal)) == ResponseCode.NO_PERMISSION
        assert told(ForgetStaged(transaction="t1@broker-a")) == ResponseCode.NO_PERMISSION
        assert broker.lookup.max_offset("orders", 0) == 1
        closed.clear()
        broker.gatekeeper.changed()
        assert told(commit) == 0
        assert broker.lookup.max_offset("orders", 0) == 2


# ---------------------------------------------------------------- two callers, and rules that change


class Rules:
    """Anna may all, Bert nothing of the topics `orders` and `test`; until `swap`."""

    def __init__(self) -> None:
        self.may = "anna"
        self.asked: list[tuple[str, Action, str]] = []

    def __call__(self, caller: Caller, action: Action, resource: str) -> None:
        self.asked.append((caller.identity, action, resource))
        if resource in {"orders", "test", "%RETRY%G"} and caller.identity != self.may:
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not for {caller.identity or 'strangers'}")

    def swap(self, broker: Broker) -> None:
        """The other way round from the next request on."""
        self.may = "bert" if self.may == "anna" else "anna"
        self.asked.clear()
        broker.gatekeeper.changed()


@pytest.fixture
def rules() -> Rules:
    return Rules()


class Who:
    """Whose the next connections are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = ""
        for module in (dispatch, text_session):
            monkeypatch.setattr(module, "caller_of", self.caller_of)

    def caller_of(self, peer: Peer) -> Caller:
        return structs.replace(caller_of(peer), identity=self.name)

    @contextmanager
    def are(self, name: str) -> Iterator[None]:
        self.name = name
        yield
        self.name = ""


@pytest.fixture
def who(monkeypatch: pytest.MonkeyPatch) -> Who:
    return Who(monkeypatch)


def both(who: Who, server: RemotingServer) -> tuple[Client, Client]:
    found = []
    for name in ("anna", "bert"):
        with who.are(name):
            found.append(Client(server))
    return found[0], found[1]


def slow_of(client: Client) -> list[int]:
    """The rows that this client's connection leaves to the slow path from now on."""
    slow: list[int] = []
    one, pull = client.session._one, client.session._pull
    client.session._one = lambda row: slow.append(row) or one(row)
    client.session._pull = lambda row, path: slow.append(row) or pull(row, path)
    return slow


def test_whoever_was_judged_once_sends_by_the_fast_path(tmp_path, rules, who) -> None:
    """The other is refused each time; when the rules change it is the other way round, from the next request on."""
    with open_server(tmp_path, authorise=rules) as (broker, server):
        anna, bert = both(who, server)
        broker.topics.ensure("orders")
        for may, may_not in ((anna, bert), (bert, anna)):
            assert may_not.send("orders").code == ResponseCode.NO_PERMISSION
            assert may.send("orders").code == 0
            slow = slow_of(may)
            rules.asked.clear()
            assert [may.send("orders").code for _ in range(50)] == [0] * 50
            assert (slow, rules.asked) == ([], [])
            for _ in range(3):
                answer = may_not.send("orders")
                assert (answer.code, "is not for" in answer.remark) == (ResponseCode.NO_PERMISSION, True)
            assert not may_not.session.gates.table
            rules.swap(broker)
        assert broker.lookup.max_offset("orders", 0) == 2 * 51


def test_whoever_was_judged_once_pulls_by_the_fast_path(tmp_path, rules, who) -> None:
    """With the group's filter and with one of its own; the compiled extension answers all but the first."""
    with open_server(tmp_path, authorise=rules) as (broker, server):
        anna, bert = both(who, server)
        anna.send("orders")
        anna.beat("G", {"orders": "*"})
        for may, may_not in ((anna, bert), (bert, anna)):
            for more in ({}, {"sys_flag": 0, "subscription": None}):
                assert [answer.code for answer in may_not.pull("orders", **more)] == [ResponseCode.NO_PERMISSION]
                assert [answer.code for answer in may.pull("orders", **more)] == [0]
                slow = slow_of(may)
                rules.asked.clear()
                for _ in range(20):
                    assert [answer.code for answer in may.pull("orders", **more)] == [0]
                assert (slow, rules.asked) == ([], [])
                assert [answer.code for answer in may_not.pull("orders", **more)] == [ResponseCode.NO_PERMISSION]
            rules.swap(broker)


@pytest.mark.parametrize("own_filter", [True, False])
def test_a_held_pull_gets_nothing_that_comes_when_its_caller_may_no_more(tmp_path, rules, who, own_filter) -> None:
    """It is told so instead; before that it gets what comes."""
    with open_server(tmp_path, authorise=rules) as (broker, server):
        anna, bert = both(who, server)
        sender, _ = both(who, server)
        anna.send("orders")
        anna.beat("G", {"orders": "*"})
        held = {"suspend_ms": 20_000, "sys_flag": 6} if own_filter else {
            "suspend_ms": 20_000, "sys_flag": 2, "subscription": None,
        }  # fmt: skip
        for offset in (1, 2, 3):
            assert anna.pull("orders", offset=offset, **held) == []
            assert sender.send("orders").code == 0
            assert [answer.code for answer in anna.received()] == [0]
        assert anna.pull("orders", offset=4, **held) == []
        rules.swap(broker)
        assert bert.send("orders").code == 0
        [told] = anna.received()
        assert (told.code, told.body) == (ResponseCode.NO_PERMISSION, b"")


def test_whoever_was_judged_once_puts_by_the_fast_path_of_metaq_1(tmp_path, rules, who) -> None:
    """And gets; 403 for the other."""
    text = settings({"test": 1}, unflush_threshold=1_000_000)
    with open_metaq1_server(tmp_path, FakeClock(), text, authorise=rules) as (broker, server):
        clients = []
        for name in ("anna", "bert"):
            with who.are(name):
                clients.append(TextClient(server))

        def codes(client: TextClient, count: int) -> list[int]:
            client.feed(b"put test 0 1 0 1\r\nx" * count)
            return [answer.code for answer in client.answers()]

        def taken() -> int:
            return sum(puts for _, puts, _ in broker.metaq1.fast_path.counts())

        for may, may_not in (clients, reversed(clients)):
            assert codes(may_not, 2) == [403, 403]
            assert may_not.ask(b"get test g 0 0 1000 1\r\n")[0] == 403
            assert may_not.ask(b"offset test g 0 0 1\r\n")[0] == 403
            assert codes(may, 1) == [200]
            assert may.ask(b"get test g 0 0 1000 1\r\n")[0] == 0
            taken()
            rules.asked.clear()
            assert codes(may, 100) == [200] * 100
            assert (taken(), rules.asked) == (100, [])
            assert codes(may_not, 2) == [403, 403]
            rules.swap(broker)


def test_whoever_was_judged_once_commits_in_one_request(tmp_path, rules, who) -> None:
    """The same way as without rules: stored, decided and applied in one go."""
    with open_server(tmp_path, authorise=rules) as (broker, server):
        anna, bert = both(who, server)
        broker.topics.ensure("orders")
        number = 0

        def commit(client: Client) -> int:
            nonlocal number
            number += 1
            name = f"t{number}@broker-a"
            part = PlannedPart("broker-a", "p", "orders", 0, ((b"x",),))
            decide = DecideBody(DecisionOutcome.COMMIT, (part.manifest,))
            asked = staged.stage(name, [part], only=(part.section(0, seal=True),), decide=decide).request()
            return client.ask(asked.code, asked.ext, asked.body).code

        runs: list[str] = []
        run = broker.staging._at_once.run
        broker.staging._at_once.run = lambda stage, *more: runs.append(stage.transaction) or run(stage, *more)
        for may, may_not in ((anna, bert), (bert, anna)):
            assert commit(may_not) == ResponseCode.NO_PERMISSION
            assert commit(may) == 0
            runs.clear()
            rules.asked.clear()
            assert [commit(may) for _ in range(5)] == [0] * 5
            assert len(runs) == 5
            assert ("orders" in {resource for _, _, resource in rules.asked}) is False
            assert commit(may_not) == ResponseCode.NO_PERMISSION
            assert len(runs) == 5
            rules.swap(broker)
        assert broker.lookup.max_offset("orders", 0) == 12


def test_whoever_was_judged_once_gives_back_by_the_fast_path(tmp_path, rules, who) -> None:
    """The group is what is asked about."""
    with open_server(tmp_path, authorise=rules) as (broker, server):
        anna, bert = both(who, server)
        place = int(anna.send("orders").ext["msgId"][-16:], 16)
        anna.beat("G", {"orders": "*"})
        header = headers.SendBackHeader(offset=place, group="G", delay_level=-1, max_reconsume_times=16)

        def back(client: Client) -> int:
            return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).code

        for may, may_not in ((anna, bert), (bert, anna)):
            assert back(may) == 0
            slow = slow_of(may)
            rules.asked.clear()
            assert [back(may) for _ in range(3)] == [0] * 3
            assert (slow, rules.asked) == ([], [])
            assert back(may_not) == ResponseCode.NO_PERMISSION
            rules.swap(broker)


def test_nobody_gives_back_a_message_that_he_may_not_read(tmp_path) -> None:
    """The group would get a copy of it: in both paths the topic of the record is asked about."""
    with open_server(tmp_path, authorise=forbid(Action.SUBSCRIBE, "secret")) as (broker, server):
        client = Client(server)
        client.beat("G", {"orders": "*"})
        places = {topic: int(client.send(topic).ext["msgId"][-16:], 16) for topic in ("orders", "secret")}

        def back(topic: str) -> int:
            header = headers.SendBackHeader(offset=places[topic], group="G", delay_level=-1, max_reconsume_times=16)
            return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).code

        assert back("orders") == 0
        copies = broker.lookup.max_offset("%DLQ%G", 0)
        assert back("secret") == ResponseCode.NO_PERMISSION
        assert broker.lookup.max_offset("%DLQ%G", 0) == copies


def test_what_has_no_fast_path_asks_the_same_gatekeeper(tmp_path, rules, who) -> None:
    """Once for many requests alike: an offset, and the locks of a group, where group and topic are asked about."""
    locks = bodies.queue_locks(QueueLocks("G", "a@1", (MessageQueue("orders", "broker-a", 0),)))
    with open_server(tmp_path, authorise=rules) as (broker, server):
        anna, bert = both(who, server)
        anna.send("orders")
        for may, may_not in ((anna, bert), (bert, anna)):
            rules.asked.clear()
            for _ in range(10):
                answer = may.ask(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic="orders", queue_id=0))
                assert answer.code == 0
            assert len(rules.asked) == 1
            answer = may_not.ask(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic="orders", queue_id=0))
            assert answer.code == ResponseCode.NO_PERMISSION
            assert may_not.ask(RequestCode.LOCK_BATCH_MQ, None, locks).code == ResponseCode.NO_PERMISSION
            for _ in range(3):
                assert may.ask(RequestCode.LOCK_BATCH_MQ, None, locks).code == 0
            mine = [asked for asked in rules.asked if asked[0] == rules.may]
            assert len(mine) == len(set(mine))
            rules.swap(broker)


@pytest.mark.skipif(not sweeps.available(), reason="the compiled module is not built, or this is no Linux")
def test_a_change_of_rules_reaches_connections_that_a_sweep_reads(tmp_path, rules, who) -> None:
    """Their sends are stored without a session: the next one after the change is refused all the same."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, open_broker(tmp_path, authorise=rules) as broker:
        server = RemotingServer(broker, runner.get_loop().call_soon_threadsafe)
        broker.topics.ensure("orders")

        async def act() -> None:
            listener = await listen("127.0.0.1", 0, server.session)
            who.name = "anna"
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)

            async def send() -> int:
                writer.write(encode(request(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")))
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                return decode(await reader.readexactly(size)).code

            assert [await send() for _ in range(30)] == [0] * 30
            assert len(server.workspace.sweep) == 1
            rules.swap(broker)
            assert [await send() for _ in range(3)] == [ResponseCode.NO_PERMISSION] * 3
            rules.swap(broker)
            assert [await send() for _ in range(30)] == [0] * 30
            assert broker.lookup.max_offset("orders", 0) == 60
            writer.close()
            await listener.close()

        runner.run(asyncio.wait_for(act(), PATIENCE))
        server.close()


def test_ends_of_transactions_take_the_fast_path_for_those_who_may_all(tmp_path, rules, who) -> None:
    """An end names a group and no topic, so others go the slow way, where both are asked about."""
    for trusted in (True, False):
        more = {"trusted": lambda caller: caller.identity == "anna"} if trusted else {}
        with open_server(tmp_path / str(trusted), authorise=rules, **more) as (_, server):
            anna, bert = both(who, server)
            anna.send("orders")
            for _ in range(3):  # the first opens the gates
                slow = slow_of(anna)
                place = half(anna)
                assert end(anna, place).code == 0
                assert end(bert, place).code == ResponseCode.NO_PERMISSION
            assert bool(slow) is not trusted


# ---------------------------------------------------------------- requests that are signed


def identify(caller: Caller, command: Command) -> Caller:
    """Believes whoever signs with the name itself."""
    name = command.ext.get("AccessKey", "")
    if not name:
        return caller
    if command.ext.get("Signature") != name:
        raise Refused(Reason.NO_PERMISSION, "the signature is wrong")
    return structs.replace(caller, identity=name)


def signed(client: Client, code: int, header, body: bytes = b"", *, by: str, signature: str | None = None) -> bytes:
    ext = header.to_ext()
    if by:
        ext |= {"AccessKey": by, "Signature": by if signature is None else signature}
    return client.frame(code, ext, body)


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_request_is_its_signers_and_not_its_connections(tmp_path, rules, serialize) -> None:
    """Also among others in one read event, whatever path those would take; in their order."""
    with open_broker(tmp_path, authorise=rules) as broker:
        server = RemotingServer(broker, lambda act: act(), identify=identify)
        client = Client(server, serialize)
        broker.topics.ensure("orders")
        broker.topics.ensure("free")
        send, no = RequestCode.SEND_MESSAGE_V2, ResponseCode.NO_PERMISSION
        for _ in range(2):  # the second time all gates are open that may be
            client.feed(b"".join([
                signed(client, send, send_header("free"), b"1", by=""),
                signed(client, send, send_header("orders"), b"2", by="anna"),
                signed(client, send, send_header("orders"), b"3", by=""),
                signed(client, send, send_header("orders"), b"4", by="bert"),
                signed(client, send, send_header("orders"), b"5", by="anna", signature="forged"),
                signed(client, send, send_header("orders"), b"6", by="anna"),
                signed(client, RequestCode.PULL_MESSAGE, pull_header("orders"), by="anna"),
                signed(client, RequestCode.PULL_MESSAGE, pull_header("orders"), by=""),
            ]))  # fmt: skip
            answers = sorted(client.received(), key=lambda answer: answer.opaque)
            assert [answer.code for answer in answers] == [0, 0, no, no, no, 0, 0, no]
        server.close()


def test_a_request_that_nobody_signed_brings_the_callers_own_value(tmp_path) -> None:
    """One for the whole connection: none is made for each request."""
    with open_server(tmp_path) as (_, server):
        client = Client(server)
        seen: list[Caller] = []
        inner = server.handling.gatekeeper.check
        server.handling.gatekeeper.check = lambda caller, *rest: seen.append(caller) or inner(caller, *rest)
        for _ in range(3):
            client.ask(RequestCode.GET_BROKER_CONFIG)
        assert len(seen) == 3
        assert all(caller is client.session.caller for caller in seen)
        assert client.session.caller == Caller("127.0.0.1", loopback=True)
