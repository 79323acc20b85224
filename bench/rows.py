"""What is measured: one row per promise, with what it must reach, its goal, and what the prototype and peers reached."""

import json
from collections.abc import Callable
from contextlib import nullcontext

import filter_bench
import peers
import processes
import rebalance_bench
from acl_rows import ACL_ROWS
from broker_rows import BROKER_ROWS
from metrics_rows import METRICS_ROWS
from replica_rows import REPLICA_ROWS
from row import Bench, Measured, Row, beside_rocketmq, in_turn, once, paired
from tls_rows import TLS_ROWS


def _sends(
    bench: Bench,
    body: int,
    count: int,
    conns: int,
    outstanding: int,
    *,
    hot: bool = True,
    mode: str = "send",
    **more: object,
) -> Measured:
    with processes.metaq_up(bench.disk, hot=hot) as server:
        before = server.cpu_seconds()
        result = processes.load(
            bench.cache,
            mode,
            server.address,
            body=body,
            count=count,
            conns=conns,
            outstanding=outstanding,
            **more,
        )
        cpu_us = (server.cpu_seconds() - before) / count * 1e6
        return {**result, "cpu_us": cpu_us, "value": result["requests_per_s"] / 1000}


def _xadds(bench: Bench, body: int, count: int, conns: int, pipeline: int) -> Measured:
    with peers.redis(bench.disk) as server:
        return peers.redis_benchmark(server, conns, pipeline, count, body)


def _single_sends(body: int, full: int) -> Callable[[Bench], Measured]:
    def measure(bench: Bench) -> Measured:
        count = bench.count(full)
        return paired(
            bench,
            lambda: _sends(bench, body, count, 4, 64),
            lambda: _xadds(bench, body, count, 4, 64)["requests_per_s"] / 1000,
        )

    return measure


def _off_plain(full: int, *, mode: str = "send", **more: object) -> Callable[[Bench], Measured]:
    """Sends that are legal and not plain, beside plain ones."""

    def measure(bench: Bench) -> Measured:
        return in_turn(
            bench,
            lambda: _sends(bench, 100, bench.count(full), 4, 64, mode=mode, **more),
            lambda: _sends(bench, 100, bench.count(400_000), 4, 64)["value"],
        )

    return measure


def _fallback_sends(bench: Bench) -> Measured:
    return _sends(bench, 100, bench.count(150_000), 4, 64, hot=False)


def _one_by_one(bench: Bench) -> Measured:
    count = bench.count(40_000)

    def ours() -> Measured:
        result = _sends(bench, 100, count, 1, 1)
        return {**result, "value": result["p50_us"]}

    return paired(bench, ours, lambda: _xadds(bench, 100, count, 1, 1)["p50_us"])


def _batches(bench: Bench) -> Measured:
    with processes.metaq_up(bench.disk) as server:
        before = server.cpu_seconds()
        result = processes.load(
            bench.cache, "batch", server.address, batch=100, count=bench.count(20_000, 100), outstanding=16
        )
        cpu_us = (server.cpu_seconds() - before) / result["messages"] * 1e6
        return {**result, "cpu_us": cpu_us, "value": result["messages_per_s"] / 1e6}


def _pulls(bench: Bench) -> Measured:
    # All in one log file: a pull ends where a file does, and the generator wants 32 messages each time.
    with processes.metaq_up(bench.disk) as server:
        processes.load(bench.cache, "batch", server.address, batch=100, count=bench.count(8_000, 100), outstanding=16)
        before = server.cpu_seconds()
        result = processes.load(bench.cache, "pull", server.address, count=bench.count(150_000, 500), outstanding=16)
        cpu_us = (server.cpu_seconds() - before) / result["requests"] * 1e6
        return {**result, "cpu_us": cpu_us, "value": result["requests_per_s"] / 1000}


def _transactions(bench: Bench) -> Measured:
    """Half message and answered commit, 4 × 16 under way. The generator checks that every message has become readable."""
    count = bench.count(100_000)

    def work(server: processes.Server) -> Measured:
        result = processes.load(bench.cache, "tx", server.address, count=count, conns=4, outstanding=16)
        return {**result, "value": result["requests_per_s"] / 1000}

    measured = beside_rocketmq(bench, {}, work)
    return {**measured, "cpu_us": measured["cpu_s"] / count * 1e6}


def _rebalance(bench: Bench) -> Measured:
    """kill -9 of a member: until every queue has an owner again. Our client's members, on our broker and on RocketMQ's."""
    queues, members = bench.count(1000, least=40), max(3, int(20 * bench.scale))

    def work(server: processes.Server) -> Measured:
        result = rebalance_bench.measure(server, queues, members)
        return {**result, "value": result["seconds"]}

    return beside_rocketmq(bench, {}, work)


def _start(bench: Bench) -> Measured:
    port = processes.free_port()
    processes.compiled("loadgen", bench.cache)
    with processes.metaq_up(bench.disk, port=port) as server:
        result = processes.load(bench.cache, "first", server.address, seconds=30)
        return {"value": (result["monotonic_ns"] - server.started_ns) / 1e9}


def _memory(bench: Bench) -> Measured:
    with processes.metaq_up(bench.disk) as server:
        processes.load(bench.cache, "first", server.address, seconds=30)
        return {"value": server.rss_anon_mb()}


def _client(key: str) -> Callable[[Bench], Measured]:
    def measure(bench: Bench) -> Measured:
        if bench.run not in bench.client_runs:  # one run measures both rows
            with processes.metaq_up(bench.disk) as server:
                bench.client_runs[bench.run] = processes.script(
                    "client_bench.py", "--namesrv", server.namesrv, "--count", str(bench.count(500_000, 2000))
                )
        numbers = {
            name: value for name, value in bench.client_runs[bench.run].items() if isinstance(value, int | float)
        }
        return {**numbers, "value": numbers[key] / 1000}

    return measure


def _client_sends(part: str, key: str, scale: float = 1) -> Callable[[Bench], Measured]:
    """Sends that are waited for: `part` of `send_bench.py`."""

    def measure(bench: Bench) -> Measured:
        with processes.metaq_up(bench.disk) as server:
            result = processes.script(
                "send_bench.py", "--namesrv", server.namesrv, "--parts", part, "--count", str(bench.count(20_000)),
            )  # fmt: skip
        numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
        kind = "aio" if part == "aio" else "send"
        usual = {name: numbers[f"{kind}_{name}"] for name in ("cpu_us", "p50_us", "p99_us")}
        return {**numbers, **usual, "value": numbers[key] / scale}

    return measure


def _filters(key: str, scale: float) -> Callable[[Bench], Measured]:
    def measure(bench: Bench) -> Measured:
        with processes.metaq_up(bench.disk) as server:
            result = processes.script(
                "filter_bench.py",
                "--namesrv",
                server.namesrv,
                "--count",
                str(bench.count(300_000, 3000)),
                "--runs",
                "1",
            )
        numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
        return {**numbers, "value": numbers[key] / scale}

    return measure


def _time_search(bench: Bench) -> Measured:
    """In the store of a broker, without one: what a request costs beside it is in other rows."""
    result = processes.script(
        "time_search_bench.py", "--folder", str(bench.disk), "--messages", str(bench.count(10_000_000, 10_000)),
    )  # fmt: skip
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**numbers, "value": numbers["p99_ms"]}


def _predicate(bench: Bench) -> Measured:
    with processes.metaq_up(bench.disk, options=filter_bench.PREDICATE) as server:
        result = processes.script(
            "filter_bench.py", "--predicate", "--namesrv", server.namesrv, "--count", str(bench.count(300_000, 3000)),
            "--runs", "1",
        )  # fmt: skip
    rate = result["predicate_per_s"]
    assert isinstance(rate, int | float)
    return {"value": rate / 1000}


def _trace(bench: Bench) -> Measured:
    """CPU time of a producer that traces, in percent more than that of one beside it that does not."""
    with processes.metaq_up(bench.disk) as server:
        result = processes.script(
            "trace_bench.py", "--namesrv", server.namesrv, "--periods", str(bench.count(80, 1)), "--piece",
            str(bench.count(10_000, 500)),
        )  # fmt: skip
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**numbers, "value": numbers["cpu_percent"]}


def _atomic(part: str, key: str, scale: float = 1) -> Callable[[Bench], Measured]:
    """Staged transactions of 10 messages over 4 topics: `part` of `atomic_bench.py`."""

    def measure(bench: Bench) -> Measured:
        result = processes.script(
            "atomic_bench.py", "--only", part, "--scale", str(bench.scale), "--disk", str(bench.disk)
        )
        numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
        return {**numbers, "value": numbers[key] / scale}

    return measure


def _requests(bench: Bench) -> Measured:
    """Requests of one caller to a responder in another process, in turn with sends."""
    with processes.metaq_up(bench.disk) as server:
        result = processes.script(
            "request_bench.py", "--namesrv", server.namesrv, "--count", str(bench.count(3000, 200))
        )
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**numbers, "value": numbers["sends_again"]}


def _orderly(bench: Bench) -> Measured:
    """One Python consumer of 8 queues, in order: an empty handler in 8 threads; the other ways beside it."""
    with processes.metaq_up(bench.disk) as server:
        result = processes.script(
            "orderly_bench.py", "--namesrv", server.namesrv, "--count", str(bench.count(400_000, 4000))
        )
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**numbers, "value": numbers["orderly_per_s"] / 1000}


def _metaq1(part: str, *, alone: bool = False) -> Callable[[Bench], Measured]:
    """Our MetaQ 1.x server, and the original server 1.4.6.2 by the same generator: `part` of `metaq1_bench.py`.

    `alone`: one request after the other. The value is a multiple of the original's, and the cores are kept awake: else both times are
    mostly a sleeping core's.
    """

    def measure(bench: Bench) -> Measured:
        flags = ["--alone"] if bench.alone or part == "topics" else []
        with processes.cores_awake() if alone else nullcontext():
            text = processes.output_of(
                "metaq1_bench.py", "--part", part, "--runs", "1", "--scale", str(bench.scale), "--disk", str(bench.disk), *flags
            )  # fmt: skip
        found: dict[str, Measured] = json.loads(text.strip().splitlines()[-1])[part]
        measured = found["ours"]
        if "original" not in found:
            return measured
        beside = found["original"]["value"]
        return {**measured, "value": measured["value"] / beside} if alone else {**measured, "beside": beside}

    return measure


def _metaq1_rebalance(step: str) -> Callable[[Bench], Measured]:
    """Partitions of a topic among consumers of MetaQ 1.x, and those of the Java client 1.4.6.2: `step` of `metaq1_rebalance_bench.py`."""

    def measured(bench: Bench) -> dict[str, Measured]:
        partitions = str(bench.count(1000, 50))
        flags = ["--alone"] if bench.alone else []
        text = processes.output_of(
            "metaq1_rebalance_bench.py", "--runs", "1", "--partitions", partitions, "--disk", str(bench.disk), *flags
        )
        found: dict[str, dict[str, Measured]] = json.loads(text.strip().splitlines()[-1])
        return {
            name: {**one["ours"], **({"beside": one["original"]["value"]} if "original" in one else {})}
            for name, one in found.items()
        }

    return lambda bench: once(bench, "metaq1-rebalance", lambda: measured(bench))[step]


def _metaq1_send(part: str) -> Callable[[Bench], Measured]:
    """A producer of MetaQ 1.x, and that of the Java client 1.4.6.2, at the original server: `part` of `metaq1_send_bench.py`."""

    def measured(bench: Bench) -> dict[str, Measured]:
        flags = ["--server", "ours", "--alone"] if bench.alone else []
        if bench.scale < 0.1:  # every process starts a JVM
            flags.append("--brief")
        text = processes.output_of(
            "metaq1_send_bench.py", "--runs", "1", "--scale", str(bench.scale), "--disk", str(bench.disk), *flags
        )
        found: dict[str, dict[str, float]] = json.loads(text.strip().splitlines()[-1])
        return {name: _beside_java(one) for name, one in found.items()}

    return lambda bench: once(bench, "metaq1-send", lambda: measured(bench))[part]


def _metaq1_consume(bench: Bench) -> Measured:
    """A listener of MetaQ 1.x, and one of the Java client, at the original server: `metaq1_consume_bench.py`."""
    flags = ["--alone"] if bench.alone else []
    count = str(bench.count(200_000, 5000))
    text = processes.output_of(
        "metaq1_consume_bench.py", "--runs", "1", "--count", count, "--disk", str(bench.disk), *flags
    )
    return _beside_java(json.loads(text.strip().splitlines()[-1]))


def _beside_java(found: dict[str, float]) -> Measured:
    beside = {"beside": found["java"] / 1000} if "java" in found else {}
    return {"value": found["ours"] / 1000, **beside}


def _positions(bench: Bench) -> Measured:
    """Byte positions computed anew, in s for 10 million messages: `positions_bench.py`."""
    messages = bench.count(10_000_000, 100_000)
    result = processes.script("positions_bench.py", "--messages", str(messages), "--folder", str(bench.disk))
    return {**result, "value": result["all"] * 10_000_000 / messages}


def _spark(figure: str, *, scale: float = 1, beside: str = "", over: str = "") -> Callable[[Bench], list[Measured]]:
    """All rounds of one figure of `spark_figures.py`, divided by `scale`, or each `over` that of another. It runs once for all rows."""

    def measure(bench: Bench) -> list[Measured]:
        if not bench.spark_figures:
            runs = "5" if bench.scale == 1 else "1"
            flags = ["--runs", runs, "--scale", str(bench.scale), "--disk", str(bench.disk)]
            bench.spark_figures = processes.script("spark_figures.py", *flags)  # type: ignore[assignment]  its lists
        found = bench.spark_figures
        if over:
            return [{"value": one / other} for one, other in zip(found[figure], found[over], strict=True)]
        if beside:
            pairs = zip(found[figure], found[beside], strict=True)
            return [{"value": one / scale, "beside": other / scale} for one, other in pairs]
        return [{"value": one / scale} for one in found[figure]]

    return measure


ROWS = (
    Row("start", "start to first ack", "s", 1.0, 0.3, _start, 0.11, "NATS 0.03, Redis 0.06, RocketMQ 3", True),
    Row("memory", "memory at rest, RssAnon", "MB", 80, 45, _memory, 33, "NATS 19, RocketMQ 292", True),
    Row(
        "send-100", "single sends 4 × 64, 100 B", "k/s", 300, 500, _single_sends(100, 600_000), 581,
        "Redis 391, NATS 299, RocketMQ 66", runs=7,
    ),
    Row(
        "send-1000", "single sends 4 × 64, 1 KB", "k/s", 200, 350, _single_sends(1000, 300_000), 325,
        "Redis 169, NATS 220, RocketMQ 66", runs=7,
    ),
    Row("send-100-fallback", "the same with the pure-Python fallback, 100 B", "k/s", 60, 90, _fallback_sends),
    Row("send-1x1", "send 1 × 1, 100 B, p50", "µs", 45, 22, _one_by_one, 22, "Redis 23, NATS 40, RocketMQ 64", True),
    *BROKER_ROWS,
    *REPLICA_ROWS,
    *ACL_ROWS,
    *TLS_ROWS,
    *METRICS_ROWS,
    Row(
        "send-odd", "single sends 4 × 64 whose queue ids are written 00 and 01", "k/s", 1 / 6, 1 / 3,
        _off_plain(400_000, odd=1), beside="plain sends", times_peer=True,
    ),
    Row(
        "send-delayed", "single sends 4 × 64 with a delay level", "k/s", 1 / 6, 1 / 3,
        _off_plain(400_000, delay=4, verify=0), beside="plain sends", times_peer=True,
    ),
    Row(
        "send-retry", "single sends 4 × 64 to retry topics, with a delay level", "k/s", 1 / 6, 1 / 3,
        _off_plain(400_000, delay=4, verify=0, retry=1, queues=1), beside="plain sends", times_peer=True,
    ),
    Row(
        "send-back", "sends 4 × 64, each then given back by a consumer", "k/s", 1 / 6, 1 / 3,
        _off_plain(100_000, mode="back"), beside="plain sends", times_peer=True,
    ),
    Row("batch", "batch of 100 × 100 B", "M msg/s", 1.3, 2.5, _batches, 1.47, "Kafka 1.7, RocketMQ 0.65"),
    Row("pull", "pulls of 32 × 100 B", "k/s", 35, 80, _pulls, 39, "RocketMQ 29"),
    Row(
        "tx-64", "half message + commit, 64 outstanding, 100 B", "k/s", 3, 6, _transactions, beside="RocketMQ",
        times_peer=True,
    ),
    Row(
        "client-submit", "Python client: submit, acknowledged, 100 B", "k/s", 200, 650, _client("submit_per_s"), 802,
        "confluent-kafka 424, aiokafka 66, nats-py 19",
    ),
    Row(
        "client-consume", "Python client: consume loop, 100 B", "k/s", 150, 700, _client("consume_per_s"), None,
        "confluent-kafka 211 (tuned 631), redis-py 265, aiokafka 116",
    ),
    Row(
        "client-send", "Python client: send one after the other, 100 B, p50, times a bare socket's round trip", "×", 1.5, 1.2,
        _client_sends("one", "times"), lower_is_better=True,
    ),
    Row(
        "client-aio", "Python client: await send in 1 000 tasks, 100 B", "k/s", 150, 300, _client_sends("aio", "aio_per_s", 1000),
        peers="aiokafka 66",
    ),
    Row("client-arrow", "Python client: send_arrow, acknowledged, 100 B", "k rows/s", 500, 1000, _client("arrow_rows_per_s")),
    Row("filter-half", "SQL filter, half pass: delivered, times a tag filter's", "×", 0.5, 1.0, _filters("half_of_tag", 1)),
    Row("filter-few", "SQL filter, 1 in 1 000 passes: scanned", "M msg/s", 2.0, 5.0, _filters("scanned_per_s", 1e6)),
    Row("predicate", "predicate in a helper process, half pass: looked through", "k/s", 60, 150, _predicate, runs=3),
    Row(
        "time-search", "offset of a store time in a queue of 10 M messages, p99", "ms", 10, 1, _time_search, runs=3,
        lower_is_better=True,
    ),
    Row("trace", "Python client: what trace=True costs of submit, CPU", "%", 3.0, 1.0, _trace, runs=3, lower_is_better=True),
    Row(
        "request", "Python client: request and reply 1 × 1, p50, times a send's behind a send", "×", 3.0, 2.5, _requests,
        lower_is_better=True,
    ),
    Row(
        "atomic", "staged transactions of 10 messages over 4 topics, times as plain batches", "×", 0.05, 0.4,
        _atomic("rates", "ratio"), runs=3,
    ),
    Row(
        "atomic-commit", "commit p99 at 1 000 transactions/s beside 20 k/s sends", "ms", 100, 10,
        _atomic("steady", "steady_p99_ms"), runs=3, lower_is_better=True,
    ),
    Row(
        "atomic-open", "start after kill -9 to first ack, 10 000 open parts", "s", 3.0, 1.0,
        _atomic("open", "recovery_s"), runs=3, lower_is_better=True,
    ),
    Row(
        "client-atomic", "Python client: atomic(), one after the other, 10 messages over 4 topics", "/s", 300, 1500,
        _atomic("client", "client_tx_per_s"), runs=3,
    ),
    Row("orderly", "Python client: 8 queues in order, empty handler, 100 B", "k/s", 100, 400, _orderly),
    Row(
        "rebalance", "1 000 queues, 20 members: all owned after kill -9", "s", 2.0, 0.5, _rebalance, runs=3,
        lower_is_better=True, beside="RocketMQ",
    ),
    Row(
        "metaq1-put-100", "MetaQ 1.x server: puts 4 × 64, 100 B", "k/s", 200, 400, _metaq1("put-100"), peers="MetaQ 1.4.6.2 62-88",
        runs=3, beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-put-1000", "MetaQ 1.x server: puts 4 × 64, 1 KB", "k/s", 160, 250, _metaq1("put-1000"), peers="MetaQ 1.4.6.2 56-78",
        runs=3, beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-put-forced", "MetaQ 1.x server: puts 4 × 64, 100 B, each group forced to the disk", "k/s", 62, 120,
        _metaq1("put-100-forced"), peers="MetaQ 1.4.6.2 62", runs=3, beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-put-1x1", "MetaQ 1.x server: put 1 × 1, 100 B, p50, cores kept awake, times the original's", "×", 1.0, 0.7,
        _metaq1("put-1x1", alone=True), runs=3, lower_is_better=True,
    ),
    Row(
        "metaq1-get-100", "MetaQ 1.x server: gets of 1 MiB of 100 B, undecoded", "GB/s", 0.4, 0.8, _metaq1("get-100"), runs=3,
        beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-get-1000", "MetaQ 1.x server: gets of 1 MiB of 1 KB, undecoded", "GB/s", 1.0, 2.0, _metaq1("get-1000"),
        peers="MetaQ 1.4.6.2 1.9", runs=3, beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-topics", "1 000 topics × 4 partitions: start to all in ZooKeeper", "s", 10.0, 4.0, _metaq1("topics"), runs=3,
        lower_is_better=True,
    ),
    Row(
        "metaq1-join", "MetaQ 1.x consumer joins: 1 000 partitions owned, loaded and fetched", "s", 3.0, 1.0,
        _metaq1_rebalance("join"), runs=3, lower_is_better=True, beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-second", "another joins: 500 of 1 000 partitions change hands", "s", 3.0, 1.0, _metaq1_rebalance("second"),
        runs=3, lower_is_better=True, beside="MetaQ 1.4.6.2",
    ),
    Row(
        "metaq1-send-100", "MetaQ 1.x client: sends one by one, 100 B", "k/s", 0.7, 1.5, _metaq1_send("one-100"), runs=3, times_peer=True,
        beside="Java's client 1.4.6.2",
    ),
    Row(
        "metaq1-send-1000", "the same, 1 KB", "k/s", 0.7, 1.5, _metaq1_send("one-1000"), runs=3, times_peer=True,
        beside="Java's client 1.4.6.2",
    ),
    Row(
        "metaq1-send-64", "MetaQ 1.x client: 64 sends under way, 100 B", "k/s", 0.7, 1.5, _metaq1_send("64-100"), runs=3, times_peer=True,
        beside="Java's client 1.4.6.2",
    ),
    Row(
        "metaq1-send-64-1000", "the same, 1 KB", "k/s", 0.7, 1.5, _metaq1_send("64-1000"), runs=3, times_peer=True,
        beside="Java's client 1.4.6.2",
    ),
    Row(
        "metaq1-consume", "MetaQ 1.x client: a listener, 1 KB", "k/s", 0.5, 1.0, _metaq1_consume, runs=3, times_peer=True,
        beside="Java's client 1.4.6.2",
    ),
    Row(
        "metaq1-positions", "byte positions of 10 million messages, computed anew from the log", "s", 10.0, 4.0, _positions,
        runs=3, lower_is_better=True,
    ),
    Row(
        "spark", "Spark source, 100 B, lean rows", "M rows/s", 1.2, 1.9, _spark("source_100", scale=100, beside="parquet_100"),
        runs=1, beside="Parquet scan",
    ),
    Row(
        "spark-1000", "Spark source, 1 KB", "MB/s", 500, 800, _spark("source_1000", beside="parquet_1000"), runs=1,
        beside="Parquet scan",
    ),
    Row(
        "spark-of-parquet", "Spark source, 100 B, times Spark's scan of the same rows in Parquet", "×", 0.5, 0.8,
        _spark("source_100", over="parquet_100"), runs=1,
    ),
    Row(
        "spark-of-parquet-1000", "the same, 1 KB", "×", 0.5, 0.8, _spark("source_1000", over="parquet_1000"), runs=1,
    ),
    Row("spark-files", "store reader, 1 KB, from a broker's log", "MB/s", 400, 1000, _spark("files_1000"), runs=1),
    Row(
        "spark-sink", "Spark sink, effectively once, 100 B", "k rows/s", 200, 500,
        _spark("exact_100", scale=0.1, beside="once_100"), runs=1, beside="at least once",
    ),
    Row(
        "spark-sink-1000", "Spark sink, effectively once, 1 KB", "k rows/s", 100, 250,
        _spark("exact_1000", beside="once_1000"), runs=1, beside="at least once",
    ),
    Row(
        "spark-sink-of-once", "Spark sink, effectively once, times at least once, 100 B", "×", 0.6, 0.85,
        _spark("exact_100", over="once_100"), runs=1,
    ),
    Row(
        "spark-sink-of-once-1000", "the same, 1 KB", "×", 0.6, 0.85, _spark("exact_1000", over="once_1000"), runs=1,
    ),
    Row(
        "spark-floor-empty", "Spark micro-batch that reads nothing", "ms", 170, 150, _spark("floor_empty", beside="floor_spark"),
        runs=1, lower_is_better=True, beside="rate-micro-batch",
    ),
    Row(
        "spark-floor-one", "Spark micro-batch of one row", "ms", 150, 125, _spark("floor_one", beside="floor_spark"), runs=1,
        lower_is_better=True, beside="rate-micro-batch",
    ),
    Row(
        "spark-driver", "driver's CPU for a micro-batch of 1 M rows, times that of 10 k", "×", 1.2, 1.05,
        _spark("driver_big", over="driver_small"), runs=1, lower_is_better=True,
    ),
)  # fmt: skip

RATIO_MUST, RATIO_GOAL = 0.75, 1.3
"""Single sends over Redis Streams in the same run."""
