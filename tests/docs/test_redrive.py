"""docs/redrive.md: its program prints what it says, its file is taken, its table is that of the options."""

from __future__ import annotations

import re

import pytest

from metaq.pipelines.configuration import configure
from metaq.pipelines.redrive.options import RedriveOptions
from tests.spark.running import printed_by
from tests.support import ROOT

PAGE = (ROOT / "docs" / "redrive.md").read_text()


def test_its_options_are_those_that_there_are():
    """In their own words."""
    settings = pytest.importorskip("metaq.spark.source.settings", exc_type=ImportError)
    assert settings.markdown_table(RedriveOptions) in PAGE


def test_its_file_is_one(tmp_path):
    """As it stands."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "redrive.toml"
    file.write_text(text)
    chosen = configure(None, file)
    assert (chosen.pipeline.name, chosen.options.source, chosen.options.rate) == ("redrive", "%DLQ%bookkeeping", 50.0)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_its_program_prints_what_the_page_says(spark, fresh_metaq_broker, tmp_path):
    """Two of four dead letters, changed."""
    ((text, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    program = text.replace("localhost:9876", fresh_metaq_broker.namesrv)
    assert printed_by(program, spark, tmp_path) == printed.strip()
