"""What nobody decides ends by itself; and what is decided leaves nothing behind in memory."""

from __future__ import annotations

from metaq.broker.requests import Decide
from metaq.broker.staged.decisions import EXPIRY_SLACK
from metaq.clock import FakeClock
from metaq.model.transactions.staging import DecisionOutcome, Phase
from tests.broker.staged.support import T, bodies, run_steps, stage, whole_part
from tests.broker.support import open_broker


def test_what_nobody_decides_is_rolled_back_when_its_time_is_up(tmp_path):
    """The broker that staged it does so without a restart in between."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, staged_seconds_max=60) as broker:
        stage(broker, whole_part("p1", "orders", 0, b"a")[0])
        for _ in range(59):
            clock.advance(1)
            broker.tick()
        assert broker.staging.state(T).phase is Phase.OPEN
        clock.advance(2)
        broker.tick()
        run_steps(broker)
        assert broker.staging.state(T).phase is Phase.ROLLED_BACK
        assert bodies(broker) == []


def test_a_clock_that_jumps_ahead_rolls_back_nothing_and_keeps_nothing_for_ever(tmp_path):
    """A year ahead for two seconds, in which a second transaction is staged."""
    clock = FakeClock()
    other = T.replace("1", "2", 1) if "1" in T else f"x{T}"
    with open_broker(tmp_path, clock, staged_seconds_max=60) as broker:
        stage(broker, whole_part("p1", "orders", 0, b"a")[0])
        now = clock.now_ms()
        clock.set_wall(now + 365 * 86_400_000)
        stage(broker, whole_part("p1", "orders", 0, b"b")[0], transaction=other)
        clock.advance(2)
        broker.tick()
        clock.set_wall(now + 2000)
        for _ in range(50):
            clock.advance(1)
            broker.tick()
        assert {broker.staging.state(name).phase for name in (T, other)} == {Phase.OPEN}
        clock.advance(20)
        broker.tick()
        run_steps(broker)
        assert {broker.staging.state(name).phase for name in (T, other)} == {Phase.ROLLED_BACK}


def test_transactions_that_are_over_do_not_stay_in_memory_until_they_would_expire(tmp_path):
    """A thousand a second over a day would be eighty million."""
    with open_broker(tmp_path, FakeClock()) as broker:
        chunk, part = whole_part("p1", "orders", 0, b"a")
        for number in range(2 * EXPIRY_SLACK):
            name = f"{number}@broker-a"
            stage(
                broker,
                chunk,
                transaction=name,
                decide=Decide(transaction=name, outcome=DecisionOutcome.COMMIT, parts=(part,)),
            )
            if number % 50 == 0:
                broker.tick()
        assert len(broker.staging._ends._expiry) <= EXPIRY_SLACK + 100
        assert len(bodies(broker)) == 2 * EXPIRY_SLACK
