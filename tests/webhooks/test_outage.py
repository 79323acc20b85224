"""When consumption pauses and for how long, with time that stands still."""

from __future__ import annotations

import asyncio

import pytest

from metaq.clock import SYSTEM, FakeClock
from metaq.webhooks.answers import Answer, Verdict
from metaq.webhooks.gate import Gate, GateShut
from metaq.webhooks.outage import Fate, Held, Outage, PauseRules, Turn
from tests.servers.http.support import in_loop
from tests.support import PATIENCE

WELL = Answer(Verdict.DELIVERED, "", 200, judged=True)
REFUSED = Answer(Verdict.FAILED, "status 400", 400, judged=True)
SLOW = Answer(Verdict.FAILED, "no answer")
NOBODY = Answer(Verdict.UNREACHABLE, "no connection")
GONE = Answer(Verdict.GONE, "status 410", 410)


def later(seconds):
    return Answer(Verdict.BUSY, "status 503", 503, seconds)


class Case:
    """An outage with its clock."""

    def __init__(self, **rules):
        self.clock = FakeClock()
        self.outage = Outage(PauseRules(**rules), self.clock)

    def post(self, answer, name="m", held=None):
        probe = self.outage.turn is Turn.PROBE
        if probe:
            self.outage.begin_probe()
        return self.outage.judge(answer, name, probe=probe, held=held or Held())

    def over(self):
        self.clock.advance(self.outage.left)
        assert self.outage.turn is Turn.PROBE


def test_a_target_that_takes_no_connection_pauses_everything_at_once_and_costs_no_retry():
    case = Case()
    assert case.outage.turn is Turn.POST
    assert case.post(NOBODY) is Fate.HOLD
    assert case.outage.turn is Turn.WAIT
    assert 0.5 <= case.outage.left <= 1.0


def test_pauses_double_up_to_the_longest_and_are_shortened_by_chance():
    case = Case(least=1.0, most=8.0)
    lengths = []
    case.post(NOBODY)
    for _ in range(200):
        lengths.append(case.outage.left)
        case.over()
        assert case.post(NOBODY) is Fate.HOLD
    for length, whole in zip(lengths, [1.0, 2.0, 4.0] + [8.0] * 197, strict=True):
        assert whole / 2 <= length <= whole
    assert len(set(lengths)) > 190
    assert case.outage.failures == 201


def test_one_that_gets_through_ends_the_pause_and_the_next_one_begins_short():
    case = Case(least=1.0)
    case.post(NOBODY)
    for _ in range(5):
        case.over()
        case.post(NOBODY)
    case.over()
    assert case.post(WELL) is Fate.DONE
    assert case.outage.turn is Turn.POST
    assert case.outage.failures == 0
    case.post(NOBODY)
    assert case.outage.left <= 1.0


def test_so_many_different_messages_that_fail_in_a_row_pause():
    case = Case(failures=3)
    assert [case.post(REFUSED, name) for name in "ab"] == [Fate.RETRY, Fate.RETRY]
    assert case.outage.turn is Turn.POST
    assert case.post(SLOW, "c") is Fate.RETRY
    assert case.outage.turn is Turn.WAIT


def test_one_bad_message_never_pauses_the_others_however_often_it_fails():
    case = Case(failures=3)
    for _ in range(100):
        assert case.post(REFUSED, "bad") is Fate.RETRY
    assert case.outage.turn is Turn.POST


def test_a_success_between_failures_begins_the_row_anew():
    case = Case(failures=3)
    for name in "abcdefgh":
        case.post(REFUSED, name)
        case.post(WELL, f"{name}2")
    assert case.outage.turn is Turn.POST


def test_the_target_says_how_long_it_wants_to_be_left_alone():
    case = Case(least=1.0)
    assert case.post(later(90)) is Fate.HOLD
    assert case.outage.left == 90
    case.over()
    assert case.post(later(0)) is Fate.HOLD
    assert 1.0 <= case.outage.left <= 2.0  # never without a pause: "0" would be a busy loop


def test_a_refused_message_is_no_probe_for_ever():
    case = Case(failures=1)
    case.post(REFUSED)
    case.over()
    assert case.post(REFUSED) is Fate.RETRY
    assert case.outage.turn is Turn.WAIT


def test_a_message_that_may_be_the_reason_of_silence_is_no_probe_for_ever():
    case, held = Case(failures=1), Held()
    case.post(SLOW)
    fates = []
    for _ in range(10):
        case.over()
        fates.append(case.post(SLOW, held=held))
    assert fates == [Fate.HOLD] * 9 + [Fate.RETRY]


def test_a_message_in_the_way_of_others_goes_the_way_of_retries_after_three_attempts():
    case, held, fates = Case(), Held(), []
    for _ in range(4):
        fates.append(case.post(later(5), "bad", held))
        case.over()
        case.post(WELL, "good")
    assert fates == [Fate.HOLD] * 3 + [Fate.RETRY]


def test_what_was_under_way_when_the_pause_began_changes_nothing_of_it():
    case = Case(failures=2)
    case.post(NOBODY, "a")
    before = case.outage.until
    assert case.outage.judge(NOBODY, "b", probe=False, held=Held()) is Fate.HOLD
    assert case.outage.judge(SLOW, "c", probe=False, held=Held()) is Fate.RETRY
    assert case.outage.until == before
    assert case.outage.judge(WELL, "d", probe=False, held=Held()) is Fate.DONE
    assert case.outage.turn is Turn.POST


def test_gone_stops():
    assert Case().post(GONE) is Fate.STOP


# ---- those who wait ---------------------------------------------------------------------------------------------


def gate(**rules):
    outage = Outage(PauseRules(**{"least": 0.02, "most": 0.02, **rules}), SYSTEM)
    return Gate(outage)


@in_loop
async def test_probes_take_turns():
    """A message that always fails does not keep the others from being asked."""
    one = gate()
    probe = await one.enter()
    one.leave(NOBODY, "first", probe=probe, held=Held())
    order = []

    async def work(name):
        held = Held()
        while True:
            probe = await one.enter()
            order.append(name)
            assert probe
            if one.leave(WELL if name == "c" else NOBODY, name, probe=probe, held=held) is Fate.DONE:
                return
            if len(order) > 3:
                return

    async with asyncio.timeout(PATIENCE):
        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        await tasks[2]
    assert order[:3] == ["a", "b", "c"]
    for task in tasks:
        task.cancel()


@in_loop
async def test_a_shut_gate_lets_nobody_wait():
    one = gate(least=1000.0, most=1000.0)
    one.leave(NOBODY, "first", probe=await one.enter(), held=Held())
    waiting = [asyncio.create_task(one.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    one.shut()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [GateShut] * 3
    with pytest.raises(GateShut):
        await one.enter()


@in_loop
async def test_a_probe_that_is_cancelled_leaves_the_turn_to_the_next():
    one = gate()
    one.leave(NOBODY, "first", probe=await one.enter(), held=Held())
    async with asyncio.timeout(PATIENCE):
        assert await one.enter()
        second = asyncio.create_task(one.enter())
        await asyncio.sleep(0)
        one.give_up(probe=True)
        assert await second
