"""The inputs of a step, their hash, and the steps that have passed with it."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import pathlib
import posixpath
import subprocess
from collections.abc import Callable, Iterable, Mapping

from checks.graph import ImportGraph
from checks.table import COMMON, Step

KEPT_LINES = 400
"""Of the file of what passed: ten runs of all steps, and more."""


def matching(patterns: Iterable[str], files: Iterable[str]) -> set[str]:
    """The files that a pattern of shells names; `*` crosses folders, as in `git ls-files`."""
    patterns = tuple(patterns)
    return {path for path in files if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)}


def selected_tests(step: Step, root: pathlib.Path, files: Iterable[str]) -> list[str]:
    """The test files of a step, in order: where it has a marker, those that name it."""
    found = sorted(path for path in matching(step.tests, files) if posixpath.basename(path).startswith("test_"))
    if step.marker:
        found = [path for path in found if f"mark.{step.marker}" in (root / path).read_text(encoding="utf-8")]
    return found


def inputs_of(step: Step, graph: ImportGraph, root: pathlib.Path) -> set[str]:
    """The files of the project that decide how a step ends."""
    if step.only:
        return matching([*step.only, *COMMON], graph.files)
    needed = set(selected_tests(step, root, graph.files)) | matching(step.data, graph.files)
    for name in step.uses:
        needed |= graph.modules_of(name)
    needed = graph.closure(needed) | needed
    # What is no Python and lies beside or below what is used: recorded answers, Java drivers, the compiled modules' sources.
    folders = {posixpath.dirname(path) + "/" for path in needed} - {"tests/", "src/metaq/", "docs/", "/"}
    needed |= {
        path for path in graph.files if not path.endswith(".py") and any(path.startswith(folder) for folder in folders)
    }
    return needed | matching(COMMON, graph.files)


def blobs(root: pathlib.Path) -> dict[str, str]:
    """Path → mode and content of every file of HEAD."""
    listed = subprocess.run(["git", "ls-tree", "-rz", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    found = {}
    for line in filter(None, listed.stdout.split("\0")):
        about, path = line.split("\t", 1)
        found[path] = about
    return found


def hash_of(step: Step, paths: Iterable[str], contents: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """What decides whether a step has to run: its definition, these of its inputs, and the machine's facts."""
    lines = [repr(step.defined()), *(f"{name}={facts[name]}" for name in sorted(facts))]
    lines += [f"{path} {contents[path]}" for path in sorted(paths)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Passed:
    """A step that passed."""

    step: str
    hash: str
    at: str
    """The time of its end, UTC, in ISO 8601."""
    seconds: int
    by_day: str = ""
    """The hash without the inputs whose change waits for the night."""


class PassedSteps:
    """The file of the steps that passed on this machine, `.cache/ci/passed` of the checkout; only a run writes it.

    Without a folder (a checkout that cannot be written, a run beside another) nothing is known, and nothing is kept.
    """

    def __init__(self, file: pathlib.Path | None, now: Callable[[], str], since: str = "") -> None:
        """Args: since: a time as `now` gives it. What passed before does not count."""
        self._file, self._now, self._since = file, now, since

    def _lines(self) -> list[Passed]:
        found = []
        try:
            text = self._file.read_text(encoding="utf-8") if self._file else ""
        except (OSError, UnicodeDecodeError):
            return []
        for line in text.splitlines():
            try:
                found.append(Passed(**json.loads(line)))
            except (TypeError, ValueError):
                continue  # a line that was cut short by the end of its run
        return [one for one in found if one.at >= self._since]

    def find(self, step: str, digest: str) -> Passed | None:
        """The newest pass of a step with this very hash."""
        return next((one for one in reversed(self._lines()) if one.step == step and one.hash == digest), None)

    def find_by_day(self, step: str, digest: str) -> Passed | None:
        """The newest pass of a step that differs from it at most in inputs whose change waits for the night."""
        return next((one for one in reversed(self._lines()) if one.step == step and one.by_day == digest), None)

    def add(self, step: str, digest: str, by_day: str, seconds: float) -> None:
        """Remember that a step passed. Where it cannot be written it will run again: no fault."""
        if self._file is None:
            return
        kept = [*self._lines(), Passed(step, digest, self._now(), round(seconds), by_day)][-KEPT_LINES:]
        text = "".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in kept)
        beside = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._file)
        except OSError:
            self._file = None
