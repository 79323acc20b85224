"""Every fuzz target, small: its corpus, some of it stretched to 64 KiB, and what a tenth of a second of changed inputs is."""

from __future__ import annotations

import importlib

import pytest
from fuzz.judged import SANITIZED
from fuzz.targets import MODULES, NAMES, find

from fuzz import corpus, engine
from tests.effort import repeats


@pytest.mark.parametrize("name", NAMES)
def test_target(name: str) -> None:
    """`python -m fuzz NAME --seconds 60` searches on, guided by coverage; `make nightly` does that for all."""
    target = find(name)
    if SANITIZED and target.shares:
        pytest.skip("a server in a process is looked at from outside")
    assert engine.run(target, repeats(40) / 100, seed=0, most=10 if target.slow else None)


def test_names_are_those_of_the_modules() -> None:
    """A target that is in no list is never run."""
    for module, names in MODULES.items():
        assert tuple(target.name for target in importlib.import_module(f"fuzz.targets.{module}").TARGETS) == names


def test_corpora_are_small_and_of_a_target() -> None:
    """Tens of kilobytes each: they are read by people, and by every clone."""
    files = {path.stem: path.stat().st_size for path in corpus.FOLDER.iterdir()}
    assert set(files) <= set(NAMES)
    assert max(files.values()) <= corpus.BYTES_MAX
