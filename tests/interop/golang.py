"""Go's modules behind programs of ours, the RocketMQ client and Prometheus' engine, built once into the clone's `.cache` with all that it needs."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.maven import CACHE
from tests.support import WHOLE_PATIENCE

SOURCE = Path(__file__).parent / "go"
UNOPTIMIZED = "-gcflags=all=-N -l"
"""In a fresh clone the standard library is compiled too: 30 s of CPU instead of 45."""


def driver(source: Path = SOURCE / "driver.go") -> Path:
    """The built program, with the modules of go/go.mod. Skips the test where there is no Go, or its modules cannot be had."""
    return built(source, SOURCE / "go.mod", SOURCE / "go.sum")


def driver_with_tls() -> Path:
    """The same program with the newest client, which has TLS: 2.1.2 and all that were released before have none."""
    return built(SOURCE / "driver.go", *(SOURCE / "unreleased" / name for name in ("tls.go", "go.mod", "go.sum")))


def evaluator() -> Path:
    """The program that evaluates PromQL by Prometheus' engine; its modules are 700 MB."""
    folder = SOURCE.with_name("prometheus")
    return built(folder / "evaluate.go", folder / "go.mod", folder / "go.sum")


def built(*files: Path) -> Path:
    """The program of some sources with their go.mod and go.sum, built once into the clone's `.cache`. Skips as `driver` does."""
    compiler = shutil.which("go")
    if compiler is None:
        pytest.skip("go is not installed: this test builds a program with it")
    parts = [file.read_bytes() for file in files]
    folder = CACHE / "go"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"driver-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            made_in = program.with_suffix(".src")
            made_in.mkdir(exist_ok=True)
            for file in files:
                shutil.copy(file, made_in / file.name)
            _build(compiler, program, made_in)
    return program


def _build(compiler: str, program: Path, made_in: Path) -> None:
    settings = {
        "GOMODCACHE": str(program.parent / "mod"),
        "GOCACHE": str(program.parent / "build"),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    fresh = program.with_suffix(".new")
    try:
        done = subprocess.run(
            [compiler, "build", UNOPTIMIZED, "-o", str(fresh), "."],
            capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, cwd=made_in, env={**os.environ, **settings},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip("the Go program was not built within 600 s")
    if done.returncode != 0:
        pytest.skip(f"the Go program could not be built: {(done.stdout + done.stderr).strip()[-300:]}")
    fresh.rename(program)
