"""docs/metrics.md: its file is one that can be run, its options are those that there are, its columns those of the files."""

from __future__ import annotations

import re

from metaq.pipelines.configuration import configure, describe
from metaq.pipelines.metrics.figures import METRICS
from metaq.pipelines.metrics.options import MetricsOptions
from tests.support import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()


def test_the_file_on_the_page_is_right(tmp_path):
    """Rules and all."""
    file = tmp_path / "metrics.toml"
    file.write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    options = configure(None, file).options
    assert len(options.parsed_rules) == 3
    assert options.command_words[-1] == "the team on call"


def test_the_table_of_options_is_the_options():
    """Key, default and sentence."""
    rows = [
        f"| `{key}` | {f'`{default}`' if default else ''} | {doc} |" for key, default, doc in describe(MetricsOptions)
    ]
    section = PAGE[PAGE.index("## Options") :]
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows


def test_every_column_is_on_the_page():
    """By the name that files and rules have for it."""
    for metric in METRICS.values():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{metric.name}` |"))
        assert [name for name in (*metric.sums, *metric.levels, *metric.spreads) if f"`{name}`" not in row] == []
