"""openapi-python-client, installed once into the clone's `.cache`: it asks for an older Typer than ours."""

from __future__ import annotations

import fcntl
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support import PATIENCE

RELEASE = "openapi-python-client==0.29.0"
FOLDER = pathlib.Path(__file__).parents[3] / ".cache" / RELEASE.replace("==", "-")


def generator() -> dict[str, str]:
    """Return the environment in which `python -m openapi_python_client` runs. Skips the test where it cannot be had."""
    FOLDER.parent.mkdir(exist_ok=True)
    done = FOLDER / "done"
    with (FOLDER.parent / f"{FOLDER.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(FOLDER), RELEASE]
            installed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if installed.returncode:
                pytest.skip(f"{RELEASE} cannot be had: {installed.stderr.strip()[-300:]}")
            done.touch()
    return {**os.environ, "PYTHONPATH": str(FOLDER)}
