"""Forks after every kind of client has been used, and tells how the children ended: `python -m tests.client.forking_program`.

Arguments: a name server's address, and `uvloop` or `asyncio`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

if sys.argv[2:] == ["asyncio"]:
    sys.modules["uvloop"] = None  # as where it is not installed

import metaq
from metaq import aio
from metaq.admin import Admin
from tests.support import PATIENCE

TOPIC = "forks"


def producer(namesrv: str) -> object:
    made = metaq.Producer(namesrv)
    made.send(TOPIC, b"x")
    return made


def transaction_producer(namesrv: str) -> object:
    made = metaq.TransactionProducer(namesrv, group="fork-tx", check=lambda _: None)
    with made.transaction(TOPIC, b"x"):
        pass
    return made


def consumer(namesrv: str) -> object:
    made = metaq.Consumer(namesrv, group="fork-c", topics=TOPIC, start="earliest")
    made.receive(PATIENCE)
    return made


def pull_consumer(namesrv: str) -> object:
    made = metaq.PullConsumer(namesrv, group="fork-p", topics=TOPIC, start="earliest")
    made.poll(1)
    return made


def reader(namesrv: str) -> object:
    made = metaq.Reader(namesrv, TOPIC, start="earliest", stop_at_end=True)
    list(made)
    return made


def admin(namesrv: str) -> object:
    made = Admin(namesrv)
    made.list_topics()
    return made


def aio_clients(namesrv: str) -> object:
    async def use() -> list[object]:
        made = [
            aio.Producer(namesrv),
            aio.Consumer(namesrv, group="fork-ac", topics=TOPIC, start="earliest"),
            aio.PullConsumer(namesrv, group="fork-ap", topics=TOPIC, start="earliest"),
        ]
        for one in made:
            await one.__aenter__()
        await made[0].send(TOPIC, b"x")
        await made[1].receive(PATIENCE)
        return made

    return asyncio.run(use())


def wrong_name(_namesrv: str) -> object:
    """A name that nobody knows: the look-up fails, and what it ran in is there all the same."""
    made = metaq.Producer("no-such-host.invalid:9876", timeout=0.5, retries=0)
    with contextlib.suppress(metaq.MetaqError):
        made.send(TOPIC, b"x")
    return made


KINDS = (producer, transaction_producer, consumer, pull_consumer, reader, admin, aio_clients, wrong_name)
ENDS = ("sys.exit", "os._exit", "exec")


def main(namesrv: str) -> None:
    for kind in KINDS:
        kept = kind(namesrv)
        for end in ENDS:
            child = os.fork()
            if child == 0:
                if end == "exec":
                    os.execv("/bin/true", ["true"])
                if end == "os._exit":
                    os._exit(0)
                sys.exit(0)
            _, status = os.waitpid(child, 0)
            print(f"{kind.__name__} {end} {os.waitstatus_to_exitcode(status)}", flush=True)
        del kept
    os._exit(0)  # how the parent ends is another matter


if __name__ == "__main__":
    main(sys.argv[1])
