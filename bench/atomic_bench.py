"""Staged transactions of 10 messages over 4 topics, against a broker on this machine.

    python bench/atomic_bench.py                 # all of it, about a minute
    python bench/atomic_bench.py --quick         # small counts: shows that it works
    python bench/atomic_bench.py --only rates    # one of: rates, steady, client, open

Prints one JSON object:
  tx_per_s            transactions, each one request (STAGE with its parts, their seals and the commit), 4 connections x 16
  plain_per_s         the same messages as one plain batch per topic (4 requests), with as many groups of 4 under way
  ratio               of the two
  tx_cpu_us, plain_cpu_us   CPU of the server for each
  steady_per_s        transactions at `--rate` beside plain sends, and what came of both:
  steady_p50_ms, steady_p99_ms, sends_per_s
  client_tx_per_s     one thread with `Producer.atomic()`, one transaction after the other; client_p50_us, client_p99_us of the commit
  client_plain_per_s  the same thread with `send_batch`, one batch per topic
  open_mb             RssAnon that 10 000 open parts take
  recovery_s          start to first answer with 10 000 open parts after kill -9; recovery_empty_s the same without any;
                      `_stopped`: after a stop in order
Frames are made beforehand and written by one process with asyncio; server and generator share the cores. Every answer is looked
at (commit, nothing remaining), and the queues must have grown by exactly what was acknowledged.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import metaq
import processes
from metaq.model.transactions.staging import Chunk, DecisionOutcome, ManifestPart, PartSeal, chunk_crc, part_crc
from metaq.wire import hot
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request
from metaq.wire.headers import SendHeader, StageHeader
from metaq.wire.staging import DecideBody, sections

BROKER = "bench"
TOPICS = tuple(f"atomic-{number}" for number in range(4))
SHARES = (3, 3, 2, 2)
"""Messages of one transaction for each topic."""
MESSAGES = sum(SHARES)
QUEUES = 4
BODY = b"x" * 100
POOL = 1000
"""Different transactions that are made beforehand; their ids are new each time."""
OPAQUE_BASE = 1_000_000_000
ID_DIGITS = 12
_BEFORE_OPAQUE = b'"opaque":'


# ------------------------------------------------------------------ frames


class Template:
    """A frame in which the opaque, and in front of it a transaction's id if it has one, is new each time."""

    def __init__(self, frame: bytes, unique: bytes = b"") -> None:
        before, self.behind = frame.split(b"%b%d" % (_BEFORE_OPAQUE, OPAQUE_BASE), 1)
        self.head, _, rest = before.partition(unique) if unique else (before, b"", b"")
        self.middle = rest + _BEFORE_OPAQUE

    def fill(self, opaque: int, number: int) -> bytes:
        return b"%b%012d%b%d%b" % (self.head, number, self.middle, opaque, self.behind)

    def plain(self, opaque: int) -> bytes:
        return b"%b%b%d%b" % (self.head, self.middle, opaque, self.behind)


def batches(number: int) -> list[bytes]:
    """Bodies of one transaction, one for each topic; the ids of its messages are its own."""
    found, prefix = [], b"7F00000128E55FFD2B27%08X" % number
    for share in SHARES:
        batch = hot.Batch(prefix)
        for _ in range(share):
            assert batch.add_message(BODY, b"TagA", None) >= 0
        found.append(batch.take())
        prefix = prefix[:-1] + b"%X" % (len(found) % 16)
    return found


def chunks_of(bodies: Sequence[bytes], queue_id: int) -> tuple[list[Chunk], tuple[ManifestPart, ...]]:
    found, manifest = [], []
    for number, (topic, body, rows) in enumerate(zip(TOPICS, bodies, SHARES, strict=True)):
        seal = PartSeal(1, rows, len(body), part_crc(0, chunk_crc(body)))
        found.append(Chunk(f"p{number}", 0, topic, queue_id, body, seal))
        manifest.append(ManifestPart(BROKER, f"p{number}", topic, queue_id, seal))
    return found, tuple(manifest)


def transaction(number: int, *, decided: bool = True) -> Template:
    unique = b"U" * ID_DIGITS
    chunks, manifest = chunks_of(batches(number), number % QUEUES)
    body = sections(chunks, DecideBody(DecisionOutcome.COMMIT, manifest) if decided else None)
    header = StageHeader(transaction=f"{unique.decode()}@{BROKER}", born_ms=time.time_ns() // 1_000_000)
    return Template(with_opaque(request(RequestCode.STAGE, header, body)), unique)


def plain_batches(number: int) -> list[Template]:
    made = []
    for topic, body in zip(TOPICS, batches(number), strict=True):
        header = SendHeader(
            producer_group="bench", topic=topic, queue_id=number % QUEUES, sys_flag=0, born_ms=time.time_ns() // 1_000_000,
            flag=0, properties="", batch=True,
        )  # fmt: skip
        made.append(Template(with_opaque(request(RequestCode.SEND_BATCH_MESSAGE, header, body))))
    return made


def with_opaque(command: object) -> bytes:
    command.opaque = OPAQUE_BASE  # type: ignore[attr-defined]
    return encode(command)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the generator


class Work:
    """What is sent: `make(opaque, number)` are the frames of unit `number`, each of which is answered."""

    def __init__(self, count: int, make: Callable[[int, int], bytes], answers: int, mark: bytes = b"") -> None:
        self.count, self.make, self.answers, self.mark = count, make, answers, mark
        self.numbers = itertools.count()
        self.done = 0
        self.latencies: list[float] = []
        self.finished = asyncio.get_running_loop().create_future()

    def fail(self, why: str) -> None:
        if not self.finished.done():
            self.finished.set_exception(RuntimeError(why))


class Connection(asyncio.Protocol):
    def __init__(self, work: Work, outstanding: int) -> None:
        self.work, self.outstanding = work, outstanding
        self.began = [0.0] * outstanding
        self.missing = [0] * outstanding
        self.idle = list(range(outstanding))
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def issue(self, most: int = 1 << 30) -> int:
        """Write so many units as there are free slots. Returns how many."""
        work, now, frames = self.work, time.perf_counter(), []
        while self.idle and len(frames) < most:
            number = next(work.numbers)
            if number >= work.count:
                break
            slot = self.idle.pop()
            self.began[slot], self.missing[slot] = now, work.answers
            frames.append(work.make(OPAQUE_BASE + slot, number))
        if frames:
            self.transport.write(b"".join(frames))  # type: ignore[attr-defined]
        return len(frames)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        view, at, work = bytes(self.buffer), 0, self.work
        while len(view) - at >= 8:
            size = 4 + int.from_bytes(view[at : at + 4], "big")
            if len(view) - at < size:
                break
            stop = at + 8 + int.from_bytes(view[at + 5 : at + 8], "big")
            place = view.find(_BEFORE_OPAQUE, at, stop) + len(_BEFORE_OPAQUE)
            if view.find(b'"code":0,', at, stop) < 0 or (work.mark and view.find(work.mark, stop, at + size) < 0):
                work.fail(f"an answer that is none of success: {view[at : at + size]!r}")
                return
            slot = int(view[place : place + 10]) - OPAQUE_BASE
            self.missing[slot] -= 1
            if not self.missing[slot]:
                work.latencies.append(time.perf_counter() - self.began[slot])
                self.idle.append(slot)
            at += size
        del self.buffer[:at]
        if len(work.latencies) >= work.count and not work.finished.done():
            work.finished.set_result(time.perf_counter())
        elif self.again:
            self.issue()

    again = True

    def connection_lost(self, error: Exception | None) -> None:
        self.work.fail(f"the broker closed a connection: {error}")


async def generate(
    address: str, count: int, make: Callable[[int, int], bytes], answers: int, *, mark: bytes = b"", conns: int = 4,
    outstanding: int = 16, rate: float = 0,
) -> tuple[float, list[float]]:  # fmt: skip
    """(seconds, latencies in seconds, sorted)."""
    work, loop = Work(count, make, answers, mark), asyncio.get_running_loop()
    host, port = address.rsplit(":", 1)
    connections = []
    for _ in range(conns):
        _, connection = await loop.create_connection(lambda: Connection(work, outstanding), host, int(port))
        connections.append(connection)
    started = time.perf_counter()
    if rate:
        for connection in connections:
            connection.again = False
        issued = 0
        for turn in itertools.cycle(connections):
            due = int((time.perf_counter() - started) * rate) + 1 - issued
            issued += turn.issue(due) if due > 0 else 0
            if issued >= count or work.finished.done():
                break
            if due <= 0 or turn is connections[-1]:
                await asyncio.sleep(0.0005)
    else:
        for connection in connections:
            connection.issue()
    async with asyncio.timeout(processes.PATIENCE):
        ended = await work.finished
    for connection in connections:
        connection.transport.close()  # type: ignore[attr-defined]
    return ended - started, sorted(work.latencies)


def percentile_ms(latencies: Sequence[float], part: float) -> float:
    return latencies[min(len(latencies) - 1, int(part * len(latencies)))] * 1000


COMMITTED = b'"remaining":0'


def run_transactions(
    address: str, count: int, first: int, *, decided: bool = True, **how: float
) -> tuple[float, list[float]]:
    pool = [transaction(first + number, decided=decided) for number in range(min(POOL, count))]

    def make(opaque: int, number: int) -> bytes:
        return pool[number % len(pool)].fill(opaque, first + number)

    return asyncio.run(generate(address, count, make, 1, mark=COMMITTED if decided else b"", **how))  # type: ignore[arg-type]


def run_batches(address: str, count: int) -> tuple[float, list[float]]:
    pool = [plain_batches(number) for number in range(min(POOL, count))]

    def make(opaque: int, number: int) -> bytes:
        return b"".join([one.plain(opaque) for one in pool[number % len(pool)]])

    return asyncio.run(generate(address, count, make, len(TOPICS)))


# ------------------------------------------------------------------ what is measured


def stored(namesrv: str) -> int:
    """Messages in all queues of the topics."""
    with metaq.admin.Admin(namesrv) as admin:
        return sum(admin.describe_topic(topic).messages for topic in TOPICS)


@contextmanager
def broker(disk: Path, data: Path | None = None) -> Iterator[processes.Server]:
    """On `data`, which stays, with the log files of `metaq up`: to look for the end of one of 1 GiB takes longer than all else."""
    options = ["-o", f"brokerName={BROKER}"]
    if data is not None:
        options += ["-o", f"mappedFileSizeCommitLog={64 << 20}"]
    with processes.metaq_up(disk, data=data, options=options) as server:
        if data is None or not (data / "made").exists():
            with metaq.admin.Admin(server.namesrv) as admin:
                for topic in TOPICS:
                    admin.create_topic(topic, queues=QUEUES)
        yield server


def rates(disk: Path, count: int) -> dict[str, float]:
    measured: dict[str, float] = {}
    runs: tuple[tuple[str, Callable[[str], tuple[float, list[float]]]], ...] = (
        ("tx", lambda address: run_transactions(address, count, 0)),
        ("plain", lambda address: run_batches(address, count)),
    )
    for name, run in runs:
        with broker(disk) as server:
            warm = (
                run_transactions(server.address, 200, 10_000_000) if name == "tx" else run_batches(server.address, 200)
            )
            assert warm
            before, grown = server.cpu_seconds(), stored(server.namesrv)
            seconds, latencies = run(server.address)
            cpu = server.cpu_seconds() - before
            grown = stored(server.namesrv) - grown
            assert grown == MESSAGES * count, (
                f"{MESSAGES * count} messages were acknowledged, the queues grew by {grown}"
            )
            measured |= {
                f"{name}_per_s": count / seconds, f"{name}_cpu_us": cpu / count * 1e6,
                f"{name}_p50_ms": percentile_ms(latencies, 0.5), f"{name}_p99_ms": percentile_ms(latencies, 0.99),
                f"{name}_mb": server.rss_anon_mb(),
            }  # fmt: skip
    return {**measured, "ratio": measured["tx_per_s"] / measured["plain_per_s"]}


def steady(cache: Path, disk: Path, rate: int, seconds: float, sends: int) -> dict[str, float]:
    with broker(disk) as server:
        results: dict[str, dict[str, float]] = {}

        def plain() -> None:
            results["plain"] = processes.load(
                cache, "send", server.address, conns=4, outstanding=16, count=int(sends * (seconds + 1)), rate=sends,
                seconds=seconds + 1, prefix="plain",
            )  # fmt: skip

        run_transactions(server.address, 200, 10_000_000)
        beside = threading.Thread(target=plain)
        beside.start()
        took, latencies = run_transactions(server.address, int(rate * seconds), 0, rate=rate)
        beside.join()
        return {
            "steady_per_s": len(latencies) / took, "steady_p50_ms": percentile_ms(latencies, 0.5),
            "steady_p99_ms": percentile_ms(latencies, 0.99), "sends_per_s": results["plain"]["requests_per_s"],
            "sends_p99_us": results["plain"]["p99_us"],
        }  # fmt: skip


def client(disk: Path, count: int) -> dict[str, float]:
    """`Producer.atomic()` and `send_batch` in one thread."""
    groups = [[metaq.Message(topic, BODY, tag="TagA")] * share for topic, share in zip(TOPICS, SHARES, strict=True)]
    with broker(disk) as server, metaq.Producer(server.namesrv, timeout=30.0) as producer:
        latencies = []
        for number in range(-20, count):
            with producer.atomic() as tx:
                for group in groups:
                    for message in group:
                        tx.send(message)
                began = time.perf_counter()
            if number >= 0:
                latencies.append(time.perf_counter() - began)
            if number == 0:
                started = time.perf_counter()
        took = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(count):
            for group in groups:
                producer.send_batch(group)
        plain = time.perf_counter() - started
        latencies.sort()
    return {
        "client_tx_per_s": count / took, "client_plain_per_s": count / plain,
        "client_p50_us": percentile_ms(latencies, 0.5) * 1000, "client_p99_us": percentile_ms(latencies, 0.99) * 1000,
    }  # fmt: skip


def first_answer(disk: Path, folder: Path, parts: int) -> float:
    """Seconds from the start of a broker's process to its first acknowledgement. It must know so many open parts then."""
    with broker(disk, folder) as server:
        with metaq.Producer(server.namesrv, timeout=30.0) as producer:
            producer.send(TOPICS[0], BODY)
        seconds = (time.monotonic_ns() - server.started_ns) / 1e9
        with metaq.admin.Admin(server.namesrv) as admin:
            found = sum(len(one.parts) for one in admin.list_transactions(broker=BROKER, limit=parts + 1).transactions)
        assert found == parts, f"{parts} parts were open, the broker has {found} after its start"
    return seconds


def open_parts(disk: Path, parts: int) -> dict[str, float]:
    """Memory of undecided parts, and how long a start after kill -9 takes with them."""
    measured: dict[str, float] = {}
    for name, count in (("recovery_empty_s", 0), ("recovery_s", parts // len(TOPICS))):
        with tempfile.TemporaryDirectory(dir=disk) as kept:
            folder = Path(kept)
            with broker(disk, folder) as server:
                (folder / "made").touch()
                run_batches(server.address, 200)
                before = server.rss_anon_mb()
                if count:
                    run_transactions(server.address, count, 0, decided=False)
                    measured["open_mb"] = server.rss_anon_mb() - before
                server.process.kill()
            measured[name] = first_answer(disk, folder, count * len(TOPICS))
            measured[f"{name}_stopped"] = first_answer(disk, folder, count * len(TOPICS))
    return measured


def measure(disk: Path, cache: Path, only: str, scale: float, rate: int) -> dict[str, float]:
    disk.mkdir(parents=True, exist_ok=True)
    measured: dict[str, float] = {}
    if only in {"", "rates"}:
        measured |= rates(disk, max(300, int(30_000 * scale)))
    if only in {"", "steady"}:
        measured |= steady(cache, disk, rate, max(0.5, 10 * scale), 20_000 if scale == 1 else 2000)
    if only in {"", "client"}:
        measured |= client(disk, max(100, int(3_000 * scale)))
    if only in {"", "open"}:
        measured |= open_parts(disk, max(400, int(10_000 * scale)))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it works")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default="", choices=["", "rates", "steady", "client", "open"])
    parser.add_argument("--rate", type=int, default=1000, help="transactions a second of the steady part")
    parser.add_argument(
        "--disk", type=Path, default=processes.ROOT / ".cache" / "bench-disk", help="where the files go"
    )
    arguments = parser.parse_args()
    scale = 0.01 if arguments.quick else arguments.scale
    result = measure(arguments.disk, processes.ROOT / ".cache", arguments.only, scale, arguments.rate)
    print(json.dumps({name: round(value, 4) for name, value in result.items()}))


if __name__ == "__main__":
    sys.exit(main())
