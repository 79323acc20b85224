"""One Spark session for all tests that need one: it costs seconds."""

from __future__ import annotations

import os

import pytest

from tests.spark.jvm import java_options
from tests.support import ROOT


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
        master="local[2]",
        conf={
            **spark_conf(),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield running
    running.stop()


def finished(start, seconds=240):
    """Start a query and wait for its end. Returns the query; raises what it failed with.

    Spark gives a Python that it starts ten seconds, whatever else the machine does, and no setting changes that. A query
    that fails so is started again: it goes on where it stood.
    """
    tries = 3
    while True:
        query, tries = start(), tries - 1
        try:
            assert query.awaitTermination(seconds)
        except Exception as error:
            if not tries or "Python worker failed to connect back" not in str(error):
                raise
        else:
            return query
