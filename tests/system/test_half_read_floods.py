"""Many peers that announce large frames and send most of each, at servers with their default limits.

Above the limit the greediest are closed, again and again, in whatever callback of uvloop or asyncio it is found; the
process lives, and who asks something beside them is answered.
"""

from __future__ import annotations

import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from metaq.wire.command import Command, encode
from metaq.wire.connection import Connection
from tests.support import PATIENCE, environment, eventually, metaq_command, process, read_line

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
FRAME = 16 * MIB
SENT = 15 * MIB
PEERS = 50
SECONDS = PATIENCE
"""For a machine that does a dozen other things."""


class Server:
    """A process with its address and what it logged."""

    def __init__(self, child: object, address: str, log: pathlib.Path) -> None:
        self.child, self.address, self.log = child, address, log

    def connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        raw = socket.create_connection((host, int(port)), SECONDS)
        raw.settimeout(SECONDS)
        return raw


@pytest.fixture(params=["uvloop", "asyncio"])
def loop_choice(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"METAQ_UVLOOP": "1" if request.param == "uvloop" else "0"}


@pytest.fixture(params=["broker", "namesrv"])
def server(request: pytest.FixtureRequest, loop_choice: dict[str, str], tmp_path: pathlib.Path) -> Iterator[Server]:
    """`metaq broker` or `metaq namesrv`, alone in its process; only its files are small."""
    command = metaq_command(request.param, "--port", "0", "--data", str(tmp_path / "data"))
    if request.param == "broker":
        command += ["-o", f"mappedFileSizeCommitLog={16 * MIB}", "-o", "maxIndexNum=1000", "-o", "maxHashSlotNum=100"]
    log = tmp_path / "log"
    with log.open("w") as errors, process(*command, env=environment(**loop_choice), stderr=errors) as child:
        yield Server(child, read_line(child, "ready", SECONDS).split()[-1], log)
        assert child.poll() is None, f"it ended with {child.returncode}: {log.read_text()[-2000:]}"


def flood(server: Server, piece: int, together: threading.Barrier, one_closed: threading.Event) -> bool:
    """One peer: most of its frame, `piece` bytes at a time, kept until all have sent. Returns whether it was closed."""
    head = (FRAME - 4).to_bytes(4, "big") + b"\x00\x00\x00\x02{}"
    with server.connect() as raw:
        try:
            raw.sendall(head)
            for _ in range(SENT // piece):
                raw.sendall(bytes(piece))
        except OSError:
            one_closed.set()
            together.wait(SECONDS)
            return True
        together.wait(SECONDS)
        raw.settimeout(0.2)
        late = time.monotonic() + SECONDS
        while not one_closed.is_set() and time.monotonic() < late:
            try:
                raw.recv(1)
            except TimeoutError:
                continue
            except OSError:
                pass
            one_closed.set()
            return True
        return False


def ask(raw: socket.socket) -> int:
    """A request that every server answers; its code."""
    raw.sendall(encode(Command(99_999)))
    reader = Connection()
    while (answer := reader.next_command()) is None:
        data = raw.recv(65536)
        assert data, "closed instead of answered"
        reader.receive_data(data)
    return answer.code


def test_peers_with_unfinished_frames_do_not_end_the_process(server: Server) -> None:
    """Fifty at once, 15 of 16 MiB each, twice: some are closed, a bystander gets every answer."""
    with server.connect() as bystander, ThreadPoolExecutor(PEERS) as pool:
        for piece in (SENT, 64 * 1024 + 1):
            together, one_closed = threading.Barrier(PEERS), threading.Event()
            runs = [pool.submit(flood, server, piece, together, one_closed) for _ in range(PEERS)]
            while not all(run.done() for run in runs):
                assert ask(bystander) == 3
            assert any(run.result() for run in runs)
        assert ask(bystander) == 3
    eventually(lambda: "of an unfinished frame when all peers together held" in server.log.read_text(), SECONDS)
    with server.connect() as fresh:
        assert ask(fresh) == 3
