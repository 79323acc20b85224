"""Histories: what is not known is a gap, and memory is bounded whatever the cluster has."""

from __future__ import annotations

from metaq.dashboard.sampling.series import POINTS, Histories, Series


def test_a_history_has_the_last_looks_the_newest_last():
    series = Series()
    for number in range(POINTS + 10):
        series.add(number)
    assert series.points() == [float(number) for number in range(10, POINTS + 10)]


def test_what_is_not_known_is_a_gap_and_nothing_is_before_the_first():
    series = Series()
    for value in (None, 1.0, None, 2.0):
        series.add(value)
    assert series.points() == [1.0, None, 2.0]


def test_names_that_are_gone_leave_after_a_quarter_of_an_hour():
    histories = Histories()
    histories.add([("a", 1.0), ("b", 1.0)])
    for _ in range(POINTS):
        histories.add([("a", 1.0)])
    assert histories.of("b") == []
    assert len(histories) == 2
    histories.add([("a", 1.0)])
    assert len(histories) == 1


def test_of_many_names_the_busy_ones_have_a_history():
    histories = Histories(most=4)
    idle = [(f"idle-{number}", 0.0) for number in range(10)]
    histories.add([*idle[:4], ("x", 0.0)])
    for _ in range(3):
        histories.add([*idle, ("busy", 9.0), ("busier", 10.0)])
    assert len(histories) <= 4
    assert histories.of("busy")[-1] == 9.0
    assert histories.of("busier")[-1] == 10.0
    for number in range(100):
        histories.add([(f"new-{number}-{other}", 5.0) for other in range(10)])
    assert len(histories) <= 4
