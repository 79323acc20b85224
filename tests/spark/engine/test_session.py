"""What a session of ours is made with."""

from __future__ import annotations

import pytest

from metaq.spark.engine.session import LOCAL, settled

JAVA, UI, JOBS = "spark.driver.extraJavaOptions", "spark.ui.enabled", "spark.ui.retainedJobs"


def test_what_is_given_beats_ours_and_java_options_are_added():
    ours = {**LOCAL, JAVA: "-Da=1"}
    found = settled(ours, {JAVA: "-Db=2", "spark.driver.memory": "4g", "spark.other": "x"})
    assert found == {**ours, JAVA: "-Da=1 -Db=2", "spark.driver.memory": "4g", "spark.other": "x"}
    assert settled({}, {JAVA: "-Db=2"}) == {JAVA: "-Db=2"}


def test_old_jobs_are_remembered_for_pages_that_are_on():
    """As Spark does it, or as it was told to."""
    assert settled(LOCAL, {})[JOBS] == "50"
    assert JOBS not in settled(LOCAL, {UI: "true"})
    assert settled(LOCAL, {UI: "true", JOBS: "7"})[JOBS] == "7"


@pytest.mark.spark
def test_the_session_has_them(spark):
    assert spark.conf.get(UI) == "false"
    assert spark.conf.get(JOBS) == "50"
