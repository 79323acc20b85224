"""What seeds decide: the same again, and everybody is killed who is to be."""

from __future__ import annotations

from tests.spark.proof.plan import BROKER, COUNTS, DRIVERS, EDGES, MESSAGES, SEEDS_OF_CI, WORKERS, plan_of


def test_a_seed_decides_everything():
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)
    assert plan_of(5).messages == MESSAGES


def test_each_seed_kills_drivers_workers_and_brokers():
    for seed in range(200):
        plan = plan_of(seed)
        victims = [victim for strike in plan.strikes for victim in strike.victims]
        for kind in (DRIVERS, WORKERS, (BROKER,)):
            assert sum(victim in kind for victim in victims) >= 2, plan
        assert all(
            0 < strike.part < 0.95 and strike.count in COUNTS and strike.edge in EDGES for strike in plan.strikes
        )
        assert plan.archive_batch * 6 <= plan.messages, plan


def test_the_seeds_of_ci_come_to_every_way_and_edge():
    """Between them every kind of victim, count and edge, and both ways of every choice."""
    plans = [plan_of(seed) for seed in SEEDS_OF_CI]
    strikes = [strike for plan in plans for strike in plan.strikes]
    assert {victim for strike in strikes for victim in strike.victims} == {*DRIVERS, *WORKERS, BROKER}
    assert {strike.count for strike in strikes} == set(COUNTS)
    assert {strike.edge for strike in strikes} == set(EDGES)
    assert {plan.ordered for plan in plans} == {bool(plan.compact_files) for plan in plans} == {True, False}
    assert any(len(strike.victims) > 1 for strike in strikes)
    assert any(strike.at_start for strike in strikes)
