"""What `metaq pipeline` tells of a running query."""

from __future__ import annotations

import sys

import pytest

from metaq.admin import Admin
from metaq.cli.pipeline import Dedupe, ReadFrom, messages_behind, root_text
from metaq.spark.pipelines.dedupe import DEDUPE
from metaq.spark.pipelines.lease import lease_on
from metaq.spark.replicas import READ_FROM
from tests.support import PATIENCE, environment, process, run_metaq


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


def test_the_command_knows_every_way_to_know_a_repeat():
    """`--dedupe` offers what the pipeline takes."""
    assert tuple(way.value for way in Dedupe) == DEDUPE


def test_the_command_knows_everyone_to_read_from():
    """`--read-from` offers what the source takes."""
    assert tuple(who.value for who in ReadFrom) == READ_FROM


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


def test_it_does_not_take_the_time_that_spark_takes(tmp_path):
    """What is checked first loads no Spark and no Java."""
    program = (
        "import sys, pathlib\n"
        "from metaq.cli.pipeline import _begin\n"
        "try: _begin('127.0.0.1:1', ['t'], pathlib.Path(sys.argv[1]), None)\n"
        "except Exception as fault: print(type(fault).__name__)\n"
        "print(*{'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))\n"
    )
    with process(sys.executable, "-c", program, str(tmp_path), env=environment()) as child:
        assert child.communicate(timeout=PATIENCE)[0].split() == ["ConnectionFailed"]


def test_an_output_that_is_a_file_is_one_line(metaq_broker, tmp_path, known):
    """And wrong usage."""
    file = tmp_path / "file"
    file.write_text("mine")
    code, said = run_archive(metaq_broker, known, file)
    assert (code, said) == (2, f"metaq: the output {file} is a file; a folder is needed\n")
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
