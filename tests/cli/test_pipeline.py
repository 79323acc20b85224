"""What `metaq pipeline` tells of a running query."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from metaq.admin import Admin
from metaq.cli.pipeline.run import command
from metaq.pipelines.archive.dedupe import DEDUPE
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.catalogue import PIPELINES, Pipeline
from metaq.pipelines.driver import messages_behind, root_text
from metaq.pipelines.lease import lease_on
from metaq.pipelines.options import FolderOptions
from metaq.pipelines.run import Run, status_of
from metaq.spark.cluster.replicas import READ_FROM
from tests.support import PATIENCE, environment, eventually, process, run_metaq

pytestmark = pytest.mark.slow


def progress(latest: str | None, end: str | None) -> dict:
    return {"sources": [{"latestOffset": latest, "endOffset": end}]}


def test_the_backlog_is_counted_over_all_queues():
    """Newest offset less the query's, for each queue."""
    latest, end = '{"v":1,"q":{"t":{"b":{"0":10,"1":5}}}}', '{"v":1,"q":{"t":{"b":{"0":7,"1":5}}}}'
    assert messages_behind(progress(latest, end)) == 3


def test_before_the_first_batch_nothing_is_known():
    """Spark says nothing, or `null`, at first."""
    assert messages_behind(None) is None
    assert messages_behind(progress("null", "null")) is None
    assert messages_behind(progress(None, None)) is None


def test_a_failed_query_is_told_in_our_own_words():
    """Out of Spark's pages of traces, the line of our error."""
    text = "org.apache.spark.X\n  at y\nmetaq.errors.MessagesLost: 5 messages are gone\n SQLSTATE: 38000"
    assert root_text(text) == "5 messages are gone"
    assert root_text("something else\nmore") == "something else"


def choices(name: str) -> tuple[str, ...]:
    return next(item.metadata["choices"] for item in dataclasses.fields(ArchiveOptions) if item.name == name)


def test_the_options_know_every_way_to_know_a_repeat():
    """Their table is read without the modules that do the work."""
    assert choices("dedupe") == DEDUPE


def test_the_options_know_everyone_to_read_from():
    """The same."""
    assert choices("read_from") == READ_FROM


@pytest.fixture(scope="module")
def known(metaq_broker):
    """A topic that the pipeline could archive."""
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic("pipeline_known")
    return "pipeline_known"


def run_archive(broker, topic: str, output) -> tuple[int, str]:
    """Exit code, and what was said on standard error."""
    done = run_metaq("pipeline", "run", "archive", "--topic", topic, "--output", str(output), "-n", broker.namesrv)
    return done.returncode, done.stderr


def test_an_unknown_topic_ends_at_once_with_not_found(metaq_broker, tmp_path):
    """Before Spark is started, and before anything is written."""
    code, said = run_archive(metaq_broker, "nobody_knows_this", tmp_path / "out")
    assert code == 3
    assert said.startswith("metaq: no route for topic nobody_knows_this at name servers")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_audit_without_a_trace_topic_says_who_makes_it(metaq_broker, tmp_path):
    """Not that it should be made by hand: it would stay empty."""
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic("audit-untraced", queues=1)
    words = ("--topic", "audit-untraced", "--trace-topic", "nobody-traces-here", "--folder", str(tmp_path / "audit"))
    done = run_metaq("pipeline", "run", "audit", *words, "-n", metaq_broker.namesrv)
    assert done.returncode == 3
    assert done.stderr.startswith(
        "metaq: the trace topic nobody-traces-here does not exist: clients write traces only if"
    )
    assert "topic create" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_does_not_take_the_time_that_spark_takes(tmp_path):
    """What is checked first loads no Spark and no Java."""
    program = (
        "import sys\n"
        "from metaq.cli.main import main\n"
        "sys.argv[1:] = ['pipeline', 'run', 'archive', '-n', '127.0.0.1:1', '--topic', 't', '--output', sys.argv[1]]\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code)\n"
        "print(*{'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))\n"
    )
    with process(sys.executable, "-c", program, str(tmp_path), env=environment()) as child:
        assert child.communicate(timeout=PATIENCE)[0].split() == ["1"]


def test_an_output_that_is_a_file_is_one_line(metaq_broker, tmp_path, known):
    """And wrong usage."""
    file = tmp_path / "file"
    file.write_text("mine")
    code, said = run_archive(metaq_broker, known, file)
    assert (code, said) == (2, f"metaq: the folder {file} is a file; a folder is needed\n")
    assert file.read_text() == "mine"


def test_a_folder_that_another_run_writes_into_is_refused_by_name(metaq_broker, tmp_path, known):
    """Nothing of the first one's is touched."""
    mine = lease_on(tmp_path)
    mine.take()
    code, said = run_archive(metaq_broker, known, tmp_path)
    mine.release()
    assert code == 1
    assert said.startswith(f"metaq: another run writes into {tmp_path}: process ")
    assert said.count("\n") == 1


def test_what_there_is_is_listed_and_described():
    """For people and for programs; an unknown name proposes the nearest."""
    assert "archive  Write topics to Parquet files" in run_metaq("pipeline", "list").stdout
    assert json.loads(run_metaq("pipeline", "list", "--json").stdout).keys() >= {"archive"}
    described = json.loads(run_metaq("pipeline", "describe", "archive", "--json").stdout)
    assert described["options"]["dedupe"]["default"] == "unique_id"
    assert all(option["doc"] for option in described["options"].values())
    assert "dedupeSeconds" in run_metaq("pipeline", "describe", "archive").stdout
    done = run_metaq("pipeline", "describe", "archiv")
    assert done.returncode == 2
    assert "the nearest is archive" in done.stderr


def test_a_wrong_key_of_a_file_is_named_with_the_nearest(tmp_path):
    """Before anything starts, and nothing is made."""
    file = tmp_path / "pipeline.toml"
    file.write_text('topics = ["a"]\noutptu = "out"\n')
    done = run_metaq("pipeline", "run", "archive", "-c", str(file))
    assert (done.returncode, done.stderr) == (2, f"metaq: there is no option outptu in {file}; the nearest is output\n")
    file.write_text('pipeline = "archive"\ntopics = ["a"]\noutput = "out"\ndedupe = "sometimes"\n')
    done = run_metaq("pipeline", "status", "-c", str(file))
    assert (done.returncode, done.stderr) == (2, "metaq: dedupe=sometimes: allowed are off, unique_id, key\n")


def test_status_and_stop_speak_with_the_run_of_a_folder(tmp_path):
    """Whoever runs it: they meet in the folder."""
    assert run_metaq("pipeline", "status", "--folder", str(tmp_path)).returncode == 3
    assert run_metaq("pipeline", "stop", "--folder", str(tmp_path)).returncode == 3
    run = Run("archive", tmp_path).begin()
    run.tell("a batch", batch=0, rows=5)
    told = json.loads(run_metaq("pipeline", "status", "--folder", str(tmp_path), "--json").stdout)
    assert (told["state"], told["total"], told["batches"]) == ("running", {"rows": 5}, 1)
    done = run_metaq("pipeline", "stop", "--folder", str(tmp_path), "--seconds", "0")
    assert done.returncode == 1
    assert "still runs after 0 s" in done.stdout
    eventually(lambda: run.stopping, what="the request to stop")
    run.end()
    assert status_of(tmp_path).state == "stopped"
    shown = run_metaq("pipeline", "status", "--folder", str(tmp_path))
    assert (shown.returncode, "archive: stopped" in shown.stdout) == (0, True)


def test_the_help_says_what_a_kill_does():
    """To what goes on for ever, to what ends by itself; of a pipeline of one's own that ends only its author knows."""
    streams = ("archive", "changes", "metrics", "mirror")
    for kind in PIPELINES.values():
        said = command(kind).__doc__
        assert said.startswith(kind.summary)
        assert ("continues where it stopped" in said) is (kind.name in streams)
        assert ("ends by itself" in said) is (kind.name not in streams)
    own = Pipeline("own", "Does things.", FolderOptions, lambda spark, options, run: None)
    assert command(own).__doc__ == "Does things."


@pytest.mark.parametrize(
    ("words", "missing", "told"),
    [
        ("run archive --topic {topic} --output {folder}/out -n {servers}", "pyspark", "metaq.spark.session needs pyspark: pip install 'pymetaq[spark]'"),
        ("show metrics --folder {folder}", "pyarrow", "this command needs pyarrow: pip install 'pymetaq[arrow]'"),
        ("check --folder {folder}", "pyarrow", "this command needs pyarrow: pip install 'pymetaq[arrow]'"),
    ],
)  # fmt: skip
def test_a_missing_extra_is_named_in_a_line(metaq_broker, known, tmp_path, words, missing, told):
    """Whichever command first meets it."""
    given = words.format(topic=known, folder=tmp_path, servers=metaq_broker.namesrv).split()
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from metaq.cli.commands import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "pipeline", *given],
        capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False,
    )  # fmt: skip
    assert (done.returncode != 0, done.stdout, done.stderr) == (True, "", f"metaq: {told}\n")
