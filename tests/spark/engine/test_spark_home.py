"""Spark's home without its zip: whom it is for, and what it has."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext

from metaq.spark import interpreter
from metaq.spark.engine import spark_home

pytestmark = pytest.mark.slow


@pytest.fixture
def nothing_chosen(monkeypatch, tmp_path):
    """No JVM yet, and no wishes in the environment."""
    for name in ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", interpreter.CHOICE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(spark_home, "cache_folder", lambda: tmp_path)


@pytest.mark.usefixtures("nothing_chosen")
def test_it_has_all_but_the_zip():
    """While the JVM is started, and no longer; the next session takes the same."""
    with spark_home.without_zip("local[2]", {}):
        home = Path(os.environ["SPARK_HOME"])
        assert (home / "bin" / "spark-submit").is_file()
        assert (home / "jars").samefile(Path(pyspark.__file__).parent / "jars")
        assert not (home / "python").exists()
    assert "SPARK_HOME" not in os.environ
    with spark_home.without_zip("local[*]", {}):
        assert os.environ["SPARK_HOME"] == str(home)
    assert list(home.parent.iterdir()) == [home], "and what was made on the way to it is gone"


@pytest.mark.usefixtures("nothing_chosen")
@pytest.mark.parametrize("master", [None, "local-cluster[2,1,1024]", "spark://127.0.0.1:7077"])
def test_it_is_for_this_machine_alone(master):
    """Executors elsewhere have a home of their own."""
    with spark_home.without_zip(master, {}):
        assert "SPARK_HOME" not in os.environ


@pytest.mark.usefixtures("nothing_chosen")
def test_what_somebody_chose_stays(monkeypatch):
    """Another Spark, or another Python, which may have no pyspark but the zip's."""
    with spark_home.without_zip("local", {"spark.pyspark.python": "/usr/bin/python3"}):
        assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv(interpreter.CHOICE, "/usr/bin/python3")
    with spark_home.without_zip("local", {}):
        assert "SPARK_HOME" not in os.environ
    monkeypatch.delenv(interpreter.CHOICE)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home.without_zip("local", {}):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


@pytest.mark.usefixtures("nothing_chosen")
def test_a_cache_that_cannot_be_written_is_no_fault(monkeypatch, tmp_path):
    """Spark starts as it always did."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(spark_home, "cache_folder", lambda: tmp_path / "file")
    with spark_home.without_zip("local", {}):
        assert "SPARK_HOME" not in os.environ


def test_workers_have_pip_s_modules(spark):
    """Not those of the zip, which each of them would compile."""

    def where(_: object) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).first() == pyspark.__file__
