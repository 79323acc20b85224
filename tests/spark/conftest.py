"""One Spark session for all tests that need one: it costs seconds."""

from __future__ import annotations

import os

import pytest

from tests.support import ROOT

TEST_CONF = {
    "spark.default.parallelism": "2",
    # The quick compiler alone, and no threads for garbage: tests run each plan once, on small data.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


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
            **TEST_CONF,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield running
    running.stop()
