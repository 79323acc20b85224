"""What several threads of one process reach on this Python, with or without the global interpreter lock.

    python bench/threads_bench.py                      # 1, 2 and 4 threads, a minute or two
    METAQ_HOT=0 python bench/threads_bench.py          # in plain Python, which leaves a free-threaded Python's lock off
    PYTHON_GIL=0 python bench/threads_bench.py         # free-threaded Python: the compiled modules without the lock
    python bench/threads_bench.py --quick              # a smoke run

Prints one JSON object:
  python, free_threaded, lock, compiled   which Python; built without the lock; whether it is on all the same; compiled modules
  codec_per_s     records encoded, and decoded in chunks of 32, by threads that share nothing and ask no broker
  send_per_s      `producer.send`, one after the other in each thread, of one producer that all share
  submit_per_s    `producer.submit`, each thread with a producer of its own, until every future has its receipt
  consume_per_s   `for message in consumer: with message: ...`, each thread with an iterator of one consumer

Each is a table, threads → messages a second of all threads together, the best of `--runs`. The broker is a process of its own of
the same Python, on the same cores. Every receipt is looked at, message ids are compared, and what was consumed is counted.
"""

import argparse
import json
import platform
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import processes

# isort: split
import metaq
from metaq.model import StoredMessage
from metaq.wire import hot
from metaq.wire.record import encode_record

BODY = b"x" * 100


def together(works: Sequence[Callable[[], None]]) -> float:
    """Seconds that the works take side by side, each in a thread. Raises what the first of them raised."""
    begin = threading.Barrier(len(works) + 1)
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        begin.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if errors:
        raise errors[0]
    return seconds


def shares(count: int, threads: int) -> list[int]:
    return [count * (number + 1) // threads - count * number // threads for number in range(threads)]


def codec(count: int) -> None:
    """Encode `count` records, 32 at a time, and decode them as the client does."""
    for start in range(0, count, 32):
        rows = min(32, count - start)
        chunk = b"".join(
            encode_record(
                topic=b"orders", queue_id=1, queue_offset=start + row, log_offset=row, flag=0, sys_flag=0, born_ms=1,
                born_host=bytes(8), store_ms=1, store_host=bytes(8), reconsume_times=0, prepared_offset=0, body=BODY,
                properties=b"",
            )
            for row in range(rows)
        )  # fmt: skip
        found = hot.decode_records(chunk, 0, len(chunk), StoredMessage, "broker-a", start, start + rows)
        assert [message.queue_offset for message in found] == list(range(start, start + rows))


def send(producer: metaq.Producer, topic: str, count: int, ids: list[str]) -> None:
    ids += [producer.send(topic, BODY).message_id for _ in range(count)]


def submit(producer: metaq.Producer, topic: str, count: int, ids: list[str]) -> None:
    futures = [producer.submit(topic, BODY) for _ in range(count)]
    ids += [future.result(60).message_id for future in futures]


def consume(consumer: metaq.Consumer, expected: int, taken: list[int], changed: threading.Lock) -> None:
    """Take messages until all threads together have `expected` of them."""
    for message in consumer:
        with message:
            assert message.body == BODY
        with changed:
            taken[0] += 1
            if taken[0] == expected:
                consumer.stop()


def all_different(ids: list[str], count: int) -> None:
    if len(set(ids)) != count:
        raise RuntimeError(f"{count} messages were sent, and they have {len(set(ids))} different ids")


def measure(namesrv: str, threads: int, run: int, scale: float) -> dict[str, float]:
    """One run of each figure."""
    topic, found = f"threads-{threads}-{run}", {}
    count = int(200_000 * scale)
    found["codec_per_s"] = count / together([lambda n=each: codec(n) for each in shares(count, threads)])
    ids: list[str] = []
    count = int(20_000 * scale)
    with metaq.Producer(namesrv, timeout=30.0) as producer:
        producer.send(topic, BODY)
        works = [lambda n=each: send(producer, topic, n, ids) for each in shares(count, threads)]
        found["send_per_s"] = count / together(works)
    all_different(ids, count)
    sent, count = count + 1, int(200_000 * scale)
    producers = [metaq.Producer(namesrv, timeout=30.0, group=f"{topic}-{number}") for number in range(threads)]
    try:
        for producer in producers:
            producer.send(topic, BODY)
        works = [
            lambda p=producer, n=each: submit(p, topic, n, ids)
            for producer, each in zip(producers, shares(count, threads), strict=True)
        ]
        found["submit_per_s"] = count / together(works)
    finally:
        for producer in producers:
            producer.close()
    all_different(ids, sent - 1 + count)
    sent += threads + count
    taken, changed = [0], threading.Lock()
    with metaq.Consumer(namesrv, group=f"{topic}-group", topics=topic, start="first") as consumer:
        works = [lambda: consume(consumer, sent, taken, changed)] * threads
        found["consume_per_s"] = sent / together(works)
    assert taken == [sent], f"{taken[0]} messages consumed, {sent} sent"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--disk", type=Path, help="folder for the broker's files; default a temporary one")
    parser.add_argument("--quick", action="store_true", help="few messages, one run: shows that it runs, not how fast")
    options = parser.parse_args()
    runs, scale = (1, 0.005) if options.quick else (options.runs, 1.0)
    best: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory(dir=options.disk) as folder, processes.metaq_up(Path(folder)) as server:
        for run in range(runs):
            for threads in options.threads:
                for name, rate in measure(server.namesrv, threads, run, scale).items():
                    row = best.setdefault(name, {})
                    row[threads] = max(row.get(threads, 0.0), round(rate))
    print(json.dumps({
        "python": platform.python_version(), "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "lock": getattr(sys, "_is_gil_enabled", lambda: True)(), "compiled": hot.NATIVE, **best,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
