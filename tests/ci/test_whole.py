"""A whole run over a small project with git: what it remembers decides what the next one runs. The steps and the environment are stubs."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess

import pytest

from checks import environment, running, table, whole
from checks.table import Step

FILES = {
    "src/metaq/__init__.py": "",
    "src/metaq/one.py": "",
    "src/metaq/two.py": "",
    "tests/test_one.py": "import metaq.one",
    "tests/test_two.py": "import metaq.two",
    "pages/slow": "",
    "pages/quick": "",
}
TOUCH = ("sh", "-c", 'for name; do echo "$name" >>../ran; done', "-")
STEPS = (
    Step("lint", (*TOUCH, "lint"), 1, always=True),
    Step("two", TOUCH, 1, ("tests/test_two.py",), beside=True),
    Step("one", TOUCH, 1, ("tests/test_one.py",), data=("pages/*",), night=("pages/slow*",)),
)


class Installed(environment.Environment):
    """What would be there after an install."""

    def install(self):
        self.how = "a stub"

    def facts(self):
        return {}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Commits changes to a checkout and runs CI over it. Returns the exit code and what ran."""
    checkout = tmp_path / "checkout"
    monkeypatch.setattr(whole, "STEPS", STEPS)
    monkeypatch.setattr(whole, "Environment", Installed)
    monkeypatch.setattr(whole, "link_caches", lambda kept: {})  # they would become this process's
    for name in ("CI_ALL", "CI_RECORD"):
        monkeypatch.delenv(name, raising=False)

    def git(*words):
        name = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", *name, *words], cwd=checkout, check=True, capture_output=True)

    checkout.mkdir()
    git("init", "-q")

    def once(**files):
        for name, text in files.items():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_text(text)
        git("add", "src", "tests", "pages")
        git("commit", "-qm", "x", "--allow-empty")
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        subprocess.run(["git", "clone", "-q", str(checkout), str(work / "clone")], check=True)
        code = whole.ci(str(checkout), str(work / "clone"), str(work), 0.0)
        ran = work / "ran"
        return code, sorted(ran.read_text().split()) if ran.exists() else []

    once.checkout = checkout
    return once


ALL = ["lint", "tests/test_one.py", "tests/test_two.py"]


def test_a_run_after_a_change_runs_what_depends_on_it(run, capsys):
    """The first all; the second only what always runs; after a change of one module the step whose test imports it."""
    assert run(**FILES) == (0, ALL)
    capsys.readouterr()
    assert run() == (0, ["lint"])
    assert capsys.readouterr().out.count("UNCHANGED since ") == 2
    assert run(**{"src/metaq/one.py": "x = 1"}) == (0, ["lint", "tests/test_one.py"])
    assert run(**{"src/metaq/one.py": ""}) == (0, ["lint"])
    assert run(**{"README.md": "not committed"}) == (0, ["lint"])


def test_a_change_that_waits_for_the_night_runs_nothing_by_day(run, capsys):
    """The next change of another input does, with it."""
    run(**FILES)
    capsys.readouterr()
    assert run(**{"pages/slow": "x"}) == (0, ["lint"])
    assert "TONIGHT  one: since " in capsys.readouterr().out
    assert run(**{"pages/quick": "x"}) == (0, ["lint", "tests/test_one.py"])
    assert run() == (0, ["lint"])
    assert "TONIGHT" not in capsys.readouterr().out


def night(monkeypatch, folder):
    """`make nightly` in this folder. Returns its exit code and what ran."""
    monkeypatch.chdir(folder)
    ran = folder.parent / "ran"
    ran.unlink(missing_ok=True)
    code = whole.nightly()
    return code, sorted(ran.read_text().split()) if ran.exists() else []


def test_a_night_runs_everything_and_goes_on_where_it_was_interrupted(run, monkeypatch, capsys):
    """It does not ask what passed by day. With files that are not committed nothing is remembered."""
    run(**FILES)
    (run.checkout / ".gitignore").write_text(".cache\n")
    run(**{"pages/slow": "x", ".gitignore": ".cache\n"})
    lint, two, one = STEPS
    steps = [dataclasses.replace(lint, always=False, only=("*",)), two, one]
    monkeypatch.setattr(table, "nightly", lambda day: tuple(steps))
    monkeypatch.setattr(running.opened, "undeclared", lambda *_: [])  # the stubs open nothing
    monkeypatch.setattr(running.opened, "recorded", lambda out: {"tests/test_one.py"})
    checkout = run.checkout
    subprocess.run(["git", "add", ".gitignore"], cwd=checkout, check=True)
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"], cwd=checkout, check=True)
    steps[2] = dataclasses.replace(one, command=("false",))
    assert night(monkeypatch, checkout) == (1, ["lint", "tests/test_two.py"])
    steps[2] = one
    assert night(monkeypatch, checkout) == (0, ["tests/test_one.py"])
    assert "For CHANGELOG.md: make nightly whole and green at " in capsys.readouterr().out
    assert night(monkeypatch, checkout) == (0, [])
    (checkout / "new").write_text("")
    assert night(monkeypatch, checkout) == (0, ALL)


def test_all_runs_when_asked(run, monkeypatch):
    """CI_ALL=0 is as if it were not set."""
    run(**FILES)
    monkeypatch.setenv("CI_ALL", "0")
    assert run() == (0, ["lint"])
    monkeypatch.setenv("CI_ALL", "1")
    assert run() == (0, ALL)


def test_a_new_clone_of_the_checkout_knows_nothing(run):
    """Nor one that cannot be written."""
    run(**FILES)
    shutil.rmtree(run.checkout / ".cache")
    assert run() == (0, ALL)
    shutil.rmtree(run.checkout / ".cache")
    (run.checkout / ".cache").write_text("in the way")
    assert run() == (0, ALL)
    assert run() == (0, ALL)


def test_without_an_environment_the_run_fails(run, monkeypatch, capsys):
    def fail(self):
        raise environment.NotInstalled("pip said no")

    run(**FILES)
    monkeypatch.setattr(Installed, "install", fail)
    assert run() == (1, [])
    out = capsys.readouterr().out
    assert "pip said no" in out
    assert out.endswith("FAILED install: nothing can run\n")
