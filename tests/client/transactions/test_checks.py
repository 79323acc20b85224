"""Which checks wait, run and are answered; and what a process knows of its own transactions."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metaq
from metaq import TransactionOutcome, aio
from metaq.client.conversation.sending.transactions import check_of
from metaq.client.transactions.checks import (
    Held,
    Home,
    Question,
    TransactionLedger,
    Undecided,
    check_function,
    outcome_of,
)
from metaq.errors import BufferFull
from metaq.model.message import HalfMessage
from tests.client.cluster import FakeCluster
from tests.client.conversation.sending.test_transactions import check_command
from tests.client.transactions.test_transaction import COMMIT, ask, ended
from tests.support import eventually

HOME = Home("broker-a", "0" * 16)


def question(message_id: str, place: int) -> Question:
    """The check of a transaction whose half message is at `place` now."""
    return Question(check_of(check_command(message_id=message_id, tranStateTableOffset=str(place))), "h:1")


def place_of(asked: Question) -> int:
    return asked.check.half.queue_offset


@given(st.lists(st.tuples(st.sampled_from("ABCDE"), st.booleans()), max_size=60), st.integers(1, 3))
def test_every_check_is_answered_at_its_newest_place_and_never_twice_at_a_time(steps, held_max):
    """Whatever the order in which questions come and workers take and finish them."""
    held, running, newest, told, dropped = Held(held_max), {}, {}, {}, set()
    for place, (name, asked) in enumerate(steps):
        if asked:
            try:
                held.add(question(name, place))
            except BufferFull:
                assert len(held) == held_max
                dropped.add(name)
            else:
                newest[name] = place
        elif (taken := held.take()) is not None:
            taken_id = taken.check.half.message_id
            assert taken_id not in running, "two workers have one transaction"
            running[taken_id] = taken
        elif running:
            message_id, _ = running.popitem()
            finish(held, message_id, told)
        assert len(held) <= held_max
    while (taken := held.take()) is not None or running:
        if taken is not None:
            running[taken.check.half.message_id] = taken
        else:
            finish(held, running.popitem()[0], told)
    assert told == newest
    assert held.running == len(held) == 0


def finish(held: Held, message_id: str, told: dict[str, int]) -> None:
    """As a worker does when it has its outcome."""
    last = None
    while (one := held.newest(message_id, last)) is not None:
        told[message_id], last = place_of(one), one


def test_a_place_that_comes_while_the_answer_goes_out_is_answered_as_well():
    """Or the broker would ask once more."""
    held = Held(10)
    held.add(question("A", 1))
    taken = held.take()
    assert taken is not None
    first = held.newest("A", None)
    assert place_of(first) == 1
    assert not held.add(question("A", 2)), "it joins the one that runs"
    assert place_of(held.newest("A", first)) == 2


def test_closed_nothing_waits_any_more():
    """What runs may finish; whoever waits for that is called once."""
    held, idle = Held(10), []
    for name in "AB":
        held.add(question(name, 1))
    taken = held.take()
    with held.changed:
        assert held.close() == 1
    held.when_idle = lambda: idle.append(1)
    assert held.take() is None
    finish(held, taken.check.half.message_id, {})
    assert idle == [1]


def test_ledger_keeps_the_newest_outcomes_only(monkeypatch):
    """What this process knows of the past is bounded."""
    monkeypatch.setattr("metaq.client.transactions.checks.DECIDED_MAX", 3)
    ledger = TransactionLedger()
    for number in range(10):
        ledger.ended(str(number), TransactionOutcome.COMMIT, HOME)
    assert list(ledger._decided) == ["7", "8", "9"]


def test_ledger_knows_what_is_going_on_and_what_has_ended():
    """Going on: UNKNOWN, and it learns its new place. Ended without an outcome, forgotten, or another's: nothing."""

    ledger, going_on = TransactionLedger(), Undecided(HOME, HalfMessage("A", 0, 0))
    asked = question("A", 7).check
    assert ledger.answer(asked) is None
    ledger.begun("A", going_on)
    assert ledger.answer(asked) is TransactionOutcome.UNKNOWN
    assert going_on.half.queue_offset == 7
    ledger.ended("A", TransactionOutcome.UNKNOWN, HOME)
    assert ledger.answer(asked) is None
    ledger.begun("A", going_on)
    del going_on
    assert ledger.answer(asked) is None
    ledger.ended("A", TransactionOutcome.ROLLBACK, HOME)
    assert ledger.answer(asked) is TransactionOutcome.ROLLBACK


@pytest.mark.parametrize("ended", [False, True])
def test_ledger_rolls_back_what_was_given_up_at_another_broker(ended):
    """Its send had no answer, so the message went elsewhere. One that is only renamed, or has moved, is believed."""
    ledger, going_on = TransactionLedger(), Undecided(HOME, HalfMessage("A", 0, 0))
    ledger.begun("A", going_on)
    if ended:
        ledger.ended("A", TransactionOutcome.COMMIT, HOME)
    here = TransactionOutcome.COMMIT if ended else TransactionOutcome.UNKNOWN
    other = bytes([10, 0, 0, 9, 0, 0, 42, 159])
    for broker, host, wanted in (
        ("broker-b", other, TransactionOutcome.ROLLBACK),
        ("broker-b", bytes(8), here),
        ("broker-a", other, here),
        ("", other, here),
        ("broker-a", bytes(8), here),
    ):
        assert ledger.answer(check_of(check_command(message_id="A", store_host=host), broker)) is wanted
    assert going_on.half.queue_offset == (0 if ended else 8)


@pytest.mark.parametrize("nonsense", [0, 1, "commit", 8, [], object])
def test_only_three_answers_mean_something(nonsense):
    """1 is not True."""
    with pytest.raises(TypeError, match="says nothing of a transaction"):
        outcome_of(nonsense)


def test_functions_of_one_argument_are_taken():
    """Also methods, partials, callables, built-ins; asynchronous ones where they are awaited."""

    class Callable:
        def __call__(self, message): ...

    async def awaited(message): ...

    for function in (lambda message: None, Callable(), {}.get, print, bool):
        check_function(function, "check", awaited=False)
    check_function(awaited, "check", awaited=True)


def test_checks_outlive_the_event_loop_of_an_asyncio_producer(caplog):
    """It was never closed, and its loop is gone: that is said. Used in another loop, it answers there."""
    with FakeCluster() as cluster:

        async def check(message: metaq.StoredMessage) -> bool:
            return True

        async def make() -> aio.TransactionProducer:
            return aio.TransactionProducer(cluster.namesrv, group="payments", check=check, instance_name="loops")

        producer = asyncio.run(make())
        ask(cluster)
        eventually(lambda: "is closed: nobody checks its transactions here" in caplog.text, what="the warning")

        async def use() -> None:
            async with producer:
                assert (await asyncio.to_thread(ended, cluster))[0].outcome == COMMIT

        asyncio.run(use())
