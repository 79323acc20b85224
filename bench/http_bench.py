"""The HTTP server beside what the same machine answers without a broker, and events for many listeners.

    python bench/http_bench.py sends                  # 100 B at 64 connections, beside a bare Starlette under uvicorn
    python bench/http_bench.py events --listeners 500 # server-sent events: deliveries a second, and how late they are

Each starts its own servers on loopback. Prints one JSON object. `sends`, medians of `--runs` pairs:
  per_s, bare_per_s  answered requests in a second: stored messages, and an application that reads the body and answers a constant
  ratio              of the two
  cpu_us, bare_cpu_us  processor time of the server's process for each
`events`: one producer sends `--rate` messages a second for `--seconds`, by our own client, to a topic of four queues
  per_s              events that listeners got, all together
  p50_ms, p99_ms     from the send to the read of the event
  cpu_us             processor time of the broker for each event
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import metaq.aio
import processes
from metaq.app.runtime import loop_factory

TOPIC = "http-bench"
CONNECTIONS = 64
BARE = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def send(request):
    await request.body()
    return Response(b'{"ok":1}', media_type="application/json")

app = Starlette(routes=[Route("/topics/{topic}/messages", send, methods=["POST"])])
config = uvicorn.Config(app, port=int(sys.argv[1]), log_level="critical", access_log=False, http="httptools")

class Ready(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("ready", flush=True)

Ready(config).run()
"""


class Sender(asyncio.Protocol):
    """One connection with one request under way. It looks at no more of an answer than where it ends."""

    def __init__(self, data: bytes, until: float) -> None:
        self.data, self.until, self.answered, self.ended = data, until, 0, asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        transport.write(self.data)

    def data_received(self, data: bytes) -> None:
        # Bare uvicorn writes head and body apart: only what ends with the body's brace is the end of an answer.
        if not data.endswith(b"}"):
            return
        if b"messageId" not in data and b'{"ok":1}' not in data:
            self.ended.set_exception(RuntimeError(f"an answer that was not expected: {data!r}"))
            return
        self.answered += 1
        if time.perf_counter() < self.until:
            self.transport.write(self.data)
        elif not self.ended.done():
            self.ended.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or RuntimeError("the server has closed a connection"))


async def load(port: int, seconds: float) -> float:
    """Send for some seconds. Returns answered requests in a second."""
    body = b"x" * 100
    data = (
        f"POST /topics/{TOPIC}/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop, begun = asyncio.get_running_loop(), time.perf_counter()
    senders = [
        (await loop.create_connection(lambda: Sender(data, begun + seconds), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(sender.ended for sender in senders))
    return sum(sender.answered for sender in senders) / (time.perf_counter() - begun)


def measured(server: processes.Server, port: int, seconds: float) -> tuple[float, float]:
    """Return requests a second, and the server's µs for each."""
    cpu = server.cpu_seconds()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        per_s = runner.run(load(port, seconds))
    return per_s, (server.cpu_seconds() - cpu) / (per_s * seconds) * 1e6


@contextmanager
def bare() -> Iterator[tuple[processes.Server, int]]:
    port = processes.free_port()
    process = subprocess.Popen([sys.executable, "-c", BARE, str(port)], stdout=subprocess.PIPE, text=True)
    try:
        processes.ready(process, "Starlette")
        yield processes.Server(process, f"127.0.0.1:{port}", time.monotonic_ns()), port
    finally:
        processes.stop(process)


@contextmanager
def ours(disk: Path) -> Iterator[tuple[processes.Server, int]]:
    port = processes.free_port()
    with processes.metaq_up(disk, options=("-o", f"httpPort={port}")) as server:
        yield server, port


def sends(runs: int, seconds: float) -> dict[str, float]:
    found: list[tuple[float, float, float, float]] = []
    with tempfile.TemporaryDirectory() as disk, ours(Path(disk)) as (server, port), bare() as (other, other_port):
        for run in range(runs + 1):
            turns = [(server, port), (other, other_port)]
            of = {one[1]: measured(*one, seconds) for one in (turns if run % 2 else reversed(turns))}
            if run:  # the first makes the topic, and both servers warm
                found.append((*of[port], *of[other_port]))
    per_s, cpu, bare_per_s, bare_cpu = (statistics.median(column) for column in zip(*found, strict=True))
    ratio = statistics.median(one[0] / one[2] for one in found)
    return {
        "per_s": round(per_s), "bare_per_s": round(bare_per_s), "ratio": round(ratio, 2), "cpu_us": round(cpu, 1),
        "bare_cpu_us": round(bare_cpu, 1), "runs": runs,
    }  # fmt: skip


async def listen(port: int, number: int, late_ms: list[float], listening: asyncio.Event) -> None:
    """Read so many events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /topics/{TOPIC}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    await reader.readuntil(b": metaq")
    listening.set()
    while number:
        line = await reader.readline()
        if not line:
            raise RuntimeError("the server has closed a stream")
        if line.startswith(b"data: "):
            late_ms.append((time.time() - float(json.loads(line[6:])["body"])) * 1000)
            number -= 1
    writer.close()


async def events(listeners: int, rate: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as disk, ours(Path(disk)) as (server, port):
        async with metaq.aio.Producer(server.namesrv) as producer:
            await producer.send(TOPIC, b"makes the topic")
            late, ready, number = list[float](), [asyncio.Event() for _ in range(listeners)], int(rate * seconds)
            readers = [asyncio.create_task(listen(port, number, late, one)) for one in ready]
            for event in ready:
                await event.wait()
            cpu, begun = server.cpu_seconds(), time.perf_counter()
            for sent in range(number):
                await asyncio.sleep(max(0, begun + sent / rate - time.perf_counter()))
                await producer.send(TOPIC, str(time.time()).encode())
            await asyncio.gather(*readers)
            took, used = time.perf_counter() - begun, server.cpu_seconds() - cpu
    late.sort()
    return {
        "listeners": listeners, "rate": rate, "per_s": round(len(late) / took), "events": len(late),
        "p50_ms": round(late[len(late) // 2], 1), "p99_ms": round(late[len(late) * 99 // 100], 1),
        "cpu_us": round(used / len(late) * 1e6, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sends", "events"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--listeners", type=int, default=500)
    parser.add_argument("--rate", type=int, default=10)
    asked = parser.parse_args()
    if asked.what == "sends":
        print(json.dumps(sends(asked.runs, asked.seconds)))
    else:
        print(json.dumps(asyncio.run(events(asked.listeners, asked.rate, asked.seconds))))


if __name__ == "__main__":
    main()
