"""Bodies that are too long: told in advance, or in chunks without end. Nothing is stored, and nobody else notices."""

from __future__ import annotations

import json

from tests.servers.http.running import running
from tests.servers.http.support import in_loop
from tests.servers.http.test_direct import dialed

HEAD = b"POST /topics/orders/messages HTTP/1.1\r\nhost: here\r\n"
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@in_loop
async def test_a_body_of_a_gigabyte_is_refused_by_its_length(tmp_path):
    async with running(tmp_path) as served:
        one, other = await dialed(served), await dialed(served)
        status, fields, body = await one.ask(HEAD + b"content-length: 1073741824\r\n\r\n")
        assert (status, fields["content-type"]) == (413, "application/problem+json")
        assert "1073741824" in json.loads(body)["title"]
        assert (await other.ask(HEAD + b"content-length: 3\r\n\r\nabc"))[0] == 200
        assert served.bodies("orders") == [b"abc"]


@in_loop
async def test_chunks_without_end_are_refused_at_the_limit(tmp_path):
    async with running(tmp_path) as served:
        one, other = await dialed(served), await dialed(served)
        one.writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        limit = served.broker.options.frame_bytes_max
        for _ in range(limit // 0x10000 + 1):
            one.writer.write(CHUNK)
            await one.writer.drain()
        status, _, body = await one.answer()
        assert status == 413 and str(limit) in json.loads(body)["title"]
        assert (await other.ask(HEAD + b"content-length: 3\r\n\r\nabc"))[0] == 200
        assert served.bodies("orders") == [b"abc"]
        one.writer.transport.abort()
