"""The plan of a recovery by the facts alone, without files."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaq.store.checkpoint import Checkpoint, IndexMark, Tails
from metaq.store.queues.index_file import IndexHeader
from metaq.store.recovery_plan import Start, choose_start, plan_index
from metaq.store.survey import Facts


def facts(**changes):
    values = {
        "clean": False, "checkpoint": Checkpoint(50_000, 50_000, 50_000), "tails": None,
        "log_min": 1000, "first_ms": ((1000, 10_000), (2000, 40_000), (3000, 48_000), (4000, 0)), "index": (),
    }  # fmt: skip
    return Facts(**{**values, **changes})


def test_young_checkpoint_reads_the_whole_log():
    """All zero: nothing is known, whatever else says so."""
    assert choose_start(facts(checkpoint=Checkpoint())).log_offset == 1000
    assert choose_start(facts(checkpoint=Checkpoint(), tails=Tails(3500, 3400, 47_000))).log_offset == 1000


def test_without_tails_reading_begins_at_the_newest_file_before_the_checkpoint():
    """Three seconds of margin, as RocketMQ: 50 000 is worth 47 000, the file of 48 000 is too new."""
    assert choose_start(facts()).log_offset == 2000
    assert choose_start(facts(checkpoint=Checkpoint(12_999, 60_000, 0))).log_offset == 1000


def test_tails_say_it_to_the_byte():
    """After a crash the newest record is looked at again."""
    assert choose_start(facts(tails=Tails(3500, 3400, 47_000))) == Start(
        3400, "all is known to be durable up to here", 47_000
    )
    assert choose_start(facts(tails=Tails(3500, 3400, 47_000), clean=True)).log_offset == 3500


INDEX = (
    ("20260101000000000", IndexHeader(10_000, 30_000, 1000, 1900, 5, 9)),
    ("20260102000000000", IndexHeader(30_000, 60_000, 1950, 3300, 5, 9)),
)

MARK = IndexMark(("20260101000000000",), INDEX[0][1], 1900)
BOTH = IndexMark(tuple(name for name, _ in INDEX), INDEX[1][1], 3400)
NO_KEYS = IndexMark((), (0, 0, 0, 0, 0, 0), 3200)


@pytest.mark.parametrize(
    ("changes", "dropped", "index_from", "rewind"),
    [
        ({"clean": True}, set(), 3300, False),
        ({"clean": True, "checkpoint": Checkpoint()}, {name for name, _ in INDEX}, 1000, False),
        ({"clean": True, "tails": Tails(3500, 3400, 47_000)}, set(), 3500, False),
        ({"tails": Tails(3500, 3400, 47_000, index=MARK)}, {"20260102000000000"}, 1900, True),
        ({"tails": Tails(3500, 3400, 47_000, index=BOTH)}, set(), 3400, True),
        ({"tails": Tails(3500, 3400, 47_000, index=NO_KEYS)}, {name for name, _ in INDEX}, 3200, False),
        ({"tails": Tails(3500, 3400, 47_000)}, {name for name, _ in INDEX}, 1000, False),
        ({"tails": Tails(3500, 3400, 47_000, index=replace(MARK, log=3601))}, {n for n, _ in INDEX}, 1000, False),
        ({}, {"20260102000000000"}, 1900, False),
        ({"checkpoint": Checkpoint(50_000, 50_000, 0)}, {name for name, _ in INDEX}, 1000, False),
        ({"index_unfit": ("20260103000000000",)}, {*(name for name, _ in INDEX), "20260103000000000"}, 1000, False),
        (
            {"tails": Tails(3500, 3400, 47_000, index=replace(MARK, files=("20250101000000000",))), "clean": True},
            {name for name, _ in INDEX},
            1000,
            False,
        ),
        ({"index": None}, set(), 3600, False),
        ({"index": ()}, set(), 1000, False),
        ({"index": (("20260101000000000", IndexHeader(0, 0, 0, 0, 0, 1)),)}, {"20260101000000000"}, 1000, False),
        ({"index": (), "tails": Tails(3500, 3400, 47_000)}, set(), 1000, False),
        ({"index": (), "tails": Tails(3500, 3400, 47_000, index=NO_KEYS)}, set(), 3200, False),
    ],
)
def test_of_the_index_only_what_was_synced_is_believed_after_a_crash(changes, dropped, index_from, rewind):
    """After an orderly end all of it; else what the tails, or without them RocketMQ's checkpoint, say is durable."""
    found = facts(**{"index": INDEX, **changes})
    plan = plan_index(found, choose_start(found), 3600)
    assert (plan.drop, plan.first, plan.rewind is not None) == (frozenset(dropped), index_from, rewind)
