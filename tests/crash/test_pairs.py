"""Master and slave from seeds: the log's copy, ends of either side, changes of leaders; both are the same at each quiet point.

A failing seed is told with the command that repeats it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from metaq.broker.log.acks import AckPolicy
from metaq.broker.replication.copying import Copying, Piece
from metaq.broker.replication.deletions import FollowedDeletions
from metaq.broker.replication.read_limit import ReadLimit
from metaq.broker.replication.roles import Roles
from metaq.broker.replication.tables import FollowedTables
from metaq.errors import StoreError
from metaq.servers.ha.session import SlaveSession
from metaq.servers.ha.slave import MasterSession
from metaq.store import message_writer
from tests.crash.pairs import simulate
from tests.crash.simulation.seeds import failures, quiet_folder

pytestmark = pytest.mark.slow

SEEDS_FIRST = 20
"""In `make test-slow`; the others up to SEEDS are in `make test-long`, which CI runs after every change of what a broker is made of."""
SEEDS = 40
AT_ONCE = 10
FIRST_ALL = int(os.environ.get("METAQ_LIVES_FROM", SEEDS + 1))
"""`make nightly` sets it by the day: each night has other pairs."""
SEEDS_ALL = 10_000
AT_ONCE_ALL = 500


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with quiet_folder("pair") as folder:
        yield folder


@pytest.mark.parametrize(
    "first",
    [
        *range(1, SEEDS_FIRST + 1, AT_ONCE),
        *(
            pytest.param(first, marks=[pytest.mark.all, pytest.mark.long])
            for first in range(SEEDS_FIRST + 1, SEEDS + 1, AT_ONCE)
        ),
    ],
)
def test_what_a_pair_has_acknowledged_holds(folder, first):
    """Whichever of the two ends how and when, and whoever leads next."""
    told = failures(simulate, range(first, first + AT_ONCE), folder)
    assert not told, "\n\n".join(told)


@pytest.mark.all
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(FIRST_ALL, FIRST_ALL + SEEDS_ALL, AT_ONCE_ALL))
def test_what_a_pair_has_acknowledged_holds_in_many_more(folder, first):
    """The rarest courses."""
    told = failures(simulate, range(first, first + AT_ONCE_ALL), folder)
    assert not told, "\n\n".join(told)


def test_the_same_seed_does_the_same(folder):
    """Both brokers, the link and the disks are driven by it alone."""
    told = list[list[str]]()
    for _ in range(2):
        told.append([])
        simulate(7, folder, told[-1].append)
    assert told[0] == told[1]


def _no_changes(*_args: object) -> Iterator[None]:
    return iter(())


_take = Copying.take


def _take_what_fits(copying: Copying, pieces: Sequence[Piece]) -> None:
    with contextlib.suppress(StoreError, OSError):
        _take(copying, pieces)


SABOTAGE = {
    "what is cut off is not kept": (message_writer, "keep_aside", lambda *_: None),
    "a crash begins no epoch": (Roles, "in_epoch", lambda roles, _epoch: roles.kept),
    "a promotion begins where nobody was": (Roles, "leading", lambda roles, role, _: replace(roles.kept, role=role)),
    "deletions do not follow": (FollowedDeletions, "take", _no_changes),
    "progress of delayed messages does not follow": (FollowedTables, "take_delays", lambda *_: None),
    "a silent link is not left": (SlaveSession, "tick", lambda *_: None),
    "a slave says nothing while nothing comes": (MasterSession, "tick", lambda *_: None),
    "a slave without room says nothing": (Copying, "take", _take_what_fits),
    "clients read what slaves lack": (ReadLimit, "look", lambda *_, **__: False),
    "a late answer does not say so": (AckPolicy, "shortfall", lambda *_: None),
}

SHOWN_BY = {
    "a crash begins no epoch": 11,
    "a silent link is not left": 11,
    "a slave says nothing while nothing comes": 26,
    "a slave without room says nothing": 18,
    "clients read what slaves lack": 26,
    "a late answer does not say so": 15,
}
"""The first seed that shows what few seeds show, to begin there; `-rP` tells which one a search has found."""


@pytest.mark.parametrize("what", SABOTAGE)
def test_a_broken_promise_is_found(folder, monkeypatch, what):
    """By some of two hundred seeds: the simulation can fail."""
    monkeypatch.setattr(*SABOTAGE[what])
    first = SHOWN_BY.get(what, 1)
    (told,) = failures(simulate, range(first, first + 200), folder, 1)
    print(told)
    assert "to repeat it: python -m tests.crash.pairs" in told
