"""A run: what is due, what is passed over, what fails, and what is remembered. Steps are stubs, and the clock is the test's."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest

from checks import whole
from checks.inputs import PassedSteps
from checks.running import NO_TESTS, STOPPED, Plan, Process, Runner, last_failed
from checks.table import Step
from tests.support import PATIENCE

AT = "2026-01-02T03:04:05+00:00"


class Stub:
    """Commands that take as long, end as they are told, and leave what pytest would leave."""

    def __init__(self, root):
        self.root, self.now = root, 0.0
        self.codes = {}
        """Word of a command → its codes, one for each call, and how long it takes."""
        self.failed = {}
        self.opened = {}
        self.calls = []

    def __call__(self, command, environment, log):
        self.calls.append((list(command), dict(environment)))
        word = next((word for word in self.codes if word in " ".join(command)), None)
        code, seconds = self.codes[word].pop(0) if word else (0, 10.0)
        if cache := next((one.partition("cache_dir=")[2] for one in command if "cache_dir=" in one), None):
            file = self.root / cache / "v/cache/lastfailed"
            file.parent.mkdir(parents=True, exist_ok=True)
            if word and self.failed.get(word):
                file.write_text(json.dumps(dict.fromkeys(self.failed[word], True)))
        if "CI_OPENED" in environment:
            with pathlib.Path(environment["CI_OPENED"]).open("w") as out:
                out.writelines(f"{name}\n" for name in self.opened.get(word, ["tests/a/test_a.py"]))
        stub = self

        class Execution:
            def wait(self, left):
                stub.now += min(seconds, left)
                return STOPPED if seconds > left else code

            def output(self):
                return "its output"

        return Execution()


FILES = ["tests/a/test_a.py", "tests/b/test_b.py", "tests/c/test_c.py", "src/hidden.py"]
PYTEST = (".venv/bin/python", "-m", "pytest")
A, B = (Step(name, PYTEST, 100, (f"tests/{name}/*",), batch="both") for name in "ab")


class Run:
    """A runner over stubs."""

    def __init__(self, folder, **options):
        self.stub = Stub(folder)
        self.said = []
        self.passed = PassedSteps(folder / "passed", lambda: AT)
        self.options = {"limit": 5000.0, **options}
        self.folder = folder
        self.again()

    def again(self, **options):
        self.runner = Runner(
            self.folder, self.folder, clock=lambda: self.stub.now, execute=self.stub, passed=self.passed, files=FILES,
            say=self.said.append, **{**self.options, **options},
        )  # fmt: skip

    def run(self, *steps, digest="1", by_day="d"):
        before = len(self.stub.calls)
        self.runner.run([Plan(step, digest, frozenset(FILES[:3]), by_day) for step in steps])
        return self.stub.calls[before:]

    @property
    def summary(self):
        return self.runner.summary


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_what_passed_with_these_inputs_is_not_run_again(run):
    """And is named with the time; with other inputs it runs."""
    assert len(run.run(A)) == 1
    assert run.summary == ["passed  a, 10 s"]
    run.again()
    assert run.run(A) == []
    assert run.summary == [f"UNCHANGED since {AT}  a, it took 10 s"]
    assert not run.runner.failed
    assert len(run.run(A, digest="2")) == 1


def test_a_change_that_waits_for_the_night_is_named(run):
    """And runs nothing now; one of another input, or all that is asked for, does."""
    step = Step("a", PYTEST, 100, ("tests/a/*",), night=("src/*",))
    run.run(step)
    run.again()
    assert run.run(step, digest="2") == []
    assert run.summary == [f"TONIGHT  a: since {AT} only such of its inputs changed as wait for `make nightly`"]
    assert not run.runner.failed
    run.again(everything=True)
    assert len(run.run(step, digest="2")) == 1
    run.again()
    assert len(run.run(step, digest="3", by_day="e")) == 1
    assert len(run.run(Step("a", PYTEST, 100, ("tests/a/*",)), digest="4")) == 1


def test_everything_runs_when_asked(run):
    """CI_ALL=1."""
    run.run(A)
    run.again(everything=True)
    assert len(run.run(A)) == 1


def test_what_always_runs_is_never_remembered(run):
    lint = Step("lint", ("make", "lint"), 10, always=True)
    assert [len(run.run(lint)) for _ in range(2)] == [1, 1]
    assert run.passed.find("lint", "1") is None


def test_what_failed_runs_again_the_next_time(run):
    """Its code is in the summary; the run has failed."""
    run.stub.codes = {"tests/a": [(2, 10.0), (0, 10.0)]}
    run.run(A)
    assert run.summary == ["FAILED (2)  a, 10 s"]
    assert run.runner.failed
    run.again()
    assert len(run.run(A)) == 1


def test_no_tests_are_a_failure(run):
    """Something is misnamed."""
    run.stub.codes = {"tests/a": [(NO_TESTS, 1.0)]}
    run.run(A)
    assert run.summary == ["FAILED (5)  a, 1 s: no tests"]


def test_what_passes_alone_is_named_unsteady_and_not_remembered(run):
    """It stops nothing, and the step has to show it again. In a group a test has another name."""
    run.stub.codes = {"test_a.py::x": [(0, 5.0)], "tests/a": [(1, 10.0)]}
    run.stub.failed = {"tests/a": ["tests/a/test_a.py::x@spark-programs"]}
    calls = run.run(A)
    assert calls[-1][0] == [*PYTEST, "tests/a/test_a.py::x"]
    assert run.summary == ["UNSTEADY  a, 10 s: failed, and passed alone: tests/a/test_a.py::x"]
    assert not run.runner.failed
    assert run.passed.find("a", "1") is None


def test_what_make_runs_is_run_once_more_too(run):
    """make ends with 2, whatever pytest ended with."""
    step = Step("all", ("make", "test"), 10, ("tests/a/*",), always=True)
    run.stub.codes = {"test_a.py::x": [(0, 5.0)], "make": [(2, 10.0)]}
    run.stub.failed = {"make": ["tests/a/test_a.py::x"]}
    run.run(step)
    assert run.summary == ["UNSTEADY  all, 10 s: failed, and passed alone: tests/a/test_a.py::x"]


def test_what_fails_alone_as_well_has_failed(run):
    run.stub.codes = {"test_a.py::x": [(1, 5.0)], "tests/a": [(1, 10.0)]}
    run.stub.failed = {"tests/a": ["tests/a/test_a.py::x"]}
    run.run(A)
    assert run.summary == ["FAILED (1)  a, 10 s"]


@pytest.mark.parametrize(("failed", "rerun"), [(4, True), (1, False)])
def test_more_than_three_are_no_accident(run, failed, rerun):
    """Nor is a step that says so run again."""
    run.stub.codes = {"tests/a": [(1, 10.0)]}
    run.stub.failed = {"tests/a": [f"tests/a/test_a.py::x{number}" for number in range(failed)]}
    step = Step("a", PYTEST, 100, ("tests/a/*",), rerun=rerun)
    assert len(run.run(step)) == 1
    assert run.runner.failed


def test_steps_of_a_batch_run_in_one_pytest(run):
    """Those that are due; each is remembered by itself."""
    run.run(A)
    ((command, _),) = run.run(A, B, Step("c", PYTEST, 100, ("tests/c/*",), batch="both"))
    assert command[-2:] == ["tests/b/test_b.py", "tests/c/test_c.py"]
    assert run.summary[-2:] == ["passed  b, 10 s with others", "passed  c, 10 s with others"]
    assert run.passed.find("b", "1")


def test_of_a_batch_only_those_fail_whose_tests_did(run):
    """The others are remembered."""
    run.stub.codes = {"test_b.py::x": [(1, 1.0)], "tests/a": [(1, 10.0)]}
    run.stub.failed = {"tests/a": ["tests/b/test_b.py::x"]}
    run.run(A, B)
    assert run.summary == ["passed  a, 10 s with others", "FAILED (1)  b, 10 s with others"]
    assert run.passed.find("a", "1")
    assert not run.passed.find("b", "1")


def test_a_step_of_a_batch_of_which_few_tests_failed_is_tried_again_whatever_the_others_did(run):
    """The limit is one for each step: a batch of many steps has more tests, and more accidents."""
    run.stub.codes = {"test_b.py::x0": [(0, 1.0)], "tests/a": [(1, 10.0)]}
    of_b = [f"tests/b/test_b.py::x{number}" for number in range(3)]
    run.stub.failed = {"tests/a": [*(f"tests/a/test_a.py::x{number}" for number in range(4)), *of_b]}
    calls = run.run(A, B)
    assert calls[-1][0] == [*PYTEST, *of_b]
    assert run.summary == [
        "FAILED (1)  a, 10 s with others", f"UNSTEADY  b, 10 s with others: failed, and passed alone: {' '.join(of_b)}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "failed"), [(1, []), (1, ["tests/gone.py::x"]), (2, []), (3, ["tests/b/test_b.py::x"]), (-9, [])]
)
def test_a_batch_that_does_not_say_whose_fault_it_was_fails_whole(run, code, failed):
    """Also when what pytest left names nobody's test."""
    run.stub.codes = {"gone": [(1, 1.0)], "tests/a": [(code, 10.0)]}
    run.stub.failed = {"tests/a": failed}
    run.run(A, B)
    assert [line.split()[0] for line in run.summary] == ["FAILED", "FAILED"]


def test_a_step_is_stopped_at_the_limit(run):
    """The whole run would be, a little later."""
    run.again(limit=150.0)
    run.stub.codes = {"tests/a": [(0, 400.0)]}
    run.run(A)
    assert run.summary == ["FAILED (124)  a, 150 s: stopped 150 s after the run's begin"]


def test_what_would_not_fit_fails_by_name(run):
    """By how quick the machine is; what fits of a batch runs, and need not the next time."""
    run.again(limit=450.0, pace_of="test")
    run.stub.codes = {"make test": [(0, 200.0)]}
    run.run(Step("test", ("make", "test"), 100, always=True))
    run.run(A, B)
    assert run.runner.pace == 2.0
    assert run.summary[1:] == ["FAILED (no time)  b: takes some 200 s here, 50 s are left", "passed  a, 10 s"]
    assert run.runner.failed


def test_what_a_strict_step_opens_is_held_against_its_inputs(run):
    """A file of the project that is not in its list is a fault, and the step not remembered."""
    step = Step("a", PYTEST, 100, ("tests/a/*",), strict=True)
    run.stub.codes = {"tests/a": [(0, 1.0)] * 2}
    run.stub.opened = {"tests/a": ["tests/a/test_a.py", "src/__pycache__/hidden.cpython-311.pyc"]}
    ((_, environment),) = run.run(step)
    assert environment["PYTHONPATH"].startswith(f"{run.folder}/.ci/checks/record")
    assert run.summary == ["FAILED (inputs)  a, 1 s: opens files that are not among its inputs: src/hidden.py"]
    assert run.passed.find("a", "1") is None
    run.stub.opened = {"tests/a": []}
    run.run(step)
    assert run.summary[-1] == "FAILED (inputs)  a, 1 s: nothing was recorded"


def test_what_alone_decides_is_not_held_against_what_is_opened(run):
    """Its definition says why the rest is no input."""
    ((_, environment),) = run.run(Step("a", PYTEST, 100, only=("src/*",), strict=True))
    assert "CI_OPENED" not in environment
    assert run.summary == ["passed  a, 10 s"]


def test_recording_runs_each_step_by_itself(run):
    """Together nobody would know whose file it was."""
    run.again(record=True)
    calls = run.run(A, B)
    assert [command[-1] for command, _ in calls] == ["tests/a/test_a.py", "tests/b/test_b.py"]
    assert all("CI_OPENED" in environment for _, environment in calls)


def test_whole_run_begins_in_the_background_what_may_run_beside(run):
    """It is waited for before the tests that need the whole machine, and its output is shown then."""
    slow = Step("long", PYTEST, 100, ("tests/c/*",), beside=True)
    lint, test = (Step(name, ("make", name), 10, always=True) for name in ("lint", "test"))
    plans = [Plan(step, "1", frozenset()) for step in (lint, slow, A, test, B)]
    whole.run_all(run.runner, plans, one_by_one=False)
    assert [" ".join(command)[:9] for command, _ in run.stub.calls][1:2] == ["make lint"]
    assert [line.split(",")[0] for line in run.summary] == [
        "passed  lint",
        "passed  a",
        "passed  long",
        "passed  test",
        "passed  b",
    ]
    assert "its output" in run.said


def test_a_run_that_is_interrupted_leaves_nothing_in_the_background(tmp_path):
    """Ctrl-C reaches the run alone: each step has a session of its own."""
    children = []

    def execute(command, environment, log):
        if "slow" not in command:
            raise KeyboardInterrupt
        children.append(Process(["sleep", "1000"], {}, log, tmp_path))
        return children[-1]

    runner = Runner(
        tmp_path, tmp_path, limit=1000.0, clock=lambda: 0.0, execute=execute, passed=PassedSteps(None, lambda: AT), files=FILES,
        say=lambda line: None,
    )  # fmt: skip
    plans = [
        Plan(Step("slow", ("slow",), 1, beside=True), "", frozenset()),
        Plan(Step("quick", ("quick",), 1), "", frozenset()),
    ]
    with pytest.raises(KeyboardInterrupt):
        whole.run_all(runner, plans, one_by_one=False)
    assert [child.wait(PATIENCE) for child in children] == [-signal.SIGTERM]


def test_the_summary_ends_the_run(run, capsys):
    """Its exit code is that of the run."""
    run.run(A)
    assert whole.print_summary(".ci/run", run.runner) == 0
    run.runner.fail("(1)  x")
    assert whole.print_summary(".ci/run", run.runner) == 1
    assert capsys.readouterr().out.endswith("==== summary of .ci/run\npassed  a, 10 s\nFAILED (1)  x\n")


def test_names_of_tests_in_groups_are_theirs_alone(tmp_path):
    """pytest-xdist adds the group behind an @."""
    file = tmp_path / "v/cache/lastfailed"
    assert last_failed(tmp_path) == []
    file.parent.mkdir(parents=True)
    file.write_text('{"tests/a.py::x[user@host]@spark-programs": true, "tests/s/b.py::y@s.b": true}')
    assert last_failed(tmp_path) == ["tests/a.py::x[user@host]", "tests/s/b.py::y"]
    file.write_text("{")
    assert last_failed(tmp_path) == []


def test_a_process_that_takes_too_long_ends_with_what_it_started(tmp_path):
    """Its output is in the log."""
    process = Process(["sh", "-c", "echo begun; cat >/dev/null; sleep 1000 & wait"], {}, tmp_path / "log", tmp_path)
    assert process.wait(0.0) == STOPPED
    ended = Process(["sh", "-c", "echo $NAME; exit 3"], {"NAME": "some"}, tmp_path / "log", tmp_path)
    assert ended.wait(PATIENCE) == 3
    assert ended.output() == "some\n"
