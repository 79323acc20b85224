"""What the tests of the benchmarks share: rows of `bench/run.py` with small input."""

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT, WHOLE_PATIENCE, environment

BENCH = ROOT / "bench"


@contextlib.contextmanager
def bench_modules() -> Iterator[None]:
    """The modules of bench/ can be imported inside."""
    sys.path.insert(0, str(BENCH))
    try:
        yield
    finally:
        sys.path.pop(0)


def run_rows(tmp_path: Path, rows: str, *options: str) -> dict[str, dict[str, object]]:
    command = [sys.executable, str(BENCH / "run.py"), "--quick", "--rows", rows, *options]
    command += ["--disk", str(tmp_path / "disk"), "--output", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    if "no C compiler" in done.stderr:
        pytest.skip("no C compiler for the load generator")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (tmp_path / "report.md").read_text().count("\n| ") > len(rows.split(","))
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    return {row["key"]: row for row in report["rows"]}
