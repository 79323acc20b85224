"""What tests share of Spark, and what each has for itself."""

from __future__ import annotations

import contextlib

import pytest

import metaq.spark
from tests.spark.running import kept_running, printed_by

pytestmark = pytest.mark.spark
SETTING = "spark.sql.shuffle.partitions"


def test_what_a_test_sets_is_its_own(first_spark, spark):
    """Settings and views: neither the worker's session has them nor the next test's."""
    before = first_spark.conf.get(SETTING)
    spark.conf.set(SETTING, "7")
    spark.range(3).createOrReplaceTempView("mine")
    assert spark.table("mine").count() == 3
    assert first_spark.conf.get(SETTING) == before
    other = first_spark.newSession()
    assert other.conf.get(SETTING) == before
    assert not other.catalog.tableExists("mine")
    assert spark.sparkContext is first_spark.sparkContext


def test_programs_find_the_test_s_session_and_cannot_end_the_worker_s(spark, tmp_path):
    program = "import metaq.spark, pathlib\nspark = metaq.spark.session('mine')\nprint(id(spark), pathlib.Path.cwd())\nspark.stop()\n"
    assert printed_by(program, spark, tmp_path) == f"{id(spark)} {tmp_path}"
    with kept_running(spark) as ended, contextlib.suppress(ZeroDivisionError):
        metaq.spark.session().stop()
        raise ZeroDivisionError
    assert ended == ["stop"]
    assert spark.range(3).count() == 3
