"""The run: its steps one after the other, what they say, what of it is remembered, and the summary."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import IO, Protocol

from checks import opened
from checks.inputs import Passed, PassedSteps, selected_tests
from checks.table import RUN, Step

STOPPED, NO_TESTS, FAILED_TESTS = 124, 5, 1
"""Exit codes: as `timeout` has it, and pytest's."""
MAKE_FAILED = 2
"""make's exit code, whatever that of its command was."""
UNSTEADY_MAX = 3
"""So many tests of a step may fail and pass alone; more is no accident."""
HOPE = 0.6
"""A step is tried when so much of the time is left that it is expected to take: the rows of the table are estimates."""
END_SECONDS = 20.0
"""A process that is stopped has so long to end."""


class Execution(Protocol):
    """A command that was started."""

    def wait(self, seconds: float) -> int:
        """Its exit code. Not ended by then: it is ended with all that it started, and the code is STOPPED."""

    def output(self) -> str:
        """What it wrote, where that was kept from the terminal."""


class Execute(Protocol):
    """Starts commands; tests have one of their own."""

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], log: pathlib.Path | None) -> Execution:
        """Start a command in the clone, with these variables beside the run's own, its output in `log` if that is given."""


class Process:
    """A child process in a group of its own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: pathlib.Path | None, folder: pathlib.Path
    ) -> None:
        self._log = log
        with contextlib.ExitStack() as files:
            out: IO[bytes] | None = files.enter_context(log.open("wb")) if log else None
            self._child = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT if out else None, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float) -> int:
        try:
            return self._child.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            self.stop()
            return STOPPED
        except BaseException:  # Ctrl-C ends this process alone: the child has a session of its own
            self.stop()
            raise

    def stop(self) -> None:
        """End it, and what of its group is left."""
        for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log else ""


@dataclasses.dataclass
class Plan:
    """A step with what its inputs are in this run."""

    step: Step
    hash: str
    inputs: frozenset[str]
    by_day: str = ""
    """The hash without the inputs whose change waits for the night; the step has none of them: as `hash`."""


def last_failed(folder: pathlib.Path) -> list[str]:
    """The tests that failed in pytest's last run with this cache. Those of a group are named TEST@GROUP; alone they are not."""
    try:
        names = json.loads((folder / "v/cache/lastfailed").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [re.sub(r"@[\w.-]+$", "", name) for name in names]


class Runner:
    """Runs steps and collects how they went.

    root: the clone. work: a folder for logs. limit: seconds after the run's begin when everything has to be over.
    clock: seconds since the run's begin. everything: also what is unchanged. record: each step by itself, recorded.
    pace_of: the step by whose time, against its row, those behind it are estimated.
    """

    def __init__(
        self, root: pathlib.Path, work: pathlib.Path, *, limit: float, clock: Callable[[], float], execute: Execute,
        passed: PassedSteps, files: Iterable[str], everything: bool = False, record: bool = False,
        say: Callable[[str], None] = print, pace_of: str = "",
    ) -> None:  # fmt: skip
        self._root, self._work = root, work
        self._limit, self._clock, self._execute = limit, clock, execute
        self._passed, self._files = passed, frozenset(files)
        self._everything, self._record, self._say = everything, record, say
        self._pace_of = pace_of
        self.summary: list[str] = []
        self.failed = False
        self.pace = 1.0
        """How long a step takes here, as a multiple of what its row says."""

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return self._limit - self._clock()

    def fail(self, line: str) -> None:
        """Put a failure into the summary."""
        self.summary.append(f"FAILED {line}")
        self.failed = True

    def due(self, plans: Sequence[Plan]) -> list[Plan]:
        """The steps that have to run; the others are named with the time of their pass."""
        found = []
        for plan in plans:
            known = None if plan.step.always or self._everything else self._passed.find(plan.step.name, plan.hash)
            if known is not None:
                self.summary.append(f"UNCHANGED since {known.at}  {plan.step.name}, it took {known.seconds} s")
            elif (known := self._waiting(plan)) is not None:
                self.summary.append(
                    f"TONIGHT  {plan.step.name}: since {known.at} only such of its inputs changed as wait for `make nightly`"
                )
            else:
                found.append(plan)
        return found

    def _waiting(self, plan: Plan) -> Passed | None:
        """The pass of a step of which only inputs have changed since whose change waits for the night."""
        if not plan.step.night or plan.step.always or self._everything:
            return None
        return self._passed.find_by_day(plan.step.name, plan.by_day)

    def start(self, plans: Sequence[Plan]) -> Started | None:
        """Begin steps of one batch in the background. None: none of them is due."""
        due = self.due(plans)
        return self._start(due, self._work / f"{due[0].step.batch or due[0].step.name}.log") if due else None

    def run(self, plans: Sequence[Plan]) -> None:
        """Run steps of one batch, those that are due: in one pytest, or when recording each by itself."""
        due = self.due(plans)
        for group in [[plan] for plan in due] if self._record else [due] if due else []:
            fitting = self._fitting(group)
            if fitting:
                self.finish(self._start(fitting, None))

    def _fitting(self, plans: Sequence[Plan]) -> list[Plan]:
        """The first of these that can end in time; the others fail, by name.

        Stopped half-way they would have shown nothing. What passes now is unchanged in the next run, which gets further.
        """
        found: list[Plan] = []
        left = self.left
        for plan in plans:
            needed = plan.step.seconds * self.pace
            if HOPE * needed > left:
                self.fail(f"(no time)  {plan.step.name}: takes some {needed:.0f} s here, {max(left, 0):.0f} s are left")
            else:
                found.append(plan)
                left -= needed
        return found

    def _cache(self, step: Step) -> pathlib.Path:
        return self._root / ".cache/lastfailed" / (step.batch or step.name)

    def _command(self, plans: Sequence[Plan]) -> list[str]:
        step = plans[0].step
        command = list(step.command)
        cache = ("-o", f"cache_dir={self._cache(step)}")
        if "pytest" in command:
            command += cache
        elif command[:2] == ["make", "test"]:
            command.append(f"ARGS={' '.join(cache)}")
        return command + [test for plan in plans for test in selected_tests(plan.step, self._root, self._files)]

    def _start(self, plans: Sequence[Plan], log: pathlib.Path | None) -> Started:
        step = plans[0].step
        names = ", ".join(plan.step.name for plan in plans)
        command = self._command(plans)
        self._say(f"\n==== {names}: {' '.join(step.command)}")
        sys.stdout.flush()
        environment = dict(step.environment)
        out = None
        if not step.always and not step.only and (self._record or any(plan.step.strict for plan in plans)):
            out = self._work / f"opened-{step.name.replace(' ', '-').replace(':', '')}"
            out.unlink(missing_ok=True)
            environment.update(opened.environment(self._root, out, {**os.environ, **environment}))
        with contextlib.suppress(FileNotFoundError):
            (self._cache(step) / "v/cache/lastfailed").unlink()
        return Started(list(plans), self._execute(command, environment, log), self._clock(), out, log is not None)

    def finish(self, started: Started) -> None:
        """Wait for steps, judge them, remember those that passed."""
        code = started.execution.wait(self.left)
        seconds = self._clock() - started.begun
        if started.plans[0].step.name == self._pace_of:
            self.pace = seconds / started.plans[0].step.seconds
        if started.kept_from_view:
            self._say(f"\n==== {', '.join(plan.step.name for plan in started.plans)}: what it said")
            self._say(started.execution.output())
        first = started.plans[0].step
        of_tests = MAKE_FAILED if first.command[0] == "make" else FAILED_TESTS
        failed = last_failed(self._cache(first)) if code == of_tests else []
        unsteady = self._passed_alone(first, self._few(started.plans, failed)) if failed and first.rerun else set()
        for plan in started.plans:
            self._judge(plan, started, code, seconds, failed, unsteady)

    def _few(self, plans: Sequence[Plan], failed: Sequence[str]) -> list[str]:
        """Those of the tests that failed which are of steps where few did."""
        if len(plans) == 1:
            return list(failed) if len(failed) <= UNSTEADY_MAX else []
        of_steps = [self._of(plan.step, failed) for plan in plans]
        few = set[str]().union(*(mine for mine in of_steps if len(mine) <= UNSTEADY_MAX))
        return [name for name in failed if name in few]

    def _passed_alone(self, step: Step, failed: list[str]) -> set[str]:
        """Run what failed once more, alone. Returns the tests, if all of them pass now.

        Thousands of tests meet real processes and disks: now and then the machine fails one. Each is a fault of a test or
        of ours all the same, to be found and mended, and the step is not remembered as passed.
        """
        if not failed:
            return set()
        self._say(f"\n==== {step.name}: what failed, once more and alone")
        again = self._execute([RUN, "-m", "pytest", *failed], dict(step.environment), None)
        return set(failed) if again.wait(self.left) == 0 else set()

    def _of(self, step: Step, names: Iterable[str]) -> set[str]:
        """The tests among these that are a step's."""
        files = set(selected_tests(step, self._root, self._files))
        return {name for name in names if name.split("::")[0] in files}

    def _judge(
        self, plan: Plan, started: Started, code: int, seconds: float, failed: Sequence[str], unsteady: AbstractSet[str]
    ) -> None:
        step = plan.step
        about = f"{step.name}, {seconds:.0f} s" + (" with others" if len(started.plans) > 1 else "")
        mine = set(failed)
        if len(started.plans) > 1:
            mine = self._of(step, failed)
            if failed and not mine and any(self._of(other.step, failed) for other in started.plans):
                code = 0  # others of the batch failed
        if code and mine and mine <= unsteady:
            names = " ".join(sorted(mine))
            self.summary.append(f"UNSTEADY  {about}: failed, and passed alone: {names}")
            return
        if code:
            why = {NO_TESTS: ": no tests", STOPPED: f": stopped {self._clock():.0f} s after the run's begin"}.get(
                code, ""
            )
            self.fail(f"({code})  {about}{why}")
            return
        if started.out is not None and len(started.plans) == 1:
            found = opened.recorded(started.out)
            wrong = opened.undeclared(found, plan.inputs, self._files)
            if wrong or not found:
                what = (
                    f"opens files that are not among its inputs: {opened.in_short(wrong)}"
                    if wrong
                    else "nothing was recorded"
                )
                self.fail(f"(inputs)  {about}: {what}")
                return
        self.summary.append(f"passed  {about}")
        if not step.always:
            self._passed.add(step.name, plan.hash, plan.by_day, seconds)


@dataclasses.dataclass
class Started:
    """Steps that run."""

    plans: list[Plan]
    execution: Execution
    begun: float
    out: pathlib.Path | None
    """Where what they open is recorded."""
    kept_from_view: bool
