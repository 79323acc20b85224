"""What is folded, and what comes out: sums are right however it is cut into batches, samples and runs."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import StoreCorrupt
from metaq.model.queue import MessageQueue
from metaq.pipelines.metrics import following
from metaq.pipelines.metrics.counting import BEGUN, FOLLOWED, FOLLOWED_TYPE, READ, STORED, TOLD, TOLD_TYPE
from metaq.pipelines.metrics.following import Known
from metaq.pipelines.metrics.histogram import Histogram
from metaq.pipelines.metrics.rules import parse_rules
from metaq.pipelines.metrics.sizes import MARKS_MAX, Sizes
from metaq.pipelines.metrics.state import (
    BrokerSample,
    ClusterSample,
    GroupSample,
    Limits,
    MetricsState,
    Saved,
    decode,
    encode,
)
from metaq.pipelines.metrics.windows import MetricSeries, MetricWindow, window_start

W = 1000
BEGAN = 100 * W
TRACE = "traces"
LIMITS = Limits(window_ms=W, grace_ms=500, follow_ms=60_000, trace_topic=TRACE)
ORDERS = MetricSeries("messages", "orders", broker="a")
QUEUES = [MessageQueue("orders", "a", number) for number in range(2)]


def state(rules="", limits=LIMITS) -> MetricsState:
    return MetricsState(Saved(query="q", window_ms=W, began_ms=BEGAN), limits, parse_rules(rules), Known())


def restarted(one: MetricsState, rules="") -> MetricsState:
    """As after kill -9: what was saved, and nothing else."""
    chunks = {name: rows.copy() for name, rows in one.known.chunks.items()}
    return MetricsState(decode(encode(one.saved(None, []))), LIMITS, parse_rules(rules), Known(chunks.items()))


def stored(queue: MessageQueue, start_offset: int, store_ms: list[int], size=100) -> list[dict]:
    """What a worker tells of messages that were born 5 ms before they were stored."""
    windows = Counter(window_start(ms, W) for ms in store_ms)
    rows = [
        {
            "kind": STORED,
            "start_ms": start,
            "messages": count,
            "bytes": count * size,
            "data": Histogram([5] * count).encode(),
        }
        for start, count in windows.items()
    ]
    end = start_offset + len(store_ms)
    rows.append(
        {"kind": READ, "queue_id": queue.queue_id, "start_offset": start_offset, "end_offset": end,
         "bytes": size * len(store_ms), "newest_ms": max(store_ms, default=0)}
    )  # fmt: skip
    return [{"topic": queue.topic, "broker": queue.broker, "grp": None, **row} for row in rows]


@given(st.integers(0, 1 << 60), st.integers(1, 10**9))
def test_each_moment_is_in_one_window(moment, length):
    """Which begins at a whole multiple of its length."""
    start = window_start(moment, length)
    assert start % length == 0
    assert start <= moment < start + length


@given(
    st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 5 * W), max_size=6).map(sorted)), max_size=12),
    st.sets(st.integers(0, 12)),
    st.sets(st.integers(0, 12)),
)
def test_no_message_is_lost_or_counted_twice(batches, kills, samples):
    """Whatever is late, whenever it is sampled, and wherever the run is killed: windows that came out and those still open
    hold each message once."""
    one, ends, out = state(), [0, 0], Counter()
    for number, (queue_id, store_ms) in enumerate(batches):
        one.fold_rows(stored(QUEUES[queue_id], ends[queue_id], [BEGAN + ms for ms in store_ms]))
        ends[queue_id] += len(store_ms)
        if number in samples:
            one.fold_sample(ClusterSample(BEGAN + number * W, dict(zip(QUEUES, ends, strict=True))))
        for closed in one.close()[0]:
            assert closed.window.spreads["born_stored"].count == closed.window.sums["messages"]
            out[closed.start_ms] += closed.window.sums["messages"]
        if number in kills:
            one = restarted(one)
    for left in one.saved(None, []).open:
        out[left.start_ms] += left.window.sums["messages"]
    assert out == Counter(window_start(BEGAN + ms, W) for _, store_ms in batches for ms in store_ms)


def test_a_window_is_over_when_all_its_queues_are_read_behind_it():
    """One queue far ahead closes nothing; one that is empty at its end does not hold the others up."""
    one = state()
    one.fold_rows(stored(QUEUES[0], 0, [BEGAN, BEGAN + 9 * W]))
    assert one.close() == ([], [])  # Nobody has looked which queues there are.
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 5, QUEUES[1]: 3}))
    assert one.close() == ([], [])  # The other has messages that were not read.
    one.fold_rows(stored(QUEUES[1], 0, [BEGAN + 1, BEGAN + 2, BEGAN + 3]))
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 5, QUEUES[1]: 3}))
    (closed,), _ = one.close()
    assert (closed.series, closed.start_ms, closed.window.sums, closed.late) == (
        ORDERS, BEGAN, {"messages": 4, "bytes": 400}, False,
    )  # fmt: skip
    one.fold_rows(stored(QUEUES[1], 3, [BEGAN + 4]))  # By a clock that stepped back.
    (late,), _ = one.close()
    assert (late.start_ms, late.window.sums["messages"], late.late) == (BEGAN, 1, True)


def told(times: dict[int, tuple[int, int, bool]], group="billing") -> dict:
    """Trace records by their messages' keys: time, cost, failed."""
    rows = np.array([(key, *one) for key, one in times.items()], TOLD_TYPE)
    return {"kind": TOLD, "topic": TRACE, "broker": "b", "grp": group, "data": rows.tobytes()}


def followed(keys, store_ms, broker="a") -> dict:
    rows = np.array([(key, store_ms - 7, store_ms) for key in keys], FOLLOWED_TYPE)
    return {"kind": FOLLOWED, "topic": "orders", "broker": broker, "grp": None, "data": rows.tobytes()}


@pytest.mark.parametrize("first", ["message", "trace"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_trace_finds_its_message_in_whatever_order_they_are_read(first, killed):
    """Also over a restart. The window is that of the delivery, the broker that of the message."""
    one = state()
    message, trace = followed([1, 2], BEGAN), told({1: (BEGAN + 30, BEGUN, False), 9: (BEGAN + 30, BEGUN, False)})
    for row in [message, trace] if first == "message" else [trace, message]:
        one.fold_rows([row])
        if killed:
            one = restarted(one)
    one.fold_rows([told({2: (BEGAN + W, 40, True)})])
    found = {left.start_ms: left.window for left in one.saved(None, []).open}
    assert set(found) == {BEGAN, BEGAN + W}
    assert found[BEGAN].sums == {"deliveries": 1, "failed": 0}
    assert (found[BEGAN].spreads["stored_consumed"].total, found[BEGAN].spreads["born_consumed"].total) == (30, 37)
    assert (found[BEGAN + W].sums, found[BEGAN + W].spreads["handling"].total) == ({"deliveries": 0, "failed": 1}, 40)


@given(st.lists(st.sets(st.integers(0, 300), max_size=20), max_size=40), st.sets(st.integers(0, 300)))
def test_what_is_known_is_found_whatever_the_chunks(parts, wanted):
    """And nothing else, also after chunks were joined."""
    known = Known()
    for number, keys in enumerate(parts):
        rows = np.array([(key, 0, 1000 + number, 0) for key in keys], following.KNOWN_TYPE)
        known.add(str(number), rows)
    matched, left = known.match(np.array([(key, 0, 0, False) for key in sorted(wanted)], TOLD_TYPE))
    there = set().union(*parts)
    assert sorted(matched.told["key"].tolist()) == sorted(wanted & there)
    assert (matched.told["key"] == matched.known["key"]).all()
    assert sorted(left["key"].tolist()) == sorted(wanted - there)
    assert len(known.chunks) <= following.CHUNKS_MAX


def test_what_is_followed_has_limits(monkeypatch):
    """The oldest go, and how many went too early is said; of the traces that wait the largest group gives way."""
    monkeypatch.setattr(following, "KNOWN_MAX", 10)
    monkeypatch.setattr(following, "WAITING_MAX", 5)
    known = Known()
    for number in range(4):
        known.add(
            str(number), np.array([(number * 10 + i, 0, number * 1000, 0) for i in range(4)], following.KNOWN_TYPE)
        )
    assert known.expire(1000) == 4
    assert list(known.chunks) == ["2", "3"]
    waiting = {
        "large": np.array([(i, 50 + i, 0, False) for i in range(9)], TOLD_TYPE),
        "small": np.array([(i, 10 * i, 0, False) for i in range(3)], TOLD_TYPE),
    }
    kept, given_up = following.limited(waiting, 10)
    assert kept["small"]["time_ms"].tolist() == [10, 20]
    assert kept["large"]["time_ms"].tolist() == [56, 57, 58]
    assert given_up == 7


def sample(second: float, *, lag=0, age=0.0, position=10, puts=0, started=1) -> ClusterSample:
    return ClusterSample(
        BEGAN + int(second * W),
        dict.fromkeys(QUEUES, 0),
        [GroupSample("orders", "billing", "a", {0: position}, lag, age)],
        [BrokerSample("a", started, {"put_messages": puts, "put_bytes": puts * 10, "got_messages": 0})],
    )


def test_samples_become_levels_and_differences():
    """A counter that began anew with its broker counts from nothing; a group that was set back has consumed nothing."""
    one = state()
    for found in (
        sample(0.2, lag=5, age=3.5, position=10, puts=100),
        sample(0.9, lag=2, age=1.5, position=14, puts=130),
        sample(1.0, lag=3, position=15, puts=140),  # The end of a window is in it.
        sample(1.5, position=2, puts=7, started=2),
        sample(2.2, position=4, puts=8, started=2),
    ):
        one.fold_sample(found)
    closed = {(one.series.metric, one.start_ms): one.window for one in one.close()[0]}
    first, second = closed["groups", BEGAN], closed["groups", BEGAN + W]
    assert (first.sums, first.last, first.most) == (
        {"consumed": 5, "consumed_bytes": 0},
        {"lag_messages": 3, "lag_seconds": 0.0},
        {"lag_messages": 5, "lag_seconds": 3.5},
    )
    assert second.sums == {"consumed": 0, "consumed_bytes": 0}
    assert closed["brokers", BEGAN].sums == {"put_messages": 40, "put_bytes": 400, "got_messages": 0}
    assert closed["brokers", BEGAN + W].sums == {"put_messages": 7, "put_bytes": 70, "got_messages": 0}
    assert ("groups", BEGAN + 2 * W) not in closed


@pytest.mark.parametrize("killed", [False, True])
def test_bytes_that_a_group_has_consumed_are_counted_once(killed):
    """Also of messages that it had before they were read here; not those before the pipeline's beginning."""
    one, seen = state(), []

    def at(second: float, position: int) -> None:
        nonlocal one
        one.fold_sample(sample(second, position=position))
        seen.append(sum(left.window.sums.get("consumed_bytes", 0) for left in one.saved(None, []).open))
        one = restarted(one) if killed else one

    at(0.1, 2)
    one.fold_rows(stored(QUEUES[0], 4, [BEGAN] * 4, size=10))  # [4, 8)
    at(0.2, 6)  # Of 2 to 4 nothing is known.
    at(0.3, 11)
    one.fold_rows(stored(QUEUES[0], 8, [BEGAN] * 2, size=1000))  # [8, 10)
    at(0.4, 11)
    one.fold_rows(stored(QUEUES[0], 10, [BEGAN] * 4, size=7))  # [10, 14)
    at(0.5, 11)
    at(0.6, 5)  # It is set back, and consumes again.
    at(0.7, 14)
    assert seen == [0, 20, 40, 2040, 2047, 2047, 2047 + 30 + 2000 + 28]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 100)), max_size=400), st.data())
def test_sizes_are_exact_where_slices_meet(slices, data):
    """Whatever was skipped between them, and however many there are: sums of all parts are the whole."""
    sizes, at, total = Sizes(), 0, 0
    for skipped, count, size in slices:
        start = at + skipped
        sizes.read(start, start + count, count * size)
        at, total = start + count, total + count * size
    if sizes.known:
        ends = sizes.known.start, sizes.known.stop
        assert (sizes.up_to(ends[0]), sizes.up_to(ends[1])) == (0, total)
        cuts = sorted(data.draw(st.lists(st.integers(*ends), max_size=9)))
        parts = [sizes.up_to(high) - sizes.up_to(low) for low, high in itertools.pairwise([ends[0], *cuts, ends[1]])]
        assert sum(parts) == total
        assert min(parts) >= 0
        assert len(sizes.offsets) <= MARKS_MAX


@pytest.mark.parametrize("killed", [False, True])
def test_an_alert_begins_once_and_ends_once(killed):
    """After as many windows as the rule says, and over a restart."""
    rules = "lag_seconds{group=billing} > 60 for 2"
    one, seen = state(rules), []
    for second, lag in enumerate([70, 70, 80, 90, 10, 99, 99], 1):
        one.fold_sample(sample(second, lag=1, age=float(lag)))
        seen += [
            (alert.state, (alert.since_ms - BEGAN) // W, (alert.window_ms - BEGAN) // W) for alert in one.close()[1]
        ]
        if killed:
            one = restarted(one, rules)
    assert seen == [("begin", 0, 1), ("end", 0, 4), ("begin", 5, 6)]


def test_windows_without_a_message_count_for_rules():
    """A topic that nobody sends to is seen, from the moment on at which the pipeline began; and not before."""
    one = state("messages_per_second{topic=orders} < 1 for 3")
    one.fold_rows(stored(QUEUES[0], 0, [5, 50 * W, BEGAN + 10]))
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 3, QUEUES[1]: 0}))
    closed, (alert,) = one.close()
    assert len(closed) == 3
    assert (alert.state, alert.since_ms, alert.window_ms, alert.value) == ("begin", BEGAN + W, BEGAN + 3 * W, 0.0)
    assert one.close() == ([], [])


def test_an_alert_whose_rule_is_taken_away_ends():
    """Once."""
    one = state("lag_seconds > 60")
    one.fold_sample(sample(1, age=99.0))
    assert [alert.state for alert in one.close()[1]] == ["begin"]
    one = restarted(one, "lag_messages > 60")
    assert [(alert.state, alert.value) for alert in one.close()[1]] == [("end", None)]
    assert one.close()[1] == []


def test_mails_wait_until_they_are_delivered():
    """Each way by itself, and over a restart."""
    one = state("lag_seconds > 60")
    one.fold_sample(sample(1, age=99.0))
    assert one.post(one.close()[1], ["topic", "command"]) == 0
    one = restarted(one, "lag_seconds > 60")
    first, second = one.mails
    one.delivered([first])
    assert [mail.to for mail in restarted(one).mails] == ["command"]
    assert second.alert.group == "billing"


def test_a_state_that_is_no_state_is_refused():
    """With what it is."""
    with pytest.raises(StoreCorrupt, match="state of the metrics"):
        decode(b"\x93\x01")


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.lists(st.integers(0, 1 << 30), max_size=5)), max_size=6), st.integers(0, 6)
)
def test_windows_that_are_merged_are_those_of_all(parts, cut):
    """In two halves or one by one."""

    def window(some):
        found = MetricWindow()
        for level, values in some:
            one = MetricWindow()
            one.count("messages", len(values))
            one.level("lag_seconds", level)
            one.spread("born_stored").add(np.array(values, np.int64))
            found.merge(one)
        return found

    left = window(parts[:cut])
    left.merge(window(parts[cut:]))
    assert left == window(parts)


# ------------------------------------------------------------------ clocks that jump
CENTURY = 36_525 * 86_400 * W
RULE = "messages_per_second{topic=orders} < 1 for 3"


@pytest.mark.parametrize("killed", [False, True])
def test_a_broker_s_clock_that_was_ahead_closes_nothing_and_is_told(killed):
    """A message of the next century waits in its window; those behind it are counted in time, and the rules go on."""
    one = state(RULE)
    ends = {QUEUES[0]: 2, QUEUES[1]: 0}
    one.fold_sample(ClusterSample(BEGAN, {QUEUES[0]: 0, QUEUES[1]: 0}))
    one.fold_rows(stored(QUEUES[0], 0, [BEGAN + CENTURY, BEGAN + 10]))
    assert one.ahead == {QUEUES[0]: BEGAN + CENTURY}
    assert one.close() == ([], [])
    one.fold_sample(ClusterSample(BEGAN + 2 * W, ends))
    (closed,), alerts = one.close()
    assert (closed.start_ms, closed.late, alerts) == (BEGAN, False, [])
    if killed:
        one = restarted(one, RULE)
    one.fold_rows(stored(QUEUES[0], 2, [BEGAN + 2 * W]))
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 3, QUEUES[1]: 0}))
    (closed,), (alert,) = one.close()
    assert (closed.start_ms, closed.late) == (BEGAN + 2 * W, False)
    assert (alert.state, alert.since_ms) == ("begin", BEGAN + 3 * W)
    assert [left.start_ms for left in one.saved(None, []).open] == [BEGAN + CENTURY]


def test_a_broker_whose_clock_is_right_again_holds_its_windows_open_as_before():
    """Its queue counts by what was stored last, not by what a wrong clock said once."""
    one = state()
    one.fold_sample(ClusterSample(BEGAN, {QUEUES[0]: 0}))
    one.fold_rows(stored(QUEUES[0], 0, [BEGAN + CENTURY]))
    one.fold_rows(stored(QUEUES[0], 1, [BEGAN + 10]))
    assert one.ahead == {}
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 5}))  # Three more are there, and not read.
    assert one.close() == ([], [])
    one.fold_rows(stored(QUEUES[0], 2, [BEGAN + 20, BEGAN + 30, BEGAN + 8 * W]))
    (closed,), _ = one.close()
    assert (closed.start_ms, closed.window.sums["messages"], closed.late) == (BEGAN, 3, False)


@pytest.mark.parametrize("killed", [False, True])
def test_a_driver_s_clock_that_was_ahead_ends_no_rule_for_ever(killed):
    """A century ahead for one sample: what was open is published; from the step back on windows close and rules hold."""
    one, rows = state(RULE), []
    one.fold_sample(ClusterSample(BEGAN, {QUEUES[0]: 0}))
    one.fold_rows(stored(QUEUES[0], 0, [BEGAN + 10]))
    one.fold_sample(ClusterSample(BEGAN + CENTURY, {QUEUES[0]: 1}))
    closed, _ = one.close()
    rows += closed
    if killed:
        one = restarted(one, RULE)
    one.fold_sample(ClusterSample(BEGAN + W, {QUEUES[0]: 1}))
    assert one.set_back_ms == pytest.approx(CENTURY, abs=2 * W)
    one.set_back_ms = 0
    rows += one.close()[0]
    one.fold_rows(stored(QUEUES[0], 1, [BEGAN + 3 * W, BEGAN + 4 * W]))
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 3}))
    closed, alerts = one.close()
    assert [(row.start_ms, row.late) for row in closed] == [(BEGAN + 3 * W, False), (BEGAN + 4 * W, False)]
    assert [alert.state for alert in alerts] == ["end", "begin"]
    assert sum(row.window.sums["messages"] for row in rows + closed) == 3
    assert one.set_back_ms == 0


def test_a_pipeline_that_began_in_the_next_century_has_rules_when_the_clock_is_right():
    one = MetricsState(Saved(query="q", window_ms=W, began_ms=BEGAN + CENTURY), LIMITS, parse_rules(RULE), Known())
    one.fold_sample(ClusterSample(BEGAN, {QUEUES[0]: 0}))
    one.close()
    one.fold_sample(ClusterSample(BEGAN + 9 * W, {QUEUES[0]: 0}))
    assert [alert.state for alert in one.close()[1]] == ["begin"]


def test_traces_that_do_not_decode_are_counted_over_a_restart():
    one = state()
    row = {"kind": READ, "topic": TRACE, "broker": "b", "grp": None, "queue_id": 0, "start_offset": 0, "end_offset": 3,
           "bytes": 0, "newest_ms": BEGAN, "messages": 3}  # fmt: skip
    one.fold_rows([row])
    assert one.unreadable == 3
    assert restarted(one).unreadable == 3
