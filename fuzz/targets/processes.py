"""Servers as processes, over sockets: the process lives, a second connection is answered within a second, and memory grows by less than
50 MB. Inputs are changed blindly: their coverage is not seen from here."""

from __future__ import annotations

import contextlib
import pathlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from fuzz.judged import MEMORY_BYTES
from fuzz.target import Feed, Target
from fuzz.targets import servers
from fuzz.targets.frames import stream

from metaq.testing.embedded import EmbeddedBroker
from metaq.wire.command import Command, encode
from metaq.wire.ha import encode_report

ANSWER_SECONDS = 1.0
SILENT_SECONDS = 0.05
"""A server that has not answered for so long has nothing more to say."""
ASKED_EVERY = 25
"""Inputs between two looks at the others."""
_ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")


def anonymous_bytes(process: int) -> int:
    """Memory of a process that is not the cache of its files."""
    found = _ANONYMOUS.search(pathlib.Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def throw(address: str, data: bytes) -> None:
    """Send the bytes over a connection of their own, take what comes, and close it."""
    with contextlib.suppress(OSError), dial(address, ANSWER_SECONDS) as link:  # it may hang up at any byte
        link.sendall(data)
        link.settimeout(SILENT_SECONDS)
        while link.recv(1 << 16):
            pass


def asked(address: str, question: bytes) -> None:
    """A second connection is answered in time."""
    with dial(address, ANSWER_SECONDS) as link:
        link.sendall(question)
        assert link.recv(1), "a second connection was closed"


def dial(address: str, seconds: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=seconds)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process(
    port_of: Callable[[EmbeddedBroker, int, int], str], question: bytes
) -> Callable[[], AbstractContextManager[Feed]]:
    """Opens a feed to one port of a broker and name server in a process.

    Args: port_of: (broker, its text port, its replication port) → address.
    """

    @contextlib.contextmanager
    def opened() -> Iterator[Feed]:
        text, replication = free_port(), free_port()
        options = {
            "metaq1.enable": "true", "metaq1.brokerId": 7, "metaq1.serverPort": text, "metaq1.zkEnable": "false", "metaq1.numPartitions": 3,
            "haListenPort": replication, "brokerRole": "ASYNC_MASTER",
            "haSendHeartbeatInterval": 200,  # an empty log has nothing else to say
        }  # fmt: skip
        with EmbeddedBroker(options=options) as broker:
            address, count, before = port_of(broker, text, replication), 0, 0

            def look() -> None:
                assert broker.alive, broker.death
                begun = time.monotonic()
                asked(address, question)
                assert time.monotonic() - begun < ANSWER_SECONDS, "a second connection waited"

            def feed(data: bytes) -> None:
                nonlocal count, before
                throw(address, data)
                count += 1
                if count % ASKED_EVERY == 0 or count == 1:
                    look()
                    # What every server takes once, such as compiled code and first topics, is taken by then.
                    before = before or (anonymous_bytes(broker.pid) if count > ASKED_EVERY else 0)
                    assert not before or anonymous_bytes(broker.pid) - before < MEMORY_BYTES, "memory grew by 50 MB"

            feed(question)
            yield feed
            look()

    return opened


COMMAND = encode(Command(9999, 1))
TARGETS = [
    Target("process-broker", process(lambda broker, *_: broker.broker, COMMAND), servers.some_requests, mutate=stream, stretched=False, guided=False, shares="broker", slow=True),
    Target("process-name-server", process(lambda broker, *_: broker.namesrv, COMMAND), servers.some_registrations, mutate=stream, stretched=False, guided=False, shares="name-server", slow=True),
    Target("process-text", process(lambda _, text, __: f"127.0.0.1:{text}", b"version 1\r\n"), servers.some_lines, mutate=servers.damaged_line, stretched=False, guided=False, shares="text", slow=True),
    Target("process-ha", process(lambda _, __, ha: f"127.0.0.1:{ha}", encode_report(0)), servers.some_reports, stretched=False, guided=False, shares="ha-master", slow=True),
]  # fmt: skip
