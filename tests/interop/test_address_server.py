"""The Java client 4.9.8 with an address server in place of name servers: our page, and name servers that are exchanged under it."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.net.page import fetch_text
from metaq.testing.embedded import SMALL
from tests.interop.driver import java_client
from tests.interop.servers import Process
from tests.support import PATIENCE, environment, eventually, metaq_command

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.all]


class Counted:
    """A page that hands on another one, and counts who asks."""

    def __init__(self, url: str) -> None:
        outer, self.asked = self, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = fetch_text(url + self.path, PATIENCE).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                outer.asked += 1

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def server(folder: Path, kind: str, *words: str) -> Iterator[tuple[Process, str]]:
    """A server of ours, and its address; gone when the block is left."""
    folder.mkdir()
    command = metaq_command(kind, "--host", "127.0.0.1", "--port", "0", "--data", str(folder / "data"), *words)
    process = Process(command, folder / "log", environment())
    try:
        yield process, process.wait_for(r"^ready .*?(\S+)$", 0).group(1)
    finally:
        process.kill()


def test_a_name_server_is_exchanged_under_java_clients_without_one_failed_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read the page at their start, 10 s later, and every two minutes: what it names then is asked, and the old one ends."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    file = tmp_path / "pages.properties"

    def tell(addresses: str) -> None:
        file.write_text(f"bindAddress=127.0.0.1\naddressPagePort=0\naddressPage={addresses}\n")

    with contextlib.ExitStack() as stack:
        old, first = stack.enter_context(server(tmp_path / "a", "namesrv"))
        _, second = stack.enter_context(server(tmp_path / "b", "namesrv"))
        tell(first)
        pages, _ = stack.enter_context(server(tmp_path / "pages", "namesrv", "-c", str(file)))
        small = [word for key, value in SMALL.items() for word in ("-o", f"{key}={value}")]
        stack.enter_context(server(tmp_path / "x", "broker", "-n", f"{first};{second}", *small))
        place = pages.wait_for(r"the address page server listens at (\S+)", 0).group(1)
        page = Counted(f"http://{place}")
        stack.callback(page.close)
        (tmp_path / "java").mkdir()
        java = java_client(tmp_path / "java", f"-Drocketmq.namesrv.domain={page.address}")
        stack.callback(java.close)
        java.producer("p", None, poll_ms=500)
        java.consumer("c", None, "readers", {"orders": "*", "later": "*"}, poll_ms=500)
        bodies: list[str] = []

        def send(topic: str) -> bool:
            bodies.append(str(len(bodies)))
            return [one["status"] for one in java.send("p", topic, [bodies[-1]])] == ["SEND_OK"]

        assert send("orders")
        tell(second)
        os.kill(pages.pid, signal.SIGHUP)
        eventually(lambda: fetch_text(f"http://{place}/rocketmq/nsaddr", PATIENCE) == second)
        before = page.asked

        def looked_again() -> bool:
            assert send("orders")
            return page.asked >= before + 2  # producer and consumer each

        eventually(looked_again)
        old.kill()
        assert all(send(topic) for topic in ["orders", "later"] * 10)
        events = java.wait("c", lambda events: {event["body"] for event in events} == set(bodies))
        assert {event["topic"] for event in events} == {"orders", "later"}
        java.shutdown_all()
