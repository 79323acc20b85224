"""Node packages, installed once into the clone's `.cache` from a lock file of ours."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.maven import CACHE
from tests.support import WHOLE_PATIENCE


def node() -> str:
    """The `node` on PATH; skips the test where there is none."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed: this test runs the Node client ali-ons")
    return found


def installed(source: Path) -> Path:
    """A folder with the `node_modules` that `source`'s package-lock.json names; skips the test if they cannot be had.

    The lock file names versions and checksums, no place: they come from where npm is set to look.
    """
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: it fetches the Node client ali-ons")
    files = [source / name for name in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = CACHE / "npm" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(npm, files, folder)
    return folder


def _fetch(npm: str, files: list[Path], folder: Path) -> None:
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for file in files:
        shutil.copy(file, fresh / file.name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(CACHE / "npm" / "cache")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, cwd=fresh)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {files[0]} in {WHOLE_PATIENCE} s")
    if done.returncode != 0:
        pytest.skip(f"npm could not install {files[0]}: {(done.stdout + done.stderr).strip()[-300:]}")
    fresh.rename(folder)
