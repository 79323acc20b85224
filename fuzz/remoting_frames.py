"""Invariant: whatever bytes a peer sends, cut wherever, its session answers or raises RemoteProtocolError, nothing else;
and a neighbour on the same server gets the same answers as before.

    python fuzz/remoting_frames.py [--seed N] [--rounds N]

Each round damages a run of well-formed requests to a name server (bits, lengths, values, whole pieces), feeds it to a
session in random cuts, and then asks the neighbour's questions. A failure prints the seed of its round: run it again
with `--seed N --rounds 1`.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile

from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.model import DataVersion, TopicConfig
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.store.config_file import ConfigFile
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, SerializeType, encode, request
from metaq.wire.connection import Connection
from metaq.wire.files import KV_CONFIG

HOSTILE_TEXTS = [
    "", "-1", "2147483648", "-9223372036854775809", "9" * 5000, "1e9", "NaN", "../../etc/passwd", "T" * 70_000,
    "\x00", "\x01\x02", "true", "%RETRY%", "é" * 100, "null",
]  # fmt: skip
HOSTILE_BODIES = [b"", b"{", b"[" * 5000, b"{0:{", b"\xff" * 50, b'{"a":' + b"9" * 5000 + b"}", b"null", b"5"]


class Client:
    """A peer that keeps what it is sent, and its session."""

    congested = closed = False
    plain = True
    on_writable = None
    address, local = ("127.0.0.1", 40_000), ("127.0.0.1", 9876)

    def __init__(self, server: NamesrvServer) -> None:
        self.received = Connection()
        self.session = server.session(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.received.receive_data(data)

    def close(self, why: str = "") -> None:
        self.closed = True

    def keep(self, more: int) -> None:
        """Counted by the real ones."""

    def may_keep(self, more: int) -> bool:
        return True

    def answers(self) -> list[Command]:
        found = []
        while (command := self.received.next_command()) is not None:
            found.append(command)
        return found


def registration(topic: str) -> Command:
    """A broker that holds one topic."""
    header = headers.RegisterBrokerHeader(
        broker_name=topic, broker_address=f"10.0.0.1:{len(topic)}", cluster="C", broker_id=0
    )
    return request(
        RequestCode.REGISTER_BROKER, header, bodies.registration(DataVersion(1, 1), {topic: TopicConfig(topic)})
    )


def route(topic: str) -> Command:
    return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic))


def corpus() -> list[Command]:
    """Well-formed requests of every code that a name server knows, and one that it does not."""
    broker = headers.BrokerHeader(broker_name="fuzzed", broker_address="10.0.0.1:6", cluster="C", broker_id=0)
    key = headers.KvKeyHeader(namespace="N", key="K")
    commands = [
        registration("fuzzed"),
        route("fuzzed"),
        request(RequestCode.UNREGISTER_BROKER, broker),
        request(RequestCode.QUERY_DATA_VERSION, broker, bodies.data_version(DataVersion(1, 1))),
        request(RequestCode.PUT_KV_CONFIG, headers.PutKvHeader(namespace="N", key="K", value="V")),
        request(RequestCode.GET_KV_CONFIG, key),
        request(RequestCode.DELETE_KV_CONFIG, key),
        request(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.NamespaceHeader(namespace="N")),
        request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.BrokerNameHeader(broker_name="fuzzed")),
        request(RequestCode.ADD_WRITE_PERM_OF_BROKER, headers.BrokerNameHeader(broker_name="fuzzed")),
        request(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader(topic="fuzzed")),
        request(RequestCode.GET_TOPICS_BY_CLUSTER, headers.ClusterHeader(cluster="C")),
        request(RequestCode.GET_BROKER_CLUSTER_INFO),
        request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS),
        request(RequestCode.GET_NAMESRV_CONFIG),
        Command(9999),
    ]
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    return commands


def damaged(chance: random.Random, command: Command) -> bytes:
    """The frame of a command with something wrong in it, most of the time."""
    ext, body, code = dict(command.ext), bytes(command.body), command.code
    if ext and chance.random() < 0.3:
        ext[chance.choice(sorted(ext))] = chance.choice(HOSTILE_TEXTS)
    if ext and chance.random() < 0.1:
        del ext[chance.choice(sorted(ext))]
    if chance.random() < 0.2:
        body = chance.choice(HOSTILE_BODIES)
    if chance.random() < 0.1:
        code = chance.randrange(400)
    form = chance.choice(list(SerializeType))
    flag = chance.choice([0, 0, 0, 1, 2, 3])
    frame = bytearray(encode(Command(code, command.opaque, flag, ext=ext, body=body, serialize=form)))
    match chance.randrange(8):
        case 0:
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
        case 1:
            del frame[chance.randrange(len(frame)) :]
        case 2:
            frame[: chance.randrange(1, 9)] = chance.randbytes(chance.randrange(9))
        case 3:
            at = chance.randrange(len(frame))
            frame[at : at + chance.randrange(20)] = chance.randbytes(chance.randrange(20))
    return bytes(frame)


def feed(chance: random.Random, link: Client, data: bytes) -> bool:
    """Present the bytes in random cuts, as a transport does. False if the session broke the connection."""
    waiting = b""
    while data:
        size = chance.randrange(1, len(data) + 1)
        waiting, data = waiting + data[:size], data[size:]
        try:
            consumed = link.session.data_received(memoryview(waiting))
        except RemoteProtocolError:
            return False
        assert 0 <= consumed <= len(waiting)
        waiting = waiting[consumed:]
        needed = link.session.frame_needed()
        assert needed == 0 or needed > len(waiting), "a whole frame was left lying"
    return True


def neighbours_answers(link: Client) -> list[tuple[int, bytes]]:
    """What the neighbour is told of itself."""
    for command in (registration("good"), route("good")):
        link.session.data_received(memoryview(encode(command)))
    return [(answer.code, bytes(answer.body)) for answer in link.answers()]


class Failures(logging.Handler):
    """Turns a logged exception, which the peer only sees as an answer, into a failure of the fuzzer."""

    def emit(self, record: logging.LogRecord) -> None:
        assert not record.exc_info, record.getMessage() + "\n" + str(record.exc_info)


def run(seed: int, rounds: int) -> int:
    """Run `rounds` rounds from `seed` on. Returns how many connections were broken. Raises AssertionError, or worse."""
    log, failures = logging.getLogger("metaq"), Failures()
    log.addHandler(failures)
    try:
        return _run(seed, rounds)
    finally:
        log.removeHandler(failures)


def _run(seed: int, rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        clock = FakeClock()
        kv = KvTable(TableFile(ConfigFile(f"{folder}/kvConfig.json"), KV_CONFIG), clock)
        return _fuzz(NamesrvServer(NameService(NamesrvOptions(), clock, kv)), seed, rounds)


def _fuzz(server: NamesrvServer, seed: int, rounds: int) -> int:
    commands = corpus()
    neighbour = Client(server)
    expected = neighbours_answers(neighbour)
    assert [code for code, _ in expected] == [0, 0]
    broken = 0
    for current in range(seed, seed + rounds):
        chance = random.Random(current)
        try:
            link = Client(server)
            data = b"".join(damaged(chance, chance.choice(commands)) for _ in range(chance.randrange(1, 12)))
            broken += not feed(chance, link, data)
            for answer in link.answers():
                assert answer.is_response
            link.session.connection_lost("fuzzed")
            assert neighbours_answers(neighbour) == expected, "the neighbour noticed"
        except BaseException:
            print(f"seed {current} failed", file=sys.stderr)
            raise
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description="Throw damaged requests at a name server's server.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10_000)
    args = parser.parse_args()
    logging.getLogger("metaq").propagate = False
    broken = run(args.seed, args.rounds)
    print(f"{args.rounds} rounds from seed {args.seed}: {broken} connections broken, no neighbour noticed")


if __name__ == "__main__":
    main()
