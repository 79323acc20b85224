"""The gateway of MetaQ 1.x: the text protocol's answers, by HTTP."""

from __future__ import annotations

import asyncio
import re
import zlib

import pytest

from metaq.options import Metaq1Options
from metaq.wire.metaq1.frame import frames
from tests.broker.metaq1.support import settings
from tests.servers.http.running import running
from tests.servers.http.support import dial, in_loop
from tests.servers.support import Doubtful
from tests.support import PATIENCE


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
        ("POST", "/put/0", {"topic": "test", "partition": 0, "flag": 2**31}, 400),
        ("GET", "/get/0", {"topic": "test", "partition": 0, "offset": 2**63, "maxsize": 1}, 400),
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


@in_loop
async def test_a_put_anywhere_tells_where_it_is(tmp_path):
    async with running(tmp_path, metaq1=of_ours()) as served:
        places = [(await put(served, b"x", partition=-1)).text.split()[1] for _ in range(20)]
        assert set(places) == {"0", "1"}


@in_loop
async def test_what_comes_here_counts_in_stats(tmp_path):
    async with running(tmp_path, metaq1=settings(Metaq1Options(server_port=0, stat=True), test=1)) as served:
        await put(served, b"hello")
        await put(served, b"hello", checksum=1)
        for offset in (0, 25):
            await served.client.get("/get/0", params={"topic": "test", "partition": 0, "offset": offset, "maxsize": 99})
        await served.client.get("/offset/0", params={"topic": "test", "partition": 0, "offset": 0})
        told = await text_of(served, b"stats 1\r\nstats test 2\r\n")
        counted = dict(line.split(" ", 1) for line in told.split("\r\n") if line.startswith("topic_realtime"))
        assert [counted[f"topic_realtime_{what}"].split(",")[0] for what in ("put", "get", "offset", "get_miss", "put_failed")] == [
            "Count=2", "Count=2", "Count=1", "Count=1", "Count=1",
        ]  # fmt: skip
        assert counted["topic_realtime_message_size"].startswith("Count=2,Value=10,")


async def text_of(served, lines):
    """What the server of the text protocol answers until it closes the connection."""
    host, _, port = served.running.addresses["metaq1"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(lines + b"quit\r\n")
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return answer.decode()


HEAD = b"POST /put/0?topic=test&partition=0 HTTP/1.1\r\nHost: here\r\n"


@in_loop
async def test_a_body_that_ends_early_or_is_too_long_is_not_stored(tmp_path):
    options = Metaq1Options(server_port=0, max_transfer_size=4096)
    async with running(tmp_path, metaq1=settings(options, test=1)) as served:
        port = int(served.running.addresses["http"].rpartition(":")[2])
        cut = await dial(port)
        cut.writer.write(HEAD + b"Content-Length: 10\r\n\r\nhello")
        await cut.writer.drain()
        cut.writer.close()
        for length, body in (
            (b"Content-Length: 1000000000", b""),
            (b"Transfer-Encoding: chunked", b"1388\r\n" + b"x" * 5000 + b"\r\n0\r\n"),
        ):
            one = await dial(port)
            status, fields, text = await one.ask(HEAD + length + b"\r\n\r\n" + body)
            assert (status, fields["content-type"][:10]) == (500, "text/plain")
            assert b"failed.Detail:a message of" in text and b"the limit is 4096 (maxTransferSize)" in text
            assert fields["connection"] == "close"
            one.writer.close()
        told = await put(served, b"fine")
        assert told.text.endswith(" 0 0"), "nothing was stored before it"


@in_loop
async def test_a_put_that_another_site_causes_is_refused(tmp_path):
    async with running(tmp_path, metaq1=of_ours()) as served:
        here = served.client.base_url.netloc.decode()
        query = {"topic": "test", "partition": 0}
        for fields in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
        ):
            told = await served.client.post("/put/0", params=query, content=b"x", headers=fields)
            assert (told.status_code, told.json()["reason"]) == (403, "denied")
        for fields in ({"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": f"http://{here}"}):
            told = await served.client.post("/put/0", params=query, content=b"x", headers=fields)
            assert told.status_code == 200


@in_loop
async def test_accounts_are_asked_for(tmp_path):
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n"
        "- {accessKey: the-writer, secretKey: 12345678, topicPerms: ['test=PUB'], defaultGroupPerm: SUB}\n"
        "- {accessKey: the-reader, secretKey: 12345678, topicPerms: ['test=SUB'], defaultGroupPerm: SUB}\n"
    )
    async with running(tmp_path, metaq1=of_ours(), acl_enable=True, acl_path=str(accounts)) as served:
        query = {"topic": "test", "partition": 0}
        get = {**query, "offset": 0, "maxsize": 100}

        async def codes(*account):
            return [
                (await served.client.request(method, path, params=params, auth=account or None)).status_code
                for method, path, params in (("POST", "/put/0", query), ("GET", "/get/0", get), ("GET", "/offset/0", {**query, "offset": 0}))
            ]  # fmt: skip

        assert await codes() == [403, 403, 403]
        assert await codes("the-writer", "wrong") == [403, 403, 403]
        assert await codes("the-writer", "12345678") == [200, 403, 403]
        assert await codes("the-reader", "12345678") == [403, 200, 200]


@in_loop
async def test_what_is_stored_in_doubt_is_answered_with_an_error(tmp_path):
    async with running(tmp_path, metaq1=of_ours(), slave_timeout=50) as served:
        served.broker.acks.wait_for(Doubtful())
        told = await put(served, b"hello")
        assert (told.status_code, told.text) == (
            500, "this broker may not lead any more: whether the message is kept is not known",
        )  # fmt: skip
