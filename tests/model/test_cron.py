"""Quartz's cron expressions."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model.cron import parse_cron

BEGIN: Final = datetime.fromisoformat("1970-01-01")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("text", "after", "following"),
    [
        ("0 0 6,18 * * ?", "2026-11-22 05:59:59", "2026-11-22 06:00:00"),
        ("0 0 6,18 * * ?", "2026-11-22 06:00:00", "2026-11-22 18:00:00"),
        ("0 0 6,18 * * ?", "2026-12-31 18:00:00", "2027-01-01 06:00:00"),
        ("0/15 * * * * ?", "2026-11-22 05:59:59.5", "2026-11-22 06:00:00"),
        ("0/15 * * * * ?", "2026-11-22 06:00:00", "2026-11-22 06:00:15"),
        ("*/20 5/10 3-4 * * ?", "2026-11-22 04:55:40", "2026-11-23 03:05:00"),
        ("0 0 22-2/2 * * ?", "2026-11-22 22:00:00", "2026-11-23 00:00:00"),
        ("0 0 22-2/2 * * ?", "2026-11-22 02:00:00", "2026-11-22 22:00:00"),
        ("0 30 4 ? * 1", "2026-11-22 04:30:00", "2026-11-29 04:30:00"),
        ("0 30 4 ? * MON-FRI", "2026-11-27 05:00:00", "2026-11-30 04:30:00"),
        ("0 30 4 ? * fri-mon", "2026-11-24 05:00:00", "2026-11-27 04:30:00"),
        ("0 0 12 L * ?", "2028-02-01 00:00:00", "2028-02-29 12:00:00"),
        ("0 0 12 L-3 * ?", "2026-11-01 00:00:00", "2026-11-27 12:00:00"),
        ("0 0 12 LW * ?", "2026-10-01 00:00:00", "2026-10-30 12:00:00"),
        ("0 0 12 15W * ?", "2026-11-01 00:00:00", "2026-11-16 12:00:00"),
        ("0 0 12 1W * ?", "2026-08-01 00:00:00", "2026-08-03 12:00:00"),
        ("0 0 12 31W * ?", "2026-05-01 00:00:00", "2026-05-29 12:00:00"),
        ("0 0 12 ? * L", "2026-11-22 00:00:00", "2026-11-28 12:00:00"),
        ("0 0 12 ? * 6L", "2026-11-01 00:00:00", "2026-11-27 12:00:00"),
        ("0 0 12 ? * FRI#3", "2026-11-01 00:00:00", "2026-11-20 12:00:00"),
        ("0 0 12 ? * 2#5", "2026-11-22 00:00:00", "2026-11-30 12:00:00"),
        ("0 0 0 29 FEB ?", "2026-01-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 0 1 1 ? 2030-2032", "2026-01-01 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 1,15,L NOV-JAN ?", "2026-11-15 00:00:00", "2026-11-30 00:00:00"),
        ("0 0 0 1,15,L NOV-JAN ?", "2027-01-31 00:00:00", "2027-11-01 00:00:00"),
    ],
)
def test_following_time_is_the_one_that_quartz_would_fire_at(text, after, following):
    """Lists, ranges over the end, steps, names, and the days L, W, # stand for."""
    assert parse_cron(text).following(at(after)) == at(following)


def test_expression_that_is_over_has_no_following_time():
    """A year can be in the past."""
    assert parse_cron("0 0 0 1 1 ? 2020").following(at("2026-01-01 00:00:00")) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 words"),
        ("0 0 6 * *", "5 words"),
        ("0 0 6 * * * * *", "8 words"),
        ("0 0 6 * * *", "write ?"),
        ("0 0 6 ? * ?", "write ?"),
        ("60 0 6 * * ?", "'60' is no second"),
        ("0 0 24 * * ?", "'24' is no hour"),
        ("0 0 6 0 * ?", "'0' is no day of the month"),
        ("0 0 6 * 13 ?", "'13' is no month"),
        ("0 0 6 * FOO ?", "'FOO' is no month"),
        ("0 0 6 ? * 8", "'8' is no day of the week"),
        ("0 0 6 ? * 2#6", "'2#6' is no day of the week"),
        ("0 0/0 6 * * ?", "'0/0' is no minute"),
        ("0 0/99999 6 * * ?", "is no minute"),
        ("0 , 6 * * ?", "'' is no minute"),
        ("0 0 6 * * ? 2100", "'2100' is no year"),
        ("0 0 6 * * ? 2030-2020", "'2030-2020' is no year"),
        ("0 0 6 30 2 ?", "never comes to be due"),
        ("0 0 6 L-31 * ?", "never comes to be due"),
        ("0 0 ٣ * * ?", "is no hour"),
        ("0 " * 101, "characters"),
    ],
)
def test_expression_that_quartz_would_refuse_is_refused_with_the_word(text, why):
    """Also one that is well-formed and never due."""
    with pytest.raises(ConfigError, match=why.replace("?", r"\?")):
        parse_cron(text)


@given(st.integers(0, 59), st.integers(0, 59), st.integers(0, 23), st.datetimes(BEGIN, BEGIN.replace(year=2090)))
def test_daily_time_is_at_most_a_day_ahead_and_exact(second, minute, hour, after):
    """Whatever the moment it is asked at."""
    found = parse_cron(f"{second} {minute} {hour} * * ?").following(after)
    assert found is not None
    assert (found.second, found.minute, found.hour) == (second, minute, hour)
    assert 0 < (found - after).total_seconds() <= 86_400


@given(st.text("0123456789*?,-/LW#ABCDEFMONSTU ", max_size=40))
def test_any_text_is_understood_or_refused(text):
    """Nothing else is raised, and what is understood is due some time."""
    try:
        cron = parse_cron(text)
    except ConfigError:
        return
    assert cron.following(BEGIN) is not None


def test_due_between_two_looks():
    """Behind the first moment, at the second one too."""
    cron = parse_cron("0 0 6 * * ?")
    six = int(at("2026-11-22 06:00:00").timestamp() * 1000)
    assert cron.is_due(six - 1000, six)
    assert not cron.is_due(six, six + 1000)
    assert not cron.is_due(six - 2000, six - 1)
    assert cron.is_due(six - 1000, six + 7 * 86_400_000)
