"""A real HTTP server in place of a Pushgateway: it keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client.parser import text_string_to_metric_families


class Receiver(ThreadingHTTPServer):
    """`pushes`: (method, path, body) of each request, in their order. `status`: what is answered."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pushes: list[tuple[str, str, str]] = []
        self.status = 200
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.pushes.append((self.command, self.path, body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def values(text: str) -> dict[str, float]:
    """Return name → value; all here have one query."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
