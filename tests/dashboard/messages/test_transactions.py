"""Transactions that nobody has decided: why, and their end by hand."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import metaq
from metaq.dashboard.pages.undelivered.transactions import _branch_row
from metaq.model.transactions.metaq1 import BranchPhase, BranchState
from tests.dashboard.messages.conftest import HOSTILE, Site, change, values
from tests.support import eventually

pytestmark = pytest.mark.xdist_group("dashboard messages")


@pytest.fixture
def staged(site: Site) -> Iterator[str]:
    """A transaction of two messages, prepared, and left so."""
    with metaq.Producer(site.namesrv) as producer:
        # Not left by its block, which would commit it.
        tx = producer.atomic().__enter__()
        tx.send("payments", b"one")
        tx.send("payments", b"two")
        tx.prepare()
        yield tx.id
        producer.settle(tx.id, commit=False)


def row_of(client: httpx.Client, transaction: str) -> dict[str, object] | None:
    return next((row for row in values(client, "/transactions")["staged"] if row["transaction"] == transaction), None)


def test_nothing_open_is_said_so(client: httpx.Client):
    found = values(client, "/transactions")
    assert (found["halves"], found["end"], found["notes"]) == ([], None, [])
    assert [(one["broker"], one["open"], one["complete"]) for one in found["counts"]] == [("broker-a", 0, True)]


def test_a_half_message_tells_why_it_is_open(site: Site, client: httpx.Client):
    with metaq.TransactionProducer(site.namesrv, group="payers", check=lambda _message: None) as producer:
        tx = producer.transaction("payments", HOSTILE.encode(), keys=["half"]).begin()
        found = eventually(
            lambda: (one := values(client, "/transactions")) and one["halves"] and one["halves"][0]["producers"] and one,
            what="its broker knows the producer",
        )  # fmt: skip
        (row,) = found["halves"]
        assert (row["broker"], row["id"], row["topic"], row["group"], row["producers"]) == (
            "broker-a",
            tx.id,
            "payments",
            "payers",
            1,
        )
        assert "its producers" in row["why"]
        assert found["counts"][0]["open"] == 1
        page = client.get(f"/messages/{row['id']}?topic=RMQ_SYS_TRANS_HALF_TOPIC&place={row['place']}")
        assert (page.status_code, HOSTILE in page.text) == (200, False)
        tx.rollback()
    found = eventually(
        lambda: (one := values(client, "/transactions")) and not one["halves"] and one, what="it has ended"
    )
    assert found["counts"][0]["open"] == 0


def test_one_without_producers_has_nobody_to_ask(site: Site, client: httpx.Client):
    with metaq.TransactionProducer(site.namesrv, group="left", check=lambda _message: None) as producer:
        producer.transaction("payments", b"orphan").begin()
    row = eventually(
        lambda: next(
            (
                one
                for one in values(client, "/transactions")["halves"]
                if (one["group"], one["producers"]) == ("left", 0)
            ),
            None,
        ),
        what="its producer has left",
    )
    assert "nobody to ask" in row["why"]


def test_a_prepared_transaction_is_looked_at_then_committed(staged: str, client: httpx.Client, changing: httpx.Client):
    row = row_of(client, staged)
    assert row is not None
    assert (row["phase"], row["messages"], row["topics"], row["may_commit"]) == ("prepared", 2, ["payments"], True)
    assert "has to decide" in str(row["why"])
    assert 'method="post"' not in client.get(f"/transactions?kind=staged&subject={staged}&outcome=commit").text
    page = f"/transactions?kind=staged&subject={staged}&outcome=commit"
    assert "its messages (2) are delivered to payments" in values(changing, page)["end"]["text"]
    assert f"Transaction {staged} is committed." in change(changing, page, "staged").text
    eventually(lambda: row_of(client, staged) is None, what="all is delivered")
    assert values(changing, page)["end"]["text"] == ""
    assert 'name="change" value="staged"' not in changing.get(page).text


def test_a_prepared_transaction_is_rolled_back(staged: str, client: httpx.Client, changing: httpx.Client):
    page = f"/transactions?kind=staged&subject={staged}&outcome=rollback"
    assert f"Transaction {staged} is rolled back." in change(changing, page, "staged").text
    assert row_of(client, staged) is None


def test_of_a_hostile_subject_nothing_is_ended(client: httpx.Client, changing: httpx.Client):
    page = changing.get("/transactions", params={"kind": "staged", "subject": HOSTILE, "outcome": "commit"})
    assert (page.status_code, HOSTILE in page.text, "cannot be ended so" in page.text) == (200, False, True)
    assert client.get("/transactions?kind=moon").status_code == 400


@pytest.mark.parametrize(
    ("phase", "why", "may_end", "may_forget"),
    [
        (BranchPhase.OPEN, "neither prepared nor ended", False, False),
        (BranchPhase.PREPARED, "its transaction manager has to decide", True, False),
        (BranchPhase.COMMITTED_BY_HAND, "has not heard of it", False, True),
        (BranchPhase.ROLLED_BACK_BY_HAND, "has not heard of it", False, True),
    ],
)
def test_a_branch_tells_who_has_to_decide(phase: BranchPhase, why: str, may_end: bool, may_forget: bool):
    state = BranchState("XID:1:aa:bb:q", phase, "t@broker-a", since_ms=1000)
    row = _branch_row("broker-a", state, 61_000)
    assert (row.kind, why in row.why, row.may_end, row.may_forget) == ("XA", True, may_end, may_forget)
