"""Holds the archive, the copies and the store against each other and against the ledger. Values in, problems out.

Each function returns a line per kind of problem; none is what there should be.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.spark.proof.found import bodies
from tests.spark.proof.ledger import ACKED, REFUSED, Bodies, Ledger, Numbers

SAME = ("message_id", "keys", "tag", "body", "born_time", "store_time")
"""What a message of the archive has as the store has it."""
COPIED = ("keys", "tag", "body")
"""What a copy has as its original has it."""
_SHOWN = 3


def numbers_of(table: pa.Table, made: Bodies, what: str) -> tuple[Numbers, list[str]]:
    """The number of each message's send; and problems: bodies that nobody sent. Their number is -1."""
    numbers, sound = made.read(bodies(table))
    bad = np.flatnonzero(~sound)
    return np.where(sound, numbers, -1), _told(f"bodies {what} are none that was sent", bad, table)


def against_ledger(table: pa.Table, ledger: Ledger, what: str, *, once: bool) -> list[str]:
    """Every acknowledged message is there, and none that was not sent. Args: once: and none more than once."""
    states, *_ = ledger.columns()
    numbers, problems = numbers_of(table, ledger.bodies, what)
    unknown = np.flatnonzero(numbers >= len(states))
    problems += _told(f"messages {what} were never sent", unknown, table)
    known = numbers[(numbers >= 0) & (numbers < len(states))]
    counts = np.bincount(known, minlength=len(states))
    problems += _sends(f"acknowledged messages are not {what}", (states == ACKED) & (counts == 0))
    problems += _sends(
        f"messages are {what} though the producer said that they were not stored", (states == REFUSED) & (counts > 0)
    )
    if once:
        problems += _sends(f"messages are {what} more than once", counts > 1)
    return problems


def receipts_against_store(stored: pa.Table, ledger: Ledger) -> list[str]:
    """Every receipt is true: the message is at that queue and offset, under that id. And offsets have neither gap nor repeat."""
    states, queues, offsets, ids = ledger.columns()
    numbers, problems = numbers_of(stored, ledger.bodies, "in the store")
    places = _places(stored)
    order = np.argsort(places, kind="stable")
    places, numbers = places[order], numbers[order]
    problems += _offsets(stored)
    acked = np.flatnonzero(states == ACKED)
    wanted = queues[acked].astype(np.int64) << 40 | offsets[acked]
    at = np.minimum(np.searchsorted(places, wanted), max(len(places) - 1, 0))
    if not len(places):
        return problems + _sends("acknowledged messages are not in the store", states == ACKED)
    wrong = (places[at] != wanted) | (numbers[at] != acked)
    names = np.asarray(stored["message_id"].take(pa.array(order[at])).to_pylist(), "U32")
    wrong |= names != ids[acked]
    shown = ", ".join(f"send {acked[one]} told to be at {queues[acked[one]]}:{offsets[acked[one]]}" for one in np.flatnonzero(wrong)[:_SHOWN])  # fmt: skip
    return problems + ([f"{wrong.sum()} receipts are not true: {shown}"] if wrong.any() else [])


def archive_against_store(archived: pa.Table, stored: pa.Table, repeats: int) -> list[str]:
    """The archive, and the repeats that its manifests own up to, are the store. Args: repeats: of all manifests together."""
    mine, theirs = _places(archived), _places(stored)
    order = np.argsort(theirs, kind="stable")
    problems = _told("messages are in the archive more than once", _doubled(mine), archived)
    at, there = _find(mine, theirs[order])
    problems += _told("messages of the archive are not in the store", np.flatnonzero(~there), archived)
    problems += _differences(
        archived.filter(pa.array(there)), stored.take(pa.array(order[at[there]])), SAME, "the archive"
    )
    _, kept = _find(theirs, np.sort(mine))
    left = stored.filter(pa.array(~kept))
    if len(left) != repeats:
        problems.append(
            f"the store has {len(left)} messages that the archive has not, and its manifests count {repeats} repeats"
        )
    lost = pc.invert(pc.is_in(left["message_id"], value_set=archived["message_id"].combine_chunks()))
    problems += _told("messages of the store are not in the archive, nor is another of their id", _true(lost), left)
    ids = archived["message_id"].value_counts()
    twice = pc.sum(pc.greater(pc.struct_field(ids, "counts"), 1)).as_py() or 0
    return problems + ([f"{twice} ids are in the archive more than once"] if twice else [])


def copies_against_store(copies: pa.Table, stored: pa.Table, *, ordered: bool) -> list[str]:
    """Every stored message was copied once, into the queue of its number. Args: ordered: and each queue's in their order."""
    origin = copies["origin"].combine_chunks()
    parts = pc.split_pattern(pc.fill_null(origin, "-1:-1:"), ":")
    queue, offset = (pc.list_element(parts, place).cast(pa.int64()).to_numpy(zero_copy_only=False) for place in (0, 1))
    mine, theirs = queue << 40 | offset, _places(stored)
    order = np.argsort(theirs, kind="stable")
    problems = _told("messages were copied more than once", _doubled(mine), copies)
    at, there = _find(mine, theirs[order])
    problems += _told("copies are of no stored message", np.flatnonzero(~there), copies)
    _, copied = _find(theirs, np.sort(mine))
    problems += _told("messages were not copied", np.flatnonzero(~copied), stored)
    problems += _differences(copies.filter(pa.array(there)), stored.take(pa.array(order[at[there]])), COPIED, "a copy")
    places = _places(copies)
    problems += _told("copies are in another queue than their originals", np.flatnonzero(places >> 40 != queue), copies)
    problems += _offsets(copies)
    if ordered:
        in_order = np.argsort(places, kind="stable")
        back = np.flatnonzero((np.diff(mine[in_order]) <= 0) & (np.diff(queue[in_order]) == 0))
        problems += _told("copies are before others that were stored earlier", in_order[back + 1], copies)
    return problems


def _places(table: pa.Table) -> Numbers:
    """A number for each (queue, offset), in that order."""
    return table["queue_id"].to_numpy().astype(np.int64) << 40 | table["queue_offset"].to_numpy()


def _offsets(table: pa.Table) -> list[str]:
    places = np.sort(_places(table))
    first = np.r_[True, np.diff(places >> 40) != 0] if len(places) else np.zeros(0, bool)
    offsets = places & (1 << 40) - 1
    steps = np.diff(offsets, prepend=-1)
    wrong = np.where(first, offsets != 0, steps != 1)
    return [f"the offsets of {wrong.sum()} messages do not follow each other"] if wrong.any() else []


def _find(wanted: Numbers, among: Numbers) -> tuple[Numbers, Numbers]:
    """Where each is in the sorted numbers, and whether it is there."""
    if not len(among):
        return np.zeros(len(wanted), int), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return at, among[at] == wanted


def _doubled(places: Numbers) -> Numbers:
    """Rows whose place an earlier row has."""
    order = np.argsort(places, kind="stable")
    return order[1:][np.diff(places[order]) == 0]


def _differences(mine: pa.Table, theirs: pa.Table, columns: tuple[str, ...], whose: str) -> list[str]:
    problems = []
    for name in columns:
        one, other = mine[name].combine_chunks(), theirs[name].combine_chunks()
        if not one.equals(other):
            same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
            problems += _told(
                f"messages have another {name} in {whose} than in the store", _true(pc.invert(same)), mine
            )
    return problems


def _true(column: pa.Array | pa.ChunkedArray) -> Numbers:
    return np.flatnonzero(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy())


def _told(what: str, rows: Numbers, table: pa.Table) -> list[str]:
    if not len(rows):
        return []
    queues, offsets = (table[name].take(pa.array(rows[:_SHOWN])).to_pylist() for name in ("queue_id", "queue_offset"))
    return [
        f"{len(rows)} {what}: {', '.join(f'{queue}:{offset}' for queue, offset in zip(queues, offsets, strict=True))}"
    ]


def _sends(what: str, which: Numbers) -> list[str]:
    found = np.flatnonzero(which)
    return [f"{len(found)} {what}: sends {', '.join(map(str, found[:_SHOWN]))}"] if len(found) else []
