"""Whole runs: `.ci/run`, which goes by content, and `make nightly`, which runs everything."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from checks import table
from checks.environment import Environment, NotInstalled, kept_folder, link_caches
from checks.graph import ImportGraph
from checks.inputs import PassedSteps, blobs, hash_of, inputs_of, matching
from checks.running import Plan, Process, Runner, Started
from checks.table import STEPS, Step

LIMIT = 5150.0
"""Seconds; after 5400 the whole run would be stopped, and say nothing."""
NIGHTLY_LIMIT = 14 * 3600.0
NIGHT = dt.timedelta(hours=24)
PACE_OF = "test"
"""The step by which a run knows how quick the machine is."""


def plans_of(
    steps: Sequence[Step], root: pathlib.Path, contents: Mapping[str, str], facts: Mapping[str, str]
) -> list[Plan]:
    """The steps with their inputs and hashes, of a tree whose files have these contents."""
    graph = ImportGraph(root, contents)
    found = []
    for step in steps:
        if step.always:
            found.append(Plan(step, "", frozenset()))
            continue
        inputs = frozenset(inputs_of(step, graph, root))
        by_day = inputs - matching(step.night, inputs)
        found.append(Plan(step, hash_of(step, inputs, contents, facts), inputs, hash_of(step, by_day, contents, facts)))
    return found


def run_all(runner: Runner, plans: Sequence[Plan], *, one_by_one: bool) -> None:
    """Run the steps in order, those of a batch together, those that may run beside others in the background."""
    beside = [plan for plan in plans if plan.step.beside]
    started: Started | None = None
    if not one_by_one:
        started = runner.start(beside) if beside else None
        plans = [plan for plan in plans if not plan.step.beside]
    try:
        for name, group in itertools.groupby(plans, lambda plan: plan.step.batch or plan.step.name):
            if name == PACE_OF and started is not None:
                runner.finish(started)
                started = None
            runner.run(list(group))
        if started is not None:
            runner.finish(started)
    except BaseException:  # Ctrl-C: what runs in the background has a session of its own, and would go on for minutes
        if started is not None:
            started.execution.wait(0)
        raise


def print_summary(of: str, runner: Runner) -> int:
    """Print how the steps went. Returns the exit code."""
    print(f"\n==== summary of {of}", *runner.summary, sep="\n")
    return 1 if runner.failed else 0


def _utc() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def ci(checkout: str, clone: str, work: str, seconds: float) -> int:
    """Run the steps whose inputs are not those that they have passed with. Returns the exit code."""
    begun = time.monotonic() - seconds
    root = pathlib.Path(clone)

    def call(command: Sequence[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=root, env={**os.environ, **more}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip

    record = os.environ.get("CI_RECORD", "") not in {"", "0"}
    everything = record or os.environ.get("CI_ALL", "") not in {"", "0"}
    with kept_folder(pathlib.Path(checkout)) as kept:
        contents = blobs(root)
        runner = Runner(
            root, pathlib.Path(work), limit=LIMIT, clock=lambda: time.monotonic() - begun,
            execute=lambda command, environment, log: Process(command, environment, log, root),
            passed=PassedSteps(kept / "passed" if kept else None, _utc), files=contents, everything=everything,
            record=record, pace_of=PACE_OF,
        )  # fmt: skip
        environment = Environment(root, kept, call, time.time)
        print("\n==== install: the environment")
        try:
            environment.install()
        except NotInstalled as fault:
            print(fault)
            runner.fail("install: nothing can run")
            return print_summary(".ci/run", runner)
        runner.summary.append(f"passed  install, {time.monotonic() - begun:.0f} s, {environment.how}")
        os.environ.update(link_caches(kept))
        run_all(runner, plans_of(STEPS, root, contents, environment.facts()), one_by_one=record)
        return print_summary(".ci/run", runner)


def nightly() -> int:
    """Run everything, in this tree and its environment, and record what the steps of CI open. Returns the exit code.

    One that was interrupted goes on: what passed with the same files within a day is not run again.
    """
    begun = time.monotonic()
    root = pathlib.Path.cwd()
    contents = {path: about for path, about in blobs(root).items() if (root / path).exists()}
    now = dt.datetime.now(dt.UTC)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    # Of files that are not committed there is no hash: such a run remembers nothing.
    kept = None if changed.stdout else root / ".cache/nightly/passed"
    with tempfile.TemporaryDirectory() as work:
        runner = Runner(
            root, pathlib.Path(work), limit=NIGHTLY_LIMIT, clock=lambda: time.monotonic() - begun,
            execute=lambda command, environment, log: Process(command, environment, log, root),
            passed=PassedSteps(kept, _utc, (now - NIGHT).isoformat(timespec="seconds")), files=contents, record=True,
        )  # fmt: skip
        run_all(runner, plans_of(table.nightly(now.timetuple().tm_yday), root, contents, {}), one_by_one=True)
        code = print_summary("make nightly", runner)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if not code:
        print(f"For CHANGELOG.md: make nightly whole and green at {head.stdout.strip()}, {_utc()}")
    return code
