"""The program of docs/opentelemetry.md runs as it stands, in a process of its own: it sets the global tracer provider."""

from __future__ import annotations

import re
import subprocess
import sys

from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "opentelemetry.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_prints_what_the_page_says():
    with EmbeddedBroker() as broker:
        program = PROGRAM.replace("localhost:9876", broker.namesrv)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    told = re.search(r"It prints (.*?): four spans", PAGE)[1]
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(re.findall(r"`([^`]+)`", told))
