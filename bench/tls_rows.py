"""Rows about TLS: the same sends with and without it, by the same generator at the same server."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import peers
import processes
import rocketmq
from replica_rows import PATIENT
from row import Bench, Measured, Row, in_turn

LOAD = Path(__file__).parent / "tls_load.py"
OPTIONS = ("-o", "tls.server.mode=permissive", "-o", "tls.test.mode.enable=true")
HANDSHAKES = 200
"""A second, with keys of P-256."""


def _command(what: str, address: str, *, tls: bool, **more: int) -> list[str]:
    flags = [text for name, value in more.items() for text in (f"--{name}", str(value))]
    return [sys.executable, str(LOAD), what, address, *(["--tls"] if tls else []), *flags]


def _load(what: str, address: str, *, tls: bool, **more: int) -> dict[str, float]:
    done = subprocess.run(
        _command(what, address, tls=tls, **more), check=True, capture_output=True, text=True, timeout=processes.PATIENCE
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _sends(bench: Bench, *, body: int, conns: int, outstanding: int, full: int, key: str) -> Measured:
    """With TLS, and beside it without; then both at RocketMQ, with netty's OpenSSL where that can be had."""
    more = {"body": body, "conns": conns, "outstanding": outstanding, "count": bench.count(full)}

    def measured(server: processes.Server, *, tls: bool) -> float:
        found = _load("send", server.address, tls=tls, **more)[key]
        return found / 1000 if key == "requests_per_s" else found

    def pair(server: processes.Server) -> Measured:
        for tls in (True, False):  # until Java has compiled what runs often
            _load("send", server.address, tls=tls, **{**more, "count": max(1000, more["count"] // 5)})
        return in_turn(bench, lambda: {"value": measured(server, tls=True)}, lambda: measured(server, tls=False))

    def ours() -> Measured:
        with processes.metaq_up(bench.disk, options=OPTIONS) as server:
            return pair(server)

    def theirs() -> Measured:
        with rocketmq.running_with_tls(bench.disk, peers.tcnative_classes(), **PATIENT) as (server, is_native):
            found = pair(server)
        return {
            "rocketmq": found["value"],
            "rocketmq_without_tls": found["beside"],
            "rocketmq_tcnative": float(is_native),
        }

    if not bench.has("rocketmq"):
        return ours()
    if bench.run % 2:
        return {**ours(), **theirs()}
    found = theirs()
    return {**ours(), **found}


def _bystander(bench: Bench) -> Measured:
    """A plain client's p99 while others make handshakes, and beside it without them."""
    seconds = max(2, int(10 * bench.scale))
    with processes.metaq_up(bench.disk, options=OPTIONS) as server:
        _load("waits", server.address, tls=False, seconds=1)

        def disturbed() -> Measured:
            more = {"rate": HANDSHAKES, "seconds": seconds + 2}
            others = subprocess.Popen(
                _command("handshakes", server.address, tls=True, **more), stdout=subprocess.PIPE, text=True
            )
            try:
                waited = _load("waits", server.address, tls=False, seconds=seconds)
            finally:
                out, _ = others.communicate(timeout=processes.PATIENCE)
            return {"value": waited["p99_us"], "handshakes_per_s": json.loads(out)["per_s"]}

        return in_turn(bench, disturbed, lambda: _load("waits", server.address, tls=False, seconds=seconds)["p99_us"])


TLS_ROWS = (
    *(
        Row(
            f"tls-{body}", f"4 producers × 64, {body} B, with TLS", "k/s", 0.5, 0.8,
            partial(_sends, body=body, conns=4, outstanding=64, full=full, key="requests_per_s"),
            times_peer=True, beside="without TLS",
        )
        for body, full in ((100, 1_000_000), (1000, 300_000))
    ),
    Row(
        "tls-1x1", "1 producer × 1, 100 B, with TLS", "µs", 2, 1.5,
        partial(_sends, body=100, conns=1, outstanding=1, full=100_000, key="us"),
        lower_is_better=True, times_peer=True, beside="without TLS",
    ),
    Row(
        "tls-handshakes", f"p99 of a plain client that sends one by one, beside {HANDSHAKES} handshakes a second", "µs", 2, 1.2,
        _bystander, lower_is_better=True, times_peer=True, beside="without handshakes",
    ),
)  # fmt: skip
