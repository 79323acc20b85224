"""`make quick`: which tests it chooses by what changed, what it leaves, and what it says."""

from __future__ import annotations

import sys

import pytest

from checks.quick import (
    GUESS,
    TESTS,
    Chosen,
    Ended,
    Job,
    changed,
    choose,
    finish,
    measured,
    read_durations,
    verdict,
    write_durations,
)
from checks.quick import (
    tests_for as chosen_for,
)

FILES = {
    "src/metaq/clock.py",
    "src/metaq/broker/broker.py",
    "src/metaq/broker/pulls/waiting.py",
    "src/metaq/store/log/_syncing.pyx",
    "tests/test_clock.py",
    "tests/test_layers.py",
    "tests/support.py",
    "tests/broker/support.py",
    "tests/broker/test_broker.py",
    "tests/broker/test_other.py",
    "tests/broker/pulls/test_held.py",
    "tests/broker/pulls/test_waiting.py",
    "tests/broker/pulls/test_waiting_long.py",
    "tests/store/log/test_syncing.py",
    "tests/docs/test_request_reply.py",
    "tests/ci/test_quick.py",
}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        (
            "src/metaq/broker/pulls/waiting.py",
            [
                "tests/broker/pulls/test_waiting.py",
                "tests/broker/pulls/test_waiting_long.py",
                "tests/broker/pulls/test_held.py",
            ],
        ),
        ("src/metaq/broker/broker.py", ["tests/broker/test_broker.py", "tests/broker/test_other.py"]),
        ("src/metaq/broker/newroom/other.py", ["tests/broker/test_other.py", "tests/broker/test_broker.py"]),
        ("src/metaq/clock.py", ["tests/test_clock.py"]),
        ("src/metaq/store/log/_syncing.pyx", ["tests/store/log/test_syncing.py"]),
        ("tests/broker/test_other.py", ["tests/broker/test_other.py"]),
        ("tests/broker/support.py", ["tests/broker/test_broker.py", "tests/broker/test_other.py"]),
        ("tests/broker/test_removed.py", ["tests/broker/test_broker.py", "tests/broker/test_other.py"]),
        ("docs/request-reply.md", ["tests/docs/test_request_reply.py"]),
        (".ci/checks/quick.py", ["tests/ci/test_quick.py"]),
        ("tests/test_layers.py", []),
        ("tests/support.py", []),
        ("README.md", []),
    ],
)
def test_tests_are_chosen_by_place(path, tests):
    """The source's own, then its package's; a helper's folder; a page's programs. The layers always run, by themselves."""
    assert chosen_for([path], FILES) == tests


def test_changed_tests_come_first_and_each_once():
    """What a budget cuts off is at the end."""
    found = chosen_for(
        ["src/metaq/broker/broker.py", "tests/broker/pulls/test_held.py", "tests/broker/test_other.py"], FILES
    )
    assert found == ["tests/broker/pulls/test_held.py", "tests/broker/test_other.py", "tests/broker/test_broker.py"]


def test_the_budget_is_filled_by_what_they_took_the_last_time():
    """A long one does not keep out the short ones behind it; one that is new is guessed."""
    assert choose(["a", "b", "c", "d"], {"a": 5.0, "b": 50.0, "c": 1.0}, 5.0 + 1.0 + GUESS) == Chosen(
        ["a", "c", "d"], ["b"]
    )


def git_of(**answers):
    return lambda *words: answers[
        words[0].replace("-", "_") if words[-1] != "HEAD" or words[0] != "diff" or "HEAD~1" not in words else "last"
    ]


def test_what_differs_is_edited_or_new():
    """Compared with the last commit."""
    assert changed(git_of(diff="b\na\n", ls_files="c\na\n")) == (["a", "b", "c"], "differ from the last commit")


def test_on_a_clean_tree_the_last_commit_is_meant():
    """Just after `git commit`."""
    assert changed(git_of(diff="", ls_files="", last="a\n")) == (["a"], "are of the last commit")


def test_durations_are_kept_by_file(tmp_path):
    """From pytest's own report."""
    report = """<testsuites><testsuite>
        <testcase file="tests/a.py" time="1.5"/><testcase file="tests/a.py" time="0.25"/><testcase time="9"/>
        <testcase file="tests/b c.py" time="2"/></testsuite></testsuites>"""
    file = tmp_path / "quick/durations"
    assert read_durations(file) == {}
    write_durations(file, measured(report))
    assert read_durations(file) == {"tests/a.py": 1.75, "tests/b c.py": 2.0}
    file.write_text("no number\n")
    assert read_durations(file) == {}


def test_nothing_is_left_out_in_silence():
    """What the budget cut, what was stopped, what is everybody's."""
    code, said = verdict([Ended("lint", 0), Ended(TESTS, None)], Chosen(["a"], ["b", "c"]), ["tests/conftest.py", "x"])
    assert code == 0
    assert len(said) == 3
    assert any(line.endswith("b c") for line in said)
    assert any("tests/conftest.py may change any test" in line for line in said)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ([Ended("lint", 0), Ended(TESTS, 0)], 0),
        ([Ended("lint", 0), Ended(TESTS, 5)], 0),
        ([Ended("lint", 1), Ended(TESTS, 0)], 1),
        ([Ended("layers", 5)], 1),
        ([Ended(TESTS, 1)], 1),
        ([Ended("types", None)], 1),
    ],
)
def test_the_exit_code_is_of_all_that_was_decided(ended, code):
    """All chosen tests may be long ones, which are deselected; types that were stopped are not passed."""
    assert verdict(ended, Chosen([], []), [])[0] == code


def test_a_job_that_takes_too_long_is_interrupted(capfd):
    """It may end what it has started; its output is shown."""
    program = """
import signal, sys
def end(*_): print("ended itself"); sys.exit(1)
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
signal.pause()
"""
    job = Job("some", [sys.executable, "-uc", program], lambda: 0.0)
    while "ready" not in job.text():
        pass
    assert finish([job], 0.0) == {"some": None}
    assert "ended itself" in capfd.readouterr().out


def test_a_job_that_passed_is_one_line(capfd):
    job = Job("some", ["sh", "-c", "echo much"], lambda: 0.0)
    assert finish([job], 60.0) == {"some": 0}
    assert capfd.readouterr().out == "passed  some, 0 s\n"
