"""The programs of docs/arrow.md run as they stand, one after the other, and print what it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.support import PATIENCE, ROOT, environment

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "arrow.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_every_program_prints_what_the_page_says(metaq_broker, tmp_path):
    """pandas sends, Polars and DuckDB read, pandas consumes."""
    assert len(PROGRAMS) == PAGE.count("```python\n") == 4
    needed = {"numpy", "pyarrow", *re.findall(r"^import (pandas|polars|duckdb)$", PAGE, re.MULTILINE)}
    assert needed == {"numpy", "pyarrow", "pandas", "polars", "duckdb"}
    if missing := sorted(name for name in needed if importlib.util.find_spec(name) is None):
        pytest.skip(f"not installed: {', '.join(missing)}")
    program = tmp_path / "program.py"
    for text, printed in PROGRAMS:
        changed = text.replace("localhost:9876", metaq_broker.namesrv)
        program.write_text(changed)
        done = subprocess.run(
            [sys.executable, str(program)],
            capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
        )  # fmt: skip
        assert (done.returncode, done.stderr, done.stdout) == (0, "", printed), changed


def test_every_column_is_on_the_page():
    """Of rows that are sent, and of those that are read."""
    arrow = pytest.importorskip("metaq.client.arrow.records", exc_type=ImportError)
    arrow_rows = pytest.importorskip("metaq.client.arrow.rows", exc_type=ImportError)
    table = "".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"\| (`[^|]*) \|", table)))) >= set(arrow_rows.TYPES) - {
        "delay_level"
    }
    assert ", ".join(arrow.LEAN) in PAGE.replace("\n", " ")
    assert ", ".join(list(arrow.TYPES)[len(arrow.LEAN) :]) in PAGE.replace("\n", " ")


def test_the_figures_are_true():
    """Sizes that the page names."""
    sending = pytest.importorskip("metaq.client.producing.arrow_sending", exc_type=ImportError)
    assert sending.BATCH_BYTES == 256 * 1024
    assert sending.UNDER_WAY_BYTES_MAX == 8 * 1024 * 1024
    assert f"{sending.SLICE_ROWS:,}".replace(",", " ") in PAGE
