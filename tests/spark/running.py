"""One Spark context per test worker: it costs ten seconds of CPU. Each test has a session of its own in it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq.spark.engine.slow_start import run_through
from tests.spark.jvm import java_options
from tests.support import PATIENCE, ROOT


def spark_conf() -> dict[str, str]:
    """Settings of every session that a test makes."""
    return {"spark.default.parallelism": "2", "spark.driver.extraJavaOptions": java_options()}


def python_path() -> str:
    """PYTHONPATH of what starts Spark: our sources, and what its planners import before they fork."""
    ours = map(str, [ROOT / "tests" / "spark" / "planners", ROOT / "src", ROOT])
    return os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def first_spark(tmp_path_factory):
    """The worker's local session, with our sources on its Pythons' path. Tests take `spark`."""
    from metaq.spark import session

    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYTHONPATH"] = python_path()
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


@pytest.fixture
def spark(first_spark):
    """A session without settings, views and registered sources of other tests; `metaq.spark.session()` finds it.

    Queries that the test leaves running are stopped.
    """
    fresh = first_spark.newSession()
    _activate(fresh)
    yield fresh
    for query in fresh.streams.active:
        query.stop()
    _activate(first_spark)


def _activate(session: Any) -> None:
    """Make it the one that Spark finds in this thread: `newSession` does not."""
    type(session)._activeSession = session  # where `getActiveSession` looks, if the JVM's has one
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@contextlib.contextmanager
def kept_running(spark: Any) -> Iterator[list[str]]:
    """What ends this session here does not end the context that it shares with other tests; it is noted in the list."""
    ended: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark, "stop", lambda: ended.append("stop"))
        yield ended


def printed_by(program: str, spark: Any, folder: Path) -> str:
    """What a page's program prints, run as it stands with `folder` as its working folder, on a test's session."""
    printed = io.StringIO()
    with kept_running(spark), contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue().strip()


def finished(start, seconds=PATIENCE):
    """Start a query and wait for its end. Returns the query; raises what it failed with.

    Again where a Python started too slowly for Spark, as `metaq pipeline run` does.
    """

    def watch(query):
        assert query.awaitTermination(seconds)
        return query

    return run_through(start, watch)
