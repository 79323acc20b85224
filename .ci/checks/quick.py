"""`make quick`: what a developer wants to know within a minute.

Style and types of everything, the layers, and the tests of the packages that differ from the last commit: beside each other, since
two cores have nothing better to do. What would not fit is named and left to `make test`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import posixpath
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

LIMIT, END_SECONDS = 50.0, 8.0
"""Seconds until what still runs is stopped, and those that it has to end its own processes."""
BUDGET = 60.0
"""Seconds of processors for the chosen tests: what two cores have beside style, types and the start of pytest."""
GUESS = 3.0
"""Seconds of a test file that was never measured here."""
LAYERS = "tests/test_layers.py"
MARKERS = "not all and not long and not slow and not spark and not interop"
TESTS, NO_TESTS = "tests", 5
ALONE = ("-p", "no:cacheprovider")
SOURCES = ("src", "tests", "bench", "examples", "demo", "fuzz", ".ci")
DURATIONS = ".cache/quick/durations"
EVERYWHERE = {"tests/conftest.py", "tests/support.py", "tests/forked.py", "pyproject.toml", "setup.py", "Makefile"}


def changed(git: Callable[..., str]) -> tuple[list[str], str]:
    """The files that differ from the last commit; if none does, those of the last commit. And how to say which."""
    names = git("diff", "--name-only", "HEAD").split() + git("ls-files", "--others", "--exclude-standard").split()
    if names:
        return sorted(set(names)), "differ from the last commit"
    return sorted(git("diff", "--name-only", "HEAD~1", "HEAD").split()), "are of the last commit"


def _folder_of_tests(path: str, files: Collection[str]) -> str:
    """The folder of the tests of a source file: that of its name below tests/, or the nearest around it that is there."""
    folder = posixpath.join("tests", posixpath.dirname(path.removeprefix("src/metaq/")))
    while folder != "tests" and not any(posixpath.dirname(name) == folder for name in files):
        folder = posixpath.dirname(folder)
    return folder.rstrip("/")


def _tests_in(folder: str, files: Iterable[str]) -> list[str]:
    return [
        name
        for name in sorted(files)
        if posixpath.dirname(name) == folder and posixpath.basename(name).startswith("test_") and name.endswith(".py")
    ]


def tests_for(paths: Sequence[str], files: Collection[str]) -> list[str]:
    """The test files of what changed, by rule, the nearest first.

    A test file itself; the test of a source file's own name; those of its package; for a helper of tests those of its folder;
    for a page of docs/ the test that runs its programs.
    """
    own, near, around = list[str](), list[str](), list[str]()
    for path in paths:
        name = posixpath.basename(path)
        stem = posixpath.splitext(name)[0].lstrip("_")
        if path.startswith("tests/") and path not in EVERYWHERE:
            (own if name.startswith("test_") else around).extend(
                [path] if name.startswith("test_") and path in files else _tests_in(posixpath.dirname(path), files)
            )
        elif path.startswith("src/metaq/"):
            folder = _folder_of_tests(path, files)
            beside = _tests_in(folder, files)
            named = [test for test in beside if posixpath.basename(test).startswith(f"test_{stem}")]
            near += named
            if folder != "tests":
                around += beside
        elif path.startswith("docs/"):
            near += [test for test in files if test == f"tests/docs/test_{stem.replace('-', '_')}.py"]
        elif path.startswith(".ci/"):
            around += _tests_in("tests/ci", files)
        elif path == "pyproject.toml":
            near += [test for test in files if test == "tests/test_dependencies.py"]
    found = dict.fromkeys([*own, *near, *around])
    found.pop(LAYERS, None)
    return list(found)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What of the tests is run, and what is left to `make test`."""

    run: list[str]
    left: list[str]


def choose(tests: Iterable[str], durations: Mapping[str, float], budget: float = BUDGET) -> Chosen:
    """The first of the tests that fit into the budget, by what they took the last time."""
    found = Chosen([], [])
    for test in tests:
        seconds = durations.get(test, GUESS)
        if seconds <= budget:
            budget -= seconds
            found.run.append(test)
        else:
            found.left.append(test)
    return found


def read_durations(file: pathlib.Path) -> dict[str, float]:
    """Test file → seconds, as written by `write_durations`."""
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            seconds, name = line.split(" ", 1)
            found[name] = float(seconds)
    return found


def measured(report: str) -> dict[str, float]:
    """Test file → seconds of a pytest's JUnit report (family xunit1)."""
    found: dict[str, float] = {}
    for case in ET.fromstring(report).iter("testcase"):
        if name := case.get("file"):
            found[name] = found.get(name, 0.0) + float(case.get("time", "0"))
    return found


def write_durations(file: pathlib.Path, durations: Mapping[str, float]) -> None:
    """Keep what the tests took."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{seconds:.2f} {name}\n" for name, seconds in sorted(durations.items())), encoding="utf-8")


class Job:
    """A command that runs beside others; its output is shown when it has ended."""

    def __init__(self, name: str, command: Sequence[str], clock: Callable[[], float]) -> None:
        self.name, self._clock, self._begun = name, clock, clock()
        self._stopped = False
        self._out = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by report()
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.STDOUT, start_new_session=True
        )

    def text(self) -> str:
        """What it has written by now."""
        at = os.fstat(self._out.fileno()).st_size
        return os.pread(self._out.fileno(), at, 0).decode(errors="replace")

    def wait(self, until: float) -> bool:
        """Wait for its end, until then. Returns whether it has ended."""
        try:
            self._child.wait(max(until - self._clock(), 0.1))
        except subprocess.TimeoutExpired:
            return False
        return True

    def interrupt(self) -> None:
        """Ask it to end: brokers that tests have started go with their fixtures."""
        self._stopped = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGINT)

    def report(self) -> int | None:
        """End what is left of it, and say how it went. Returns its exit code; None: it was stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        code: int | None = self._child.wait()
        if self._stopped:
            code = None
        how = "stopped" if code is None else "passed" if code == 0 else f"FAILED ({code})"
        if code != 0:
            print(f"==== {self.name}\n{self.text()}")
        self._out.close()
        print(f"{how}  {self.name}, {self._clock() - self._begun:.0f} s")
        return code


def finish(jobs: Iterable[Job], until: float) -> dict[str, int | None]:
    """Wait for all of them, until then; stop the others together. Returns their codes, in order."""
    codes: dict[str, int | None] = {}
    late = []
    for job in jobs:
        if job.wait(until):
            codes[job.name] = job.report()
        else:
            late.append(job)
    for job in late:
        job.interrupt()
    for job in late:
        job.wait(until + END_SECONDS)
        codes[job.name] = job.report()
    return codes


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a job went; the code is None where it was stopped."""

    name: str
    code: int | None


def verdict(ended: Sequence[Ended], chosen: Chosen, paths: Collection[str]) -> tuple[int, list[str]]:
    """The exit code, and what this run left out: nothing is passed over in silence."""
    said = []
    for job in ended:
        if job.code is None and job.name == TESTS:
            said.append(
                f"left to `make test`: the tests did not end within {LIMIT:.0f} s; what they took is known the next time"
            )
        elif job.code is None:
            said.append(f"{job.name} did not end within {LIMIT:.0f} s: again, please; the first time fills its cache")
    if chosen.left:
        said.append(f"left to `make test`: {' '.join(chosen.left)}")
    if everybodys := sorted(EVERYWHERE.intersection(paths)):
        said.append(f"left to `make test`: {', '.join(everybodys)} may change any test")
    bad = any(job.code not in {0, NO_TESTS if job.name == TESTS else 0} for job in ended if job.code is not None)
    undecided = any(job.code is None and job.name != TESTS for job in ended)
    return int(bad or undecided), said


def main() -> int:
    """Run it here. Returns the exit code."""
    begun = time.monotonic()
    binaries = pathlib.Path(sys.executable).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout

    paths, which = changed(git)
    files = {name for name in git("ls-files", "-co", "--exclude-standard").split() if pathlib.Path(name).exists()}
    tests = tests_for(paths, files)
    durations = read_durations(pathlib.Path(DURATIONS))
    chosen = choose(tests, durations)
    print(f"{len(paths)} files {which}; {len(chosen.run)} of their {len(tests)} test files fit in here")
    folders = [name for name in SOURCES if pathlib.Path(name).exists()]
    ruff, mypy, pytest = str(binaries / "ruff"), str(binaries / "mypy"), (sys.executable, "-m", "pytest", "-x", *ALONE)
    with tempfile.TemporaryDirectory() as work:
        report = pathlib.Path(work) / "report.xml"
        commands: dict[str, Sequence[str]] = {
            "lint": (ruff, "check", "-q", *folders),
            "format": (ruff, "format", "-q", "--check", *folders),
            "types": (mypy, "src", "examples", ".ci"),
            "layers": (*pytest, LAYERS),
        }
        if chosen.run:
            options = (
                "-n",
                "2",
                "--dist",
                "loadgroup",
                "-m",
                MARKERS,
                "-o",
                "junit_family=xunit1",
                f"--junitxml={report}",
            )
            commands[TESTS] = (*pytest, *options, *chosen.run)
        jobs = [Job(name, command, time.monotonic) for name, command in commands.items()]
        ended = [Ended(name, code) for name, code in finish(jobs, begun + LIMIT).items()]
        if report.exists():
            # A file whose tests are all deselected is in no report.
            whole = (
                dict.fromkeys(chosen.run, 0.0) if Ended(TESTS, 0) in ended or Ended(TESTS, NO_TESTS) in ended else {}
            )
            now = measured(report.read_text(encoding="utf-8"))
            write_durations(pathlib.Path(DURATIONS), {**durations, **whole, **now})
    code, said = verdict(ended, chosen, paths)
    print(*said, f"{time.monotonic() - begun:.0f} s in all", sep="\n")
    return code
