"""A group moved, with a look at it first; and test messages sent."""

from __future__ import annotations

import httpx
import pytest

import metaq
from tests.dashboard.messages.conftest import HOSTILE, Site, change, is_text_only, values
from tests.support import eventually

pytestmark = pytest.mark.xdist_group("dashboard messages")


@pytest.fixture(scope="module")
def mover(site: Site) -> str:
    """A group that has read 20 messages of 120, and that nobody is in any more."""
    with metaq.Consumer(site.namesrv, group="mover", topics="orders", start="earliest") as consumer:
        for _, message in zip(range(20), consumer, strict=False):
            with message:
                pass
    return "/groups/mover"


def test_a_move_is_looked_at_then_done(mover: str, client: httpx.Client, changing: httpx.Client):
    waiting = eventually(
        lambda: (found := values(client, mover)) and not found["members"] and found["lag"], what="the member has left"
    )
    found = values(client, f"{mover}/reset")
    assert (found["topics"], found["preview"]) == (["orders"], None)
    page = f"{mover}/reset?topic=orders&to=latest"
    preview = values(client, page)["preview"]
    assert (preview["skipped"], preview["repeated"], preview["online"]) == (waiting, 0, False)
    assert [(row["queue"], row["offset"]) for row in preview["rows"]] == [(0, 60), (1, 60)]
    assert 'method="post"' not in client.get(page).text
    assert "Nobody is in the group" in client.get(page).text
    told = change(changing, page, "reset").text
    assert f"behind the last message: {waiting} messages are skipped, 0 come again" in told
    assert values(client, mover)["lag"] == 0
    back = values(client, f"{mover}/reset?topic=orders&to=time&time=2020-01-01T00:00:00")["preview"]
    assert (back["skipped"], back["repeated"], back["time_ms"]) == (0, 120, 1577836800000)
    assert (
        "0 messages are skipped, 120 come again"
        in change(changing, f"{mover}/reset?topic=orders&to=earliest", "reset").text
    )


def test_a_move_that_makes_no_sense_says_why(mover: str, client: httpx.Client):
    assert "a time is such as" in values(client, f"{mover}/reset?topic=orders&to=time&time=soon")["problem"]
    assert "say where" in values(client, f"{mover}/reset?topic=orders&to=time")["problem"]
    assert "no progress in topic payments" in values(client, f"{mover}/reset?topic=payments&to=latest")["problem"]
    assert client.get("/groups/nobody/reset").status_code == 404
    assert client.get(f"{mover}/reset?to=moon").status_code == 400


def test_a_message_is_sent_and_the_page_shows_where_it_went(client: httpx.Client, changing: httpx.Client):
    assert 'method="post"' not in client.get("/send?topic=payments").text
    page = change(
        changing,
        "/send?topic=payments",
        "send",
        queue="broker-a:1",
        tag="x",
        keys="a b",
        properties="colour=red\n",
        body=f"{HOSTILE}\r\n",
    )
    assert "SEND_OK" in page.text
    assert is_text_only(page.text)
    found = values(changing, str(page.url))
    assert (found["topic"], found["queue"], found["tag"], found["keys"], found["properties"]) == (
        "payments", 1, "x", ["a", "b"], {"colour": "red"},
    )  # fmt: skip
    assert found["body"]["text"] == f"{HOSTILE}\n"
    page = change(changing, "/send?topic=payments", "send", body="00 ff", **{"as": "hex"})
    assert values(changing, str(page.url))["body"]["text"].startswith("00000000  00 ff")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": ""}, "name the topic"),
        ({"topic": "mistyped"}, "mistyped"),
        ({"tag": "a|b"}, "the tag"),
        ({"delay": "99"}, "delay_level"),
        ({"delay": "soon"}, "a whole number"),
        ({"properties": "KEYS=1"}, "reserved"),
        ({"queue": "broker-a:9"}, "cannot be written to"),
        ({"as": "hex", "body": "0"}, "not hexadecimal"),
        ({"body": "x" * (5 << 20)}, "limit"),
    ],
)
def test_what_cannot_be_sent_is_told(changing: httpx.Client, fields: dict[str, str], why: str):
    page = change(changing, "/send?topic=payments", "send", **fields)
    assert 'class="notice bad" role="alert"' in page.text
    assert why in page.text
    assert "no topic mistyped" in changing.get("/topics/mistyped").text


def test_a_delayed_message_waits_at_its_level(site: Site, client: httpx.Client, changing: httpx.Client):
    page = change(changing, "/send?topic=payments", "send", delay="18", body="later")
    assert "waits at delay level 18" in page.text
    found = values(client, "/delays")
    (row,) = found["rows"]
    assert (row["broker"], row["level"], row["seconds"], row["waiting"], row["late_seconds"]) == (
        "broker-a",
        18,
        7200,
        1,
        0,
    )
    assert 7000 < row["due_in_seconds"] <= 7200
    assert (found["waiting"], found["next_ms"]) == (1, row["due_ms"])
    (waits,) = values(client, "/messages?topic=SCHEDULE_TOPIC_XXXX&queue=broker-a:17&offset=0")["rows"]
    assert waits["body"] == "later"
    assert "/messages?topic=SCHEDULE_TOPIC_XXXX&amp;queue=broker-a%3A17&amp;offset=0" in client.get("/delays").text
