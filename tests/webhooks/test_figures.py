"""Figures that a member tells, which may be anybody's."""

from __future__ import annotations

import pytest

from metaq.webhooks.answers import Answer, Verdict
from metaq.webhooks.figures import WebhookFigures, of_properties
from metaq.webhooks.outage import Fate

ONE = WebhookFigures(name="billing", url="https://a.example/")


def test_there_and_back():
    ONE.count(Answer(Verdict.DELIVERED, "", 200), Fate.DONE, 3, 0.25, 1_700_000_000_000)
    ONE.count(Answer(Verdict.FAILED, "status 500", 500), Fate.RETRY, 2, 0.5, 1_700_000_001_000)
    ONE.count(Answer(Verdict.UNREACHABLE, "nobody"), Fate.HOLD, 1, 0.5, 1_700_000_002_000)
    again = of_properties({**ONE.told(), "consumerGroup": "x"})
    assert again == ONE
    assert (again.attempts, again.messages, again.retries, again.seconds) == (3, 3, 2, 1.25)
    assert (again.last_success, again.last_failure, again.last_text) == (1_700_000_000_000, 1_700_000_002_000, "nobody")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempts", "many"),
        ("attempts", "-1"),
        ("attempts", "9" * 5000),
        ("last_success", str(10**15)),
        ("seconds", "inf"),
        ("seconds", "nan"),
        ("seconds", ""),
    ],
)
def test_what_is_none(name, value):
    assert of_properties({**ONE.told(), f"webhook.{name}": value}) is None
    assert of_properties({}) is None


def test_texts_do_nothing_to_a_terminal():
    assert (
        of_properties({**ONE.told(), "webhook.last_text": "\x1b[2J a\nb", "webhook.state": "\x07"}).last_text
        == "[2J a b"
    )
