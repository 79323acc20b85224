"""Limits of a quota: read from text and back, and the more special over the more general."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model.quota import CAMEL, VALUE_MAX, QuotaKind, QuotaLimits, check_subject, parse_limits

LIMITS = st.builds(QuotaLimits, **{name: st.none() | st.integers(0, VALUE_MAX) for name in CAMEL})


@given(LIMITS)
def test_the_text_of_limits_reads_back(limits: QuotaLimits) -> None:
    assert parse_limits(str(limits), QuotaKind.ADDRESS) == limits


@given(LIMITS, LIMITS)
def test_a_limit_of_its_own_counts_and_where_there_is_none_the_general_one(
    own: QuotaLimits, general: QuotaLimits
) -> None:
    merged = own.over(general)
    for name in CAMEL:
        mine = getattr(own, name)
        assert getattr(merged, name) == (getattr(general, name) if mine is None else mine)


@pytest.mark.parametrize(
    ("text", "value"), [("10K", 10240), ("10 M", 10 << 20), ("1GiB", 1 << 30), ("2KB", 2048), ("0", 0)]
)
def test_units(text: str, value: int) -> None:
    assert parse_limits(f" bytesInPerSecond = {text} ,", QuotaKind.CLIENT).bytes_in_per_second == value


@pytest.mark.parametrize(
    "text", ["bytesInPerSecond", "bytesInPerSecond=", "bytesInPerSecond=1.5M", "bytesInPerSecond=10X", "=5"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_limits(text, QuotaKind.CLIENT)


@pytest.mark.parametrize(("kind", "name"), [("clients", "a"), ("client", ""), ("client", "a" * 256), ("client", "a\n")])
def test_what_is_no_subject_is_refused(kind: str, name: str) -> None:
    with pytest.raises(ConfigError):
        check_subject(kind, name)
