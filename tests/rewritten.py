"""Test modules with their assertions rewritten, made once for all workers of a run in a fresh clone.

pytest keeps each rewritten module as bytecode beside it. In a clone there is none, and workers begin together: each of them would
rewrite all modules, at twenty seconds of CPU time. Here each makes its share first, and finds the others' where it collects them.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pytest


def share(files: list[pathlib.Path], worker: int, workers: int) -> list[pathlib.Path]:
    """What one of the workers makes."""
    return files[worker::workers]


def make(files: list[pathlib.Path], config: pytest.Config) -> int:
    """Rewrite the files that have no rewritten bytecode or an old one. Returns their number, 0 with another pytest than ours."""
    try:  # It has no public name for any of this; without, a run takes as long as before.
        from _pytest.assertion.rewrite import (
            PYC_TAIL,
            _read_pyc,
            _rewrite_test,
            _write_pyc,
            assertstate_key,
            get_cache_dir,
        )

        state = config.stash[assertstate_key]
    except (ImportError, KeyError):
        return 0
    made = 0
    for file in files:
        folder = get_cache_dir(file)
        bytecode = folder / (file.stem + PYC_TAIL)
        if _read_pyc(file, bytecode) is None:
            source, code = _rewrite_test(file, config)
            folder.mkdir(parents=True, exist_ok=True)
            made += _write_pyc(state, code, source, bytecode)
    return made


def make_share(config: pytest.Config) -> None:
    """In a worker of a run of all tests: its share of them."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or sys.dont_write_bytecode or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    files = sorted(file for folder in config.args for file in (config.rootpath / folder).rglob("test_*.py"))
    ignored = [config.rootpath / folder for folder in config.getoption("ignore") or ()]
    make(share([file for file in files if not any(map(file.is_relative_to, ignored))], worker, workers), config)
