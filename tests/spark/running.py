"""One Spark session for all tests that need one: it costs seconds."""

from __future__ import annotations

import os

import pytest

from metaq.spark.engine.slow_start import run_through
from tests.spark.jvm import java_options
from tests.support import PATIENCE, ROOT


def spark_conf() -> dict[str, str]:
    """Settings of every session that a test makes."""
    return {"spark.default.parallelism": "2", "spark.driver.extraJavaOptions": java_options()}


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A local session with our sources on the workers' path."""
    from metaq.spark import session

    folder = tmp_path_factory.mktemp("spark")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [paths, os.environ.get("PYTHONPATH")]))
    running = session(
        "metaq tests",
        master="local[2,3]",
        conf={
            **spark_conf(),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield running
    running.stop()


def finished(start, seconds=PATIENCE):
    """Start a query and wait for its end. Returns the query; raises what it failed with.

    Again where a Python started too slowly for Spark, as `metaq pipeline run` does.
    """

    def watch(query):
        assert query.awaitTermination(seconds)
        return query

    return run_through(start, watch)
