"""Groups that are posted to a target that fails in every way, against a running broker."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
import standardwebhooks

from metaq.admin import Admin
from metaq.testing import EmbeddedBroker
from metaq.webhooks.figures import of_properties
from metaq.webhooks.webhook import TargetGone
from tests.support import eventually
from tests.webhooks.receiver import OK, Receiver, status
from tests.webhooks.running import Group, running
from tests.webhooks.test_signing import OTHER, TEXT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("webhooks.broker")]
SOON = " ".join(["1s"] * 18)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(options={"messageDelayLevel": SOON, "enablePropertyFilter": "true"}) as one:
        yield one


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


_names = itertools.count()


@pytest.fixture
def group(broker):
    return Group(broker.namesrv, f"hooked-{next(_names)}")


def bodies(count, start=0):
    return [b"%06d" % number for number in range(start, start + count)]


def test_every_message_is_posted_signed_and_acknowledged_by_the_groups_offset(group, receiver, tmp_path):
    (tmp_path / "new").write_text(OTHER)
    (tmp_path / "old").write_text(TEXT)
    secrets = [str(tmp_path / "new"), str(tmp_path / "old")]
    group.send(*bodies(50), tag="paid", keys=["k1"], properties={"shop": "8"})
    with running(group.namesrv, group.name, receiver.url, secretFiles=secrets) as one:
        group.consumed()
        assert sorted(receiver.bodies) == bodies(50)
        assert one.figures.messages == one.figures.attempts == 50
        assert (one.figures.failed, one.figures.retries, one.figures.failures_in_row) == (0, 0, 0)
    posted = receiver.posted[0]
    for secret in (TEXT, OTHER):
        standardwebhooks.Webhook(secret).verify(posted.body, posted.fields, json_parse=False)
    assert posted.fields["webhook-id"] == posted.fields["metaq-message-id"]
    assert (posted.fields["metaq-tag"], posted.fields["metaq-keys"], posted.fields["metaq-property-shop"]) == (
        "paid",
        "k1",
        "8",
    )
    assert posted.fields["user-agent"].startswith("metaq-webhook/")


@pytest.mark.parametrize(
    ("wanted", "found"), [({"tags": "a || c"}, [b"1", b"3"]), ({"filter": "size > 15"}, [b"2", b"3"])]
)
def test_only_what_is_wanted_is_posted(group, receiver, wanted, found):
    group.send(b"1", tag="a", properties={"size": "10"})
    group.send(b"2", tag="b", properties={"size": "20"})
    group.send(b"3", tag="c", properties={"size": "30"})
    with running(group.namesrv, group.name, receiver.url, **wanted):
        group.consumed()
    assert sorted(receiver.bodies) == found


def test_a_message_that_fails_comes_again_under_the_same_id_and_is_a_dead_letter_in_the_end(group, receiver):
    async def answers(posted, writer):
        await (status(500) if posted.body == b"bad" else OK)(posted, writer)

    receiver.answers = answers
    group.send(b"good", b"bad", *bodies(20))
    with running(group.namesrv, group.name, receiver.url, retries=2):
        eventually(lambda: group.dead == [b"bad"], what="the dead letter")
        group.consumed()
    tries = [one for one in receiver.posted if one.body == b"bad"]
    assert [one.fields["metaq-reconsume-times"] for one in tries] == ["0", "1", "2"]
    assert len({one.fields["webhook-id"] for one in tries}) == 1
    assert {one.fields["metaq-topic"] for one in tries} == {group.name}
    assert len(receiver.posted) == 3 + 21


def test_an_outage_spends_no_retry_and_makes_no_dead_letter(group, receiver):
    receiver.shut()
    group.send(*bodies(300))
    with running(group.namesrv, group.name, receiver.url, retries=0) as one:
        eventually(lambda: one.figures.unreachable >= 12, what="probes")  # 8 at once at most, and then one by one
        assert one.figures.state == "paused"
        assert one.figures.last_text == f"no connection to {receiver.url}: Connection refused"
        assert one.figures.retries == 0
        assert group.lag() == 300
        receiver.open()
        group.consumed()
        assert one.figures.state == "runs"
        assert (one.figures.pauses, one.figures.failures_in_row, one.figures.paused_until) == (1, 0, 0)
    assert sorted(receiver.bodies) == bodies(300)
    assert {one.fields["metaq-reconsume-times"] for one in receiver.posted} == {"0"}
    assert group.retries == group.dead == []


def test_a_target_that_fails_every_message_costs_as_many_retries_as_make_a_pause(group, receiver):
    """And each probe that it refuses: a message that a working target does not want holds up nobody."""
    receiver.answers = status(503)
    group.send(*bodies(200))
    with running(group.namesrv, group.name, receiver.url, pauseFailures=3, concurrency=1, retries=50) as one:
        eventually(lambda: one.figures.attempts >= 10, what="probes")
        assert one.figures.retries <= 4
        assert one.figures.state == "paused"
        receiver.answers = OK
        group.consumed()
        eventually(lambda: set(receiver.bodies) == set(bodies(200)) and group.lag() == 0)
    assert group.dead == []


def test_retry_after_pauses_and_spends_no_retry(group, receiver):
    receiver.answers = status(429, retry_after="1")
    group.send(*bodies(20))
    with running(group.namesrv, group.name, receiver.url, retries=0, concurrency=1) as one:
        eventually(lambda: one.figures.busy == 2, what="the probe")
        receiver.answers = OK
        group.consumed()
        assert one.figures.retries == 0
    first, second = receiver.posted[:2]
    assert second.when - first.when >= 1.0
    assert group.dead == []


def test_a_retry_after_of_a_year_is_cut(group, receiver):
    receiver.answers = status(503, retry_after=str(365 * 86_400))
    group.send(b"one")
    with running(group.namesrv, group.name, receiver.url, retryAfterMostSeconds=0.2) as one:
        eventually(lambda: one.figures.busy >= 3, what="probes")
        receiver.answers = OK
        group.consumed()


def test_gone_stops_and_keeps_the_place(group, receiver):
    receiver.answers = status(410)
    group.send(*bodies(30))
    with running(group.namesrv, group.name, receiver.url, concurrency=2) as one:
        eventually(one.ended.is_set, what="its end")
        assert isinstance(one.error, TargetGone)
        assert "410 Gone" in str(one.error)
        assert len(receiver.posted) <= 2
    assert group.lag() == 30
    assert group.retries == group.dead == []
    receiver.answers = OK
    with running(group.namesrv, group.name, receiver.url):
        group.consumed()
    assert set(receiver.bodies) == set(bodies(30))


def test_ordered(group, receiver):
    """One at a time of each queue, in its order, also when one fails now and then."""
    under_way: dict[str, int] = {}
    failed = set()

    async def answers(posted, writer):
        queue = posted.fields["metaq-queue"]
        assert not under_way.get(queue)
        under_way[queue] = 1
        await asyncio.sleep(0.001)
        under_way[queue] = 0
        if posted.body.endswith(b"7") and posted.body not in failed:
            failed.add(posted.body)
            await status(500)(posted, writer)
        else:
            await OK(posted, writer)

    receiver.answers = answers
    group.send(*bodies(40))
    with running(group.namesrv, group.name, receiver.url, ordered=True, concurrency=8, pauseFailures=100):
        group.consumed()
    assert len(failed) == 4
    by_queue: dict[str, list[int]] = {}
    for posted in receiver.posted:
        by_queue.setdefault(posted.fields["metaq-queue"], []).append(int(posted.fields["metaq-offset"]))
    for offsets in by_queue.values():
        assert offsets == sorted(offsets)
    assert set(receiver.bodies) == set(bodies(40))
    assert len(receiver.bodies) == 44
    assert receiver.at_once <= 4


def test_ordered_in_an_outage(group, receiver):
    receiver.shut()
    group.send(*bodies(40))
    with running(group.namesrv, group.name, receiver.url, ordered=True) as one:
        eventually(lambda: one.figures.unreachable >= 8, what="probes")
        receiver.open()
        group.consumed()
    for queue in range(4):
        offsets = [
            int(one.fields["metaq-offset"]) for one in receiver.posted if one.fields["metaq-queue"] == str(queue)
        ]
        assert offsets == list(range(len(offsets)))
    assert sorted(receiver.bodies) == bodies(40)


def test_no_more_requests_at_a_time_than_wanted(group, receiver):
    async def slowly(posted, writer):
        await asyncio.sleep(0.005)
        await OK(posted, writer)

    receiver.answers = slowly
    group.send(*bodies(60))
    with running(group.namesrv, group.name, receiver.url, concurrency=3):
        group.consumed()
    assert receiver.at_once == 3
    assert receiver.connections <= 3


def test_several_messages_in_a_request(group, receiver):
    group.send(*bodies(100))
    with running(group.namesrv, group.name, receiver.url, format="json", batch=16, concurrency=2) as one:
        group.consumed()
        assert one.figures.messages == 100
    found = [message["body"].encode() for body in receiver.bodies for message in json.loads(body)]
    assert sorted(found) == bodies(100)
    assert len(receiver.bodies) < 50
    assert max(len(json.loads(body)) for body in receiver.bodies) <= 16


def test_what_is_under_way_is_finished_at_the_end_and_the_rest_stays(group, receiver):
    gate = asyncio.Event()

    async def answers(posted, writer):
        await gate.wait()
        await OK(posted, writer)

    receiver.answers = answers
    group.send(*bodies(50))
    with running(group.namesrv, group.name, receiver.url, concurrency=4) as one:
        eventually(lambda: len(receiver.posted) == 4, what="requests")
        one._loop.call_soon_threadsafe(one.webhook.stop)
        receiver._loop.call_soon_threadsafe(gate.set)
        eventually(one.ended.is_set, what="its end")
    assert len(receiver.posted) == 4
    assert group.lag() >= 46
    receiver.answers = OK
    with running(group.namesrv, group.name, receiver.url):
        group.consumed()
    assert set(receiver.bodies) == set(bodies(50))


def test_it_ends_while_it_pauses(group, receiver):
    receiver.shut()
    group.send(*bodies(50))
    with running(group.namesrv, group.name, receiver.url, pauseLeastSeconds=1000, pauseMostSeconds=1000) as one:
        eventually(lambda: one.figures.state == "paused", what="the pause")
    assert one.error is None
    assert group.lag() == 50
    assert group.retries == group.dead == []


def test_a_member_tells_what_it_does(broker, group, receiver):
    receiver.shut()
    group.send(*bodies(5))
    with running(
        group.namesrv, group.name, f"{receiver.url}?token=secret", pauseLeastSeconds=600, pauseMostSeconds=600
    ) as one:
        eventually(lambda: one.figures.state == "paused", what="the pause")
        with Admin(broker.namesrv) as admin:
            client = eventually(lambda: admin.group_progress(group.name).members, what="the member")[0].client_id
            properties = admin.consumer_running_info(group.name, client).state.properties
    told = of_properties(properties)
    assert told.state == "paused"
    assert told.url == f"{receiver.url}?…"
    assert told.paused_until > told.last_failure > 0
    assert told.last_success == 0
    assert properties["consumerGroup"] == group.name
    assert not any("secret" in value for value in properties.values())
