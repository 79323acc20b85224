"""Spreads of latencies, as a mergeable histogram. The oracle is a sorted list."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import StoreCorrupt
from metaq.pipelines.metrics.histogram import VALUE_MAX, Histogram, bounds

VALUES = st.lists(st.integers(0, VALUE_MAX) | st.integers(0, 500), max_size=60)


@given(VALUES.filter(bool), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_within_a_64th_of_the_true_one(values, percent):
    """By the nearest-rank definition, at every size."""
    true = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
    found = Histogram(values).percentile(percent)
    assert abs(found - true) <= true / 64


@given(VALUES, VALUES, VALUES)
def test_merging_is_counting_together_in_any_order(a, b, c):
    """Merged parts are byte for byte the histogram of all values."""
    left, right = Histogram(a), Histogram(c)
    left.merge(Histogram(b))
    left.merge(Histogram(c))
    right.merge(Histogram(a))
    right.merge(Histogram(b))
    whole = Histogram([*a, *b, *c])
    assert left.encode() == right.encode() == whole.encode()
    assert (whole.count, whole.total) == (len(a + b + c), sum(a + b + c))


@given(VALUES)
def test_what_is_encoded_comes_back(values):
    """And can be added to as before."""
    histogram = Histogram.decode(Histogram(values).encode())
    assert histogram == Histogram(values)
    histogram.add(np.array([7]))
    assert histogram == Histogram([*values, 7])


def test_every_bucket_begins_where_the_one_before_ends():
    """No value is without a bucket, and each is at most a 64th of its values wide."""
    end = -1
    for index in range(64 * 35):
        low, high = bounds(index)
        assert low == end + 1
        assert high - low <= low / 64
        end = high
    assert end >= VALUE_MAX


def test_nothing_has_no_percentile_and_a_wild_clock_does_no_harm():
    """A birth after the store time is 0; what no clock could mean is the largest value."""
    assert (Histogram().percentile(50), Histogram().mean) == (None, None)
    wild = Histogram([-5, 1 << 62])
    assert (wild.low, wild.high, wild.percentile(50)) == (0, VALUE_MAX, 0)
    assert wild.percentile(100) > VALUE_MAX * 0.98


@pytest.mark.parametrize("data", [b"", b"\0" * 20, Histogram([1, 2]).encode()[:-1]])
def test_other_bytes_are_refused(data):
    """With their number."""
    with pytest.raises(StoreCorrupt, match=f"{len(data)} bytes"):
        Histogram.decode(data)
