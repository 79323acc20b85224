"""The program of docs/spark-cluster.md that asks the workers runs; tests/spark/standalone has the one that brings the package to them."""

from __future__ import annotations

import pytest

import metaq
from metaq.wire import hot
from tests.docs.pages import blocks
from tests.spark.running import printed_by
from tests.support import ROOT

PAGE = (ROOT / "docs" / "spark-cluster.md").read_text()


@pytest.mark.spark
def test_its_program_says_what_the_workers_run(spark, tmp_path):
    """Here: what the driver runs, too."""
    [program] = [block for block in blocks(PAGE, "python") if "def workers" in block]
    head, row = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in printed_by(program, spark, tmp_path).splitlines()
        if line.startswith("|")
    )
    assert head == ["file", "hot"]
    assert row == [metaq.__file__, hot.WHY]
