"""The program of docs/changes.md runs and prints what it says; its tables are true."""

from __future__ import annotations

import dataclasses
import re
import tomllib

import pytest

from metaq.option_table import camel
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.configuration import configure, describe
from metaq.pipelines.options import StreamOptions
from tests.spark.running import printed_by
from tests.support import ROOT

PAGE = (ROOT / "docs" / "changes.md").read_text()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_the_program_runs(spark, metaq_broker, tmp_path):
    """As it stands, but for the address."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [shown] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert printed_by(program.replace("127.0.0.1:9876", metaq_broker.namesrv), spark, tmp_path) == shown.strip()


def test_the_files_are_configurations():
    """Every key is one, and they fit each other."""
    first, second = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    options = configure("changes", {**first, **second}).options
    assert (options.topics_read, options.target) == (["shop-changes"], "mysql://writer@db.example:3306/shop")


def test_the_table_of_options_is_whole():
    """Keys, defaults and sentences, as `metaq pipeline describe changes` prints them."""
    shared = {camel(item.name) for item in dataclasses.fields(StreamOptions)} - {"maxOffsetsPerTrigger"}
    expected = [row for row in describe(ChangesOptions) if row[0] not in shared]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\| (.*) \|$", PAGE.partition("## Options")[2], re.MULTILINE)
    assert rows == expected


def test_what_stops_and_what_reports_by_default():
    """The table of the problems."""
    options = ChangesOptions(topics="t", folder="f")
    for key, stop, report in re.findall(
        r"^\| `(on\w+)`[^|]*\|([^|]*)\|([^|]*)\|$", PAGE.partition("## The snapshot")[0], re.MULTILINE
    ):
        chosen = getattr(options, re.sub(r"([A-Z])", r"_\1", key).lower())
        assert ("default" in stop, "default" in report) == (chosen == "stop", chosen == "report"), key
