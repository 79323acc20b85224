"""Who is asked, in what turn, and what becomes of a helper that fails: without processes, with a clock of the test's own."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
from collections import Counter

import pytest

from metaq.broker.pulls.paces import SLOW_SECONDS
from metaq.broker.pulls.predicates import EXTRA_MAX, GROUP_JOBS_MAX, JOB_SECONDS, Predicates, passes
from metaq.clock import FakeClock
from metaq.errors import ConfigError, Reason, Refused
from metaq.model.filters.predicates import FAILED, OUT_OF_MEMORY, Predicate, predicates_of
from metaq.options import BrokerOptions
from tests.broker.support import FakeChannel


class Helper:
    """A process that does what the test says."""

    def __init__(self, told):
        self.told, self.asked, self.killed, self.back = told, [], "", False

    def ask(self, question):
        self.asked.append(question)

    def step_back(self):
        self.back = True

    def kill(self, why):
        self.killed = why

    def close(self):
        pass

    # what happens
    def ready(self, **errors):
        self.told(self, json.dumps({"errors": errors}).encode(), "")

    def answer(self, verdicts, text=b""):
        self.told(self, bytes(verdicts) + text, "")

    def end(self, why="it ended with exit code 7"):
        self.told(self, None, self.killed or why)


class Bench:
    """The predicates of a broker, and their helpers in the order in which they were made."""

    def __init__(self, nums=0, text="a=m:a;b=m:b", **options):
        self.clock, self.helpers, self.done = FakeClock(), [], []
        self.options = BrokerOptions(filter_predicates=text, filter_server_nums=nums, **options)
        self.predicates = Predicates(self.options, self.clock, self.make)
        self.predicates.open()
        for helper in self.helpers:
            helper.ready()

    def make(self, told):
        self.helpers.append(Helper(told))
        return self.helpers[-1]

    def judge(self, group, *records, predicate="a"):
        self.predicates.judge(group, predicate, [memoryview(one) for one in records], self.done.append)

    def after(self, seconds):
        self.clock.advance(seconds)
        self.predicates.tick()

    def busy(self):
        """The one helper that has a question."""
        [helper] = [helper for helper, state in self.predicates._helpers.items() if state.group]
        return helper

    @property
    def verdicts(self):
        return [(job.group, list(job.verdicts)) for job in self.done]


def test_there_is_no_process_where_there_is_no_predicate():
    """Whatever filterServerNums says; with one registered there is one, or as many as it says."""
    assert Bench(nums=3, text="").helpers == []
    assert len(Bench().helpers) == 1
    assert len(Bench(nums=3).helpers) == 3


def test_messages_are_judged_by_the_named_predicate():
    """One question for all of a pull; then the next group's."""
    bench = Bench()
    bench.judge("g", b"one", b"two")
    bench.judge("h", b"three", predicate="b")
    [helper] = bench.helpers
    assert helper.asked == [b"\x01aonetwo"]
    helper.answer([1, 0])
    assert bench.verdicts == [("g", [1, 0])]
    assert helper.asked[1:] == [b"\x01bthree"]
    helper.answer([2], b"ValueError: x")
    assert bench.verdicts[1:] == [("h", [2])]
    assert [passes(verdict) for verdict in (0, 1, 2)] == [False, True, True]


def test_groups_take_turns():
    """A group with many pulls does not keep the others waiting."""
    bench = Bench()
    for number in range(5):
        bench.judge("greedy", b"%d" % number)
    bench.clock.advance(0.01)
    bench.judge("other", b"x")
    for _ in range(3):
        bench.clock.advance(0.01)
        bench.helpers[0].answer([1])
    assert "other" in [group for group, _ in bench.verdicts[:3]]


def test_an_unknown_name_is_refused_with_the_registered_ones():
    """And a predicate that could not be imported with the reason."""
    bench = Bench()
    with pytest.raises(Refused, match=r"no predicate 'x'; registered are: a, b") as refused:
        bench.predicates.check("x")
    assert refused.value.reason is Reason.BAD_FILTER
    bench.helpers[0].end()
    bench.after(1.0)
    bench.helpers[-1].ready(a="ImportError: no module m")
    with pytest.raises(Refused, match="ImportError: no module m"):
        bench.predicates.check("a")
    bench.predicates.check("b")


def test_what_came_before_an_import_failed_is_not_judged():
    """It comes when the broker has just started, and nothing of it may be delivered: its pull is told to come again."""
    bench = Bench()
    bench.helpers[0].end()
    bench.after(1.0)
    helper = bench.helpers[-1]
    bench.judge("g", b"one", b"two")
    bench.judge("g", b"three", predicate="b")
    helper.ready(a="ModuleNotFoundError: no m")
    assert bench.verdicts == [("g", [])]
    assert bench.done[0].why == "the predicate a cannot be used: ModuleNotFoundError: no m"
    assert helper.asked == [b"\x01bthree"]
    helper.answer([1])
    assert bench.verdicts == [("g", []), ("g", [1])]


def test_one_that_takes_too_long_is_ended_and_its_messages_judged_one_by_one(caplog):
    """The message with which it fails alone is delivered, and so the group goes on."""
    bench = Bench()
    bench.judge("g", b"1", b"2", b"3")
    bench.after(0.9)
    assert not bench.helpers[0].killed
    bench.after(0.2)
    assert "1000 ms (filterTimeLimit)" in bench.helpers[0].killed
    bench.helpers[0].end()
    bench.after(0.2)
    second = bench.helpers[-1]  # a helper of the slow group's own
    second.ready()
    assert second.asked == [b"\x01a1"]
    second.answer([0])
    assert second.asked[1:] == [b"\x01a2"]
    bench.after(1.1)
    second.end()
    bench.after(5.0)
    third = bench.helpers[-1]
    third.ready()
    third.answer([1])
    assert bench.verdicts == [("g", [0, FAILED, 1])]
    assert "judged one by one" in caplog.text
    assert "with a message of group g, which is delivered" in caplog.text
    bench.judge("g", b"4", b"5")
    assert third.asked[-1] == b"\x01a45"


def test_one_that_needs_too_much_memory_or_dies_is_replaced():
    """Its group waits a moment, longer each time."""
    bench = Bench()
    bench.judge("g", b"1")
    bench.helpers[0].answer([OUT_OF_MEMORY])
    assert "filterMemoryLimit" in bench.helpers[0].killed
    assert bench.verdicts == [("g", [FAILED])]
    bench.helpers[1].ready()
    bench.judge("g", b"2")
    assert bench.helpers[1].asked == []
    bench.after(0.15)
    bench.helpers[1].end()
    assert bench.verdicts[1:] == [("g", [FAILED])]
    bench.helpers[2].ready()
    bench.judge("g", b"3")
    bench.after(0.15)
    assert bench.helpers[2].asked == []
    bench.after(0.1)
    assert bench.helpers[2].asked == [b"\x01a3"]


def test_while_one_group_is_slow_another_gets_a_helper_of_its_own():
    """After a moment. The slow one keeps that which it has, behind all other processes, until nobody needs it any more."""
    bench = Bench()
    bench.judge("slow", b"1")
    bench.judge("other", b"2")
    assert len(bench.helpers) == 1
    bench.after(0.15)
    assert len(bench.helpers) == 2
    bench.helpers[1].ready()
    assert bench.helpers[1].asked == [b"\x01a2"]
    bench.helpers[1].answer([1])
    bench.helpers[0].answer([1])
    assert bench.verdicts == [("other", [1]), ("slow", [1])]
    assert [helper.back for helper in bench.helpers] == [True, False]
    bench.judge("slow", b"3")
    bench.judge("other", b"4")
    assert (bench.helpers[0].asked[1:], bench.helpers[1].asked[1:]) == ([b"\x01a3"], [b"\x01a4"])
    for helper in bench.helpers:
        helper.answer([1])
    bench.after(5.0)
    assert [helper.killed for helper in bench.helpers] == ["", ""]
    bench.after(6.0)
    assert [helper.killed for helper in bench.helpers] == ["it is not needed any more", ""]


def test_helpers_of_slow_groups_are_few():
    """However many are slow, and however they come; those that they wait for are set apart only so long."""
    bench = Bench(filter_time_limit=60_000)
    for number in range(40):
        bench.judge(f"slow{number}", b"x")
        bench.after(0.15)
        for helper in bench.helpers:
            if not helper.asked and not helper.killed:
                helper.ready()
    assert len(bench.helpers) <= 1 + 2 * EXTRA_MAX


class Simulation(Bench):
    """Helpers that take their time, and groups each of which asks again as soon as it has its answer."""

    START_SECONDS = 0.3

    def __init__(self, seconds, **options):
        """Args: seconds: group → time of each of its questions."""
        self.seconds, self.events, self.number, self.answered = seconds, [], itertools.count(), Counter()
        super().__init__(**options)
        for group in seconds:
            self.ask(group)

    def at(self, seconds, do):
        heapq.heappush(self.events, (self.clock.monotonic() + seconds, next(self.number), do))

    def make(self, told):
        simulation = self

        class Busy(Helper):
            def ask(self, question):
                simulation.at(simulation.seconds[question[2:].decode()], lambda: self.killed or self.answer([1]))

            def kill(self, why):
                self.killed = self.killed or why
                simulation.at(0.0, self.end)

        helper = Busy(told)
        self.helpers.append(helper)
        if self.events or self.answered:  # not one of the first, which the bench makes ready
            self.at(self.START_SECONDS, lambda: helper.killed or helper.ready())
        return helper

    def ask(self, group):
        def done(_job):
            self.answered[group] += 1
            self.at(0.001, lambda: self.ask(group))

        self.predicates.judge(group, "a", [memoryview(group.encode())], done)

    def run(self, seconds):
        """Returns the number of answers of each group."""
        end, tick = self.clock.monotonic() + seconds, self.clock.monotonic()
        while (now := min(self.events[0][0], tick)) < end:
            self.clock.advance(now - self.clock.monotonic())
            if now == tick:
                self.predicates.tick()
                tick += 0.1
            else:
                heapq.heappop(self.events)[2]()
        return self.answered


@pytest.mark.parametrize("bad_seconds", [0.015, 0.03, 0.3, 0.9, 5.0])
def test_five_bad_groups_leave_a_good_one_a_third_of_its_rate(bad_seconds):
    """Whether their questions are a little slow, very slow, or never come to an end."""
    alone = Simulation({"good": 0.0015}).run(10)["good"]
    bad = {f"bad{number}": bad_seconds for number in range(5)}
    beside = Simulation({**bad, "good": 0.0015}).run(10)
    # Below the limit of slow ones they share a helper: it may have to wait for one question each time.
    assert beside["good"] > alone * (1 / 3 if bad_seconds > SLOW_SECONDS else 1 / 8)
    assert min(beside.values()) > 0


def test_of_groups_that_are_not_slow_each_gets_its_share_of_the_time():
    """One whose questions take ten times as long is asked a tenth as often, when both always have questions waiting."""
    bench = Bench()
    seconds = {b"long": 0.015, b"brief": 0.0015}
    counts = Counter()
    for _ in range(GROUP_JOBS_MAX):
        bench.judge("long", b"long")
        bench.judge("brief", b"brief")
    for _ in range(200):
        what = bench.helpers[0].asked[-1][2:]
        counts[what] += 1
        bench.clock.advance(seconds[what])
        bench.helpers[0].answer([1])
    assert counts[b"brief"] == pytest.approx(10 * counts[b"long"], rel=0.2)


def test_a_group_that_has_become_quick_again_goes_back_to_the_others():
    """A bad message does not mark it for ever, nor its predicate for groups to come."""
    bench = Bench()
    bench.judge("g", b"1")
    bench.after(0.6)
    bench.helpers[1].ready()
    bench.helpers[0].answer([1])
    for number in range(12):
        bench.judge("g", b"%d" % number)
        bench.clock.advance(0.001)
        bench.busy().answer([1])
    bench.judge("h", b"x")
    assert bench.helpers[1].asked[-1] == b"\x01ax"


def test_a_pull_waits_no_longer_than_its_client_would():
    """It gets what was judged until then; the client asks for the rest again."""
    bench = Bench(filter_time_limit=60_000)
    bench.judge("g", b"1", b"2")
    bench.judge("g", b"3")
    bench.after(JOB_SECONDS + 0.1)
    assert bench.verdicts == []
    bench.helpers[0].end()
    assert bench.verdicts == [("g", [])]
    assert "failed" in bench.done[0].why
    bench.after(0.2)
    assert bench.verdicts[1:] == [("g", [])]


def test_what_a_connection_wanted_is_let_go_when_it_closes():
    """At once, but for the question that a helper has: its answer is of use to nobody, and the others' turn comes."""
    bench = Bench()
    one, other = FakeChannel(), FakeChannel()
    for owner in (one, one, other):
        bench.predicates.judge("g", "a", [memoryview(b"x")], bench.done.append, owner=owner)
    bench.predicates.judge("h", "a", [memoryview(bytes(1000))], bench.done.append, owner=one)
    bench.predicates.closed(one)
    assert bench.predicates._bytes == 2
    assert (one.kept, other.kept) == (1, 1)
    bench.helpers[0].answer([1])
    bench.helpers[0].answer([1])
    assert bench.verdicts == [("g", [1])]
    assert bench.done[0].owner is other
    assert (bench.predicates._bytes, bench.predicates._groups) == (0, {})
    assert (one.kept, other.kept) == (0, 0)


def test_a_helper_that_fails_with_what_nobody_wants_any_more_is_replaced():
    """And the group goes on with what others want."""
    bench = Bench()
    gone = FakeChannel()
    bench.predicates.judge("g", "a", [memoryview(b"x"), memoryview(b"y")], bench.done.append, owner=gone)
    bench.judge("g", b"z")
    bench.predicates.closed(gone)
    bench.helpers[0].end()
    bench.after(1.0)
    bench.helpers[-1].ready()
    while bench.helpers[-1].asked and not bench.done:
        bench.helpers[-1].answer([1])
    assert bench.verdicts == [("g", [1])]


def test_what_waits_is_bounded():
    """By group, and over all by bytes."""
    bench = Bench()
    for _ in range(GROUP_JOBS_MAX):
        bench.judge("g", b"x")
    with pytest.raises(Refused, match="256 pulls of group g") as refused:
        bench.judge("g", b"x")
    assert refused.value.reason is Reason.BUSY
    big = Bench()
    with pytest.raises(Refused, match="bytes of all groups"):
        for number in range(100):
            big.judge(f"g{number}", bytes(1 << 20))


def test_helpers_that_do_not_start_are_tried_again_ever_more_slowly(caplog):
    """Without a process a tick."""
    bench = Bench()
    for helper in bench.helpers:
        helper.end()
    for _ in range(100):
        bench.after(0.1)
        bench.helpers[-1].end("no more processes")
    assert len(bench.helpers) < 15
    assert "a helper process for predicates did not start" in caplog.text


def test_names_and_places_are_checked():
    """Of the option, and of users."""
    assert predicates_of(" large = shop.filters:is_large ; b=m:C.d; ") == {
        "large": "shop.filters:is_large",
        "b": "m:C.d",
    }
    for wrong in ("a", "a=m", "a=m:", "a b=m:f", "a=m:f;a=m:g", "a=os.system('x')"):
        with pytest.raises(ConfigError):
            predicates_of(wrong)
    for name in ("", "a b", "x" * 101, "a;b"):
        with pytest.raises(ConfigError):
            Predicate(name)
    with pytest.raises(TypeError):
        Predicate(5)


def test_a_short_answer_is_a_failure(caplog):
    """Nothing is believed of it."""
    caplog.set_level(logging.ERROR)
    bench = Bench()
    bench.judge("g", b"1", b"2")
    bench.helpers[0].answer([1])
    assert bench.verdicts == []
    assert "fewer messages" in caplog.text
