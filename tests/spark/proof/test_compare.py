"""The comparison can fail: a small store, archive and copies that agree, and each thing that may be wrong with them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from tests.spark.proof.compare import (
    against_ledger,
    archive_against_store,
    copies_against_store,
    receipts_against_store,
)
from tests.spark.proof.found import TIME
from tests.spark.proof.ledger import ACKED, BODY_BYTES, DOUBTFUL, REFUSED, Bodies, Ledger

QUEUES, COUNT = 2, 20
LOST, UNSTORED, AGAIN = 17, 18, 3
"""Sends: one in doubt that is not stored, one that was refused, and one that is stored twice under its id."""


@pytest.fixture
def ledger():
    """Twenty sends; the queue and offset of an acknowledged one is where `store` has it."""
    made = Ledger(Bodies(7))
    numbers = made.begin(COUNT)
    states = np.full(COUNT, ACKED, np.int8)
    states[[LOST, UNSTORED]] = DOUBTFUL, REFUSED
    made.settle(numbers, states, numbers % QUEUES, numbers // QUEUES, [f"{number:032X}" for number in range(COUNT)])
    return made


def row(ledger, number, queue, offset, **more):
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=offset)
    body = ledger.bodies.make(np.array([number]))[0].tobytes()
    return {
        "queue_id": queue, "queue_offset": offset, "message_id": f"{number:032X}", "keys": str(number), "tag": "t",
        "body": body, "born_time": at, "store_time": at, "origin": None, **more,
    }  # fmt: skip


def table(rows):
    kinds = {
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "body": pa.binary(),
        "born_time": TIME,
        "store_time": TIME,
    }
    names = ["queue_id", "queue_offset", "message_id", "keys", "tag", "body", "born_time", "store_time", "origin"]
    return pa.table({name: pa.array([one[name] for one in rows], kinds.get(name, pa.string())) for name in names})


@pytest.fixture
def stored(ledger):
    rows = [row(ledger, n, n % QUEUES, n // QUEUES) for n in range(COUNT) if n not in {LOST, UNSTORED}]
    rows[-1] |= {"queue_offset": COUNT // QUEUES - 2}  # Nothing is where 17 would be.
    ledger._parts[0][3][COUNT - 1] = COUNT // QUEUES - 2
    return [*rows, row(ledger, AGAIN, 0, COUNT // QUEUES - 1)]


@pytest.fixture
def archived(stored):
    return stored[:-1]


@pytest.fixture
def copies(stored):
    return [one | {"origin": f"{one['queue_id']}:{one['queue_offset']}:{one['message_id']}"} for one in stored]


def test_what_agrees_has_no_problems(ledger, stored, archived, copies):
    assert receipts_against_store(table(stored), ledger) == []
    assert against_ledger(table(stored), ledger, "stored", once=False) == []
    assert against_ledger(table(archived), ledger, "archived", once=True) == []
    assert archive_against_store(table(archived[::-1]), table(stored), repeats=1) == []
    assert copies_against_store(table(copies), table(stored), ordered=True) == []


def flipped(body):
    return body[:50] + bytes([body[50] ^ 1]) + body[51:]


@pytest.mark.parametrize("number", [0, 5])
def test_a_message_that_is_not_archived(ledger, stored, archived, number):
    del archived[number]
    assert (
        "1 acknowledged messages are not archived" in against_ledger(table(archived), ledger, "archived", once=True)[0]
    )
    assert any("nor is another of their id" in one for one in archive_against_store(table(archived), table(stored), 2))


def test_a_repeat_that_no_manifest_counts(stored, archived):
    (problem,) = archive_against_store(table(archived), table(stored), repeats=0)
    assert "the store has 1 messages that the archive has not, and its manifests count 0 repeats" in problem


def test_a_message_that_is_archived_twice(ledger, stored, archived):
    archived.append(archived[4])
    assert "archived more than once" in against_ledger(table(archived), ledger, "archived", once=True)[0]
    assert "1 messages are in the archive more than once: 0:2" in archive_against_store(
        table(archived), table(stored), 1
    )


def test_both_copies_of_a_repeated_send_are_archived(ledger, stored):
    """Each from its own place, so only the ids tell."""
    assert "1 messages are archived more than once" in against_ledger(table(stored), ledger, "archived", once=True)[0]
    assert archive_against_store(table(stored), table(stored), 0) == ["1 ids are in the archive more than once"]


def test_a_message_that_is_another_one_than_in_the_store(ledger, stored, archived):
    archived[4] = archived[4] | {"body": archived[5]["body"]}
    assert any("another body" in one for one in archive_against_store(table(archived), table(stored), 1))
    assert any("more than once" in one for one in against_ledger(table(archived), ledger, "archived", once=True))


@pytest.mark.parametrize("body", [b"", b"short", b"x" * BODY_BYTES, b"0" * (BODY_BYTES + 1), flipped])
def test_a_body_that_nobody_sent(ledger, stored, archived, body):
    archived[4] = archived[4] | {"body": body(archived[4]["body"]) if callable(body) else body}
    problems = against_ledger(table(archived), ledger, "archived", once=True)
    assert problems[0] == "1 bodies archived are none that was sent: 0:2"
    assert any("another body" in one for one in archive_against_store(table(archived), table(stored), 1))


@pytest.mark.parametrize("column", ["message_id", "keys", "tag", "born_time", "store_time"])
def test_a_column_that_is_not_as_it_was_stored(stored, archived, column):
    for value in (None, archived[6][column] if column != "tag" else "u"):
        changed = [*archived[:4], archived[4] | {column: value}, *archived[5:]]
        assert any(f"another {column}" in one for one in archive_against_store(table(changed), table(stored), 1))


def test_a_message_of_nowhere(ledger, stored, archived):
    archived.append(row(ledger, COUNT + 4, 1, 99))
    assert any("were never sent: 1:99" in one for one in against_ledger(table(archived), ledger, "archived", once=True))
    assert any("not in the store: 1:99" in one for one in archive_against_store(table(archived), table(stored), 1))


def test_a_message_that_is_there_though_it_was_refused(ledger, archived):
    archived.append(row(ledger, UNSTORED, 0, 9))
    (problem,) = against_ledger(table(archived), ledger, "archived", once=True)
    assert "though the producer said that they were not stored: sends 18" in problem


def test_a_message_in_doubt_may_be_there_once(ledger, archived):
    archived.append(row(ledger, LOST, 0, 9))
    assert against_ledger(table(archived), ledger, "archived", once=True) == []
    archived.append(row(ledger, LOST, 1, 9))
    assert "more than once: sends 17" in against_ledger(table(archived), ledger, "archived", once=True)[0]


def test_a_receipt_that_is_not_true(ledger, stored):
    for change in ({"queue_offset": 30}, {"message_id": "0"}, {"queue_id": 1, "queue_offset": 50}):
        changed = [*stored[:4], stored[4] | change, *stored[5:]]
        assert any("receipts are not true" in one for one in receipts_against_store(table(changed), ledger))
    assert any("do not follow each other" in one for one in receipts_against_store(table(stored[1:]), ledger))
    assert receipts_against_store(table([]), ledger)


def test_a_message_that_was_not_copied_or_twice(stored, copies):
    last = copies.pop()
    assert any(
        "1 messages were not copied: 0:9" in one
        for one in copies_against_store(table(copies), table(stored), ordered=True)
    )
    copies += [last, last | {"queue_offset": 10}]
    assert any(
        "1 messages were copied more than once: 0:10" in one
        for one in copies_against_store(table(copies), table(stored), ordered=True)
    )
    assert len(copies_against_store(table([]), table(stored), ordered=True)) == 1


def test_copies_that_changed_or_are_of_nothing(stored, copies):
    for column, value in (("body", b"other"), ("keys", "k"), ("tag", None)):
        changed = [copies[0] | {column: value}, *copies[1:]]
        (problem,) = copies_against_store(table(changed), table(stored), ordered=True)
        assert f"another {column} in a copy" in problem
    for origin in (None, "0:77:"):
        changed = [copies[0] | {"origin": origin}, *copies[1:]]
        assert any(
            "of no stored message" in one for one in copies_against_store(table(changed), table(stored), ordered=True)
        )


def test_copies_out_of_order(stored, copies):
    copies[0], copies[2] = (
        copies[one] | {"queue_offset": copies[other]["queue_offset"]} for one, other in ((0, 2), (2, 0))
    )
    (problem,) = copies_against_store(table(copies), table(stored), ordered=True)
    assert "copies are before others that were stored earlier" in problem
    assert copies_against_store(table(copies), table(stored), ordered=False) == []


def test_a_copy_in_another_queue(stored, copies):
    copies[-1] = copies[-1] | {"queue_id": 1, "queue_offset": 9}
    assert any(
        "another queue than their originals" in one
        for one in copies_against_store(table(copies), table(stored), ordered=False)
    )


def test_bodies_say_their_number_and_belong_to_their_seed():
    numbers = np.array([0, 1, 4092, 4093, 999_999, 123_456_789_012])
    rows = Bodies(1).make(numbers)
    found, sound = Bodies(1).read(rows)
    assert found.tolist() == numbers.tolist()
    assert sound.all()
    assert len({bytes(one) for one in rows}) == len(numbers)
    assert not Bodies(2).read(rows)[1].any()
