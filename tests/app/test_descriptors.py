"""A broker whose peers take all the files that it may open: they are refused, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import pytest

from metaq import Producer
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

LIMIT = 200


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_connections_leave_descriptors_for_the_store(tmp_path):
    """The first ones work on, new topics are stored and saved, late ones are closed; when some have left, others come in."""
    folder = tmp_path / "limit"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))\n"
    )
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    with EmbeddedBroker(tmp_path / "data", environment=paths) as broker, contextlib.ExitStack() as stack:
        producer = stack.enter_context(Producer(broker.namesrv))
        producer.send("first", b"hello")
        host, _, port = broker.broker.rpartition(":")

        def connect() -> bool:
            """Whether a connection is taken and kept."""
            raw = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
            kept.append(raw)
            raw.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                return raw.recv(1) != b""
            return True

        kept: list[socket.socket] = []
        for _ in range(LIMIT):
            if not connect():
                break
        else:
            raise AssertionError("all connections were taken")
        assert len(kept) < LIMIT * 3 // 4
        for _ in range(LIMIT):
            connect_more = socket.create_connection((host, int(port)), PATIENCE)
            kept.append(stack.enter_context(connect_more))
        for number in range(8):
            producer.send(f"topic-{number}", b"stored")
        assert broker.alive, broker.death
        for raw in kept:
            raw.close()
        eventually(connect)
        log = broker.log.read_text()
        assert "files and connections are open" in log
        assert "failed" not in log, log
