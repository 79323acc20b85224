"""The table of steps is whole: every test that CI ran before it was cut is in one step, and content decides as it should."""

from __future__ import annotations

import functools

import pytest

from checks.graph import ImportGraph
from checks.inputs import inputs_of, matching, selected_tests
from checks.table import STEPS, nightly, one_of_each_name
from tests.ci.test_opened import tracked
from tests.support import ROOT

pytestmark = pytest.mark.xdist_group("ci.table")
"""One worker reads all imports of the project, which takes six seconds."""


@functools.cache
def inputs():
    """Step → its inputs in this tree."""
    graph = ImportGraph(ROOT, tracked())
    return {step.name: inputs_of(step, graph, ROOT) for step in STEPS if not step.always}


def names_marker(path, marker):
    return f"mark.{marker}" in (ROOT / path).read_text()


@pytest.mark.parametrize(
    ("batch", "folders", "marker"),
    [
        ("interop", ("tests/interop/",), ""),
        ("spark", ("tests/spark/", "tests/pipelines/", "tests/docs/"), "spark_all"),
        ("long", ("tests/",), "long"),
        ("bench", ("tests/bench/",), ""),
    ],
)
def test_every_test_file_of_a_batch_is_in_one_step(batch, folders, marker):
    """A new file without a step would never run; one in two would run twice."""
    files = tracked()
    given = [name for step in STEPS if step.batch == batch for name in selected_tests(step, ROOT, files)]
    wanted = [
        name
        for name in files
        if name.startswith(folders) and name.rpartition("/")[2].startswith("test_") and name.endswith(".py")
        and (not marker or names_marker(name, marker)) and not name.startswith("tests/ci/")
    ]  # fmt: skip
    assert sorted(given) == sorted(wanted)


def test_steps_have_names_of_their_own():
    """What has passed is remembered by them."""
    assert len(one_of_each_name(STEPS)) == len(STEPS)
    assert len(one_of_each_name(nightly(1))) == len(nightly(1))


@pytest.mark.parametrize("batch", ["interop", "spark", "long", "bench"])
def test_steps_of_a_batch_stand_together_and_run_alike(batch):
    """They are one pytest: one command, one environment."""
    places = [place for place, step in enumerate(STEPS) if step.batch == batch]
    assert places == list(range(places[0], places[-1] + 1))
    assert len({(STEPS[place].command, STEPS[place].environment, STEPS[place].marker) for place in places}) == 1


def runs_after(*paths, by_day=False):
    """The steps that a change of these files makes run, by day or at all."""
    assert set(paths) <= set(tracked()), "a file of this test has moved"
    steps = one_of_each_name(STEPS)
    return {
        name
        for name, needed in inputs().items()
        if (needed - matching(steps[name].night, needed) if by_day else needed) & set(paths)
    }


@pytest.mark.parametrize(
    ("path", "minutes"),
    [
        ("src/metaq/broker/send.py", 28),
        ("src/metaq/pipelines/archive/service.py", 26),
        ("src/metaq/pipelines/mirror/service.py", 26),
        ("src/metaq/wire/hot/_native.pyx", 30),
    ],
)
def test_a_change_waits_so_long_at_most(path, minutes):
    """On a quick machine, by what the rows say. In the background: beside what always runs, and so no time of its own."""
    due = runs_after(path, by_day=True)
    assert sum(step.seconds for step in STEPS if (step.always or step.name in due) and not step.beside) <= minutes * 60


def test_what_waits_for_the_night_runs_there():
    """All steps of CI are in it, whatever is changed, and none waits."""
    steps = one_of_each_name(nightly(5))
    assert set(steps) >= {step.name for step in STEPS}
    assert not any(step.night or step.always for step in steps.values())
    assert nightly(5) != nightly(6), "other seeds"
    by_day = runs_after("src/metaq/broker/send.py", by_day=True)
    assert {name for name in by_day if "spark" in name} == {"spark", "spark connect", "interop spark"}
    assert not [name for name in by_day if name.startswith("pipeline")]


def test_a_change_of_a_pipeline_leaves_foreign_clients_and_other_pipelines_alone():
    """Of the pipelines only those that read or write what it does; executors of a cluster get the whole wheel, by night."""
    found = runs_after("src/metaq/pipelines/mirror/service.py")
    assert {"pipeline mirror", "pipelines", "long: pipelines", "long: whole", "spark standalone"} == found
    assert not [name for name in runs_after("src/metaq/pipelines/archive/service.py") if name.startswith("interop")]


def test_a_change_of_the_broker_runs_what_runs_brokers():
    """Foreign clients, and everything of Spark, by day or by night: it reads from that broker."""
    found = runs_after("src/metaq/broker/broker.py")
    assert found >= {name for name in inputs() if name.startswith(("interop", "pipeline", "spark", "long"))}
    assert found.isdisjoint({"sanitized"})


def test_a_change_of_an_interop_test_runs_its_step_alone():
    """The drivers' sources are inputs of those who use them."""
    assert runs_after("tests/interop/test_metaq1_lag.py") == {"interop metaq1"}
    assert "interop rocketmq" in runs_after("tests/interop/java/Driver.java")


def test_native_code_is_an_input_of_everything_that_loads_it():
    """The sanitizers and the tests."""
    found = runs_after("src/metaq/wire/hot/_native.pyx")
    assert found >= {"sanitized", "fallback", "bench", "bench spark", "fresh-clone", "interop rocketmq", "spark"}


def test_a_page_of_the_docs_runs_nothing_that_waits():
    """Its programs are run by the fast tests; only what packs or walks everything depends on it."""
    assert runs_after("docs/mirror.md") == {"long: whole"}


@pytest.mark.parametrize("path", ["pyproject.toml", "Makefile", ".ci/run", ".ci/checks/table.py", "tests/conftest.py"])
def test_what_runs_everything_is_an_input_of_everything(path):
    """A pass of another script, or of other dependencies, is none."""
    assert runs_after(path) == set(inputs())


def test_every_pipeline_has_its_step():
    """A new one gets a row."""
    pipelines = {
        name.split("/")[3] for name in tracked() if name.startswith("src/metaq/pipelines/") and name.count("/") > 3
    }
    steps = {step.name.removeprefix("pipeline ") for step in STEPS if step.name.startswith("pipeline ")}
    assert pipelines == steps


def test_the_whole_run_fits_into_its_limit():
    """By what the rows say, on a quick machine; steps in the background take no time of their own."""
    assert sum(step.seconds for step in STEPS if not step.beside) < 5150
