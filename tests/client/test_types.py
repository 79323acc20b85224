"""What type checkers make of programs that use the client (typed_program.py)."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import metaq
from metaq import aio
from tests.support import ROOT, WHOLE_PATIENCE, environment

PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")
PYRIGHT = next(
    (
        found
        for name in ("basedpyright", "pyright")
        if (found := shutil.which(name) or shutil.which(name, path=os.fspath(pathlib.Path(sys.executable).parent)))
    ),
    None,
)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed: `make lint` does it")
def test_mypy_finds_what_is_wrong_and_nothing_else(tmp_path):
    """Strict, so an error that is not found is one: its `type: ignore` would be unused."""
    command = [sys.executable, "-m", "mypy", "--config-file", os.fspath(ROOT / "pyproject.toml"), os.fspath(PROGRAM)]
    cache = os.environ.get("MYPY_CACHE_DIR", os.fspath(ROOT / ".mypy_cache"))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WHOLE_PATIENCE, cwd=ROOT,
        env=environment(MYPY_CACHE_DIR=cache),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    PYRIGHT is None, reason="neither pyright nor basedpyright is installed: mypy checks the same program"
)
def test_pyright_finds_the_same(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"include": ["{PROGRAM}"], "typeCheckingMode": "standard", "enableTypeIgnoreComments": true, '
        f'"reportUnnecessaryTypeIgnoreComment": "error", "extraPaths": ["{ROOT / "src"}"]}}'
    )
    command = [str(PYRIGHT), "--project", os.fspath(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WHOLE_PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_cost_nothing_at_run_time():
    """The classes are those of before: their parameters are for type checkers alone."""
    assert metaq.Producer[bytes].__origin__ is metaq.Producer
    assert aio.Message is metaq.Message
    message = metaq.ReceivedMessage(topic="orders", body=b"7")
    assert message.value == b"7"
    assert not hasattr(message, "__dict__")
    assert {name for name in metaq.Message.__dataclass_fields__ if not hasattr(metaq.ReceivedMessage, name)} == set()
    assert message.wait_store_ok
