"""The virtual environment of a run: kept in the checkout from one run to the next, as long as it is right.

Every run has a clone at a path of its own. The environment stays at one path, `.cache/ci/venv`, and the clone links to it; MetaQ
itself is installed into it anew, editable, which takes seconds. pip resolves again when pyproject.toml has changed, or after a
week, so that new releases of what we depend on are met. The compiled modules are kept by the hash of their sources.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

KEPT_SECONDS = 7 * 24 * 3600.0
NATIVE_KEPT = 5
"""Builds of the compiled modules that are kept."""
STAMPS = ("has-base", "has-demo", "has-lint", "has-test")
"""What the Makefile takes for the sign that an environment is right."""
SOUND = "import Cython, hypothesis, metaq, msgspec, mypy, pyspark, pytest, xdist"
SCRIPT = "bin/mypy"
"""One that pip has written: it runs as long as the Python that its first line names is there."""
TOOLS = ("cc", "javac", "mvn")
"""Without these tests skip: with one of them more, they have not passed before."""

Call = Callable[[Sequence[str], Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a command in the clone, with these variables beside the run's, and returns how it went with its output."""


class NotInstalled(Exception):
    """There is no environment to run anything in."""


def digest(*parts: str | bytes) -> str:
    """A hash of some texts."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()


def native_sources(clone: pathlib.Path) -> list[pathlib.Path]:
    """What the compiled modules are made of; beside it what says how."""
    found = [path for kind in ("pyx", "pxi", "h") for path in (clone / "src").rglob(f"*.{kind}")]
    return [clone / "setup.py", *sorted(found)]


@contextlib.contextmanager
def kept_folder(checkout: pathlib.Path) -> Iterator[pathlib.Path | None]:
    """The folder `.cache/ci` of the checkout, for this run alone; None: it cannot be written, or another run has it."""
    folder = checkout / ".cache/ci"
    with contextlib.ExitStack() as files:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = files.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield folder


class Environment:
    """Makes `.venv` of the clone.

    kept: the checkout's `.cache/ci`, or None. now: seconds since the epoch.
    """

    def __init__(self, clone: pathlib.Path, kept: pathlib.Path | None, call: Call, now: Callable[[], float]) -> None:
        self._clone, self._kept, self._call, self._now = clone, kept, call, now
        self.how = ""
        """A sentence: where the environment comes from."""

    def install(self) -> None:
        """Make it, or take the kept one. Raises NotInstalled with what pip said."""
        if self._kept is None:
            self.how = "installed for this run alone"
            self._make()
            return
        venv = self._kept / "venv"
        link = self._clone / ".venv"
        why = self._why_not(venv)
        if not why:
            link.symlink_to(venv)
            if self._take_over(venv):
                self.how = "kept from an earlier run"
                return
            link.unlink()
            why = "MetaQ could not be installed into it, or it is not what it was"
        shutil.rmtree(venv, ignore_errors=True)
        # By its own path: venv refuses one that is a link.
        if (done := self._call([sys.executable, "-m", "venv", os.fspath(venv)], {})).returncode:
            raise NotInstalled(done.stdout[-4000:])
        link.symlink_to(venv)
        self.how = f"made anew: {why}"
        # By its own path here too: pip writes the path of the Python that runs it into the first line of every script, and the
        # link is gone with its clone.
        self._make(os.fspath(venv))
        self._keep_native()
        stamp = {"key": self._key(), "made": self._now(), "freeze": self.freeze()}
        (venv / "ci-stamp").write_text(json.dumps(stamp), encoding="utf-8")

    def _key(self) -> str:
        wanted = [self._clone / "pyproject.toml", *sorted((self._clone / "locks").glob("*.txt"))]
        return digest(*(path.read_bytes() for path in wanted), sys.version, platform.machine())

    def _why_not(self, venv: pathlib.Path) -> str:
        """Why the kept environment is not taken; empty: it may be right."""
        try:
            stamp = json.loads((venv / "ci-stamp").read_text(encoding="utf-8"))
            key, made = stamp["key"], float(stamp["made"])
        except (OSError, ValueError, KeyError, TypeError):
            return "there is none that was finished"
        if key != self._key():
            return "pyproject.toml, locks/ or Python has changed"
        if not 0 <= self._now() - made < KEPT_SECONDS:
            return "the kept one is older than a week"
        return ""

    def _make(self, venv: str = ".venv") -> None:
        done = self._call(["make", f"VENV={venv}", f"{venv}/has-test"], {})
        if done.returncode:
            raise NotInstalled(done.stdout[-4000:])

    def _take_over(self, venv: pathlib.Path) -> bool:
        """Point the kept environment to this clone. False: it is broken."""
        python = os.fspath(venv / "bin/python")
        # What is compiled is put beside its source by _native(): pip would do it in an environment that it makes for it.
        install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", "."]
        for command, more in (
            (install, {"METAQ_BUILD_HOT": "0"}),
            ([python, "-m", "pip", "check"], {}),
            ([python, "-c", SOUND], {}),
            (
                ["sh", "-c", '"$0" --version', os.fspath(venv / SCRIPT)],
                {},
            ),  # sh says that it is not found; Popen raises
        ):
            if self._call(command, more).returncode:
                return False
        stamp = json.loads((venv / "ci-stamp").read_text(encoding="utf-8"))
        if self.freeze() != stamp["freeze"] or not self._native():
            return False
        if self._call(["make", ".venv/installed-from"], {}).returncode:
            return False
        for name in STAMPS:
            (venv / name).touch()
        return True

    def _native_key(self) -> str:
        compiler = self._call(["sh", "-c", "cc --version || true"], {}).stdout
        return digest(
            *(path.read_bytes() for path in native_sources(self._clone)), sys.version, compiler, self.freeze()
        )

    def _built(self) -> list[pathlib.Path]:
        return sorted((self._clone / "src").rglob("_*.so"))

    def _native(self) -> bool:
        """Put the compiled modules into the clone: kept ones of these sources, or built now."""
        assert self._kept is not None
        place = self._kept / "native" / self._native_key()
        if (place / "whole").exists():
            for file in sorted((place / "src").rglob("*.so")):
                shutil.copy2(file, self._clone / "src" / file.relative_to(place / "src"))
            place.touch()
            return True
        if self._call([".venv/bin/python", "setup.py", "-q", "build_ext", "--inplace"], {}).returncode:
            return False
        self._keep_native()
        return True

    def _keep_native(self) -> None:
        assert self._kept is not None
        place = self._kept / "native" / self._native_key()
        shutil.rmtree(place, ignore_errors=True)
        for file in self._built():
            target = place / file.relative_to(self._clone)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        place.mkdir(parents=True, exist_ok=True)
        (place / "whole").touch()
        builds = sorted(place.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in builds[:-NATIVE_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def freeze(self) -> str:
        """What pip resolved, without MetaQ itself, which it names by the clone's path."""
        lines = self._call([".venv/bin/python", "-m", "pip", "freeze", "--exclude", "pymetaq"], {}).stdout.splitlines()
        return "\n".join(sorted(line for line in lines if "==" in line or " @ " in line))

    def facts(self) -> dict[str, str]:
        """What of the machine and of others' software decides how a step ends."""
        found = {"python": sys.version, "machine": platform.machine(), "pip": digest(self.freeze())}
        for tool in TOOLS:
            place = shutil.which(tool)
            option = "--version" if tool != "javac" else "-version"
            found[tool] = self._call(["sh", "-c", f"{tool} {option} 2>&1"], {}).stdout if place else "none"
        return found


def link_caches(kept: pathlib.Path | None) -> dict[str, str]:
    """The variables that keep the caches of mypy and ruff in the checkout: both look at contents, not at times alone."""
    if kept is None:
        return {}
    return {"MYPY_CACHE_DIR": os.fspath(kept / "mypy"), "RUFF_CACHE_DIR": os.fspath(kept / "ruff")}
