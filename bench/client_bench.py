"""Messages per second through the Python client, against a broker on this machine.

    python bench/client_bench.py                                   # starts a broker of its own
    python bench/client_bench.py --namesrv 127.0.0.1:9876 --count 200000 --body 1000 --runs 5

Prints one JSON object:
  submit_per_s    `producer.submit` in a loop, one future per message, until every future has its receipt
  consume_per_s   `for message in consumer: with message: ...` over what was sent, from a group's first message
  send_us         one `producer.send` after the other, microseconds each
  signed_send_us  the same with every request signed, to the same broker, which does not look at the signature: what
                  signing costs the client; `signed_ratio` is how many of them are sent in the time of one unsigned
  guarded_send_us, guarded_ratio  the same to a broker of its own with accounts, which verifies it (not with --namesrv)
  arrow_rows_per_s  `producer.send_arrow` of a table with a column body, until all rows are acknowledged
  aio_send_per_s  1000 asyncio tasks, each awaiting one `send` after the other
Each is the median of `--runs`; `..._all` has every run. Broker and client share the machine's cores. Every receipt is
looked at, and what was consumed is compared with what was sent, so that a fast wrong answer does not count.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

try:
    import pyarrow as pa
except ImportError:
    pa = None

import metaq  # noqa: E402  found by the line above
from metaq import aio  # noqa: E402  found by the line above

SENDS_ONE_BY_ONE = 500
ACCOUNT = {"access_key": "account-bench", "secret_key": "12345678-secret"}
TASKS = 1000


def submit_rate(namesrv: str, topic: str, body: bytes, count: int) -> float:
    with metaq.Producer(namesrv, timeout=30.0) as producer:
        producer.send(topic, body)  # Route, connection and topic are there.
        submit = producer.submit
        started = time.perf_counter()
        futures = [submit(topic, body) for _ in range(count)]
        producer.flush(60)
        seconds = time.perf_counter() - started
        errors = sum(future.exception() is not None for future in futures)
        assert not errors, f"{errors} of {count} sends failed"
        assert len({future.result().message_id for future in futures[:: max(1, count // 1000)]}) >= min(count, 1000)
        return count / seconds


def arrow_rate(namesrv: str, topic: str, body: bytes, count: int) -> float:
    table = pa.table({"body": [body] * count})
    with metaq.Producer(namesrv, timeout=30.0) as producer:
        producer.send(topic, body)
        started = time.perf_counter()
        sent = producer.send_arrow(table, topic)
        seconds = time.perf_counter() - started
    assert sent.rows == count, f"{sent.rows} of {count} rows acknowledged"
    with metaq.Reader(namesrv, topic) as reader:
        stored = sum(len(span) for span in reader.ranges().values())
    assert stored == count + 1, f"{stored} messages stored, {count} rows and one more were sent"
    return count / seconds


def consume_rate(namesrv: str, topic: str, group: str, body: bytes, count: int) -> float:
    with metaq.Consumer(namesrv, group=group, topics=topic, start="first") as consumer:
        messages = iter(consumer)
        with next(messages) as first:
            taken, size = 1, len(first.body)
        started = time.perf_counter()
        for message in messages:
            with message:
                taken += 1
                size += len(message.body)
            if taken == count:
                break
        seconds = time.perf_counter() - started
    assert size == count * len(body), f"{size} bytes consumed, {count * len(body)} sent"
    return count / seconds


def send_us(namesrv: str, topic: str, body: bytes, count: int, **account: str) -> float:
    with metaq.Producer(namesrv, **account) as producer:
        producer.send(topic, body)
        started = time.perf_counter()
        for _ in range(count):
            producer.send(topic, body)
        return (time.perf_counter() - started) / count * 1e6


async def aio_send_rate(namesrv: str, topic: str, body: bytes, count: int) -> float:
    async with aio.Producer(namesrv, timeout=30.0) as producer:
        await producer.send(topic, body)
        each = max(1, count // TASKS)

        async def work() -> None:
            for _ in range(each):
                await producer.send(topic, body)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(TASKS)))
        return each * TASKS / (time.perf_counter() - started)


def measure(namesrv: str, count: int, body_bytes: int, runs: int, guarded: str | None = None) -> dict[str, object]:
    body = b"x" * body_bytes
    results: dict[str, list[float]] = {"submit_per_s": [], "consume_per_s": [], "send_us": [], "aio_send_per_s": []}
    if pa is not None:
        results["arrow_rows_per_s"] = []
    for run in range(runs):
        topic = f"client-bench-{os.getpid()}-{run}"
        results["submit_per_s"].append(submit_rate(namesrv, topic, body, count))
        results["consume_per_s"].append(consume_rate(namesrv, topic, topic, body, count + 1))
        if pa is not None:
            results["arrow_rows_per_s"].append(arrow_rate(namesrv, f"{topic}-arrow", body, 2 * count))
        other = f"{topic}-single"
        results["send_us"].append(send_us(namesrv, other, body, min(SENDS_ONE_BY_ONE, count)))
        signed = send_us(namesrv, other, body, min(SENDS_ONE_BY_ONE, count), **ACCOUNT)
        results.setdefault("signed_send_us", []).append(signed)
        results.setdefault("signed_ratio", []).append(results["send_us"][-1] / signed)
        if guarded is not None:
            verified = send_us(guarded, other, body, min(SENDS_ONE_BY_ONE, count), **ACCOUNT)
            results.setdefault("guarded_send_us", []).append(verified)
            results.setdefault("guarded_ratio", []).append(results["send_us"][-1] / verified)
        results["aio_send_per_s"].append(asyncio.run(aio_send_rate(namesrv, other, body, min(count, 50_000))))
    medians = {name: statistics.median(values) for name, values in results.items()}
    return {**medians, "count": count, "body": body_bytes, **{f"{name}_all": all_ for name, all_ in results.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv, guarded = arguments.namesrv, None
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
            accounts = disk / "plain_acl.yml"
            accounts.write_text(
                f"accounts:\n- accessKey: {ACCOUNT['access_key']}\n  secretKey: {ACCOUNT['secret_key']}\n  defaultTopicPerm: PUB|SUB\n"
            )
            flags = ["-o", "aclEnable=true", "-o", f"aclPath={accounts}"]
            guarded = stack.enter_context(processes.metaq_up(disk, options=flags)).namesrv
        print(json.dumps(measure(namesrv, arguments.count, arguments.body, arguments.runs, guarded)))


if __name__ == "__main__":
    main()
