"""The round trip of a request and its reply beside a plain send: one caller, one responder in a process of its own.

    python bench/request_bench.py                # starts a broker of its own
    python bench/request_bench.py --count 5000

A request and two sends take turns, so that both see the same machine. Prints one JSON object:
  p50_us, p99_us     a request, until its reply is there (sync `Producer.request`, an iterating `Consumer` that replies)
  send_us            a send right behind a request, until it is acknowledged, median; send_p99_us. It meets what is left of
                     the request: the responder is told that its reply has arrived when the requester has it already
  sends              p50_us over send_us
  send_again_us      a send right behind another, median: what a send takes by itself
  sends_again        p50_us over send_again_us
These sends go by the client's loop, as requests do; what one takes that its thread carries by itself: send_bench.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above
from metaq.client.shared import direct_links  # noqa: E402

BODY = b"x" * 100
WAIT_SECONDS = 60.0


def respond(namesrv: str, topic: str) -> None:
    """Reply to everything, until the process is ended."""
    with metaq.Consumer(namesrv, group="request-bench", topics=topic, start="earliest") as consumer:
        for message in consumer:
            with message:
                message.reply(message.body)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


def measure(namesrv: str, count: int) -> dict[str, float]:
    topic = f"request-bench-{os.getpid()}"
    direct_links.WISHES = sys.maxsize
    with metaq.Producer(namesrv, timeout=WAIT_SECONDS) as producer:
        queue = producer.send(f"{topic}-plain", BODY).queue
        producer.send(topic, BODY)  # makes the topic; nobody waits for the reply
        command = [sys.executable, __file__, "--respond", topic, "--namesrv", namesrv]
        responder = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:

            def ask() -> object:
                return producer.request(topic, BODY, timeout=WAIT_SECONDS)

            def send() -> object:
                return producer.send(queue.topic, BODY)

            for _ in range(max(20, count // 20)):  # the responder joins its group; both learn their ways
                ask()
                send()
            requests, sends, again = [], [], []
            for _ in range(count):
                requests.append(timed(ask))
                sends.append(timed(send))
                again.append(timed(send))
        finally:
            responder.terminate()
            responder.wait()
    requests.sort()
    sends.sort()
    again.sort()
    p50, send_us, again_us = requests[count // 2], sends[count // 2], again[count // 2]
    return {
        "p50_us": round(p50, 1), "p99_us": round(requests[count * 99 // 100], 1), "send_us": round(send_us, 1),
        "send_p99_us": round(sends[count * 99 // 100], 1), "sends": round(p50 / send_us, 2),
        "send_again_us": round(again_us, 1), "sends_again": round(p50 / again_us, 2), "count": count,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--respond", metavar="TOPIC", help="be the responder")
    arguments = parser.parse_args()
    if arguments.respond:
        respond(arguments.namesrv, arguments.respond)
        return
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        print(json.dumps(measure(namesrv, arguments.count)))


if __name__ == "__main__":
    main()
