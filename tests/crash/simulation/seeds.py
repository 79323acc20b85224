"""What runs simulations by their seeds: the command line of one, and its tests."""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from tests.crash.simulation.ledger import Broken
from tests.crash.simulation.life import Report
from tests.crash.simulation.simulation import scratch

Simulate: TypeAlias = Callable[[int, Path, Callable[[str], None] | None], Report]
"""(seed, folder, trace or None) → what happened. Raises Broken."""


def run(program: str, about: str | None, one: str, many: str, simulate: Simulate) -> int:
    """Run seeds of the command line. Returns the exit code.

    Args: one, many: what is simulated. The folder's name is part of what a seed does, so it is that of the tests.
    """
    parser = argparse.ArgumentParser(f"python -m {program}", description=about)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, nargs="?", help="the last seed; only the first one if it is not given")
    parser.add_argument("--trace", action="store_true", help="tell each step")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO if asked.trace else logging.CRITICAL + 1, format="    log: %(message)s")
    failed, stored, lost, ends = 0, 0, 0, 0
    last = asked.first if asked.last is None else asked.last
    with tempfile.TemporaryDirectory(prefix="metaq-crash-", dir=scratch()) as folder:
        for seed in range(asked.first, last + 1):
            try:
                report = simulate(seed, Path(folder) / one, print if asked.trace else None)
            except Broken as error:
                failed += 1
                print(error, flush=True)
                if failed >= asked.failures:
                    break
            else:
                stored, lost, ends = stored + report.stored, lost + report.lost, ends + report.kills + report.cuts
    told = f"{stored} messages stored, {ends} kills and cuts, {lost} messages lost that were not durable"
    print(f"{seed - asked.first + 1} {many}: {told}; {failed} failed")
    return 1 if failed else 0


@contextlib.contextmanager
def quiet_folder(name: str) -> Iterator[Path]:
    """A folder of that name where files cost least; what brokers log of their troubles is of no interest."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="metaq-crash-", dir=scratch()) as path:
        yield Path(path) / name
    logging.disable(logging.NOTSET)


def failures(simulate: Simulate, seeds: Iterable[int], folder: Path, enough: int = 3) -> list[str]:
    """What the first failing seeds tell."""
    told: list[str] = []
    for seed in seeds:
        try:
            simulate(seed, folder, None)
        except Broken as error:
            told.append(str(error))
            if len(told) == enough:
                break
    return told
