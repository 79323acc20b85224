"""The table of steps is whole: every test that CI ran before it was cut is in one step, and content decides as it should."""

from __future__ import annotations

import functools

import pytest

from checks.graph import ImportGraph
from checks.inputs import inputs_of, selected_tests
from checks.table import NIGHTLY, STEPS, one_of_each_name
from tests.ci.test_opened import tracked
from tests.support import ROOT


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
        ("spark", ("tests/spark/", "tests/pipelines/"), "spark_all"),
        ("long", ("tests/",), "long"),
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
    assert len(one_of_each_name(NIGHTLY)) == len(NIGHTLY)


@pytest.mark.parametrize("batch", ["interop", "spark", "long"])
def test_steps_of_a_batch_stand_together_and_run_alike(batch):
    """They are one pytest: one command, one environment."""
    places = [place for place, step in enumerate(STEPS) if step.batch == batch]
    assert places == list(range(places[0], places[-1] + 1))
    assert len({(STEPS[place].command, STEPS[place].environment, STEPS[place].marker) for place in places}) == 1


def runs_after(*paths):
    """The steps that a change of these files makes run."""
    assert set(paths) <= set(tracked()), "a file of this test has moved"
    return {name for name, needed in inputs().items() if needed & set(paths)}


def test_a_change_of_a_pipeline_leaves_foreign_clients_and_other_pipelines_alone():
    """Of the pipelines only those that read or write what it does."""
    found = runs_after("src/metaq/pipelines/mirror/service.py")
    assert {"pipeline mirror", "pipelines", "long: pipelines", "long: whole"} == found
    assert not [name for name in runs_after("src/metaq/pipelines/archive/service.py") if name.startswith("interop")]


def test_a_change_of_the_broker_runs_what_runs_brokers():
    """Foreign clients, and everything of Spark: it reads from that broker. Honest, if dear."""
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
    assert found >= {"sanitized", "fallback", "bench", "fresh-clone", "interop rocketmq", "spark"}


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
