"""What every pipeline of `metaq pipeline list` says to bad input: one line, before Spark is started, and nothing is touched."""

from __future__ import annotations

import json
import re

import pytest

from metaq.admin import Admin
from metaq.pipelines.catalogue import PIPELINES
from metaq.pipelines.lease import lease_on
from tests.support import run_metaq

pytestmark = pytest.mark.slow

TOPIC = "bad_input_known"
GROUP = "bad_input"
FOLDER = {"archive": "output"}
"""What the option of the pipeline's own folder is called, where that is not `folder`."""
GIVEN = {
    "archive": {"topics": [TOPIC]},
    "audit": {"topics": [TOPIC], "groups": [GROUP], "consumed": "progress"},
    "changes": {"topics": [TOPIC]},
    "compact": {},
    "redrive": {"group": GROUP},
    "metrics": {"topics": [TOPIC], "traceTopic": "off"},
    "mirror": {"topics": [TOPIC], "rename": [f"{TOPIC}:copy_of_it"], "to": "127.0.0.1:1"},
}
"""A configuration of each, without its folder and its name servers."""
LIVE = [name for name in PIPELINES if name != "compact"]
"""Those that read from brokers."""


@pytest.fixture(scope="module")
def known(metaq_broker):
    """The topic, and the group's dead letters."""
    with Admin(metaq_broker.namesrv) as admin:
        for topic in (TOPIC, f"%DLQ%{GROUP}"):
            admin.create_topic(topic)


@pytest.fixture
def run(metaq_broker, tmp_path, known):
    """Run a pipeline from a file: exit status and what it said on standard error."""

    def run(name, place, **more):
        given = {**GIVEN[name], FOLDER.get(name, "folder"): str(place), **more}
        if name in LIVE:
            given["nameServers"] = metaq_broker.namesrv
        file = tmp_path / "pipeline.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
        done = run_metaq("pipeline", "run", name, "-c", str(file))
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stdout == ""
        return done.returncode, done.stderr

    return run


def test_all_pipelines_are_here():
    assert GIVEN.keys() == PIPELINES.keys()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_wrong_key_is_named_with_the_nearest(name, tmp_path, run):
    key = FOLDER.get(name, "folder")
    wrong = key[:-2] + key[:-3:-1]
    code, said = run(name, tmp_path / "out", **{wrong: "x"})
    assert code == 2
    assert re.fullmatch(rf"metaq: there is no option {wrong} in .*pipeline\.toml; the nearest is {key}\n", said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", LIVE)
def test_a_topic_that_does_not_exist_is_named(name, tmp_path, run):
    wanted = (
        {"group": "bad_input_unheard_of"}
        if name == "redrive"
        else {"topics": ["bad_input_unknown"], "rename": ["bad_input_unknown:copy"]}
    )
    if name != "mirror":
        wanted.pop("rename", None)
    code, said = run(name, tmp_path / "out", **wanted)
    assert code == 3, said
    assert "bad_input_unheard_of" in said if name == "redrive" else "no route for topic bad_input_unknown" in said
    left = [path.name for path in tmp_path.glob("out/*")]
    assert not set(left) - {"_run.json", "_lease"}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_folder_that_is_a_file_is_refused(name, tmp_path, run):
    place = tmp_path / "mine"
    place.write_text("mine")
    code, said = run(name, place)
    assert code == 2
    assert str(place) in said
    assert place.read_text() == "mine"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_folder_that_another_run_has_is_refused(name, tmp_path, run):
    place = tmp_path / "held"
    place.mkdir()
    if name == "compact":
        (place / "_manifests").mkdir()
    mine = lease_on(place)
    mine.take()
    try:
        code, said = run(name, place)
    finally:
        mine.release()
    assert code == 1
    assert said.startswith(f"metaq: another run writes into {place}: process ")
    assert {path.name for path in place.iterdir()} <= {"_lease", "_manifests"}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_folder_of_another_pipeline_is_refused(name, tmp_path, run):
    """Its checkpoint, its ledger or its state would be taken for this one's."""
    place = tmp_path / "others"
    place.mkdir()
    other = "metrics" if name != "metrics" else "mirror"
    status = {
        "pipeline": other, "run": "r", "host": "h", "pid": 1, "since": "2026-03-01T00:00:00Z", "seen": "2026-03-01T00:00:00Z",
        "state": "ended",
    }  # fmt: skip
    (place / "_run.json").write_text(json.dumps(status))
    if name == "compact":
        (place / "_manifests").mkdir()
    code, said = run(name, place)
    assert code == 2, said
    assert said.startswith(f"metaq: {place} is the folder of the pipeline {other}")
    assert json.loads((place / "_run.json").read_text()) == status
    assert {path.name for path in place.iterdir()} <= {"_run.json", "_manifests"}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_folder_with_something_else_in_it_is_refused(name, tmp_path, run):
    """Nobody's data is put beside ours, where a glob would take it for messages."""
    place = tmp_path / "holidays"
    place.mkdir()
    (place / "beach.parquet").write_bytes(b"PAR1")
    code, said = run(name, place)
    assert code == 2, said
    assert str(place) in said
    assert "beach.parquet" in said or (name == "compact" and "there is no archive" in said)
    assert [path.name for path in place.iterdir()] == ["beach.parquet"]
