"""What a bystander waits for while others connect 1 000 times a second, beside the same without them, in turns in one run.

    python bench/connect_flood.py            # rounds of 5 s each
    python bench/connect_flood.py --quick

Prints one JSON object: `p99_ms` and `p50_ms` of a client that asks for a queue's end every 2 ms, calm and in the flood, `ratio` of
the p99s, `connects_per_s` that were made, and `cpu` of the server in the flood and without (CPU seconds a second). A connection of
the flood sends one request, reads the answer and ends.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import processes
import pull_flood

sys.path.insert(0, str(processes.ROOT / "src"))
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request

PER_SECOND = 1000
PERIOD = 0.01
ROUNDS = 3


def flood(address: str, stop: Pipe) -> None:
    """Connect at the rate until told to stop; send back how often."""
    ask = encode(request(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic="flood", queue_id=0)))
    os.nice(19)  # others have machines of their own: here they take what server and bystander leave
    made, began = 0, time.monotonic()
    stop.send(None)
    while not stop.poll():
        due = int((time.monotonic() - began) * PER_SECOND)
        for _ in range(min(due - made, PER_SECOND)):  # one that is late connects as many at once
            with contextlib.closing(pull_flood.connect(address)) as raw:
                raw.sendall(ask)
                pull_flood.receive(raw)
            made += 1
        time.sleep(PERIOD)
    stop.send(made / (time.monotonic() - began))


@contextlib.contextmanager
def beside(work: object, address: str, results: list[object]):
    """Run `work` in a process meanwhile, and append what it sends at the end."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=work, args=(address, theirs), daemon=True)
    process.start()
    ours.recv()
    yield
    ours.send(None)
    results.append(ours.recv())
    process.join()


def measure(disk: Path, seconds: float, rounds: int) -> dict[str, float]:
    """Calm and flood in turns at one server."""
    seen: dict[bool, list[float]] = {False: [], True: []}
    cpu, rates = {False: 0.0, True: 0.0}, list[float]()
    with processes.metaq_up(disk) as server:
        pull_flood.fill(server.address, 1)
        for number in range(2 * rounds):
            flooded, latencies = bool(number % 2), list[list[float]]()
            with contextlib.ExitStack() as stack:
                if flooded:
                    stack.enter_context(beside(flood, server.address, rates))
                before = server.cpu_seconds()
                with beside(pull_flood.bystand, server.address, latencies):
                    time.sleep(seconds)
                cpu[flooded] += (server.cpu_seconds() - before) / seconds / rounds
            seen[flooded] += latencies[0]
    for found in seen.values():
        found.sort()
    p50, p99 = ({key: found[len(found) * share // 100] * 1e3 for key, found in seen.items()} for share in (50, 99))
    return {
        "p50_ms_calm": round(p50[False], 3), "p50_ms_flood": round(p50[True], 3), "p99_ms_calm": round(p99[False], 3),
        "p99_ms_flood": round(p99[True], 3), "ratio": round(p99[True] / p99[False], 2),
        "connects_per_s": round(sum(rates) / len(rates)), "cpu_calm": round(cpu[False], 3), "cpu_flood": round(cpu[True], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a moment each: shows that it works")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    seconds, rounds = (0.3, 1) if arguments.quick else (5.0, ROUNDS)
    print(json.dumps(measure(arguments.disk, seconds, rounds)), flush=True)


if __name__ == "__main__":
    main()
