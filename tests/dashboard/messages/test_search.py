"""Search for messages: by id, key, time, queue; its pages; a message's own page and its body."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import metaq
from metaq.dashboard.bodies import SHOWN_MAX
from metaq.dashboard.pages.messages.rows import linked
from tests.dashboard.messages.conftest import HOSTILE, Site, is_text_only, values
from tests.support import eventually

pytestmark = pytest.mark.xdist_group("dashboard messages")


def link(row: dict[str, str]) -> str:
    return linked(row["id"], row["topic"], row["place"])


def ids(found: dict[str, object]) -> list[str]:
    return [row["id"] for row in found["rows"]]  # type: ignore[index,attr-defined]


def test_without_a_topic_it_says_what_to_do(client: httpx.Client):
    assert values(client, "/messages")["asked"] is False
    assert "name the topic" in values(client, "/messages", key="k1")["problem"]
    assert "no broker has a message" in values(client, "/messages", id="nothing")["problem"]
    assert values(client, "/messages", topic="nowhere")["problem"]


def test_newest_messages_of_a_topic_page_by_page(client: httpx.Client):
    """All of them, each once, though many were stored in one millisecond."""
    seen, params, pages = list[int](), {}, 0
    while True:
        found = values(client, "/messages", topic="orders", rows=25, **params)
        seen += [(row["broker"], row["queue"], row["offset"]) for row in found["rows"]]
        pages += 1
        if found["older"] is None:
            break
        params = found["older"]
    assert (len(seen), len(set(seen)), pages) == (120, 120, 5)
    assert [row["stored_ms"] for row in values(client, "/messages", topic="orders")["rows"]] == sorted(
        (row["stored_ms"] for row in values(client, "/messages", topic="orders")["rows"]), reverse=True
    )


def test_by_key_id_and_time(client: httpx.Client):
    (row,) = values(client, "/messages", topic="orders", key="k17")["rows"]
    assert (row["tag"], row["keys"], row["body"]) == ("paid", "k17 all", '{"id": 17, "note": "ok"}')
    assert len(values(client, "/messages", topic="orders", key="all", rows=200)["rows"]) == 120
    assert ids(values(client, "/messages", topic="orders", id=row["id"])) == [row["id"]]
    whole = values(client, link(row))
    assert ids(values(client, "/messages", id=whole["offset_id"])) == [row["id"]]
    assert values(client, "/messages", topic="orders", end="2020-01-01T00:00:00")["rows"] == []
    assert len(values(client, "/messages", topic="orders", start="2020-01-01", rows=200)["rows"]) == 120
    assert "a time is such as" in values(client, "/messages", topic="orders", start="yesterday")["problem"]


def test_a_queue_from_an_offset_on(client: httpx.Client):
    found = values(client, "/messages", topic="orders", queue="broker-a:1", offset="10", rows=5)
    assert [row["offset"] for row in found["rows"]] == [10, 11, 12, 13, 14]
    assert (found["low"], found["high"], found["newer"], found["older"]) == (0, 60, {"offset": "15"}, {"offset": "5"})
    assert found["queues"] == ["broker-a:0", "broker-a:1"]
    newest = values(client, "/messages", topic="orders", queue="broker-a:1", rows=5)
    assert ([row["offset"] for row in newest["rows"]], newest["newer"]) == ([55, 56, 57, 58, 59], None)
    assert "has no queue" in values(client, "/messages", topic="orders", queue="broker-a:9")["problem"]
    assert "no queue" in values(client, "/messages", topic="orders", queue="zero")["problem"]
    assert values(client, "/messages", topic="orders", queue="broker-a:1", offset="9999")["rows"] == []


def consumed(client: httpx.Client, path: str, group: str) -> dict[str, Any] | None:
    """The values of a message's page, once a group has consumed it."""
    found = values(client, path)
    states = {one["group"]: one["state"] for one in found["tracks"] or ()}
    return found if states.get(group) == "CONSUMED" else None


def test_a_message_tells_all_that_is_known(site: Site, client: httpx.Client):
    with metaq.Consumer(site.namesrv, group="readers", topics="orders", start="earliest") as consumer:
        for _, message in zip(range(120), consumer, strict=False):
            with message:
                pass
        (row,) = values(client, "/messages", topic="orders", key="k17")["rows"]
        found = eventually(lambda: consumed(client, link(row), "readers"), what="the group has consumed it")
    assert (found["topic"], found["tag"], found["keys"], found["place"]) == (
        "orders",
        "paid",
        ["k17", "all"],
        row["place"],
    )
    assert found["system"]["KEYS"] == "k17 all"
    assert found["body"] == {
        "kind": "json", "text": '{\n  "id": 17,\n  "note": "ok"\n}', "size": 24, "shown": 24, "note": "", "kinds": ["json", "text", "hex"],
    }  # fmt: skip
    traced = eventually(
        lambda: [one["what"] for one in values(client, link(row))["trace"]["events"]] or None, what="it is traced"
    )
    assert {"sent", "stored"} <= set(traced)
    page = client.get(link(row)).text
    assert '<svg class="timeline"' in page
    assert "<caption" in page[page.index("Trace") :]
    assert client.get(f"/messages/{row['id']}?topic=orders&place=broker-a:0:999").status_code == 404
    wrong = client.get(f"/messages/OTHER?topic=orders&place={row['place']}")
    assert (wrong.status_code, "is not OTHER" in wrong.text) == (404, True)
    assert client.get(f"/messages/{row['id']}?topic=orders&place=nowhere").status_code == 400


def test_a_long_body_is_cut_and_can_be_had_as_a_file(site: Site, client: httpx.Client):
    body = b"<b>" + b"x" * (SHOWN_MAX + 10)
    with metaq.Producer(site.namesrv) as producer:
        receipt = producer.send("payments", body, keys="long")
    path = f"/messages/{receipt.message_id}"
    found = values(client, path, topic="payments")
    assert (found["body"]["kind"], found["body"]["size"], found["body"]["shown"]) == ("text", len(body), SHOWN_MAX)
    answer = client.get(path, params={"topic": "payments", "format": "file"})
    assert answer.content == body
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{receipt.message_id}.body"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/messages/none", params={"topic": "payments", "format": "file"}).status_code == 404
    assert client.get("/topics", params={"format": "file"}).headers["content-type"].startswith("text/html")


def test_hostile_names_keys_and_bodies_are_text(site: Site, client: httpx.Client):
    key = HOSTILE.replace(" ", "")
    with metaq.Producer(site.namesrv) as producer:
        receipt = producer.send(
            "payments",
            HOSTILE.encode(),
            tag="<i>tag",
            keys=[key],
            properties={"<u>name": HOSTILE, "x": "\u202egnp.exe"},
        )
    page = client.get(f"/messages/{receipt.message_id}", params={"topic": "payments"}).text
    assert is_text_only(page)
    assert "<i>tag" not in page
    assert "<u>name" not in page
    listed = client.get("/messages", params={"topic": "payments", "key": key}).text
    assert is_text_only(listed)
    for name in ("topic", "id", "key", "start", "queue", "offset"):
        assert "<script>alert" not in client.get("/messages", params={"topic": "orders", name: HOSTILE}).text


def test_an_open_page_of_messages_is_not_loaded_again(client: httpx.Client):
    """A search would be repeated for ever, for each who has left it open."""
    assert "data-live" not in client.get("/messages?topic=orders").text
    assert client.get("/live", params={"of": "/messages?topic=orders"}).status_code == 404
