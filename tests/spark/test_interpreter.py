"""Which Python runs Spark's workers, in environments that are not activated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from metaq.errors import ConfigError
from metaq.spark import interpreter
from tests.scripted import ScriptedCluster
from tests.support import WHOLE_PATIENCE, environment

PLAIN = """
import sys
import metaq.spark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in zip(sys.argv[2::2], sys.argv[3::2]):
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for how in ("found", "registered"):
    if how == "registered":
        from pyspark_metaq import DefaultSource
        spark.dataSource.register(DefaultSource)
    frame = spark.read.format("metaq").options(nameServers=sys.argv[1], subscribe="orders").load()
    print(how, frame.count())
"""


@pytest.fixture
def other_python(tmp_path) -> Path:
    """A folder for the PATH whose `python3` is a Python without the packages of ours."""
    base = getattr(sys, "_base_executable", sys.executable)
    path = tmp_path / "bin" / "python3"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{base}" -S "$@"\n')
    path.chmod(0o755)
    return path


def test_another_python_on_the_path_is_not_taken_for_ours(other_python, tmp_path):
    """Unset, it is chosen where `python3` is another one, also one in the same folder, or none at all."""
    assert interpreter.choose({"PATH": str(other_python.parent)}) == sys.executable
    assert interpreter.choose({"PATH": str(tmp_path / "nowhere")}) == sys.executable


def test_an_activated_environment_is_left_alone(tmp_path):
    """There `python3` is this Python, whatever links lead to it: a cluster's own way of choosing stays in force."""
    linked = tmp_path / "bin"
    own = Path(sys.executable).parent
    linked.symlink_to(own)
    assert interpreter.choose({"PATH": str(own)}) is None
    assert interpreter.choose({"PATH": str(linked)}) is None


def test_what_somebody_has_chosen_stays(other_python):
    """A variable that is set, spark-submit, and a JVM that runs already."""
    path = {"PATH": str(other_python.parent)}
    assert interpreter.choose(path | {"PYSPARK_PYTHON": "python3.12"}) is None
    assert interpreter.choose(path | {"PYSPARK_GATEWAY_PORT": "4711"}) is None
    assert interpreter.choose(path, jvm_runs=True) is None


def context(python: object, master: str = "local[2]") -> SimpleNamespace:
    return SimpleNamespace(master=master, pythonExec=str(python))


def test_a_session_whose_workers_run_another_python_is_refused_in_one_line(other_python, monkeypatch, tmp_path):
    """By `spark.dataSource.register`, which asks for the name first, and by everything of ours that is given a session."""
    from metaq.spark.data_source import MetaqDataSource

    text = rf"workers of this Spark session run {other_python}, which cannot read from MetaQ: No module named '\w+'\. "
    remedy = rf"Import metaq\.spark before the session is made, or set PYSPARK_PYTHON={sys.executable}"
    monkeypatch.setattr(interpreter, "running_context", lambda: context(other_python))
    with pytest.raises(ConfigError, match=text + remedy) as caught:
        MetaqDataSource.name()
    assert "\n" not in str(caught.value)
    gone = tmp_path / "gone"
    with pytest.raises(ConfigError, match=f"No such file or directory: '{gone}'"):
        interpreter.check(context(gone))


def test_a_session_with_this_python_and_a_clusters_are_not_refused(other_python):
    """What runs on a cluster's machines cannot be tried here."""
    interpreter.check(context(sys.executable))
    interpreter.check(context(other_python, "spark://cluster:7077"))
    interpreter.check(None)


def test_a_wrong_choice_is_told_before_the_jvm_starts(other_python, monkeypatch):
    """`metaq.spark.session` tries what PYSPARK_PYTHON names."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(other_python))
    with pytest.raises(ConfigError, match=rf"PYSPARK_PYTHON is {other_python}, where .* No module named"):
        interpreter.check_choice()


@pytest.mark.spark
@pytest.mark.all
@pytest.mark.spark_all
def test_a_plain_session_in_an_environment_that_is_not_activated_finds_the_source(other_python, tmp_path):
    """By itself and when it is registered, because `metaq.spark` was imported first."""
    from tests.spark.running import spark_conf

    env = environment(PATH=f"{other_python.parent}:/usr/bin:/bin", JAVA_HOME=str(find_java_home()))
    env.pop("PYSPARK_PYTHON", None)
    env.pop("PYSPARK_DRIVER_PYTHON", None)
    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [b"x"] * 10)
        conf = [word for pair in spark_conf().items() for word in pair]
        done = subprocess.run(
            [sys.executable, "-c", PLAIN, cluster.namesrv, *conf],
            env=env, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
        )  # fmt: skip
    assert done.stdout.split() == ["found", "10", "registered", "10"], done.stderr[-3000:]


def find_java_home() -> Path:
    from metaq.spark import find_java

    return find_java().home
