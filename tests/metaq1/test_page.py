"""The program of docs/metaq1.md runs."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "metaq1.md").read_text()


def test_the_program_sends_and_consumes(server, topic, tmp_path):
    """Against a server that it finds without ZooKeeper; where its home is, its offsets stay."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "program.py"
    path.write_text(program.replace("127.0.0.1:8123", server.text).replace('"test"', f'"{topic}"'))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=environment() | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "stored at 0\ngot b'hello'\n", "")
