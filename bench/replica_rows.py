"""Rows about replication: what a synchronous copy costs, how far and how fast a slave follows, and what its readers cost."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import processes
import rocketmq
from broker_rows import drop_cache
from metaq import Producer
from metaq.admin import Admin
from row import Bench, Measured, Row, in_turn, once

CATCH_UP_BODY = 1000
CONNECTIONS_MAX = 256
WAITERS = {"rate": 1000, "queues": 4}
"""Of a consumer that waits: messages a second that are sent to it, and in how many queues."""


PATIENT = {"waitTimeMillsInSendQueue": 10_000, "osPageCacheBusyTimeOutMills": 10_000, "slaveTimeout": 10_000}
"""A RocketMQ master that refuses no send because the machine is busy with others."""


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


def _settle(namesrv: str) -> None:
    """Wait until a slave of whatever make copies: RocketMQ's says nothing before it has been there for 5 s."""
    deadline = time.monotonic() + processes.PATIENCE
    with Producer(namesrv, timeout=processes.PATIENCE) as producer, Admin(namesrv) as admin:
        producer.send("settling", b"x")
        while len(ends := [one.log_end for one in admin.list_brokers()]) < 2 or ends[0] != ends[1]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"logs of {ends} bytes after {processes.PATIENCE} s")
            time.sleep(0.05)


def _sends_at_rocketmq(bench: Bench, outstanding: int) -> float:
    """The same as `_sends` at a pair of RocketMQ 4.9.7, in synchronous double write."""
    conns = min(CONNECTIONS_MAX, outstanding)
    with (
        rocketmq.running(bench.disk, brokerRole="SYNC_MASTER", **PATIENT) as master,
        rocketmq.slave(bench.disk, master.namesrv),
    ):
        _settle(master.namesrv)
        load = partial(
            processes.load, bench.cache, "send", master.address, conns=conns, outstanding=outstanding // conns, body=1000
        )  # fmt: skip
        load(count=bench.count(20_000), seconds=8)  # what its compiler has seen
        return load(count=bench.count(200_000), seconds=8)["requests_per_s"] * 0.001


def _beside_rocketmq(bench: Bench, outstanding: int) -> Measured:
    ours = partial(_sends, bench, "SYNC_MASTER", outstanding)
    if bench.alone:
        return ours()
    try:
        rocketmq.classpath()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return ours()
    return in_turn(bench, ours, partial(_sends_at_rocketmq, bench, outstanding))


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


def _push(bench: Bench, master: processes.Server, seconds: float, **more: object) -> Measured:
    load = partial(processes.load, bench.cache, "rocketmq", master.address, generator="pushload")
    return load(seconds=seconds, warm=seconds / 4, **WAITERS, **more)


def _until_served(bench: Bench, master: processes.Server, slave: processes.Server) -> None:
    """Make the topic of `_push`, and wait until the slave has heard of it."""
    deadline = time.monotonic() + processes.PATIENCE
    while True:
        try:
            _push(bench, master, 0.1, consumer=slave.address)
        except RuntimeError as error:
            if "not exist" not in str(error) or time.monotonic() > deadline:
                raise
        else:
            return


def _lag(bench: Bench, key: str) -> Measured:
    """ms from a master's acknowledgement until who waits at the slave has the message, beside 256 producers of 1 KB.

    Measured on one message in a millisecond, by one process for both ends. The slave has a core of its own, as `_cold_reader` says.
    """

    def measure() -> dict[str, Measured]:
        seconds = max(1.0, 6 * bench.scale)
        with ExitStack() as running:
            with processes.on_core(0):
                master = running.enter_context(processes.metaq_up(bench.disk))
            with processes.on_core(1):
                slave = running.enter_context(processes.metaq_slave(bench.disk, master.namesrv))
            _wait(master.namesrv, whole=False)
            with processes.on_core(0):
                _until_served(bench, master, slave)
                others = threading.Thread(target=send, args=(master.address, seconds + 1))
                others.start()
            with processes.on_core(1):
                found = _push(bench, master, seconds, consumer=slave.address)
            others.join()
        if not rate:
            raise RuntimeError("the producers beside the one that is measured failed")
        return {"lag": {"p50": found["p50_us"] / 1000, "p99": found["p99_us"] / 1000, "beside_per_s": rate[0]}}

    rate: list[float] = []

    def send(address: str, seconds: float) -> None:
        found = processes.load(
            bench.cache, "send", address, conns=256, outstanding=1, body=1000, count=10**9, seconds=seconds, verify=0
        )
        rate.append(found["requests_per_s"])

    found = once(bench, "replica-lag", measure)["lag"]
    return {**found, "value": found[key]}


ROUNDS = 5


def _cold_reader(bench: Bench, key: str) -> Measured:
    """What sends, and a consumer that has caught up, lose at the master while a group reads all of the slave's log from its disk.

    As if master and slave were two machines: the master and its clients have one core, the slave and its reader another. With all
    on both, one would see who gets how much of two cores. Rounds without and with the reader follow each other; between them the
    slave copies what it lacks. On a machine that is busy with others only the CPU time is to be believed: the
    reader drives those to the master's core.
    """
    found = once(bench, "replica-cold", lambda: _with_and_without(bench))
    with_it, alone = found["with"], found["alone"]
    lost = {
        "sends": 100 * (1 - with_it["sends_per_s"] / alone["sends_per_s"]),
        "waiting": 100 * (with_it["p50_us"] / alone["p50_us"] - 1),
        "cpu": 100 * (with_it["cpu_us"] / alone["cpu_us"] - 1),
    }
    told = {f"{name}_{one}": value for name, measured in found.items() for one, value in measured.items()}
    return {**told, "value": lost[key]}


def _with_and_without(bench: Bench) -> dict[str, Measured]:
    seconds = max(0.3, 2 * bench.scale)
    with _filled(bench) as (master, slave, folder):
        rounds: dict[str, list[Measured]] = {"alone": [], "with": []}
        read: list[Measured] = []
        for number in range(2 * ROUNDS):
            name = ("alone", "with")[(number + bench.run) % 2]
            with _reading(bench, slave, folder, read) if name == "with" else ExitStack(), processes.on_core(0):
                before = master.cpu_seconds()
                sent = processes.load(
                    bench.cache, "send", master.address, prefix="hot", conns=64, outstanding=1, body=1000,
                    count=10**9, seconds=seconds, verify=0,
                )  # fmt: skip
                cpu_us = (master.cpu_seconds() - before) * 1e6 / sent["requests"]
                end, copied = _copied(master.namesrv)
                waited = _push(bench, master, seconds)
            _wait(master.namesrv, whole=True)  # what one round leaves to the slave does not burden the next
            rounds[name].append(
                {
                    "sends_per_s": sent["requests_per_s"],
                    "cpu_us": cpu_us,
                    "p50_us": waited["p50_us"],
                    "p99_us": waited["p99_us"],
                    "behind_bytes": end - copied,
                }
            )
    found = {
        name: {key: statistics.median(one[key] for one in some) for key in some[0]} for name, some in rounds.items()
    }
    read_seconds = sum(one["seconds"] for one in read)
    found["with"] |= {
        "read_mb_per_s": sum(one["messages"] for one in read) * CATCH_UP_BODY / 1e6 / read_seconds,
        "warm_share": read[0]["warm_share"],  # later what the slave has copied since is in there
    }
    return found


@contextmanager
def _filled(bench: Bench) -> Iterator[tuple[processes.Server, processes.Server, Path]]:
    """A master on the first core, and on the second its slave, which has been started anew with what it has copied."""
    folder = Path(tempfile.mkdtemp(prefix="cold-slave-", dir=bench.disk))
    try:
        with ExitStack() as running:
            with processes.on_core(0):
                master = running.enter_context(processes.metaq_up(bench.disk))
            with processes.metaq_slave(bench.disk, master.namesrv, data=folder):
                _wait(master.namesrv, whole=False)
                processes.load(
                    bench.cache,
                    "batch",
                    master.address,
                    batch=100,
                    body=CATCH_UP_BODY,
                    count=bench.count(3_000, 20),
                    outstanding=8,
                    seconds=300,
                )
                _wait(master.namesrv, whole=True)
            with processes.on_core(1):
                slave = running.enter_context(processes.metaq_slave(bench.disk, master.namesrv, data=folder))
            _wait(master.namesrv, whole=True)
            yield master, slave, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _reading(bench: Bench, slave: processes.Server, folder: Path, found: list[Measured]) -> Iterator[None]:
    """Read all that the slave has, over and over, each time from its disk; what that was is added to `found`."""
    begun, over = threading.Event(), threading.Event()

    def read() -> None:
        with processes.on_core(1):
            while not over.is_set():
                warm = drop_cache(folder)
                begun.set()
                one = processes.load(bench.cache, "read", slave.address, pull=1024, verify=0, seconds=300)
                found.append({**one, "warm_share": warm})

    reader = threading.Thread(target=read)
    reader.start()
    try:
        begun.wait(processes.PATIENCE)
        yield
    finally:
        over.set()
        reader.join()


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
    *(
        Row(
            f"replica-sync-{outstanding}", f"{outstanding} sends of 1 KB under way, each at the slave too", "k/s", 3, 5,
            partial(_beside_rocketmq, outstanding=outstanding), runs=3, times_peer=True, beside="RocketMQ",
        )
        for outstanding in (64, 256, 1024)
    ),
    Row(
        "replica-lag", "from the master's acknowledgement to a consumer at the slave, beside 256 producers of 1 KB, p50", "ms", 20, 2,
        partial(_lag, key="p50"), lower_is_better=True, runs=3,
    ),
    Row("replica-lag-p99", "the same, p99", "ms", 100, 20, partial(_lag, key="p99"), lower_is_better=True, runs=3),
    Row(
        "replica-cold-sends", "what sends lose while a group reads the slave's log from its disk", "%", 5, 1,
        partial(_cold_reader, key="sends"), lower_is_better=True, runs=3,
    ),
    Row(
        "replica-cold-waiting", "what a consumer at the master that has caught up waits longer then, p50", "%", 5, 1,
        partial(_cold_reader, key="waiting"), lower_is_better=True, runs=3,
    ),
    Row(
        "replica-cold-cpu", "what a send costs the master more then, CPU", "%", 5, 1,
        partial(_cold_reader, key="cpu"), lower_is_better=True, runs=3,
    ),
    Row("replica-catch-up", "an empty slave takes over a log of 1 KB messages", "MB/s", 50, 500, _catch_up, runs=3),
    Row(
        "replica-promotion", "first send after the promotion of a slave with 10 M messages in 1 000 queues", "s", 1, 0.5, _promotion, lower_is_better=True, runs=3,
    ),
)  # fmt: skip
