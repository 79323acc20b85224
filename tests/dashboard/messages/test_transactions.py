"""Transactions that nobody has decided: why, and their end by hand."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import metaq
from tests.dashboard.messages.conftest import Site, values

pytestmark = pytest.mark.xdist_group("dashboard messages")


@pytest.fixture
def half(site: Site) -> Iterator[str]:
    """A half message whose producer does not know how it ends."""
    with metaq.TransactionProducer(site.namesrv, group="payers", check=lambda _message: None) as producer:
        transaction = producer.begin("payments", b"half") if hasattr(producer, "begin") else None
        yield str(transaction)


def test_nothing_open_is_said_so(client: httpx.Client):
    found = values(client, "/transactions")
    assert (found["staged"], found["halves"], found["end"]) == ([], [], None)
    assert [(one["broker"], one["open"], one["complete"]) for one in found["counts"]] == [("broker-a", 0, True)]
