"""A table in a file: what is seen is saved, what could not be saved never was."""

from __future__ import annotations

import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.errors import BadRequest, ConfigError, Reason, Refused
from metaq.saved import SHOWN_PER_TURN, Pending, SavedTable, Saving
from metaq.saved_file import TableFile
from tests.broker.support import MemoryFile, SlowFile

FULL = OSError(errno.ENOSPC, "No space left on device")


class Count(int):
    """How many changes there were."""

    def next(self, _now_ms: int) -> Count:
        return Count(self + 1)


class Numbers:
    """`{"":version,"key":number,...}`"""

    name, what, remedy = "numbers.json", "the table", "restore it"

    def parse(self, text: str) -> tuple[Count, dict[str, int]]:
        try:
            table = json.loads(text)
        except ValueError:
            raise BadRequest("that is no JSON") from None
        return Count(table.pop("")), table

    def entry(self, key: str, value: int) -> str:
        return f'"{key}":{value}'

    def whole(self, entries: dict[str, str], version: Count) -> str:
        return "{" + ",".join([f'"":{version}', *entries.values()]) + "}"


def table_on(file, clock=None, call_soon=None, entries=None, shown=None) -> SavedTable[str, int, Count]:
    more = {"call_soon": call_soon} if call_soon else {}
    return SavedTable(
        TableFile(file, Numbers()),
        dict(entries or {}),
        Count(),
        clock=clock or FakeClock(),
        shown=shown,
        **more,
    )


def stored(file) -> dict[str, int]:
    return {key: value for key, value in json.loads(file.text or "{}").items() if key}


def test_a_file_that_cannot_be_read_is_named_with_the_remedy():
    """Whoever starts the server knows where to look; a file that is not there yet is an empty table."""
    assert TableFile(MemoryFile(), Numbers()).read(Count(7)) == (7, {})
    with pytest.raises(ConfigError, match=r"memory\.json cannot be read \(that is no JSON\); restore it"):
        TableFile(MemoryFile("[1"), Numbers()).read(Count())


def test_an_entry_that_may_not_be_is_passed_over(caplog):
    """The others are there, and the log says which is not."""

    def check(key):
        if key == "../b":
            raise Refused(Reason.INVALID, f"{key} leaves its folder")

    file = MemoryFile('{"":3,"a":1,"../b":2}')
    assert TableFile(file, Numbers()).read(Count(), check) == (3, {"a": 1})
    assert "memory.json: passed over an entry: ../b leaves its folder" in caplog.text


def test_a_change_is_seen_when_it_is_saved():
    """Not before; whoever needs it raises Saving meanwhile, and is told in the order of asking."""
    file, told = SlowFile(), []
    table = table_on(file)
    pending = table.change("a", 1)
    pending.when_done(lambda error: told.append(("first", error, dict(table.table))))
    pending.when_done(lambda error: told.append(("second", error, dict(table.table))))
    with pytest.raises(Saving) as saving:
        pending.settle()
    assert saving.value.pending == (pending,)
    assert (table.table, table.coming("a"), table.count, told) == ({}, 1, 1, [])
    file.end()
    pending.settle()
    assert told == [("first", None, {"a": 1}), ("second", None, {"a": 1})]
    assert (table.pending("a"), table.version, stored(file)) == (None, 1, {"a": 1})


def test_what_is_asked_for_while_a_save_runs_goes_into_the_next_one_together():
    """A thousand changes are two saves."""
    file = SlowFile()
    table = table_on(file, call_soon=lambda work: work())
    waiting = [table.change(f"k{n}", n) for n in range(1000)]
    assert len(file.under_way) == 1
    file.end()
    assert waiting[0].done
    assert not waiting[1].done
    file.end()
    assert all(pending.done for pending in waiting)
    assert file.saves == 2
    assert stored(file) == table.table == {f"k{n}": n for n in range(1000)}
    assert table.version == 1000


def test_changes_of_one_save_take_effect_in_portions():
    """Each portion is a call of its own, so that others have their turn; the version moves with every change."""
    calls = []
    table = table_on(MemoryFile(), call_soon=calls.append)
    count = 3 * SHOWN_PER_TURN
    waiting = [table.change("first", 0), *(table.change(f"k{n}", n) for n in range(count))]
    seen = []
    while calls:
        calls.pop(0)()
        seen.append(len(table.table))
        assert table.version == len(table.table)
    assert all(pending.done for pending in waiting)
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) == SHOWN_PER_TURN


def test_a_change_that_cannot_be_saved_is_refused_with_file_and_reason(caplog):
    """New, changed and deleted entries alike; the log tells a reason once, and that it is over."""
    file, clock = MemoryFile(), FakeClock()
    table = table_on(file, clock, entries={"old": 1})
    file.error = FULL
    for key, value in (("new", 1), ("old", 2), ("old", None)):
        pending = table.change(key, value)
        with pytest.raises(Refused, match=r"the table could not be changed: saving memory\.json.*No space") as caught:
            pending.settle()
        assert caught.value.reason is Reason.UNAVAILABLE
    assert (table.table, table.version, table.count) == ({"old": 1}, 0, 1)
    assert table.failing.startswith("No space left on device: the server's disk is full")
    assert caplog.text.count("could not be saved: No space") == 1
    file.error = None
    table.change("new", 1).settle()
    assert stored(file) == table.table == {"old": 1, "new": 1}
    assert table.failing == ""


def test_a_failed_save_leaves_its_successors_alone():
    """What was asked for during a save that fails is saved by itself."""
    file = SlowFile()
    table = table_on(file)
    refused, taken = table.change("a", 1), table.change("b", 2)
    file.end(FULL)
    assert refused.error is not None
    assert not taken.done
    file.end()
    taken.settle()
    assert stored(file) == table.table == {"b": 2}


def test_a_file_that_may_hold_what_was_refused_is_written_again():
    """A save can fail after its rename. The file is put right as soon as the disk takes it, without any change."""
    file, clock = SlowFile(), FakeClock()
    table = table_on(file, clock, entries={"old": 1})
    table.change("new", 1)
    file.text = '{"new":1}'  # the rename went through, the sync of the folder did not
    file.end(OSError(errno.EIO, "Input/output error"))
    table.tick()
    assert file.under_way == [], "not at once"
    clock.advance(2)
    table.tick()
    file.end()
    assert stored(file) == table.table == {"old": 1}
    clock.advance(2)
    table.tick()
    assert file.under_way == [], "once is enough"


class FailingSync(MemoryFile):
    """A file whose saves fail after the rename, as long as `error` is set."""

    def save_soon(self, text, done) -> None:
        self.save(text())
        done(self.error)


@pytest.mark.parametrize("told", [True, False], ids=["before the end", "not yet"])
def test_a_table_that_is_closed_leaves_nothing_refused_in_its_file(told):
    """A broker that stops within a second of a failed save: a deletion that was refused would be found done at the next start."""
    file, calls = FailingSync(), []
    table = table_on(file, entries={"old": 1}, call_soon=calls.append)
    file.error = OSError(errno.EIO, "Input/output error")
    change = table.change("old", None)
    if told:
        calls.pop()()
        assert change.error is not None
    assert stored(file) == {}
    file.error = None
    table.close()
    assert stored(file) == table.table == {"old": 1}


def test_entries_that_are_known_without_the_file_may_come_while_a_save_is_under_way():
    """A broker that begins to lead in the middle of its life: they are seen at once, and nothing of that save is lost."""
    file, seen = SlowFile(), []
    table = table_on(file, shown=seen.append)
    change = table.change("a", 1)
    table.start_with({"b": 2})
    assert (table.table, seen, len(file.under_way)) == ({"b": 2}, ["b"], 1)
    file.end()
    assert change.done
    assert (table.table, stored(file)) == ({"a": 1, "b": 2}, {"a": 1})
    table.tick()
    file.end()
    assert stored(file) == table.table
    assert json.loads(file.text)[""] == table.version == 2, "each change has a version of its own"
    assert table.failing == ""


def test_what_is_so_already_is_over_at_once():
    """The same value, or the absence of what is absent, costs no save; what is under way is not asked for twice."""
    file = SlowFile()
    table = table_on(file, entries={"a": 1})
    assert table.change("a", 1).done
    assert table.change("b", None).done
    assert table.change("b", 2) is table.change("b", 2)
    assert len(file.under_way) == 1


def test_a_closed_table_takes_no_change():
    """It says so; nothing is left hanging."""
    table = table_on(MemoryFile())
    table.close()
    with pytest.raises(Refused, match="stopping"):
        table.change("a", 1).settle()


def test_one_waiter_that_fails_does_not_spoil_it_for_the_next(caplog):
    """Each is told."""
    pending, told = Pending(), []
    pending.when_done(lambda _: 1 / 0)
    pending.when_done(told.append)
    pending.finish()
    assert told == [None]
    assert "ZeroDivisionError" in caplog.text


steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 3))),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("turn")),
        st.tuples(st.just("retry")),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_is_seen_is_in_the_file_and_every_change_ends(steps):
    """Random changes, saves that end well or badly, turns of the loop: never an entry seen that a restart would lose."""
    file, clock, calls, waiting = SlowFile(), FakeClock(), [], []

    def check(_key=None):
        # What is seen was in a saved text with at least this version.
        assert table.version <= json.loads(file.text or '{"":0}')[""]

    table = table_on(file, clock, calls.append, shown=check)
    for step in steps:
        if step[0] == "change":
            waiting.append((table.change(step[1], step[2]), step[1], step[2]))
        elif step[0] == "end" and file.under_way:
            file.end(FULL if step[1] else None)
        elif step[0] == "turn" and calls:
            calls.pop(0)()
        elif step[0] == "retry":
            clock.advance(2)
            table.tick()
    while file.under_way or calls:
        if calls:
            calls.pop(0)()
        else:
            file.end()
    clock.advance(2)
    table.tick()
    while file.under_way or calls:
        if calls:
            calls.pop(0)()
        else:
            file.end()
    assert all(pending.done for pending, _, _ in waiting)
    shown = {key: value for pending, key, value in waiting if pending.error is None}
    assert table.table == {key: value for key, value in shown.items() if value is not None}
    assert not waiting or stored(file) == table.table or not file.saves
