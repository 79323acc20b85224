"""Runs `make test` on each other Python that MetaQ is for and that this machine has.

    python -m tools.pythons [ARGS]        # ARGS: of pytest, such as "-k tls"

Interpreters are looked for where `tools.wheels` looks for headers: on PATH, of pyenv and of uv. Each has an environment of its own in
.cache, of 2 GB, which the next run finds again. A version that is not here is named, and fails nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.wheels import ROOT, interpreters, versions

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def runs(python: Path, version: str) -> bool:
    """Whether it is a Python of this version that makes environments. What pyenv puts on PATH may be none."""
    program = "import sys, venv; print('.'.join(map(str, sys.version_info[:2])))"
    try:
        done = subprocess.run(  # noqa: S603  a Python of this machine
            [python, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return False
    return done.stdout.strip() == version


def main(arguments: Sequence[str]) -> int:
    failed = []
    for version in versions():
        if version == OWN:
            continue
        python = next((one for one in interpreters(version) if runs(one, version)), None)
        if python is None:
            print(f"== Python {version}: not here, and so not tested", flush=True)
            continue
        print(f"== Python {version}: {python}", flush=True)
        given = [f"PYTHON={python}", f"VENV=.cache/python-{version}", f"ARGS={' '.join(arguments)}"]
        if subprocess.run(["make", "test", *given], cwd=ROOT, check=False).returncode:  # noqa: S603, S607  as `make test` itself
            failed.append(version)
    if failed:
        print(f"== the tests failed on Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
