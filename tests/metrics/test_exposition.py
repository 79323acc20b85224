"""The text of metrics: both formats read back by prometheus_client's parsers, whatever the labels are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from metaq.histogram import SIZES, Histogram, Measured
from metaq.in_pieces import finish
from metaq.metrics import table
from metaq.metrics.exposition import PREFIX, page, wants_open_metrics
from metaq.metrics.metric import Kind, Sample

HOSTILE = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.sampled_from(
        ['"', "\\", "\\n", "\n", '\\"', '"} 1\nmetaq_leads 7', "# EOF", '{a="b"}', "\u2028", "\r\n", "\x00", "(others)", ",", "'"]
    ),
)  # fmt: skip


def read(samples, *, open_metrics):
    told = finish(page(samples, open_metrics=open_metrics))
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in (read_open_metrics if open_metrics else read_text)(told.body.decode())
        for one in family.samples
    }


@given(st.sets(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=8), st.booleans(), st.integers(0, 2**52))
def test_hostile_labels_come_back_as_they_are_and_make_no_line_of_their_own(pairs, open_metrics, value):
    samples = [Sample(table.MESSAGES_GOT, value + number, pair) for number, pair in enumerate(pairs)]
    samples.append(Sample(table.LEADS, 1))
    found = read(samples, open_metrics=open_metrics)
    wanted = {
        (f"{PREFIX}messages_got_total", (("group", group), ("topic", topic))): value + number
        for number, (topic, group) in enumerate(pairs)
    }
    assert found == {**wanted, (f"{PREFIX}leads", ()): 1.0}


@pytest.mark.parametrize("open_metrics", [False, True])
def test_each_kind(open_metrics):
    measured = Measured((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        measured.add(seconds)
    found = read(
        [
            Sample(table.PUT_SECONDS, measured.value()),
            Sample(table.BUILD, {"version": "1", "python": "3", "code": 'na"tive'}),
            Sample(table.HELD_PULLS, 3),
            Sample(table.PULLS, 4, ("hit",)),
        ],
        open_metrics=open_metrics,
    )
    assert found == {
        ("metaq_put_seconds_bucket", (("le", "0.1"),)): 2,
        ("metaq_put_seconds_bucket", (("le", "1.0"),)): 3,
        ("metaq_put_seconds_bucket", (("le", "+Inf"),)): 4,
        ("metaq_put_seconds_count", ()): 4,
        ("metaq_put_seconds_sum", ()): pytest.approx(7.65),
        ("metaq_build_info", (("code", 'na"tive'), ("python", "3"), ("version", "1"))): 1,
        ("metaq_held_pulls", ()): 3,
        ("metaq_pulls_total", (("outcome", "hit"),)): 4,
    }


@given(st.lists(st.floats(-1e3, 1e9), max_size=50), st.sampled_from([(1.0,), SIZES]))
def test_a_histogram_counts_each_value_once_and_never_below_zero(values, bounds):
    measured = Measured(bounds)
    for value in values:
        measured.add(value)
    told: Histogram = measured.value()
    assert sum(told.counts) == measured.count == len(values)
    assert math.isclose(told.sum, sum(max(0.0, value) for value in values), rel_tol=1e-9)
    for place, bound in enumerate(told.bounds):
        assert sum(told.counts[: place + 1]) == sum(1 for value in values if value <= bound)


def test_samples_of_one_metric_may_come_apart():
    found = read(
        [Sample(table.PULLS, 1, ("hit",)), Sample(table.LEADS, 1), Sample(table.PULLS, 2, ("miss",))], open_metrics=True
    )
    assert found[("metaq_pulls_total", (("outcome", "miss"),))] == 2


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("text/plain", False),
        ("application/openmetrics-text; version=1.0.0,text/plain;q=0.5", True),
        ("*/*", False),
        ("text/plain;q=0.5, application/openmetrics-text", True),
        ("application/openmetrics-textual", False),
    ],
)
def test_the_format_that_is_asked_for(accept, wanted):
    assert wants_open_metrics(accept) is wanted


def test_names_in_the_table():
    assert len({metric.name for metric in table.ALL}) == len(table.ALL)
    for metric in table.ALL:
        assert metric.help.endswith("."), metric
        assert not metric.unit or metric.name.endswith(metric.unit), metric
        assert metric.of, metric
        assert metric.kind is not Kind.COUNTER or not metric.name.endswith("total"), metric
