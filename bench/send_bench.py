"""What `send` costs where one waits for it: one after the other beside a bare socket, from many threads, and awaited by many tasks.

    python bench/send_bench.py                                     # starts a broker of its own
    python bench/send_bench.py --namesrv 127.0.0.1:9876 --count 20000 --tasks 1000

Prints one JSON object:
  send_p50_us    `producer.send` in one thread, one after the other, until the receipt is there, median; send_p99_us
  bare_us        the same request, encoded before, written to a blocking socket, and its answer received, median; bare_p99_us
  times          send_p50_us over bare_us. Both are of the same bytes to the same broker, and take turns of 50, so that both see
                 the same machine
  send_cpu_us    CPU time of the client's process for one such send; bare_cpu_us
  threads_per_s  64 threads, each one send after the other, together; `--threads 1,4,64` for other numbers
  aio_per_s      asyncio: `--tasks` tasks, each awaiting one send after the other, together
  aio_cpu_us     CPU time of the client's process for one of those
  aio_p50_us     how long one of those took, by every tenth task; aio_p99_us
Every receipt is looked at: offsets of a queue are all different, and as many as were sent.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above
from metaq import aio  # noqa: E402
from metaq.client.conversation.sending.sending import Outgoing, Send  # noqa: E402
from metaq.net.address import split_address  # noqa: E402
from metaq.wire.command import decode, encode  # noqa: E402

BODY = b"x" * 100
TURN = 50
WAIT_SECONDS = 60.0


def master_of(producer: metaq.Producer, broker: str) -> str:
    """Where that broker listens."""
    found = producer._core.routes.broker(broker)  # noqa: SLF001  there is no other way to ask
    assert found is not None
    assert found.master is not None
    return found.master


class Bare:
    """The request of a send, over and over on a blocking socket."""

    def __init__(self, address: str, queue: metaq.MessageQueue, message_id: str) -> None:
        self._socket = socket.create_connection(split_address(address), WAIT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        outgoing = Outgoing(queue.topic, BODY, properties=f"WAIT\x01true\x02UNIQ_KEY\x01{message_id}")
        self._frame = encode(Send("send-bench", outgoing, queue, int(time.time() * 1000)).request())
        answer = decode(self.exchange()[4:])
        assert answer.code == 0, answer.remark

    def exchange(self) -> bytes:
        self._socket.sendall(self._frame)
        return self._socket.recv(4096)

    def close(self) -> None:
        self._socket.close()


def timed(work: Callable[[], object], count: int) -> tuple[list[float], float]:
    """Microseconds of each, and the process's CPU time for one."""
    took, clock, cpu = [], time.perf_counter, time.process_time()
    for _ in range(count):
        began = clock()
        work()
        took.append((clock() - began) * 1e6)
    return took, time.process_time() - cpu


def checked(receipts: list[metaq.SendReceipt]) -> None:
    assert len({(receipt.queue, receipt.offset) for receipt in receipts}) == len(receipts), "a receipt came twice"
    assert len({receipt.message_id for receipt in receipts}) == len(receipts), "an id came twice"


def one_by_one(namesrv: str, topic: str, count: int) -> dict[str, float]:
    receipts: list[metaq.SendReceipt] = []
    with metaq.Producer(namesrv, timeout=WAIT_SECONDS) as producer:

        def send() -> None:
            receipts.append(producer.send(topic, BODY))

        for _ in range(max(20, count // 20)):
            send()
        queue = receipts[0].queue
        bare = Bare(master_of(producer, queue.broker), queue, receipts[0].message_id)
        timed(bare.exchange, 20)
        sends: list[float] = []
        bares: list[float] = []
        send_cpu = bare_cpu = 0.0
        for _ in range(max(1, count // TURN)):
            took, cpu = timed(send, TURN)
            sends += took
            send_cpu += cpu
            took, cpu = timed(bare.exchange, TURN)
            bares += took
            bare_cpu += cpu
        bare.close()
    checked(receipts)
    done = len(sends)
    sends.sort()
    bares.sort()
    return {
        "send_p50_us": sends[done // 2], "send_p99_us": sends[done * 99 // 100], "bare_us": bares[done // 2],
        "bare_p99_us": bares[done * 99 // 100], "times": sends[done // 2] / bares[done // 2],
        "send_cpu_us": send_cpu / done * 1e6, "bare_cpu_us": bare_cpu / done * 1e6,
    }  # fmt: skip


def threads_rate(namesrv: str, topic: str, count: int, threads: int) -> float:
    """Sends a second of so many threads of one producer."""
    receipts: list[list[metaq.SendReceipt]] = [[] for _ in range(threads)]
    each = max(1, count // threads)
    with metaq.Producer(namesrv, timeout=WAIT_SECONDS) as producer:
        for _ in range(20):
            producer.send(topic, BODY)

        def work(mine: list[metaq.SendReceipt]) -> None:
            mine.extend(producer.send(topic, BODY) for _ in range(each))

        workers = [threading.Thread(target=work, args=(mine,)) for mine in receipts]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - began
    everything = [receipt for mine in receipts for receipt in mine]
    assert len(everything) == each * threads
    checked(everything)
    return each * threads / seconds


async def awaited(namesrv: str, topic: str, count: int, tasks: int) -> dict[str, float]:
    receipts: list[metaq.SendReceipt] = []
    took: list[float] = []
    each = max(1, count // tasks)
    async with aio.Producer(namesrv, timeout=WAIT_SECONDS) as producer:
        await producer.send(topic, BODY)

        async def work(times: int) -> None:
            for _ in range(times):
                receipts.append(await producer.send(topic, BODY))  # noqa: PERF401  a comprehension would end with all of them

        async def timed_work(times: int) -> None:
            for _ in range(times):
                began = time.perf_counter()
                receipts.append(await producer.send(topic, BODY))
                took.append((time.perf_counter() - began) * 1e6)

        await asyncio.gather(*(work(1) for _ in range(tasks)))
        receipts.clear()
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*((work if number % 10 else timed_work)(each) for number in range(tasks)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    done = each * tasks
    assert len(receipts) == done
    checked(receipts)
    took.sort()
    return {
        "aio_per_s": done / seconds, "aio_cpu_us": cpu / done * 1e6, "aio_p50_us": took[len(took) // 2],
        "aio_p99_us": took[len(took) * 99 // 100],
    }  # fmt: skip


def measure(namesrv: str, count: int, threads: list[int], tasks: int, parts: list[str]) -> dict[str, float]:
    topic = f"send-bench-{os.getpid()}"
    found: dict[str, float] = {}
    if "one" in parts:
        found |= one_by_one(namesrv, topic, count)
    if "threads" in parts:
        for number in threads:
            key = "threads_per_s" if len(threads) == 1 else f"threads_{number}_per_s"
            found[key] = threads_rate(namesrv, f"{topic}-threads", 2 * count, number)
    if "aio" in parts:
        runs = [asyncio.run(awaited(namesrv, f"{topic}-aio", 10 * count, tasks)) for _ in range(3)]
        found |= {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument(
        "--count", type=int, default=10_000, help="sends of one thread; many threads do 2 ×, tasks 10 ×"
    )
    parser.add_argument("--threads", default="64")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--parts", default="one,threads,aio")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        threads = [int(number) for number in arguments.threads.split(",")]
        found = measure(namesrv, arguments.count, threads, arguments.tasks, arguments.parts.split(","))
        print(json.dumps(found))


if __name__ == "__main__":
    main()
