"""Many consumers that pull 8 MiB each: what the server's memory grows by when none of them reads, and how long another
client's request takes while all of them read.

    python bench/pull_flood.py            # both figures, for recent messages (gathered, in runs) and for old ones
    python bench/pull_flood.py --quick

Prints one JSON object per kind. `unread_mb`: RssAnon before and the most while 400 connections left an answer of 8 MiB
unread. `p99_ms`: of a bystander that asks for a queue's end every 2 ms while 300 connections pull 8 MiB at once and read.
"""

import argparse
import contextlib
import json
import multiprocessing
import selectors
import socket
import sys
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import processes

sys.path.insert(0, str(processes.ROOT / "src"))

from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request
from metaq.wire.record import encode_batch

MIB = 1024 * 1024
PULL_BYTES = 8 * MIB
ASK_SECONDS = 0.002
KINDS = {
    "gathered": (2, ()),  # two queues in turns: no two messages of one lie together
    "runs": (1, ()),
    "old": (2, ("-o", "hotBytes=0", "-o", "accessMessageInMemoryMaxRatio=0")),
}


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    raw = socket.create_connection((host, int(port)), processes.PATIENCE)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


def receive(raw: socket.socket) -> int:
    """One whole answer; its bytes."""
    head = raw.recv(4, socket.MSG_WAITALL)
    left = size = int.from_bytes(head, "big")
    while left:
        left -= len(raw.recv(min(left, 256 * 1024)))
    return size


def fill(address: str, queues: int) -> None:
    """A little more than one pull in each queue, message by message in turns."""
    with contextlib.closing(connect(address)) as raw:
        for number in range(12):
            for _ in range(64 if queues > 1 else 1):
                for queue_id in range(queues):
                    count = 16 if queues > 1 else 1024
                    batch = encode_batch([(0, b"m" * 1000, b"")] * count)
                    header = headers.SendHeader(
                        producer_group="g", topic="flood", queue_id=queue_id, born_ms=number, batch=True,
                        default_topic="TBW102", default_topic_queues=4,
                    )  # fmt: skip
                    raw.sendall(encode(request(RequestCode.SEND_BATCH_MESSAGE, header, batch)))
                    receive(raw)


def pull() -> bytes:
    header = headers.PullHeader(
        group="bench", topic="flood", queue_id=0, queue_offset=0, max_messages=65_535, sys_flag=4, suspend_ms=0,
        subscription="*", expression_type="TAG", max_msg_bytes=PULL_BYTES,
    )  # fmt: skip
    return encode(request(RequestCode.PULL_MESSAGE, header))


def bystand(address: str, stop: Pipe) -> None:
    """Ask every 2 ms until told to stop, once at least; send the latencies back, those included that a late answer kept from
    asking."""
    raw, seen = connect(address), list[float]()
    ask = encode(request(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic="flood", queue_id=0)))
    stop.send(None)
    while not seen or not stop.poll(ASK_SECONDS):
        began = time.monotonic()
        raw.sendall(ask)
        receive(raw)
        late = time.monotonic() - began
        while late > 0:
            seen.append(late)
            late -= ASK_SECONDS
    stop.send(seen)


def unread(server: processes.Server, count: int) -> tuple[float, float]:
    """RssAnon in MB before, and at most while `count` connections leave their answer unread."""
    before = most = server.rss_anon_mb()
    with contextlib.ExitStack() as peers:
        for _ in range(count):
            raw = peers.enter_context(contextlib.closing(connect(server.address)))
            raw.sendall(pull())
            most = max(most, server.rss_anon_mb())
        for _ in range(100):
            time.sleep(0.02)
            most = max(most, server.rss_anon_mb())
    return before, most


def read_all(address: str, count: int) -> tuple[float, float]:
    """`count` connections pull at once and read: GB/s, and the smallest answer's share of 8 MiB."""
    buffer, sizes = bytearray(MIB), list[int]()
    with contextlib.ExitStack() as peers, selectors.DefaultSelector() as ready:
        raws = [peers.enter_context(contextlib.closing(connect(address))) for _ in range(count)]
        began = time.monotonic()
        for raw in raws:
            raw.sendall(pull())
        for raw in raws:
            raw.setblocking(False)
            ready.register(raw, selectors.EVENT_READ, [0, 0])
        while ready.get_map():
            for key, _ in ready.select():
                got = key.fileobj.recv_into(buffer)
                if not got:
                    raise SystemExit("the server closed a connection")
                if not key.data[1]:
                    key.data[1] = 4 + int.from_bytes(buffer[:4], "big")
                key.data[0] += got
                if key.data[0] == key.data[1]:
                    sizes.append(key.data[1])
                    ready.unregister(key.fileobj)
        return sum(sizes) / 1e9 / (time.monotonic() - began), min(sizes) / PULL_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few connections: shows that it works")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    silent, reading = (10, 10) if arguments.quick else (400, 300)
    for kind in arguments.kinds:
        queues, options = KINDS[kind]
        with processes.metaq_up(arguments.disk, options=options) as server:
            fill(server.address, queues)
            before, most = unread(server, silent)
            ours, theirs = multiprocessing.Pipe()
            bystander = multiprocessing.Process(target=bystand, args=(server.address, theirs), daemon=True)
            bystander.start()
            ours.recv()
            rate, smallest = read_all(server.address, reading)
            ours.send(None)
            seen = sorted(ours.recv())
            bystander.join()
            result = {
                "kind": kind, "unread_mb": [round(before, 1), round(most, 1)],
                "p50_ms": round(seen[len(seen) // 2] * 1e3, 2), "p99_ms": round(seen[len(seen) * 99 // 100] * 1e3, 1),
                "max_ms": round(seen[-1] * 1e3, 1), "gb_per_s": round(rate, 2), "smallest": round(smallest, 3),
            }  # fmt: skip
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
