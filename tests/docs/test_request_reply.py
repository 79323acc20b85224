"""The programs of docs/request-reply.md and docs/serializers.md run as they stand, and what they say of limits is true."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from metaq.client.consumer.received.replying import REPLY_SECONDS
from metaq.client.producing.base import REQUEST_SECONDS
from metaq.client.shared.requests import REQUESTS_MAX
from metaq.servers.remoting.asking import PEER_QUESTIONS_MAX
from tests.support import PATIENCE, ROOT, environment

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("request-reply", "serializers")}
PROGRAMS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in PAGES.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_the_page_runs(metaq_broker, tmp_path, program):
    """Each asserts what it tells."""
    file = tmp_path / "program.py"
    file.write_text(program.replace("localhost:9876", metaq_broker.namesrv))
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(file)], capture_output=True, text=True, timeout=PATIENCE,
        check=False, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_numbers_of_the_page_are_those_of_the_code():
    text = PAGES["request-reply"]
    assert f"more than {PEER_QUESTIONS_MAX} replies" in text
    assert f"more than {REQUESTS_MAX} requests" in text
    assert f"`timeout` ({REQUEST_SECONDS:g} s)" in text
    assert f"`timeout` seconds ({REPLY_SECONDS:g})" in text
