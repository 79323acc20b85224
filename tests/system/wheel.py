"""What is built for others: the source distribution and the wheel of these sources, kept in the clone's `.cache`."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import MADE_ANEW, ROOT, WHOLE_PATIENCE

SOURCES = ["src", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"]


def distributions() -> Path:
    """A folder with both, built if these very sources have not been; skips the test where `build` is not installed."""
    pytest.importorskip("build")
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "dist.lock").open("w") as lock:  # tests that run beside this one may want it too
        fcntl.flock(lock, fcntl.LOCK_EX)
        new = cache / "dist.new"
        shutil.rmtree(new, ignore_errors=True)
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, new / "copy" / name, ignore=shutil.ignore_patterns(*MADE_ANEW))
            else:
                shutil.copy(ROOT / name, new / "copy" / name)
        folder = cache / f"dist-{_digest(new / 'copy')}"
        if not folder.is_dir():
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", new / "dist", new / "copy")
            for older in cache.glob("dist-*"):
                shutil.rmtree(older)
            (new / "dist").rename(folder)
        shutil.rmtree(new)
    return folder


def run(*command: object, **more: Any) -> str:
    """The output of a command that ends well."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, **more
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def _digest(folder: Path) -> str:
    whole = hashlib.sha256(sys.version.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            whole.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]
