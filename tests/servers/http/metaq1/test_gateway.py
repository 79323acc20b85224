"""The gateway of MetaQ 1.x: the text protocol's answers, by HTTP."""

from __future__ import annotations

import re
import zlib

import pytest

from metaq.options import Metaq1Options
from metaq.wire.metaq1.frame import frames
from tests.broker.metaq1.support import settings
from tests.servers.http.running import running
from tests.servers.http.support import in_loop


def of_ours():
    return settings(Metaq1Options(server_port=0), test=2)


async def put(served, body, **query):
    return await served.client.post("/put/0", params={"topic": "test", "partition": 0, **query}, content=body)


@in_loop
async def test_what_is_put_is_got(tmp_path):
    async with running(tmp_path, metaq1=of_ours()) as served:
        checksum = zlib.crc32(b"hello") & 0x7FFFFFFF
        told = await put(served, b"hello", flag=0, length=5, checksum=checksum)
        assert told.status_code == 200 and re.fullmatch(r"\d+ 0 0", told.text)
        told = await put(served, b"world")
        assert told.text.endswith(" 0 25")
        query = {"topic": "test", "partition": 0, "offset": 0, "group": "g", "maxsize": 1024}
        got = await served.client.get("/get/0/more", params=query)
        assert got.status_code == 200
        assert [one.body for one in frames(got.content)] == [b"hello", b"world"]
        told = await served.client.get("/offset/0", params={"topic": "test", "partition": 0, "offset": 10**6})
        assert (told.status_code, told.text) == (200, "50")


@pytest.mark.parametrize(
    ("method", "path", "query", "status"),
    [
        ("GET", "/get/0", {"topic": "test", "partition": 0, "offset": 50, "maxsize": 1024}, 404),
        ("GET", "/get/0", {"topic": "test", "partition": 0, "offset": 0, "maxsize": -1}, 400),
        ("GET", "/get/0", {"topic": "test", "partition": 0, "offset": "x", "maxsize": 1024}, 400),
        ("GET", "/get/0", {"partition": 0, "offset": 0, "maxsize": 1024}, 400),
        ("POST", "/put/0", {"topic": "test", "partition": 0, "checksum": 1}, 500),
        ("POST", "/put/0", {"topic": "test", "partition": 0, "length": 3}, 400),
        ("POST", "/put/0", {"topic": "nobody", "partition": 0}, 500),
        ("POST", "/put/0", {"topic": "test", "partition": 9}, 500),
    ],
)
@in_loop
async def test_refusals_have_the_codes_of_the_text_protocol(tmp_path, method, path, query, status):
    async with running(tmp_path, metaq1=of_ours()) as served:
        await put(served, b"hello")
        told = await served.client.request(method, path, params=query, content=b"hello" if method == "POST" else None)
        assert told.status_code == status, told.text
        assert told.headers["content-type"].startswith("text/plain") and told.text


@in_loop
async def test_a_broker_without_metaq_1_has_no_gateway(tmp_path):
    async with running(tmp_path) as served:
        assert (await put(served, b"hello")).status_code == 404
