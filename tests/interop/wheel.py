"""RocketMQ's C++ client (librocketmq) from its PyPI wheel, unpacked into the clone's `.cache`."""

import fcntl
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.maven import CACHE
from tests.support import WHOLE_PATIENCE

NAME = "rocketmq-client-python"
VERSION = "0.5.0rc2"


def unpacked() -> Path:
    """A folder for `sys.path` that holds the wheel's package `rocketmq`; skips the test where it cannot be had."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip(f"the {NAME} wheel holds a library for x86_64 Linux only")
    folder = CACHE / f"{NAME}-{VERSION}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:  # tests that run beside this one may want it too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    fresh = CACHE / f"{NAME}-{VERSION}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(fresh), f"{NAME}=={VERSION}"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip could not fetch {NAME}=={VERSION}: {done.stderr.strip()[-300:]}")
    fresh.rename(folder)
