"""Which folders are local, and where the run of a pipeline lies that writes to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.uris import is_uri, plain_path, run_folder
from tests.support import run_metaq


@pytest.mark.parametrize(
    ("text", "uri"),
    [("/a/b", False), ("a:b", False), ("file:/a", False), ("FILE:///a", False), ("hdfs://h/a", True), ("s3a://b/a", True),
     ("abfss://c@a/b", True)],
)  # fmt: skip
def test_a_scheme_other_than_file_is_for_hadoop(text, uri):
    assert is_uri(text) == uri


@pytest.mark.parametrize("text", ["/a/b", "file:/a/b", "file:///a/b"])
def test_a_local_folder_is_a_path_with_or_without_its_scheme(text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = plain_path(text)
    assert found.is_absolute()
    assert found == Path("/a/b")
    assert plain_path("out") == tmp_path / "out"


def test_the_run_of_a_uri_lies_where_everybody_finds_it_who_names_that(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    options = ArchiveOptions(topics="t", output="hdfs://name:8020/data/orders/")
    options.check()
    assert options.place == run_folder("hdfs://name:8020/data/orders")
    assert options.place.parent == tmp_path / "metaq" / "runs"
    assert options.place.name.startswith("orders-")
    assert run_folder("hdfs://other:8020/data/orders") != options.place
    assert ArchiveOptions(topics="t", output="hdfs://n/a", run_folder=str(tmp_path / "x")).place == tmp_path / "x"
    done = run_metaq("pipeline", "status", "--folder", "hdfs://name:8020/data/orders")
    assert done.stdout == f"no pipeline has run in {options.place} yet\n"


def test_what_only_a_local_folder_can_do_is_refused_elsewhere(tmp_path):
    with pytest.raises(ConfigError, match=r"compactFiles=5: merged files .* which hdfs: cannot do"):
        ArchiveOptions(topics="t", output="hdfs://n/a", compact_files=5).check()
    with pytest.raises(ConfigError, match=r"folder=hdfs://n/a: files are merged .* which hdfs: cannot do"):
        CompactOptions(folder="hdfs://n/a").check()
    with pytest.raises(ConfigError, match="runFolder is for an output that is a URI"):
        ArchiveOptions(topics="t", output=str(tmp_path), run_folder="x").check()
