"""Pauses, retries and sizes of the fetches of one partition, as Java's client has them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.metaq1 import MAX_OFFSET, NEVER_SKIP, ConsumerConfig
from metaq.metaq1.consuming.fetching import FetchRules, PartitionFetch
from tests.effort import repeats

RULES = FetchRules.of(ConsumerConfig("g", max_delay_fetch_time=2.0), 1 << 21)


def fetch(rules: FetchRules = RULES, **values: int) -> PartitionFetch:
    return PartitionFetch(rules, values.get("offset", 0), -1, values.get("max_bytes", 1024))


def rounded(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]


def test_an_idle_partition_is_asked_more_and_more_rarely() -> None:
    """As recorded of Java's client: 200, 400 … up to 2000 ms."""
    one = fetch()
    delays = []
    for _ in range(12):
        one.nothing()
        delays.append(one.delay)
    assert rounded(delays) == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.0, 2.0]


def test_a_failing_message_is_delivered_seven_times_behind_a_good_one() -> None:
    """As recorded: fetched again after 0, 200 … 1200 ms, and rejected at the eighth fetch."""
    one = fetch()
    one.consumed(25, 7, acknowledged=True)  # the good one; the next has failed
    delays, deliveries = [one.delay], 1
    while not one.must_skip:
        one.refused()
        delays.append(one.delay)
        deliveries += 1
    assert rounded(delays) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    assert deliveries == 7


def test_a_failing_message_at_the_front_is_delivered_one_time_less() -> None:
    for retries in (0, 1, 5):
        one = fetch(FetchRules.of(ConsumerConfig("g", max_fetch_retries=retries), 1 << 21))
        deliveries = 0
        while not one.must_skip:
            one.refused()
            deliveries += 1
        assert deliveries == retries + 1


def test_the_largest_number_of_retries_never_skips() -> None:
    one = fetch(FetchRules.of(ConsumerConfig("g", max_fetch_retries=NEVER_SKIP), 1 << 21))
    one.retries = NEVER_SKIP + 1
    assert not one.must_skip


def test_a_skipped_message_begins_anew() -> None:
    one = fetch()
    for _ in range(6):
        one.refused()
    assert one.must_skip
    one.consumed(50, 9, acknowledged=True)
    assert (one.delay, one.retries, one.must_skip, one.acknowledged, one.message_id) == (0.0, 0, False, 50, 9)


def test_fetches_grow_for_a_large_message_and_shrink_behind_it() -> None:
    """Doubled at each fetch after `max_increase_fetch_data_retries`; the message is not counted as failed, unlike in Java."""
    one = fetch(max_bytes=1024)
    sizes = []
    for _ in range(8):
        one.incomplete()
        sizes.append(one.max_bytes)
    assert sizes == [1024] * 5 + [2048, 4096, 8192]
    assert not one.must_skip
    one.got(5000)
    assert one.max_bytes == 8192
    one.got(100)
    one.got(100)
    assert one.max_bytes == 2048
    for _ in range(5):
        one.got(0)
    assert one.max_bytes == 1024


def test_fetches_stop_growing() -> None:
    one = fetch(FetchRules.of(ConsumerConfig("g", max_increase_fetch_data_retries=0), 3000), max_bytes=1024)
    for _ in range(5):
        one.incomplete()
    assert one.max_bytes == 3000
    larger = fetch(FetchRules.of(ConsumerConfig("g", max_increase_fetch_data_retries=0), 3000), max_bytes=4000)
    larger.incomplete()
    assert larger.max_bytes == 4000


def test_a_server_that_says_where_to_go_on_is_believed() -> None:
    one = fetch(offset=70)
    for _ in range(3):
        one.refused()
    one.moved(30)
    assert (one.position, one.acknowledged, one.retries) == (30, 30, 0)
    assert one.delay > 0
    assert one.is_changed


def test_the_end_is_saved_once_it_is_known() -> None:
    one = fetch(offset=MAX_OFFSET)
    one.moved(500)
    one.consumed(520, 3, acknowledged=True)
    assert one.acknowledged == 520


def test_an_open_batch_is_not_saved() -> None:
    one = PartitionFetch(RULES, 100, 1, 1024, saved=100)
    one.consumed(150, 2, acknowledged=False)
    assert (one.position, one.acknowledged, one.is_changed) == (150, 100, False)
    one.rolled_back()
    assert (one.position, one.retries) == (100, 1)
    one.consumed(180, 4, acknowledged=True)
    assert (one.acknowledged, one.message_id, one.is_changed) == (180, 4, True)


def test_a_restart_repeats_and_loses_nothing_that_is_acknowledged() -> None:
    one = fetch(offset=100)
    one.restart(0, damaged_at=100)
    assert (one.position, one.acknowledged, one.restarted_at) == (0, 100, 100)
    one.consumed(60, 1, acknowledged=True)
    assert (one.position, one.acknowledged) == (60, 100)
    one.consumed(130, 2, acknowledged=True)
    assert one.acknowledged == 130


def test_a_stored_position_that_gives_nothing_is_doubted_once_the_pauses_are_longest() -> None:
    """Not one that nobody has stored, and not one at which the server had something."""
    doubted = []
    for offset, saved, then in [
        (100, 100, None),
        (100, None, None),
        (0, 0, None),
        (100, 100, lambda one: one.got(10)),
        (100, 100, lambda one: one.moved(90)),
        (100, 100, lambda one: one.restart(90, 100)),
    ]:
        one = PartitionFetch(RULES, offset, -1, 1024, saved)
        assert not one.may_be_beyond
        if then is not None:
            then(one)
        for _ in range(12):
            one.nothing()
        doubted.append(one.may_be_beyond)
    assert doubted == [True, False, False, False, False, False]


EVENTS = st.sampled_from(["nothing", "failed", "incomplete", "refused", "rolled_back", "consumed", "open", "got"])


@settings(max_examples=repeats(200))
@given(st.lists(EVENTS, max_size=60))
def test_pauses_are_bounded_and_nothing_moves_back(events: list[str]) -> None:
    one = fetch(offset=10)
    acknowledged = 10
    for number, event in enumerate(events):
        if event in {"consumed", "open"}:
            one.consumed(one.position + 20, number, acknowledged=event == "consumed")
            assert one.delay == 0
            assert not one.must_skip
        elif event == "got":
            one.got(number)
        else:
            getattr(one, event)()
            assert 0 < one.delay <= 2.0
        assert one.acknowledged >= acknowledged
        assert one.position >= one.acknowledged
        acknowledged = one.acknowledged
        assert 1024 <= one.max_bytes <= 1 << 21
