"""Installs MetaQ and what it needs into the environment of the Python that runs this: the releases that locks/ names.

    .venv/bin/python tools/install.py base|lint|demo|test|container

Each file is compared with its hash. Where the package index does not have one of these releases (a mirror that lags), it says so and
takes what pyproject.toml allows; a file with another hash ends it. LOCKED=1: nothing but these releases; LOCKED=0: none of them.
"""

from __future__ import annotations

import enum
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parent.parent
LOCKS = ROOT / "locks"
EXTRAS = {
    "base": "uvloop,compression", "lint": "dev", "demo": "all,demo", "test": "all,demo,dev,test",
    "container": "uvloop,compression,http,zookeeper,dashboard,webhooks,otel",
}  # fmt: skip
"""Of what `make` installs, by the name of its lock; each is the one before it and more. `container` is what deploy/container installs."""
_OTHER_HASH = "DO NOT MATCH THE HASHES"
"""How pip says it."""


class Pinned(enum.Enum):
    """What came of installing pinned releases."""

    INSTALLED = "installed"
    NOT_TO_BE_HAD = "not to be had"
    OTHER_FILES = "other files"
    """A file is not the one that was locked."""


def install_pinned(install: Sequence[str], locks: Sequence[pathlib.Path]) -> Pinned:
    """Install what `locks` pin, each file compared with its hash. `install`: pip's command, up to its options."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "pip.log"  # and not its output, which would be without progress
        for number, lock in enumerate(locks):
            isolated = ["--no-build-isolation"] if number else []  # what builds is in the first
            command = [*install, "--require-hashes", *isolated, "--log", str(log), "-r", str(lock)]
            if subprocess.run(command, check=False).returncode:  # noqa: S603  our own program
                told = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
                return Pinned.OTHER_FILES if _OTHER_HASH in told else Pinned.NOT_TO_BE_HAD
    return Pinned.INSTALLED


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in EXTRAS:
        print(f"usage: install.py {'|'.join(EXTRAS)}", file=sys.stderr)
        return 2
    (level,) = arguments
    install = [sys.executable, "-m", "pip", "install", "--progress-bar", "on"]
    wanted, isolated = os.environ.get("LOCKED", ""), True
    if wanted != "0":
        outcome = install_pinned(install, [LOCKS / "build.txt", LOCKS / f"{level}.txt"])
        if outcome is Pinned.OTHER_FILES:
            print("== a package is not the one that locks/ names, see above: nothing is installed.", file=sys.stderr)
            print("   `make LOCKED=0 ...` installs what pyproject.toml allows instead.", file=sys.stderr)
            return 1
        if outcome is Pinned.NOT_TO_BE_HAD:
            if wanted == "1":
                print("== not everything that locks/ names can be installed here, see above", file=sys.stderr)
                return 1
            print(
                "== not everything that locks/ names can be installed here: taking what pyproject.toml allows",
                flush=True,
            )
        isolated = outcome is not Pinned.INSTALLED
    # What is installed stays: `pymetaq[...]` is there already, and pip adds what the extras name. Only `base` builds.
    own = ["-e", f"{ROOT}[{EXTRAS[level]}]"] if level == "base" else [f"pymetaq[{EXTRAS[level]}]"]
    return subprocess.run([*install, *([] if isolated else ["--no-build-isolation"]), *own], check=False).returncode  # noqa: S603  our own program


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
