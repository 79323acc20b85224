"""The broker beside its peers, request by request: single sends, a waiting consumer, the disk, topics by the thousand, a backlog.

Ours and the peer's run right behind each other, under the same generator (`native/pushload.c`; Kafka's is `kafkaload.c`).
"""

import ctypes
import itertools
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import connect_flood
import costs
import metaq
import peers
import processes
import rocketmq
import topics_bench
from row import Bench, Measured, Row, in_turn, once

Start = Callable[[], AbstractContextManager[processes.Server]]
MANY_TOPICS = topics_bench.OPTIONS
FRESH_BYTES = 150
"""Size of a batch that no second message of 100 bytes fits into."""
PUSH_QUEUES = 4
SYNCED = ("-o", "flushDiskType=SYNC_FLUSH")
BULK = tuple(
    flag
    for key, value in {
        "maxTransferBytesOnMessageInMemory": 1 << 20, "maxTransferCountOnMessageInMemory": 1024,
        "maxTransferBytesOnMessageInDisk": 1 << 20, "maxTransferCountOnMessageInDisk": 1024,
    }.items()
    for flag in ("-o", f"{key}={value}")
)  # fmt: skip
"""Pulls as long as Kafka's fetches are by default."""


def _pushed(bench: Bench, protocol: str, start: Start, **load: object) -> Measured:
    """One run of `pushload` on a server, and what it cost the server."""
    with start() as server, costs.spent(server) as spent:
        result = processes.load(bench.cache, protocol, server.address, generator="pushload", **load)
    return {**result, **spent.each(max(1, result["requests"]))}


def _beside(
    bench: Bench, metaq: Start, redis: Start, nats: Start | None, *, is_synced: bool = False, **load: object
) -> dict[str, Measured]:
    """Each of them in turn: "ours", "redis", "nats", "rocketmq", those that can be had. Who goes first alternates."""
    wanted: list[tuple[str, str, Start]] = [("ours", "rocketmq", metaq)]
    if bench.has("redis"):
        wanted.append(("redis", "redis", redis))
    if nats and bench.has("nats"):
        wanted.append(("nats", "nats", nats))
    if bench.has("rocketmq"):
        synced = {"flushDiskType": "SYNC_FLUSH"} if is_synced else {}
        wanted.append(("rocketmq", "rocketmq", partial(rocketmq.running, bench.disk, **synced)))
    if bench.run % 2:
        wanted.reverse()
    return {name: _pushed(bench, protocol, start, **load) for name, protocol, start in wanted}


def _row(found: dict[str, Measured], key: str, scale: float = 1) -> Measured:
    """One figure of ours, with that of each peer."""
    measured = {**found["ours"], "value": found["ours"][key] * scale}
    if "redis" in found:
        measured |= {"beside": found["redis"][key] * scale, "beside_cpu_us": found["redis"]["cpu_us"]}
    if "nats" in found:
        measured |= {"nats": found["nats"][key] * scale, "nats_cpu_us": found["nats"]["cpu_us"]}
    if "rocketmq" in found:
        measured |= {"rocketmq": found["rocketmq"][key] * scale, "rocketmq_cpu_us": found["rocketmq"]["cpu_us"]}
    return measured


# -- single sends
def _single(bench: Bench, full: int, conns: int, key: str, scale: float, *, awake: bool = False) -> Measured:
    with processes.cores_awake() if awake else nullcontext():
        found = _beside(
            bench,
            partial(processes.metaq_up, bench.disk),
            partial(peers.redis, bench.disk),
            partial(peers.nats, bench.disk),
            conns=conns, outstanding=1, count=bench.count(full), seconds=60, warm=0.05 * bench.scale,
        )  # fmt: skip
    return _row(found, key, scale)


def _synced(bench: Bench, producers: int) -> Measured:
    """1 KB, each acknowledged when it is on the disk."""
    found = _beside(
        bench,
        partial(processes.metaq_up, bench.disk, options=SYNCED),
        partial(peers.redis, bench.disk, fsync="always"),
        partial(peers.nats, bench.disk, sync="always"),
        is_synced=True, conns=producers, outstanding=1, body=1000, count=bench.count(60_000), seconds=8, warm=0,
    )  # fmt: skip
    return _row(found, "requests_per_s", 0.001)


# -- a waiting consumer
def _push(bench: Bench, rate: int, key: str) -> Measured:
    def measure() -> dict[str, Measured]:
        seconds = max(1.0, 8 * bench.scale)
        return _beside(
            bench,
            partial(processes.metaq_up, bench.disk),
            partial(peers.redis, bench.disk),
            partial(peers.nats, bench.disk),
            rate=rate, seconds=seconds, warm=seconds / 8, queues=PUSH_QUEUES,
        )  # fmt: skip

    return _row(once(bench, f"push-{rate}", measure), key, 0.001 if key == "requests_per_s" else 1)


# -- CPU of pulls and batches
def _pull_cpu(bench: Bench) -> Measured:
    with processes.metaq_up(bench.disk) as server:
        processes.load(bench.cache, "batch", server.address, batch=100, count=bench.count(8_000, 100), outstanding=16)
        with costs.spent(server) as spent:
            result = processes.load(
                bench.cache, "pull", server.address, count=bench.count(150_000, 500), outstanding=16
            )
    each = spent.each(result["requests"])
    return {**result, **each, "value": each["cpu_us"]}


def _batch_cpu(bench: Bench) -> Measured:
    load = {"batch": 100, "body": 100, "count": bench.count(20_000, 100), "outstanding": 16}

    def memory_at_hand() -> None:
        """A broker of its own writes twice as much and removes it: a machine that has been at work for a while has its pages.

        The host of an idle virtual machine takes them back within seconds, and has to find each again when it is touched: that is
        0.5 µs a message, whoever writes it.
        """
        with processes.metaq_up(bench.disk) as server:
            processes.load(bench.cache, "batch", server.address, **(load | {"count": 2 * load["count"]}))

    def ours() -> Measured:
        with processes.metaq_up(bench.disk) as server:
            memory_at_hand()
            with costs.spent(server) as spent:
                result = processes.load(bench.cache, "batch", server.address, **load)
        each = spent.each(result["messages"])
        return {**result, **each, "value": each["cpu_us"]}

    def kafka() -> float:
        with _kafka(bench) as server:
            processes.load(bench.cache, "produce", server.address, generator="kafkaload", **load)  # Java's compiler
            memory_at_hand()
            with costs.spent(server) as spent:
                result = processes.load(bench.cache, "produce", server.address, generator="kafkaload", **load)
        return spent.each(result["messages"])["cpu_us"]

    return in_turn(bench, ours, kafka) if bench.has("kafka") else ours()


@contextmanager
def _kafka(bench: Bench) -> Iterator[processes.Server]:
    folder = Path(tempfile.mkdtemp(prefix="kafka-", dir=bench.disk))
    try:
        with peers.kafka(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- cold reads
def drop_cache(folder: Path) -> float:
    """Let the kernel forget the pages of all files there; the share that it keeps, because a process has them mapped."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    kept = pages = 0
    for file in folder.rglob("*"):
        try:
            found = file.stat()
            if not (file.is_file() and found.st_blocks and (size := found.st_size)):
                continue
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            continue  # a running peer renames its checkpoints meanwhile
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
            count = -(-size // mmap.PAGESIZE)
            resident = (ctypes.c_ubyte * count)()
            if library.mincore(address, size, resident):
                raise OSError(ctypes.get_errno(), f"mincore of {file}")
            library.munmap(address, size)
            kept += sum(page & 1 for page in resident)
            pages += -(-file.stat().st_blocks * 512 // mmap.PAGESIZE)
        finally:
            os.close(descriptor)
    return kept / max(1, pages)


COLD_BODY, COLD_BATCH, COLD_RATE = 1000, 20, 500
"""Producers beside it send batches of so many messages of 1 KB so often in a second."""


def _cold_of(
    bench: Bench, folder: Path, start: Start, generator: str, words: tuple[str, str], **read: object
) -> Measured:
    """Fill, stop, start anew, forget the pages, then read all beside producers. MB/s of bodies."""
    send, take = words
    messages = bench.count(1_000_000, 20_000)
    load = partial(processes.load, bench.cache, generator=generator)
    with start() as server:
        filled = load(
            send, server.address, batch=100, body=COLD_BODY, count=messages // 100, outstanding=8, seconds=300
        )
    seconds = max(0.5, 5 * bench.scale)
    beside = {"batch": COLD_BATCH, "body": COLD_BODY, "rate": COLD_RATE, "outstanding": 16, "seconds": seconds + 30}
    with start() as server:
        warm = drop_cache(folder)
        alone = load(send, server.address, count=int(COLD_RATE * seconds), **beside)
        warm = min(warm, drop_cache(folder))
        found: dict[str, dict[str, float]] = {}

        def produce() -> None:
            found["sent"] = load(send, server.address, count=int(COLD_RATE * seconds), **beside)

        producers = threading.Thread(target=produce)
        producers.start()
        with costs.spent(server) as spent:
            result = load(take, server.address, seconds=300, **read)
        producers.join()
    if "sent" not in found:
        raise RuntimeError("the producers beside the cold read failed")
    return {
        "value": result["messages_per_s"] * COLD_BODY / 1e6, "p50_us": result["p50_us"], "p99_us": result["p99_us"],
        "cpu_us": spent.each(result["messages"])["cpu_us"], "messages": result["messages"], "warm_share": warm,
        "fill_per_s": filled["messages_per_s"],
        "producers_lost_percent": 100 * (1 - found["sent"]["messages_per_s"] / alone["messages_per_s"]),
        "producers_p99_us": found["sent"]["p99_us"], "producers_alone_p99_us": alone["p99_us"],
    }  # fmt: skip


def _cold(bench: Bench, key: str) -> Measured:
    def measure() -> dict[str, Measured]:
        found: dict[str, Measured] = {}
        names = ["ours", *(["kafka"] if bench.has("kafka") else [])]
        for name in reversed(names) if bench.run % 2 else names:
            folder = Path(tempfile.mkdtemp(prefix=f"cold-{name}-", dir=bench.disk))
            try:
                if name == "ours":
                    start: Start = partial(processes.metaq_up, bench.disk, data=folder, options=BULK)
                    found[name] = _cold_of(bench, folder, start, "loadgen", ("batch", "read"), pull=1024, verify=0)
                else:
                    found[name] = _cold_of(
                        bench, folder, partial(peers.kafka, folder), "kafkaload", ("produce", "read")
                    )
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return found

    found = once(bench, "cold", measure)
    measured = {**found["ours"], "value": found["ours"][key]}
    if "kafka" in found:
        measured |= {"beside": found["kafka"][key], "beside_cpu_us": found["kafka"]["cpu_us"]}
    return measured


# -- many queues, many topics
def _spread(bench: Bench, topics: int) -> Measured:
    """Single sends 4 × 64 over so many topics of 4 queues, beside the same over 3 of them; Redis over as many streams."""

    def ours(count: int) -> Measured:
        with processes.metaq_up(bench.disk, options=MANY_TOPICS) as server:
            made = topics_bench.run(server, count, 8, 64, "bench")
            load = partial(processes.load, bench.cache, "send", server.address, topics=count)
            load(count=4 * count, seconds=300)  # warms them
            # What making the topics left to the disk has a row of its own.
            load(count=10**9, seconds=bench.count(10, 1))
            with costs.spent(server) as spent:
                result = load(count=bench.count(2_000_000), seconds=120)
        value = result["requests_per_s"] / 1000
        return {**result, **spent.each(result["requests"]), "made_per_s": made["topics_per_s"], "value": value}

    few: Measured = {}

    def over_12() -> float:
        few.update(ours(3))
        return few["value"]

    measured = in_turn(bench, lambda: ours(topics), over_12)
    measured["beside_cpu_us"] = few["cpu_us"]  # steadier than the rates
    if bench.has("redis"):
        with peers.redis(bench.disk) as server:
            rate = peers.redis_benchmark(server, 4, 64, bench.count(600_000), 100, 4 * topics)["requests_per_s"]
        measured["redis"] = rate / 1000
    return measured


def _wide(bench: Bench, topics: int, rate: int) -> Measured:
    """A waiting consumer on 4 queues, while so many topics of 4 queues get a message every few seconds, beside 3 topics."""

    def ours(count: int) -> Measured:
        with processes.metaq_up(bench.disk, options=MANY_TOPICS) as server:
            topics_bench.run(server, count, 8, 64, "bench")
            processes.load(bench.cache, "send", server.address, topics=count, count=4 * count, seconds=300)
            stop = threading.Event()

            def freshen() -> None:
                # A request per message: over 3 topics they would go in batches, and cost less than over thousands.
                with metaq.Producer(server.namesrv, batch_bytes=FRESH_BYTES) as producer:
                    for number in itertools.count():
                        producer.submit(f"bench-{number % count}", b"x" * 100)
                        if number % 20 == 0 and stop.wait(0.02):  # 1 000 a second
                            return

            seconds = max(1.0, 8 * bench.scale)
            beside = threading.Thread(target=freshen)
            beside.start()
            try:
                return processes.load(
                    bench.cache, "rocketmq", server.address, generator="pushload", rate=rate, seconds=seconds,
                    warm=seconds / 8, queues=PUSH_QUEUES,
                )  # fmt: skip
            finally:
                stop.set()
                beside.join()

    few: Measured = {}

    def over_12() -> float:
        few.update(ours(3))
        return few["p99_us"]

    return in_turn(bench, lambda: (found := ours(topics)) | {"value": found["p99_us"]}, over_12)


def _topics(bench: Bench, connections: int, window: int) -> Measured:
    with processes.metaq_up(bench.disk, options=MANY_TOPICS) as server:
        found = topics_bench.run(server, bench.count(10_000 if window > 1 else 1000, 100), connections, window)
    return {**found, "value": found["topics_per_s"]}


# -- a backlog
def _backlog(bench: Bench) -> Measured:
    """p99 of a caught-up consumer while another reads the backlog from the beginning, times what it is alone."""
    seconds = max(1.0, 10 * bench.scale)
    batches = max(1, bench.backlog // 1000)
    with processes.metaq_up(bench.disk) as server:
        filled = processes.load(
            bench.cache, "batch", server.address, prefix="backlog", batch=1000, body=8, bare=1, count=batches,
            outstanding=4, seconds=3600,
        )  # fmt: skip
        push = partial(
            processes.load, bench.cache, "rocketmq", server.address, generator="pushload", rate=1000, seconds=seconds,
            warm=seconds / 8, queues=PUSH_QUEUES,
        )  # fmt: skip
        os.sync()  # 13 GB on their way to the disk would be measured, and as what it is like alone
        alone = push()
        stop = threading.Event()
        found: dict[str, float] = {}
        failures: list[str] = []

        def read() -> None:
            while not stop.is_set():  # again from the beginning, should it come to the end
                try:
                    one = processes.load(bench.cache, "read", server.address, prefix="backlog", seconds=seconds + 1)
                except RuntimeError as error:
                    failures.append(str(error))
                    return
                found["read_per_s"] = one["messages_per_s"]

        reader = threading.Thread(target=read)
        reader.start()
        beside = push()
        stop.set()
        reader.join()
    if failures:
        raise RuntimeError(failures[0])
    return {
        "value": beside["p99_us"] / alone["p99_us"], "p50_us": beside["p50_us"], "p99_us": beside["p99_us"],
        "alone_p50_us": alone["p50_us"], "alone_p99_us": alone["p99_us"], "backlog": float(batches * 1000),
        "fill_per_s": filled["messages_per_s"], **found,
    }  # fmt: skip


def _connect_flood(bench: Bench) -> Measured:
    found = connect_flood.measure(bench.disk, max(0.3, 5 * bench.scale), 1 if bench.scale < 1 else connect_flood.ROUNDS)
    return {**found, "value": found["ratio"]}


BROKER_ROWS = (
    Row(
        "send-1x1-awake", "send 1 × 1, 100 B, p50, cores kept awake", "µs", 1.0, 0.9,
        lambda bench: _single(bench, 40_000, 1, "p50_us", 1, awake=True), 22, "Redis 23, NATS 40, RocketMQ 64", True,
        times_peer=True,
    ),
    Row(
        "send-64x1", "64 connections × 1, 100 B", "k/s", 1.0, 1.2,
        lambda bench: _single(bench, 200_000, 64, "requests_per_s", 0.001), 87, "Redis 117, NATS 51, RocketMQ 38",
        times_peer=True,
    ),
    Row(
        "push-1k", "sent → taken by a waiting consumer, 1 000/s, p50", "µs", 1.3, 1.0,
        lambda bench: _push(bench, 1000, "p50_us"), lower_is_better=True, times_peer=True,
    ),
    Row(
        "push-1k-p99", "the same, p99", "µs", 2.0, 1.0, lambda bench: _push(bench, 1000, "p99_us"), lower_is_better=True,
        times_peer=True,
    ),
    Row(
        "push-50k", "the same at 50 000/s, p50", "µs", 3.0, 1.0, lambda bench: _push(bench, 50_000, "p50_us"),
        lower_is_better=True, times_peer=True,
    ),
    Row(
        "push-50k-p99", "the same at 50 000/s, p99", "µs", 3.0, 1.0, lambda bench: _push(bench, 50_000, "p99_us"),
        lower_is_better=True, times_peer=True,
    ),
    Row(
        "push-50k-rate", "the same at 50 000/s, delivered", "k/s", 49, 49.9,
        lambda bench: _push(bench, 50_000, "requests_per_s"),
    ),
    Row(
        "sync-64", "64 producers × 1, 1 KB, each on the disk", "k/s", 1.0, 1.4, lambda bench: _synced(bench, 64),
        times_peer=True, beside="Redis, fsync always",
    ),
    Row(
        "sync-256", "256 producers × 1, 1 KB, each on the disk", "k/s", 1.0, 1.4, lambda bench: _synced(bench, 256),
        times_peer=True, beside="Redis, fsync always",
    ),
    Row("pull-cpu", "pulls of 32 × 100 B, broker's CPU a pull", "µs", 6, 3, _pull_cpu, lower_is_better=True),
    Row(
        "batch-cpu", "batch of 100 × 100 B, broker's CPU a message", "µs", 0.45, 0.25, _batch_cpu, lower_is_better=True,
        beside="Kafka",
    ),
    Row(
        "cold", "cold reads of 1 KB beside producers", "MB/s", 0.7, 1.0, lambda bench: _cold(bench, "value"), runs=3,
        beside="Kafka", times_peer=True,
    ),
    Row(
        "cold-producers", "what the producers lose beside it", "%", 10, 1,
        lambda bench: _cold(bench, "producers_lost_percent"), runs=3, beside="Kafka", lower_is_better=True,
    ),
    Row(
        "spread-1000", "single sends 4 × 64 over 1 000 queues", "k/s", 0.7, 0.9, lambda bench: _spread(bench, 250), runs=3,
        beside="12 queues", times_peer=True,
    ),
    Row(
        "spread-10000", "single sends 4 × 64 over 10 000 queues", "k/s", 0.7, 0.9,
        lambda bench: _spread(bench, bench.count(2500, 300)), runs=3, beside="12 queues", times_peer=True,
    ),
    Row(
        "push-wide", "sent → taken, 1 000/s, beside fresh data in 10 000 queues, p99", "µs", 1.5, 1.1,
        lambda bench: _wide(bench, bench.count(2500, 300), 1000), runs=3, beside="12 queues", lower_is_better=True,
        times_peer=True,
    ),
    Row(
        "push-wide-50k", "the same at 50 000/s", "µs", 1.5, 1.1,
        lambda bench: _wide(bench, bench.count(2500, 300), 50_000), runs=3, beside="12 queues", lower_is_better=True,
        times_peer=True,
    ),
    Row(
        "topics-1x1", "topics made by their first sends, one after the other", "/s", 300, 1000,
        lambda bench: _topics(bench, 1, 1), runs=3,
    ),
    Row(
        "topics-8x64", "topics made by their first sends, 8 × 64 under way", "/s", 1000, 3000,
        lambda bench: _topics(bench, 8, 64), runs=3,
    ),
    Row(
        "backlog", "backlog: p99 of a caught-up consumer while another reads it, times alone", "×", 2.0, 1.2, _backlog,
        runs=1, lower_is_better=True,
    ),
    Row(
        "connect-flood", "p99 of a bystander while others connect 1 000 times a second, times alone", "×", 2.0, 1.2,
        _connect_flood, runs=3, lower_is_better=True,
    ),
)  # fmt: skip
