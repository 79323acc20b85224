"""The commands of docs/http.md do what the page says."""

from __future__ import annotations

import asyncio
import re
import shutil

import pytest

from tests.servers.http.running import running
from tests.servers.http.support import in_loop
from tests.support import PATIENCE, ROOT, environment

BEGIN = 'set -e\ncurl() { command curl -sS --fail-with-body "$@"; echo; }\n'


@pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("bash") is None, reason="curl and bash are not installed"
)
@in_loop
async def test_the_commands_of_the_page_work(tmp_path):
    page = (ROOT / "docs" / "http.md").read_text()
    blocks = [block for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "curl" in block]
    assert len(blocks) >= 6
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    async with running(tmp_path) as served:
        script = (BEGIN + "\n".join(blocks)).replace("localhost:8120", served.running.addresses["http"])
        child = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=tmp_path, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            output, _ = await child.communicate()
        assert child.returncode == 0, output.decode()
        assert [message.body for message in served.messages("photos")] == [b"\x89PNG"]
        assert len(served.messages("orders")) == 4
        assert [message.body for message in served.messages("stock")] == [b'{"item": "lamp", "taken": 1}']
        assert served.broker.offsets.get("billing", "orders", 0) == 0
        assert '{"offsets":[{"topic":"orders"' in output.decode()
        assert (tmp_path / "openapi.json").read_text().startswith("{")
