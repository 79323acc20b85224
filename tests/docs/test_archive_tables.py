"""What docs/archive.md shows of tables runs as it stands; what docs/formats/archive.md shows of decoding is read as it stands."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest

from metaq.archive.decoding import Decoding
from metaq.archive.folder import ArchiveFolder
from metaq.model.queue import MessageQueue
from metaq.pipelines.compact.tabling import tables_of
from tests.pipelines.archive.support import publish
from tests.support import PATIENCE, ROOT, environment

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "archive.md").read_text()
FORMAT = (ROOT / "docs" / "formats" / "archive.md").read_text()


def test_the_program_that_reads_a_table_runs(tmp_path):
    """With DuckDB and pyiceberg, below the folder that the page names."""
    pytest.importorskip("pyiceberg", reason="pip install 'pymetaq[iceberg]'")
    pytest.importorskip("duckdb")
    (text,) = [one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "SqlCatalog" in one]
    folder = ArchiveFolder(tmp_path / "archive" / "orders")
    for batch, date in ((1, "2026-02-28"), (2, "2026-03-01")):
        queues = {MessageQueue("orders", "broker-a", number): range(batch * 5, batch * 5 + 5) for number in range(2)}
        publish(folder, batch, queues, date)
    tables = tables_of(folder, "iceberg", 60)
    tables.align()
    tables.close()
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "[(0, 5), (1, 5)]"), done.stderr[-2000:]


def test_the_record_of_the_page_is_one():
    """And every field of ours is on the page."""
    (text,) = [one for one in re.findall(r"```json\n(.*?)```", FORMAT, re.DOTALL) if '"keep_body"' in one]
    record = msgspec.json.decode(text, type=Decoding, strict=True)
    assert record.schema == "struct<id:bigint,amount:double,tags:array<string>>"
    assert msgspec.json.decode(text).keys() == msgspec.json.decode(msgspec.json.encode(record)).keys()
