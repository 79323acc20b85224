"""Dead letters of a group: listed, edited, sent again alone or many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import metaq
from tests.dashboard.messages.conftest import HOSTILE, Site, change, is_text_only, token_of, values
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard messages")]

GROUP = "billing"
BODIES = [b'{"amount": "%d"}' % number for number in range(6)] + [HOSTILE.encode(), b"\x00\xff"]


@pytest.fixture(scope="module")
def letters(site: Site) -> Iterator[None]:
    """Dead letters of a group that nobody is in any more."""
    with metaq.Producer(site.namesrv) as producer:
        for body in BODIES:
            producer.send("dead-ends", body, tag="paid", keys="k", properties={"colour": "red"})
    with metaq.Consumer(site.namesrv, group=GROUP, topics="dead-ends", start="earliest") as consumer:
        left = len(BODIES)

        def handle(_message: metaq.ReceivedMessage) -> metaq.Reject:
            nonlocal left
            left -= 1
            if not left:
                consumer.stop()
            return metaq.Reject()

        consumer.run(handle)
    yield


def kept(client: httpx.Client, topic: str) -> list[dict[str, Any]]:
    return values(client, "/messages", topic=topic, rows=200)["rows"]


def link(row: dict[str, Any]) -> str:
    message = row["message"]
    return f"/dead-letters/{GROUP}/{message['id']}?place={message['place']}"


def letter_with(client: httpx.Client, body: bytes) -> dict[str, Any]:
    rows = values(client, f"/dead-letters/{GROUP}")["rows"]
    return next(
        row
        for row in rows
        if row["message"]["size"] == len(body) and (body[:1] != b"{" or body.decode() in row["message"]["body"])
    )


def test_they_are_listed_with_where_they_come_from(letters: None, client: httpx.Client):
    found = values(client, f"/dead-letters/{GROUP}")
    assert (found["total"], len(found["rows"])) == (len(BODIES), len(BODIES))
    assert {row["origin"] for row in found["rows"]} == {"dead-ends"}
    first = values(client, f"/dead-letters/{GROUP}", rows=3)
    assert len(values(client, f"/dead-letters/{GROUP}", rows=10, **first["older"])["rows"]) == len(BODIES) - 3
    assert values(client, f"/dead-letters/{GROUP}", end="2020-01-01")["rows"] == []
    assert values(client, "/dead-letters/nobody")["total"] is None
    row = eventually(
        lambda: next(iter(values(client, "/dead-letters")["rows"]["rows"]), None), what="the sampler knows of them"
    )
    assert (row["group"], row["stored"]) == (GROUP, len(BODIES))


def test_a_hostile_letter_is_text_also_in_its_form(letters: None, client: httpx.Client, changing: httpx.Client):
    row = letter_with(client, HOSTILE.encode())
    for page in (client.get(link(row)).text, changing.get(link(row)).text):
        assert is_text_only(page)
    assert is_text_only(client.get(f"/dead-letters/{GROUP}").text)
    form = changing.get(link(row)).text
    assert "</textarea><script>" not in form


def test_without_allow_changes_there_is_no_form(letters: None, client: httpx.Client):
    row = letter_with(client, BODIES[0])
    assert 'method="post"' not in client.get(link(row)).text
    assert 'method="post"' not in client.get(f"/dead-letters/{GROUP}").text


def test_one_is_edited_and_sent_to_its_topic(letters: None, changing: httpx.Client):
    row = letter_with(changing, BODIES[0])
    found = values(changing, link(row))
    assert found["stopped"] == [GROUP]
    assert found["copy"] == {"text": '{"amount": "0"}', "tag": "paid", "keys": "k", "properties": "colour=red"}
    page = change(
        changing,
        link(row),
        "resend",
        to="topic",
        body='{"amount":\r\n0}',
        keys="k mended",
        properties="colour=blue\nstate=mended",
    )
    assert "Sent again to dead-ends" in page.text
    new = values(changing, str(page.url))
    assert (new["topic"], new["tag"], new["keys"], new["body"]["text"]) == (
        "dead-ends", "paid", ["k", "mended"], '{\n  "amount": 0\n}',
    )  # fmt: skip
    assert new["body"]["size"] == len('{"amount":\n0}')
    marks = {name: new["properties"].pop(name) for name in ("REDRIVE_ID", "REDRIVEN_FROM", "REDRIVES")}
    assert new["properties"] == {"colour": "blue", "state": "mended"}
    assert marks["REDRIVE_ID"] == found["offset_id"]
    assert (marks["REDRIVEN_FROM"].split("/")[:2], marks["REDRIVES"]) == ([f"%DLQ%{GROUP}", "broker-a"], "1")
    assert values(changing, f"/dead-letters/{GROUP}")["total"] == len(BODIES)


def test_one_that_is_no_text_goes_to_its_group_alone_as_it_is(letters: None, site: Site, changing: httpx.Client):
    row = letter_with(changing, BODIES[-1])
    assert values(changing, link(row))["copy"]["text"] is None
    before = len(kept(changing, "dead-ends"))
    page = change(changing, link(row), "resend", to="group")
    assert f"Sent again to %RETRY%{GROUP}" in page.text
    assert len(kept(changing, "dead-ends")) == before
    subscribed = metaq.Consumer(site.namesrv, group=GROUP, topics={"dead-ends": "nothing"})
    with subscribed as consumer, next(iter(consumer)) as message:
        assert (message.topic, message.body, message.tag) == ("dead-ends", BODIES[-1], "paid")
        assert message.properties["REDRIVE_ID"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"to": "moon"}, "say where"),
        ({"to": "topic", "tag": "a|b"}, "the tag"),
        ({"to": "topic", "properties": "KEYS=x"}, "reserved"),
        ({"to": "topic", "properties": "nothing"}, "is no property"),
        ({"to": "topic", "sent_id": "0"}, "another dead letter"),
        ({"to": "topic", "place": "broker-a:0:99"}, "no message at offset"),
    ],
)
def test_what_cannot_be_sent_is_told_and_nothing_is(
    letters: None, changing: httpx.Client, fields: dict[str, str], why: str
):
    before = len(kept(changing, "dead-ends"))
    page = change(changing, link(letter_with(changing, BODIES[1])), "resend", **fields)
    assert why in page.text
    assert 'class="notice bad"' in page.text
    assert len(kept(changing, "dead-ends")) == before


def test_many_are_sent_again_within_a_bound_and_progress_is_shown(letters: None, changing: httpx.Client):
    path = f"/dead-letters/{GROUP}"
    before = len(kept(changing, "dead-ends"))
    for count in ("0", "1001", "many", ""):
        assert 'class="notice bad"' in change(changing, path, "resend", count=count, to="topic").text
    assert "It has begun" in change(changing, path, "resend", count="5", to="topic").text
    job = eventually(lambda: (one := values(changing, path)["job"]) and one["over"] and one, what="they are sent")
    assert (job["total"], job["done"], job["failed"], job["error"], job["stopped"]) == (5, 5, 0, "", False)
    assert len(kept(changing, "dead-ends")) == before + 5
    assert "nothing of the kind" in _stopped(changing, path)


def _stopped(client: httpx.Client, path: str) -> str:
    """Send the form that stops, of which the page has none any more."""
    answer = client.post(
        path,
        data={"token": token_of(client, path), "change": "stop"},
        headers={"origin": str(client.base_url).rstrip("/")},
    )
    return client.get(answer.headers["location"]).text
