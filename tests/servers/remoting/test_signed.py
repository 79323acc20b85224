"""Signed requests on the fast paths: they get what the slow path, which judges each for itself, would give them."""

from __future__ import annotations

import asyncio
import pathlib
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from metaq.broker.acl import AccessControl
from metaq.model.acl.accounts import Account, AclRules
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Credentials, Secret
from metaq.net import sweep as sweeps
from metaq.net.listener import listen
from metaq.servers.remoting.acl.signed import Signers, by_signature
from metaq.servers.remoting.server import RemotingServer
from metaq.servers.slices import SlowWork
from metaq.wire.codes import RequestCode as Code
from metaq.wire.command import Command, decode, encode
from metaq.wire.signing import DIALECTS, sign
from tests.broker.support import open_broker
from tests.effort import repeats
from tests.servers.remoting.test_acl import (
    ADDRESS,
    ALL,
    CONSUMER,
    SECRET,
    SENDER,
    Guarded,
    account,
    denied,
    frame,
    rules_of,
)
from tests.servers.support import Client, pull_header, send_header
from tests.support import PATIENCE

FAR = "127.0.0.2"
CREDENTIALS = Credentials("", SECRET)


@contextmanager
def guarded_server(root: pathlib.Path, *, fast: bool) -> Iterator[Guarded]:
    access = AccessControl(rules_of(*ALL))
    with open_broker(root, access=access) as broker:
        signers = Signers(access) if fast else None
        server = RemotingServer(broker, lambda act: act(), identify=by_signature(access), signers=signers)
        broker.topics.ensure("orders")
        broker.topics.ensure("bills")
        yield Guarded(broker, server, access)
        server.close()


@pytest.fixture
def guarded(tmp_path: pathlib.Path) -> Iterator[Guarded]:
    with guarded_server(tmp_path, fast=True) as one:
        yield one


def signed_send(client: Client, who: Account = SENDER, body: bytes = b"x") -> bytes:
    return frame(client, who, Code.SEND_MESSAGE_V2, send_header("orders"), body)


def handled_slowly(client: Client) -> list[int]:
    """Codes of the requests that the slow path gets from now on."""
    seen: list[int] = []
    inner = client.session.answer
    client.session.answer = lambda command: seen.append(command.code) or inner(command)
    return seen


def test_signed_sends_and_pulls_take_the_fast_paths(guarded) -> None:
    """Of several accounts on one connection, in one read event; all of them are stored and answered, in their order."""
    client, other = Client(guarded.server), account("other", {"orders": Right.PUB | Right.SUB}, {"G": Right.SUB})
    guarded.access.take(rules_of(*ALL, other))
    datas = [signed_send(client), signed_send(client, other), signed_send(client, other)]
    pulls = [frame(client, who, Code.PULL_MESSAGE, pull_header("orders")) for who in (CONSUMER, other)]
    client.feed(b"".join([*datas, *pulls]))  # opens gates
    slow = handled_slowly(client)
    for _ in range(3):
        client.received()
        client.feed(b"".join([*datas, *pulls, datas[0]]))
        answers = client.received()
        assert [answer.code for answer in answers] == [0] * 6
    assert not slow
    assert guarded.broker.lookup.max_offset("orders", 0) == 3 + 3 * 4


def test_a_request_between_two_of_one_pass_changes_the_rules(guarded) -> None:
    """Those behind it are judged by the new ones: of an account that is gone, with another secret, that lost its right."""
    changed = {
        "gone": [one for one in ALL if one is not SENDER],
        "secret": [structs.replace(one, secret_key=Secret("87654321")) if one is SENDER else one for one in ALL],
        "right": [account("sender", {"orders": Right.SUB}) if one is SENDER else one for one in ALL],
    }
    handlers = dict(guarded.server.handling.handlers)
    take = handlers[Code.GET_BROKER_CONFIG]
    for accounts in changed.values():
        handlers[Code.GET_BROKER_CONFIG] = structs.replace(
            take, run=lambda _call, to=accounts: guarded.access.take(rules_of(*to))
        )
        guarded.server.handling = structs.replace(guarded.server.handling, handlers=handlers)
        guarded.access.take(rules_of(*ALL))
        client = Client(guarded.server)
        for _ in range(2):
            client.feed(signed_send(client) * 3)
        assert [answer.code for answer in client.received()] == [0] * 6
        change = frame(client, CONSUMER, Code.GET_BROKER_CONFIG)
        client.feed(signed_send(client) + change + signed_send(client) * 3)
        answers = sorted(client.received(), key=lambda answer: answer.opaque)
        assert [denied(answer) for answer in answers] == [False, False, True, True, True]


def test_many_wrong_signatures_are_judged_in_slices(guarded) -> None:
    """Others have their turn in between; right ones are taken at once."""
    guarded.server.handling = structs.replace(guarded.server.handling, slow_work=SlowWork())  # by the system's clock
    client = Client(guarded.server)
    client.feed(signed_send(client) * 2)
    right, wrong = signed_send(client), signed_send(client, structs.replace(SENDER, secret_key=Secret("87654321")))
    with memoryview(right * 4000) as view:
        assert client.session.data_received(view) == len(view)
    assert not client.peer.jobs
    with memoryview(wrong * 4000) as view:
        assert client.session.data_received(view) < len(view) // 2
    assert client.peer.jobs


def test_an_address_of_a_white_list_needs_no_signature_on_a_fast_path(guarded) -> None:
    """Neither does a signature harm there that is wrong."""
    guarded.access.take(rules_of(*ALL, white=ADDRESS))
    client = Client(guarded.server)
    forged = frame(
        client, structs.replace(SENDER, secret_key=Secret("87654321")), Code.SEND_MESSAGE_V2, send_header("bills"), b"x"
    )
    unsigned = frame(client, None, Code.SEND_MESSAGE_V2, send_header("bills"), b"x")
    client.feed(forged + unsigned)
    slow = handled_slowly(client)
    client.feed(forged + unsigned)
    assert [answer.code for answer in client.received()] == [0] * 4
    assert not slow


@pytest.mark.skipif(not sweeps.available(), reason="the compiled module is not built, or this is no Linux")
def test_a_connection_of_one_account_is_read_by_a_sweep(tmp_path) -> None:
    """Until its account's secret is another one, from the next request on; and what is wrong is refused meanwhile."""
    access = AccessControl(rules_of(*ALL))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, open_broker(tmp_path, access=access) as broker:
        server = RemotingServer(
            broker, runner.get_loop().call_soon_threadsafe, identify=by_signature(access), signers=Signers(access)
        )
        broker.topics.ensure("orders")

        async def act() -> None:
            listener = await listen("127.0.0.1", 0, server.session)
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            speller = Client(server)

            async def send(who: Account | None = SENDER) -> Command:
                writer.write(frame(speller, who, Code.SEND_MESSAGE_V2, send_header("orders"), b"x"))
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                return decode(await reader.readexactly(size))

            assert [(await send()).code for _ in range(30)] == [0] * 30
            assert len(server.workspace.sweep) == 1
            forger = structs.replace(SENDER, secret_key=Secret("87654321"))
            assert [denied(await send(who)) for who in (None, SENDER, forger, CONSUMER, SENDER)] == [
                True,
                False,
                True,
                True,
                False,
            ]
            access.take(rules_of(*(forger if one is SENDER else one for one in ALL)))
            assert [denied(await send(who)) for who in (SENDER, forger) * 3] == [True, False] * 3
            access.take(rules_of(*ALL))
            assert [(await send()).code for _ in range(50)] == [0] * 50
            assert len(server.workspace.sweep) == 1
            assert broker.lookup.max_offset("orders", 0) == 30 + 2 + 3 + 50
            writer.close()
            await listener.close()

        runner.run(asyncio.wait_for(act(), PATIENCE))
        server.close()


# ---------------------------------------------------------------- the fast paths beside the slow one

WHITE = structs.replace(account("white", {"orders": Right.PUB}), white=parse_pattern(FAR))
BOTH = account("both", {"orders": Right.PUB | Right.SUB}, {"G": Right.SUB})
ACCOUNTS = (SENDER, CONSUMER, BOTH, WHITE)
RULES = (
    rules_of(*ACCOUNTS),
    rules_of(CONSUMER, BOTH, WHITE),
    rules_of(structs.replace(SENDER, secret_key=Secret("87654321")), CONSUMER, BOTH),
    rules_of(SENDER, CONSUMER, account("both", {"orders": Right.SUB}, {"G": Right.SUB}), WHITE),
    rules_of(*ACCOUNTS, white=FAR),
)
OFTEN = (0, 0, 2, 2, 1, 3, 4)
"""Rules, those more often by which the sender's secret changes: a connection remembers it."""
REQUESTS = (
    (Code.SEND_MESSAGE_V2, send_header("orders"), b"a message"),
    (Code.SEND_MESSAGE_V2, send_header("bills"), b"another"),
    (Code.SEND_MESSAGE_V2, send_header("%RETRY%G"), b"again"),
    (Code.PULL_MESSAGE, pull_header("orders"), b""),
    (Code.PULL_MESSAGE, pull_header("bills"), b""),
    (Code.GET_BROKER_CONFIG, None, b""),
)


@st.composite
def requests(draw) -> tuple[int, dict[str, str], bytes]:
    """(code, ext fields, body): signed, or not, or changed afterwards."""
    if draw(st.integers(0, 3)) < 3:  # as it should be, and for the fast paths
        place, who = draw(st.sampled_from([(0, SENDER), (0, SENDER), (0, BOTH), (3, CONSUMER)]))
        code, header, body = REQUESTS[place]
        command = Command(code, ext=dict(header.to_ext()), body=body)
        sign(command, structs.replace(CREDENTIALS, access_key=who.access_key))
        return command.code, command.ext, body
    code, header, body = draw(st.sampled_from(REQUESTS))
    command = Command(code, ext=dict(header.to_ext()) if header else {}, body=body)
    for name in draw(
        st.lists(st.sampled_from(["SecurityToken", "ReqT", "_UNIQUE_KEY_QUERY", "größe", "n"]), max_size=2)
    ):
        command.ext[name] = draw(st.sampled_from(["", "0", "é\x01"]))
    who = draw(st.sampled_from([*ACCOUNTS, None, account("nobody")]))
    if who is not None:
        secret = draw(st.sampled_from([SECRET, SECRET, Secret("87654321")]))
        sign(
            command,
            structs.replace(CREDENTIALS, access_key=who.access_key, secret_key=secret),
            draw(st.sampled_from(DIALECTS)),
        )
        change = draw(st.sampled_from(["", "", "", "key", "empty", "field", "body", "secret"]))
        if change == "key":
            command.ext["AccessKey"] = draw(st.sampled_from(ACCOUNTS)).access_key
        elif change == "empty":
            command.ext["Signature"] = ""
        elif change == "field":
            command.ext["n"] = "changed"
        elif change == "body" and body:
            command.body = body + b"!"
        elif change == "secret":
            del command.ext["Signature"]
    return command.code, command.ext, bytes(command.body)


@st.composite
def steps(draw) -> tuple[int, int, list[tuple[int, dict[str, str], bytes]], int, int]:
    """(rules before, rules after a GET_BROKER_CONFIG, requests of one read event, how often they come, connection)."""
    return (
        draw(st.sampled_from(OFTEN)), draw(st.sampled_from(OFTEN)),
        draw(st.lists(requests(), min_size=1, max_size=5)), draw(st.integers(1, 4)), draw(st.sampled_from([0, 0, 1])),
    )  # fmt: skip


class Side:
    """One of the two servers, with a connection of each address."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        self.after: AclRules = RULES[0]
        handlers = dict(guarded.server.handling.handlers)
        handlers[Code.GET_BROKER_CONFIG] = structs.replace(
            handlers[Code.GET_BROKER_CONFIG], run=lambda _call: guarded.access.take(self.after)
        )
        guarded.server.handling = structs.replace(guarded.server.handling, handlers=handlers)
        self.judged = 0
        """Requests that the slow path had."""
        self.connect()

    def connect(self) -> None:
        self.clients = [Client(self.guarded.server, address=address) for address in (ADDRESS, FAR)]
        for client in self.clients:
            inner = client.session.answer
            client.session.answer = lambda command, inner=inner: self._count() or inner(command)

    def _count(self) -> None:
        self.judged += 1

    def play(self, step) -> list[tuple[object, ...]]:
        before, after, asked, times, connection = step
        self.guarded.access.take(RULES[before])
        self.after = RULES[after]
        client = self.clients[connection]
        for _ in range(times):
            for code, ext, body in asked:
                client._rest += encode(Command(code, next(client._opaque), ext=ext, body=body, language="JAVA"))
        client.feed(b"")
        answers = sorted((one for one in client.received() if one.is_response), key=lambda one: one.opaque)
        topics = [self.guarded.broker.lookup.max_offset(topic, 0) for topic in ("orders", "bills")]
        return [(one.opaque, one.code, one.remark, one.ext, len(one.body)) for one in answers] + [tuple(topics)]


def test_the_fast_paths_do_what_the_slow_one_does(tmp_path) -> None:
    """Whatever comes in whatever order, while the rules change: the same answers, and the same messages stored."""
    with ExitStack() as stack:
        fast, slow = (
            Side(stack.enter_context(guarded_server(tmp_path / name, fast=name == "fast"))) for name in ("fast", "slow")
        )

        @settings(max_examples=repeats(150), deadline=None)
        @given(st.lists(steps(), min_size=2, max_size=6))
        def compare(played) -> None:
            for side in (fast, slow):
                side.connect()
            for step in played:
                assert fast.play(step) == slow.play(step)

        compare()
        assert fast.guarded.broker.lookup.max_offset("orders", 0) > 20
        assert fast.judged < slow.judged * 0.7  # else this has compared little
