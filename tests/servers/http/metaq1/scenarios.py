"""What an HTTP client says to a gateway of MetaQ 1.x, and how what comes back is written down.

Run as a program this writes down the answers of another gateway, which serves the topic `shut` and the wildcard `t-*` with three
partitions each, of which partition 0 of `shut` is closed, `maxTransferSize` 65536 and `updateConsumerOffsets`:

    python -m tests.servers.http.metaq1.scenarios http://127.0.0.1:8080 > tests/servers/http/metaq1/recorded.json

recorded.json has those of the plug-in jettyBroker (its sources of 1.4.6.3-SNAPSHOT, which is the newest, on the server 1.4.6.2 and Jetty
7.6.1, as its pom says). The plug-in was never published to a registry, and so cannot be asked again by a test.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import sys
import zlib
from typing import NamedTuple

import httpx

from metaq.errors import BadRequest
from metaq.wire.metaq1.frame import HEAD_BYTES, frames
from tests.support import PATIENCE

LONG_MAX = 2**63 - 1


class Ask(NamedTuple):
    """One request. `query`: its parameters as they are written; `{t}` is the scenario's own topic."""

    path: str
    query: str = ""
    body: bytes | None = None
    method: str = ""

    @property
    def verb(self) -> str:
        return self.method or ("GET" if self.body is None else "POST")


def crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def put(
    body: bytes, partition: int = 0, flag: int = 0, more: str = "", topic: str = "{t}", path: str = "/put/0"
) -> Ask:
    return Ask(path, f"topic={topic}&partition={partition}&flag={flag}&length={len(body)}{more}", body)


def get(offset: int, size: int = 1024, partition: int = 0, topic: str = "{t}", path: str = "/get/0") -> Ask:
    return Ask(path, f"topic={topic}&partition={partition}&offset={offset}&group=httpgroup&maxsize={size}")


def offset(at: int, partition: int = 0, topic: str = "{t}", more: str = "&group=httpgroup") -> Ask:
    return Ask("/offset/0", f"topic={topic}&partition={partition}&offset={at}{more}")


TWO = [put(b"hello"), put(b"hello", more=f"&checksum={crc(b'hello')}")]
"""Two frames of 25 bytes."""
ATTRIBUTE = struct.pack(">i", 5) + b"attr1hi"

SCENARIOS: dict[str, list[Ask]] = {
    # ---- put
    "put": [*TWO, put(ATTRIBUTE, flag=1), get(0)],
    "put of nothing": [put(b""), put(b"x"), get(0)],
    "put of any bytes": [put(bytes(range(256))), put(b"x"), get(0)],
    "put into another partition": [put(b"x", partition=2), put(b"y", partition=2), get(0, partition=2)],
    "put with a wrong checksum": [put(b"hello", more="&checksum=1"), put(b"hello", more="&checksum=-1")],
    "put with a blank checksum": [put(b"hello", more="&checksum=")],
    "put into a partition that is not there": [put(b"x", partition=3), put(b"x", partition=-2)],
    "put into a topic that is not accepted": [put(b"x", topic="nobody")],
    "put without parameters": [Ask("/put/0", "", b"x"), Ask("/put/0", "topic={t}&partition=0&length=1", b"x")],
    "put without a length": [Ask("/put/0", "topic={t}&partition=0&flag=0", b"x")],
    "put with words for numbers": [Ask("/put/0", "topic={t}&partition=zero&flag=0&length=1", b"x")],
    "put of more than it says": [Ask("/put/0", "topic={t}&partition=0&flag=0&length=2", b"hello"), put(b"x"), get(0)],
    "put of less than it says": [Ask("/put/0", "topic={t}&partition=0&flag=0&length=7", b"hello"), put(b"x"), get(0)],
    "put of a message that no get could deliver": [put(b"x" * (1 << 16))],
    "put into a closed partition": [put(b"x", topic="shut"), put(b"x", topic="shut", partition=1)],
    # ---- get
    "get from a closed partition": [get(0, topic="shut"), get(0, 0, topic="shut"), offset(0, topic="shut")],
    "get": [*TWO, get(0), get(25), get(0, 25), get(0, 30), get(7, 20)],
    "get at the end and behind it": [*TWO, get(50), get(51), get(LONG_MAX), get(LONG_MAX - 1)],
    "get before the begin": [*TWO, get(-1), get(-(2**63))],
    "get of no bytes": [*TWO, get(0, 0), get(0, -1), get(50, 0)],
    "get where nothing was put": [get(0), get(0, topic="nobody"), get(0, partition=9), get(0, partition=-1)],
    "get without parameters": [*TWO, Ask("/get/0"), Ask("/get/0", "topic={t}&partition=0&offset=0&group=g")],
    "get without a group": [*TWO, Ask("/get/0", "topic={t}&partition=0&offset=0&maxsize=1024")],
    "get with words for numbers": [*TWO, Ask("/get/0", "topic={t}&partition=0&offset=x&group=g&maxsize=9")],
    # ---- offset
    "offset": [*TWO, offset(0), offset(7), offset(50), offset(5000), offset(-1), offset(LONG_MAX)],
    "offset without a group": [*TWO, offset(0, more="")],
    "offset where nothing was put": [offset(0), offset(0, topic="nobody"), offset(0, partition=9)],
    "offset without parameters": [Ask("/offset/0")],
    # ---- paths and methods
    "further parts of the path": [
        put(b"x", path="/put/0/a/b"), put(b"y", path="/put/17"), get(0, path="/get/anything"), put(b"z", path="/put"), get(21, path="/get"),
    ],
    "other methods": [
        put(b"x")._replace(method="PUT"), put(b"y"), get(0)._replace(method="POST"), get(0)._replace(method="HEAD"), get(0)._replace(method="DELETE"),
    ],
    "other paths": [Ask("/x/0"), Ask("/version")],
}  # fmt: skip


def topic_of(scenario: str) -> str:
    return "t-" + scenario.replace(" ", "-")


def shown(ask: Ask, answer: httpx.Response, topic: str) -> str:
    """The answer as a line, without what differs from run to run: ids and addresses."""
    body = answer.content
    if answer.status_code == 200 and ask.path.startswith("/get") and body:
        try:
            whole = list(frames(body))
        except BadRequest:  # it begins inside of one
            return f"200 {len(body)} bytes"
        rest = len(body) - sum(HEAD_BYTES + len(one.body) for one in whole)
        return f"200 {len(body)} bytes: {'; '.join(f'flag {one.flag} {one.body!r:.60}' for one in whole)}" + (
            f"; {rest} more" if rest else ""
        )
    if "text/html" in answer.headers.get("content-type", ""):
        return f"{answer.status_code} a page"
    text = re.sub(r"-?\b\d{16,}\b", "<id>", body.decode("utf-8", "replace").replace(topic, "{t}"))
    return f"{answer.status_code} {re.sub(r'meta://[^ ]*:[0-9]+', 'meta://<broker>', text)!r}"


async def run(scenario: str, client: httpx.AsyncClient) -> list[str]:
    """The answers to a scenario's requests, one after the other."""
    topic, lines = topic_of(scenario), []
    for number, ask in enumerate(SCENARIOS[scenario]):
        url = f"{ask.path}?{ask.query.format(t=topic)}" if ask.query else ask.path
        answer = await client.request(ask.verb, url, content=ask.body)
        lines.append(f"{number}: {shown(ask, answer, topic)}")
    return lines


async def record(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        found = {name: await run(name, client) for name in SCENARIOS}
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
