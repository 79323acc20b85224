"""What a pipeline is told: files, mappings, flags; and what is wrong with them."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.configuration import configure

FILE = """
pipeline = "archive"
nameServers = "127.0.0.1:1"
topics = ["orders", "payments"]
output = "out"
once = true
triggerSeconds = 5

[spark]
master = "local[2]"
"spark.executor.memory" = "2g"
"spark.ui.enabled" = true
"""


def test_a_file_says_all(tmp_path):
    """Options, and where Spark runs."""
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    chosen = configure(None, file)
    assert chosen.pipeline.name == "archive"
    assert chosen.options == ArchiveOptions(
        name_servers="127.0.0.1:1", topics="orders,payments", output="out", once=True, trigger_seconds=5.0
    )
    assert chosen.options.topics_read == ["orders", "payments"]
    assert chosen.master == "local[2]"
    assert chosen.spark == {"spark.executor.memory": "2g", "spark.ui.enabled": "true"}


def test_flags_beat_the_file(tmp_path):
    """In any spelling of either."""
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    options = configure("archive", file, topics="other", trigger_seconds="7").options
    assert (options.topics, options.trigger_seconds) == ("other", 7.0)


def test_name_servers_come_from_the_environment_last(monkeypatch):
    """As everywhere."""
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    given = {"topic": "a", "output": "out"}
    assert configure("archive", given).options.servers == "10.0.0.1:9876"
    assert configure("archive", {**given, "nameServers": "h:1"}).options.servers == "h:1"


def test_a_path_is_a_text(tmp_path):
    """Of a mapping from Python."""
    options = configure("archive", {"topics": "orders", "output": tmp_path / "archive"}, staging=tmp_path).options
    assert (options.output, options.staging) == (str(tmp_path / "archive"), str(tmp_path))


def test_options_as_they_are(tmp_path):
    """For who has them already."""
    options = ArchiveOptions(topics="a", output=str(tmp_path))
    assert configure("archive", options).options == options


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("topics = 'a", "is no TOML"),
        ("topic = 'a'\noutput = 'o'", 'which pipeline.* pipeline = "archive"'),
        ("pipeline = 'archiv'", "there is no pipeline archiv; the nearest is archive"),
        ("pipeline = 'archive'\ntopics = 'a'\noutptu = 'o'", "no option outptu in .*; the nearest is output"),
        ("pipeline = 'archive'\ntopics = 'a'", "output is missing"),
        ("pipeline = 'archive'\noutput = 'o'", "topics is missing"),
        ("pipeline = 'archive'\ntopics = [1]\noutput = 'o'", "topics in .*: need texts in the list"),
        ("pipeline = 'archive'\ntopics = ['a,b']\noutput = 'o'", "'a,b' has a comma"),
        ("pipeline = 'archive'\ntopics = 'a'\noutput = 'o'\ntriggerSeconds = 'soon'", "need a number"),
        ("pipeline = 'archive'\ntopics = 'a'\noutput = 'o'\n[spark]\nmemory = 1", "has no memory"),
        ("pipeline = 'archive'\ntopics = 'a'\noutput = 'o'\nspark = 1", "need a section"),
        ("pipeline = 'archive'\ntopics = 'a'\noutput = 'o'\n[spark]\nmaster = 2", "master=2.*need a text"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, why):
    """With the file, the key, and what would be right."""
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        configure(None, file)


def test_a_file_of_another_pipeline_is_refused(tmp_path):
    """And one that is not there."""
    with pytest.raises(ConfigError, match="is of the pipeline archive, not of redrive"):
        configure("redrive", {"pipeline": "archive"})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        configure(None, tmp_path / "none.toml")
