"""Rows about replication: what a synchronous copy costs, and how fast a slave catches up."""

from __future__ import annotations

import time
from functools import partial

import processes
from metaq.admin import Admin
from row import Bench, Measured, Row, in_turn

CATCH_UP_BODY = 1000
CONNECTIONS_MAX = 256


def _copied(namesrv: str) -> tuple[int, int]:
    """Where a master's log ends, and what its slave has of it; -1: there is no slave."""
    with Admin(namesrv) as admin:
        runtime = admin.list_brokers()[0].runtime
    slaves = runtime["metaqSlaves"]
    return int(runtime["commitLogMaxOffset"]), int(slaves.split()[1]) if slaves else -1


def _wait(namesrv: str, *, whole: bool) -> None:
    deadline = time.monotonic() + processes.PATIENCE
    while True:
        end, copied = _copied(namesrv)
        if copied >= (end if whole else 0):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the slave has {copied} of {end} bytes after {processes.PATIENCE} s")
        time.sleep(0.01)


def _sends(bench: Bench, role: str, outstanding: int) -> Measured:
    """1 KB, so many sends under way, over 256 connections at most, at a master with a slave."""
    conns = min(CONNECTIONS_MAX, outstanding)
    with (
        processes.metaq_up(bench.disk, options=["-o", f"brokerRole={role}"]) as master,
        processes.metaq_slave(bench.disk, master.namesrv),
    ):
        _wait(master.namesrv, whole=False)
        found = processes.load(
            bench.cache,
            "send",
            master.address,
            conns=conns,
            outstanding=outstanding // conns,
            body=1000,
            count=bench.count(200_000),
            seconds=8,
        )
        _wait(master.namesrv, whole=True)
    return {**found, "value": found["requests_per_s"] * 0.001}


def _double_write(bench: Bench, outstanding: int) -> Measured:
    return in_turn(
        bench,
        lambda: _sends(bench, "SYNC_MASTER", outstanding),
        lambda: _sends(bench, "ASYNC_MASTER", outstanding)["value"],
    )


def _catch_up(bench: Bench) -> Measured:
    """MB/s at which an empty slave takes over a log of 1 KB messages."""
    with processes.metaq_up(bench.disk) as master:
        processes.load(
            bench.cache,
            "batch",
            master.address,
            batch=100,
            body=CATCH_UP_BODY,
            count=bench.count(10_000, 20),
            outstanding=8,
            seconds=300,
        )
        size = _copied(master.namesrv)[0]
        with processes.metaq_slave(bench.disk, master.namesrv):
            _wait(master.namesrv, whole=False)
            started = time.monotonic()
            _wait(master.namesrv, whole=True)
            seconds = time.monotonic() - started
    return {"value": size / 1e6 / max(seconds, 1e-3), "bytes": size}


def _promotion(bench: Bench) -> Measured:
    """Seconds from the command to the first send that the new master answers, with all that its slave has."""
    with processes.metaq_up(bench.disk) as master:
        with Admin(master.namesrv) as admin:
            for number in range(10):
                admin.create_topic(f"bench-{number}", queues=100)
        processes.load(
            bench.cache,
            "batch",
            master.address,
            batch=100,
            body=100,
            topics=10,
            queues=100,
            count=bench.count(10_000_000, 100_000) // 100,
            outstanding=8,
            seconds=300,
        )
        with processes.metaq_slave(bench.disk, master.namesrv):
            _wait(master.namesrv, whole=False)
            _wait(master.namesrv, whole=True)
            with Admin(master.namesrv) as admin:
                slave = next(one for one in admin.list_brokers() if one.broker_id)
                started = time.monotonic()
                admin.promote(slave.address)
            processes.load(bench.cache, "send", slave.address, conns=1, outstanding=1, count=1, verify=0)
            seconds = time.monotonic() - started
    return {"value": seconds, "log_bytes": slave.log_end or 0}


REPLICA_ROWS = (
    Row(
        "replica-64", "64 producers × 1, 1 KB, each at the slave too", "k/s", 0.6, 0.7, partial(_double_write, outstanding=64),
        times_peer=True, beside="asynchronous copy",
    ),
    Row(
        "replica-256", "256 producers × 1, the same", "k/s", 0.8, 0.9, partial(_double_write, outstanding=256),
        times_peer=True, beside="asynchronous copy",
    ),
    Row(
        "replica-1024", "256 producers × 4, the same", "k/s", 0.85, 0.95, partial(_double_write, outstanding=1024),
        times_peer=True, beside="asynchronous copy",
    ),
    Row("replica-catch-up", "an empty slave takes over a log of 1 KB messages", "MB/s", 50, 500, _catch_up, runs=3),
    Row(
        "replica-promotion", "first send after the promotion of a slave with 10 M messages in 1 000 queues", "s", 1, 0.5, _promotion, lower_is_better=True, runs=3,
    ),
)  # fmt: skip
