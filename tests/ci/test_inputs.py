"""The hash of a step's inputs, and the file of what has passed."""

from __future__ import annotations

import json
import subprocess

import pytest

from checks.graph import ImportGraph
from checks.inputs import KEPT_LINES, PassedSteps, blobs, hash_of, inputs_of, matching, selected_tests
from checks.table import Step

STEP = Step("some", ("pytest",), 10, ("tests/some/*",), "long", uses=("metaq.app",), data=("docs/*.md",))
FILES = {
    "src/metaq/__init__.py": "",
    "src/metaq/app.py": "import metaq.store",
    "src/metaq/store/__init__.py": "",
    "src/metaq/store/_fast.pyx": "",
    "src/metaq/other/__init__.py": "",
    "src/metaq/other/_other.pyx": "",
    "tests/__init__.py": "",
    "tests/conftest.py": "",
    "tests/some/test_long.py": "mark.long",
    "tests/some/test_short.py": "",
    "tests/some/answers/golden.json": "",
    "tests/elsewhere/golden.json": "",
    "docs/page.md": "",
    "README.md": "",
    "Makefile": "",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_patterns_cross_folders():
    assert matching(["src/*.pyx"], FILES) == {"src/metaq/store/_fast.pyx", "src/metaq/other/_other.pyx"}


def test_tests_are_those_with_the_marker(root):
    """Others would be collected and deselected, and decide nothing."""
    assert selected_tests(STEP, root, FILES) == ["tests/some/test_long.py"]


def test_inputs_are_imports_what_lies_beside_them_and_what_is_named(root):
    """Data beside a test, native sources beside a module; what belongs to others is not there."""
    assert inputs_of(STEP, ImportGraph(root, FILES), root) == {
        "src/metaq/__init__.py", "src/metaq/app.py", "src/metaq/store/__init__.py", "src/metaq/store/_fast.pyx",
        "tests/__init__.py", "tests/conftest.py", "tests/some/test_long.py", "tests/some/answers/golden.json", "docs/page.md",
        "Makefile",
    }  # fmt: skip


def test_only_is_all_that_decides(root):
    step = Step("native", ("make",), 1, only=("src/*.pyx",))
    assert inputs_of(step, ImportGraph(root, FILES), root) == {
        "src/metaq/store/_fast.pyx", "src/metaq/other/_other.pyx", "tests/__init__.py", "tests/conftest.py", "Makefile",
    }  # fmt: skip


def test_a_module_that_is_gone_is_an_error(root):
    """A step that named it would no longer depend on what took its place."""
    with pytest.raises(KeyError):
        inputs_of(Step("wrong", (), 1, uses=("metaq.gone",)), ImportGraph(root, FILES), root)


CONTENTS = {"a": "100644 blob 1", "b": "100644 blob 2"}
FACTS = {"python": "3.11", "machine": "x86_64", "pip": "1"}


@pytest.mark.parametrize(
    "other",
    [
        {"contents": {**CONTENTS, "b": "100644 blob 3"}},
        {"contents": {**CONTENTS, "b": "100755 blob 2"}},
        {"paths": ["a"]},
        {"facts": {**FACTS, "pip": "2"}},
        {"facts": {**FACTS, "machine": "aarch64"}},
        {"step": Step("some", ("pytest", "-x"), 10)},
    ],
)
def test_the_hash_changes_with_everything_that_decides(other):
    """Content, mode, list, machine, what pip resolved, the command."""
    usual = {"step": Step("some", ("pytest",), 10), "paths": ["a", "b"], "contents": CONTENTS, "facts": FACTS}
    assert hash_of(**usual) == hash_of(**{**usual, "paths": ["b", "a"]})
    assert hash_of(**usual) != hash_of(**{**usual, **other})


def test_how_long_a_step_takes_does_not_change_its_hash():
    """An estimate that is corrected runs nothing again."""
    one, two = (Step("some", ("pytest",), seconds) for seconds in (10, 20))
    assert hash_of(one, ["a"], CONTENTS, FACTS) == hash_of(two, ["a"], CONTENTS, FACTS)


def test_contents_are_those_of_the_last_commit(tmp_path):
    """What git has, with its mode; names with spaces too."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "a b").write_text("x")
    git("add", ".")
    git("commit", "-qm", "x")
    (tmp_path / "a b").write_text("not committed")
    (about,) = blobs(tmp_path).values()
    assert blobs(tmp_path).keys() == {"a b"}
    assert about.startswith("100644 blob ")


def passed(tmp_path):
    return PassedSteps(tmp_path / "ci" / "passed", lambda: "2026-01-02T03:04:05+00:00")


def test_what_passed_is_found_by_name_and_hash(tmp_path):
    """By another run as well; the newest of several."""
    passed(tmp_path).add("some", "1", "d", 12.6)
    found = passed(tmp_path).find("some", "1")
    assert (found.at, found.seconds) == ("2026-01-02T03:04:05+00:00", 13)
    assert passed(tmp_path).find("some", "2") is None
    assert passed(tmp_path).find("other", "1") is None


def test_a_line_that_was_cut_short_is_passed_over(tmp_path):
    """The run was killed; what it had written before still counts, and what is no line of ours does not."""
    passed(tmp_path).add("some", "1", "d", 1)
    file = tmp_path / "ci" / "passed"
    file.write_text(file.read_text() + '{"step": "x"}\n[1]\n{"step": "oth')
    assert passed(tmp_path).find("some", "1")
    passed(tmp_path).add("other", "2", "d", 1)
    assert len(file.read_text().splitlines()) == 2


def test_the_file_stays_small(tmp_path):
    file = tmp_path / "ci" / "passed"
    file.parent.mkdir()
    line = json.dumps({"step": "a", "hash": "b", "at": "c", "seconds": 1}) + "\n"
    file.write_text(line * (KEPT_LINES + 50))
    passed(tmp_path).add("some", "1", "d", 1)
    assert len(file.read_text().splitlines()) == KEPT_LINES


def test_nothing_is_remembered_where_nothing_can_be_written(tmp_path):
    """A checkout that is read only, or in the hands of another run: everything runs."""
    nowhere = PassedSteps(None, str)
    nowhere.add("some", "1", "d", 1)
    assert nowhere.find("some", "1") is None
    (tmp_path / "ci").write_text("a file where a folder should be")
    passed(tmp_path).add("some", "1", "d", 1)
    assert passed(tmp_path).find("some", "1") is None


def test_what_passed_too_long_ago_does_not_count(tmp_path):
    """A night that goes on knows what it ran, and not what the last one did."""
    passed(tmp_path).add("some", "1", "d", 1)
    file = tmp_path / "ci" / "passed"
    assert PassedSteps(file, str, "2026-01-02T03:04:05+00:00").find("some", "1")
    later = PassedSteps(file, lambda: "2026-01-03T00:00:00+00:00", "2026-01-02T03:04:06+00:00")
    assert later.find("some", "1") is later.find_by_day("some", "d") is None
    later.add("other", "2", "d", 1)
    assert not passed(tmp_path).find("some", "1")
