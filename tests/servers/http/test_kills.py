"""HTTP keeps nothing of its own: what it has answered holds when the broker is killed."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support import PATIENCE, environment, eventually, metaq_command, process, read_line

SENDERS = 4
LOADED = 30
"""Transactions behind which the broker is killed."""


@contextmanager
def broker(folder: pathlib.Path) -> Iterator[tuple[httpx.Client, int]]:
    """A broker process, and a client of its HTTP server; killed at the end."""
    options = {
        "httpPort": "0", "listenPort": "0", "haListenPort": "0", "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": str(4 << 20),
    }  # fmt: skip
    command = metaq_command("broker", *(part for pair in options.items() for part in ("-o", "=".join(pair))))
    log = (folder / f"log-{len(list(folder.iterdir()))}").open("w+")
    with log, process(*command, stderr=log, env=environment()) as child:
        read_line(child, "ready broker")
        address = eventually(lambda: http_address(pathlib.Path(log.name)))
        with httpx.Client(base_url=f"http://{address}", timeout=PATIENCE) as client:
            yield client, child.pid


def http_address(log: pathlib.Path) -> str | None:
    return next(
        (line.split()[-1] for line in log.read_text().splitlines() if "the http server listens at" in line), None
    )


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def receive(client: httpx.Client, **query: object) -> list[dict]:
    told = client.post("/groups/billing/topics/orders/messages", params={"start": "earliest", "max": 1000, **query})
    assert told.status_code == 200, told.text
    return told.json()["messages"]


def test_acknowledged_is_not_delivered_again_and_not_acknowledged_is(tmp_path: pathlib.Path) -> None:
    with broker(tmp_path) as (client, pid):
        messages = [{"body": str(number), "queue": number % 4} for number in range(100)]
        assert client.post("/topics/orders/messages", json={"messages": messages}).status_code == 200
        found = receive(client)
        assert len(found) == 100
        done = found[:30] + [one for one in found[30:] if one["message"]["queue"] == found[0]["message"]["queue"]]
        told = client.post("/groups/billing/ack", json={"ackIds": [one["ackId"] for one in done]})
        kill(pid)
        assert told.status_code == 200, told.text
    acknowledged = {one["message"]["body"] for one in done}
    with broker(tmp_path) as (client, _):
        again = receive(client)
        assert {one["message"]["body"] for one in again} == {str(number) for number in range(100)} - acknowledged
        offset = {"offset": 25}
        where = f"/groups/billing/topics/orders/queues/{found[-1]['message']['queue']}/offset"
        assert client.put(where, json=offset).status_code == 200
    with broker(tmp_path) as (client, _):
        assert client.get(where).json() == offset


def test_messages_of_a_request_are_all_there_or_none(tmp_path: pathlib.Path) -> None:
    answered, asked, enough = set[str](), set[str](), threading.Event()

    def send(client: httpx.Client, sender: int) -> None:
        for number in range(10_000):
            name = f"{sender}-{number}"
            parts = [
                {"topic": topic, "body": name, "queue": queue} for topic in ("orders", "stock") for queue in (0, 1, 2)
            ]
            asked.add(name)
            try:
                told = client.post("/messages", json={"messages": parts})
            except httpx.TransportError:
                return
            assert told.status_code == 200, told.text
            answered.add(name)
            if len(answered) >= LOADED:
                enough.set()

    with broker(tmp_path) as (client, pid):
        senders = [threading.Thread(target=send, args=(client, number)) for number in range(SENDERS)]
        for one in senders:
            one.start()
        assert enough.wait(PATIENCE)
        kill(pid)
        for one in senders:
            one.join(PATIENCE)
    places = [(topic, queue) for topic in ("orders", "stock") for queue in (0, 1, 2)]
    found = dict[str, list[tuple[str, int]]]()

    def are_whole() -> bool:
        """Of those that the kill has met, the start goes on with while clients are served already."""
        found.clear()
        for topic, queue in places:
            for message in all_of(client, topic, queue):
                found.setdefault(message["body"], []).append((topic, queue))
        assert all(sorted(there) == places for there in found.values())
        return True

    with broker(tmp_path) as (client, _):
        eventually(are_whole, what="messages of each request are all there")
        assert answered <= set(found) <= asked


def all_of(client: httpx.Client, topic: str, queue: int) -> Iterator[dict]:
    offset, end = 0, 1
    while offset < end:
        told = client.get(f"/topics/{topic}/queues/{queue}/messages", params={"offset": offset, "max": 1000}).json()
        yield from told["messages"]
        offset, end = told["next"], told["end"]
