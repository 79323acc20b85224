"""The environment of a run is kept while it is right, and made anew when it is not. pip, make and Cython are stubs here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from checks.environment import KEPT_SECONDS, NATIVE_KEPT, Environment, NotInstalled, digest, kept_folder, link_caches
from tests.support import ROOT

WEEK = KEPT_SECONDS


class Clone:
    """A clone of a project with one compiled module, and the commands of a run in it."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "src/metaq").mkdir(parents=True)
        for name in ("pyproject.toml", "setup.py", "src/metaq/_fast.pyx"):
            (folder / name).write_text(name)
        self.calls = []
        self.broken = ()
        """Words of commands that fail."""
        self.resolved = "msgspec==1.0\n"

    def call(self, command, more):
        line = " ".join(command)
        self.calls.append(line)
        venv = self.folder / ".venv"
        if "-m venv" in line:
            Path(command[-1]).mkdir(parents=True)
        if line.startswith("make") and line.endswith("has-test"):
            venv.mkdir(exist_ok=True)  # a link to nothing fails here
        if line.endswith("has-test") or "build_ext" in line:
            (self.folder / "src/metaq/_fast.so").write_text(
                "built of " + (self.folder / "src/metaq/_fast.pyx").read_text()
            )
        out = self.resolved if "freeze" in line else "it said no" if self.broken else ""
        return subprocess.CompletedProcess(command, int(any(word in line for word in self.broken)), out)

    def did(self, word):
        return any(word in call for call in self.calls)

    @property
    def built(self):
        return (self.folder / "src/metaq/_fast.so").read_text()


@pytest.fixture
def kept(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


@pytest.fixture
def install(tmp_path, kept):
    """Installs into a new clone, which `change` may alter before. Returns the clone and how it was done."""

    def run(change=lambda clone: None, now=0.0, folder=kept):
        clone = Clone(tmp_path / f"clone{len(list(tmp_path.glob('clone*')))}")
        change(clone)
        environment = Environment(clone.folder, folder, clone.call, lambda: now)
        environment.install()
        return clone, environment.how

    return run


def test_the_first_run_installs_and_the_next_takes_it_over(install, kept):
    """MetaQ itself is installed into it again: the clone has another path. Nothing is resolved, nothing is compiled."""
    first, how = install()
    assert how.startswith("made anew: there is none")
    second, how = install(now=WEEK - 1)
    assert how == "kept from an earlier run"
    assert not second.did("has-test")
    assert not second.did("build_ext")
    assert second.did("pip install -q --no-deps --no-build-isolation -e .")
    assert second.built == first.built
    assert (second.folder / ".venv").resolve() == kept / "venv"
    assert (kept / "venv/has-test").exists()


def test_other_native_sources_are_compiled_in_the_kept_environment(install):
    """And kept beside those before: back on the other commit nothing is compiled."""
    install()
    other, how = install(lambda clone: (clone.folder / "src/metaq/_fast.pyx").write_text("new"))
    assert how == "kept from an earlier run"
    assert other.did("build_ext")
    assert other.built == "built of new"
    back, _ = install()
    assert not back.did("build_ext")
    assert back.built == "built of src/metaq/_fast.pyx"


@pytest.mark.parametrize(
    ("why", "change", "now"),
    [
        (
            "pyproject.toml, locks/ or Python has changed",
            lambda clone: (clone.folder / "pyproject.toml").write_text("new"),
            1.0,
        ),
        ("older than a week", lambda clone: None, WEEK + 1),
        ("older than a week", lambda clone: None, -1.0),
        ("it is not what it was", lambda clone: setattr(clone, "resolved", "msgspec==2.0\n"), 1.0),
        ("could not be installed", lambda clone: setattr(clone, "broken", ("pip install",)), 1.0),
        ("could not be installed", lambda clone: setattr(clone, "broken", ("pip check",)), 1.0),
        ("could not be installed", lambda clone: setattr(clone, "broken", ("import Cython",)), 1.0),
        ("could not be installed", lambda clone: setattr(clone, "broken", ("bin/mypy",)), 1.0),
    ],
)
def test_what_is_not_right_is_thrown_away(install, kept, why, change, now):
    """Other dependencies, a week for new releases, a hand in it, a disk that lost some of it."""
    install()
    (kept / "venv/left").touch()
    clone, how = install(change, now)
    assert why in how
    assert clone.did("has-test")
    assert not (kept / "venv/left").exists()
    stamp = json.loads((kept / "venv/ci-stamp").read_text())
    assert stamp["made"] == now


def test_what_pip_writes_names_the_environment_and_not_the_clone(install, kept):
    """The first line of a script is the path of the Python that pip ran with; the clone is gone with its run."""
    clone, _ = install()
    (made,) = [call for call in clone.calls if call.startswith("make") and call.endswith("has-test")]
    wanted = f"VENV={kept}/venv {kept}/venv/has-test"
    assert made == f"make {wanted}"
    told = subprocess.run(["make", "-n", *wanted.split()], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line.split()[0] for line in told.splitlines() if " tools/install.py " in line]
    assert installs == [f"{kept}/venv/bin/python"] * len(installs) != []


def test_an_environment_that_was_never_finished_is_not_taken(install, kept):
    """The run before was killed while pip ran."""
    with pytest.raises(NotInstalled, match="it said no"):
        install(lambda clone: setattr(clone, "broken", ("has-test",)))
    assert install()[1].startswith("made anew: there is none that was finished")


def test_where_nothing_can_be_kept_the_clone_has_its_own(install, kept):
    """A checkout that is read only, or two runs at once."""
    clone, how = install(folder=None)
    assert how == "installed for this run alone"
    assert not (clone.folder / ".venv").is_symlink()
    assert list(kept.iterdir()) == []


def test_only_some_builds_are_kept(install, kept):
    for number in range(NATIVE_KEPT + 3):
        install(lambda clone, number=number: (clone.folder / "src/metaq/_fast.pyx").write_text(str(number)))
    assert len(list((kept / "native").iterdir())) == NATIVE_KEPT


def test_two_runs_do_not_share_what_is_kept(tmp_path):
    """The second has nothing, and disturbs nothing."""
    with kept_folder(tmp_path) as first, kept_folder(tmp_path) as second:
        assert first == tmp_path / ".cache/ci"
        assert second is None
    with kept_folder(tmp_path) as again:
        assert again is not None


def test_without_a_place_nothing_is_kept(tmp_path):
    (tmp_path / ".cache").write_text("a file where a folder should be")
    with kept_folder(tmp_path) as kept:
        assert kept is None
    assert link_caches(None) == {}


def test_a_digest_knows_where_its_parts_end():
    assert digest("ab", "c") != digest("a", "bc")


def test_the_facts_name_what_makes_tests_skip(install, kept, monkeypatch):
    """With a compiler more, a step has not passed before; nor with other releases."""
    clone, _ = install()
    environment = Environment(clone.folder, kept, clone.call, float)
    monkeypatch.setattr("shutil.which", lambda tool: None)
    without = environment.facts()
    assert {without[tool] for tool in ("cc", "javac", "mvn")} == {"none"}
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")
    assert environment.facts() != without
    clone.resolved = "msgspec==2.0\n"
    assert environment.facts()["pip"] != without["pip"]
