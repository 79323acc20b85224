"""A hundred peers that make a real broker keep all that they can: its memory grows by no more than `peerBytesMax` says.

Measured is the process's resident memory, without mapped files; a bystander is served all the time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from metaq.model import ConsumerView, DataVersion, Heartbeat, TopicConfig
from metaq.model.filters.subscription import subscribe
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode as Code
from metaq.wire.command import Command, encode, request
from tests.interop.metaq1 import OurServer
from tests.interop.servers import MetaqNamesrv
from tests.servers.support import send_header
from tests.support import PATIENCE
from tests.system.test_hostile_peers import anonymous_bytes, ask, connect

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon from Linux's /proc")]

MIB = 1024 * 1024
BUDGET = 64 * MIB
FACTOR = 1.5
"""As docs/configuration.md promises: estimates of Python's objects, and what malloc keeps."""
ASIDE = 16 * MIB
"""Caches of the first requests, buffers of a large frame, freed memory that malloc does not give back."""
PEERS = 100


def frame(code: int, header: headers.Header | None = None, body: bytes = b"", opaque: int = 1) -> bytes:
    command = request(code, header, body)
    command.opaque, command.version, command.language = opaque, 409, "JAVA"
    return encode(command)


def pull(offset: int, subscription: str, opaque: int = 1) -> bytes:
    header = headers.PullHeader(
        group="slow", topic="large", queue_id=0, queue_offset=offset, max_messages=32, sys_flag=6, suspend_ms=600_000,
        subscription=subscription, expression_type="TAG",
    )  # fmt: skip
    return frame(Code.PULL_MESSAGE, header, opaque=opaque)


@functools.cache
def _beat_of_many_tags() -> bytes:
    tags = [" || ".join(f"00000x{tag}" for tag in range(60))] * 120
    view = ConsumerView("g-00000", {f"t{topic}": subscribe(f"t{topic}", text) for topic, text in enumerate(tags)})
    return frame(Code.HEART_BEAT, None, bodies.heartbeat(Heartbeat("c@00000", (view,), ())))


def beat_of_many_tags(number: int) -> bytes:
    """360 KiB of a group of its own, which the broker keeps as 1.5 MiB: strings and sets of Python."""
    return _beat_of_many_tags().replace(b"00000", b"%05d" % number)


def beat_of_producers(number: int) -> bytes:
    groups = tuple(f"{'p' * 200}-{number}-{group}" for group in range(1000))
    return frame(Code.HEART_BEAT, None, bodies.heartbeat(Heartbeat(f"c@{number}", (), groups)))


def half_a_frame(_number: int) -> bytes:
    return (16 * MIB - 4).to_bytes(4, "big") + b"\x00\x00\x00\x02{}" + bytes(3 * MIB)


def unread_answers(_number: int) -> bytes:
    return pull(0, "*") * 100


def held_pulls(number: int) -> bytes:
    return b"".join(pull(1, f"{number}x{index} || {'y' * 900}", index) for index in range(400))


def half_a_put(_number: int) -> bytes:
    return b"put test 0 1000000 0 1\r\n" + bytes(900_000)


def gathered_puts(number: int) -> bytes:
    """Two MiB in a transaction that stays open: stored in the log as far as they do not fit into memory."""
    key = b"TX:session-%d:1" % number
    puts = (b"put test 0 1000 0 %b %d\r\n%b" % (key, index, b"x" * 1000) for index in range(2000))
    return b"transaction %b session-%d BEGIN 1\r\n" % (key, number) + b"".join(puts)


LOADS: dict[str, Callable[[int], bytes]] = {
    "heartbeats": beat_of_many_tags,
    "producer groups": beat_of_producers,
    "unfinished frames": half_a_frame,
    "unread answers": unread_answers,
    "held pulls": held_pulls,
    "unfinished puts": half_a_put,
    "gathered puts": gathered_puts,
}
TEXT = {half_a_put, gathered_puts}
ANSWERED = {beat_of_many_tags, beat_of_producers}


class Server(OurServer):
    options = (f"peerBytesMax={BUDGET}",)

    rested = 0
    """Memory before anybody came."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "it runs"
        return self._process.pid


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start()
    try:
        with connect(made.broker) as raw:
            ask(raw, request(Code.SEND_MESSAGE_V2, send_header("large"), os.urandom(250_000)))
        made.rested = settled(made)
        yield made
    finally:
        made.kill()


def settled(server: Server | MetaqNamesrv) -> int:
    """Memory of the server when it has done what it was asked to do."""
    last, now = -1, anonymous_bytes(server)
    while abs(now - last) > MIB // 4:
        time.sleep(0.2)
        last, now = now, anonymous_bytes(server)
    return now


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
def test_what_peers_make_a_broker_keep_is_bounded(server: Server, load: Callable[[int], bytes]) -> None:
    with contextlib.ExitStack() as peers:
        bystander, most = peers.enter_context(connect(server.broker)), 0
        for number in range(PEERS):
            raw = peers.enter_context(connect(server.text if load in TEXT else server.broker, 16 * 1024))
            raw.settimeout(PATIENCE if load in ANSWERED else 1)
            with contextlib.suppress(OSError):  # closed while it still sends
                raw.sendall(load(number))
                if load in ANSWERED:
                    raw.recv(1)
            if number % 10 == 0:
                assert ask(bystander, Command(99_999)).code == 3
                most = max(most, anonymous_bytes(server))
        most = max(most, settled(server))
        assert ask(bystander, Command(99_999)).code == 3
    assert most - server.rested < FACTOR * BUDGET + ASIDE


def test_what_brokers_register_at_a_name_server_is_bounded(tmp_path: pathlib.Path) -> None:
    """Forty brokers of 4 000 topics each, 64 MiB: those that fit are taken, the others hear why."""
    server = MetaqNamesrv(tmp_path, [f"peerBytesMax={16 * MIB}"])
    server.start()
    try:
        with contextlib.ExitStack() as peers:
            bystander = peers.enter_context(connect(server.address))
            rested, codes = settled(server), []
            for number in range(40):
                topics = {name: TopicConfig(name) for name in (f"{number}-{topic:060d}" for topic in range(4000))}
                broker = headers.RegisterBrokerHeader(
                    broker_name=f"b{number}", broker_address=f"10.0.0.{number}:1", cluster="C", broker_id=0
                )
                body = bodies.registration(DataVersion(0, 1), topics)
                raw = peers.enter_context(connect(server.address))
                codes.append(ask(raw, request(Code.REGISTER_BROKER, broker, body)))
            assert settled(server) - rested < FACTOR * 16 * MIB + ASIDE
            refused = [answer.remark for answer in codes if answer.code]
            assert 3 <= len(codes) - len(refused) < 20
            assert "the registration of b39" in refused[-1]
            assert "peerBytesMax" in refused[-1]
            assert ask(bystander, Command(99_999)).code == 3
    finally:
        server.stop()
