"""The registry of clients, where the server's tests do not reach."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from metaq.broker.tables.members import (
    KEEP_SECONDS_MAX,
    KEPT_MAX,
    KEPT_OF_CLIENT_MAX,
    KEPT_OF_GROUP_MAX,
    SETS_MAX,
    Members,
)
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import ConsumerView, Heartbeat
from metaq.model.filters.subscription import subscribe
from tests.broker.support import FakeChannel


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def members(clock):
    return Members(clock)


def beat(members, channel, group="G", topics=("orders",), version=1, client_id="a@1", producers=()):
    view = ConsumerView(group, {topic: subscribe(topic, "*", version) for topic in topics})
    return members.beat(channel, "JAVA", 409, Heartbeat(client_id, (view,) if group else (), producers))


def test_the_newest_subscription_wins(members):
    """A newer version replaces, an older one does not; a topic that is not named any more is dropped."""
    channel = FakeChannel()
    beat(members, channel, topics=("a", "b"), version=5)
    beat(members, channel, topics=("a",), version=3)
    assert {topic: data.version for topic, data in members.consumers["G"].subscriptions.items()} == {"a": 5}


def test_a_change_that_pulls_must_know_of_is_counted(members):
    """`changes` moves with members and filters, and rests while heartbeats repeat themselves."""
    channel = FakeChannel()
    beat(members, channel)
    before = members.changes
    beat(members, channel)
    assert members.changes == before
    beat(members, channel, version=2)
    assert members.changes > before


def test_the_last_one_out_ends_the_group(members):
    """A group without members is offline."""
    channel = FakeChannel()
    beat(members, channel)
    assert members.closed(channel) == []
    assert members.consumers == {}


def test_producers_expire_like_consumers(members, clock):
    """120 s of silence end a producer's membership."""
    beat(members, FakeChannel(), group="", producers=("PG",))
    clock.advance(119)
    members.expire()
    assert "PG" in members.producers
    clock.advance(2)
    members.expire()
    assert members.producers == {}


def test_a_client_that_comes_back_on_a_new_connection_is_counted_once(members):
    """Until the old connection is noticed dead, the client id stands in the list once."""
    beat(members, FakeChannel("1:1"))
    beat(members, FakeChannel("1:2"))
    assert members.client_ids("G") == ["a@1"]


def test_groups_of_one_connection_are_bounded(members):
    """Heartbeat after heartbeat with new names fills no memory."""
    channel = FakeChannel()
    beat(members, channel, group="", producers=tuple(f"p{n}" for n in range(SETS_MAX)))
    with pytest.raises(Refused, match=str(SETS_MAX)):
        beat(members, channel, group="", producers=("one more",))
    with pytest.raises(Refused, match=str(SETS_MAX)):
        beat(members, FakeChannel(), topics=tuple(f"t{n}" for n in range(SETS_MAX + 1)))
    assert len(members.producers) == SETS_MAX


def join(members, name, topics, **kwargs):
    """A client of its own with these topics → tag expressions; returns its channel."""
    channel = FakeChannel()
    view = ConsumerView("G", {topic: subscribe(topic, tags, 1) for topic, tags in topics.items()}, **kwargs)
    members.beat(channel, "JAVA", 409, Heartbeat(name, (view,)))
    return channel


def test_members_that_subscribe_differently_are_told_with_both_texts(members, clock, caplog):
    """At joining and at a change, once in ten seconds; repeated heartbeats and members that agree say nothing."""
    join(members, "a@1", {"orders": "paid || open", "%RETRY%G": "*"})
    join(members, "b@1", {"orders": "open||paid"})
    assert not caplog.records
    assert not members.consumers["G"].differs()
    channel = join(members, "c@1", {"orders": "new"})
    (record,) = caplog.records
    for part in ("group G", "a@1", "orders (open || paid)", "c@1", "orders (new)", "misses messages"):
        assert part in record.getMessage()
    assert members.consumers["G"].differs()
    caplog.clear()
    clock.advance(60)
    view = ConsumerView("G", {"orders": subscribe("orders", "new", 2)})
    members.beat(channel, "JAVA", 409, Heartbeat("c@1", (view,)))
    assert not caplog.records
    view = ConsumerView("G", {"orders": subscribe("orders", "*", 3), "bills": subscribe("bills", "*", 3)})
    members.beat(channel, "JAVA", 409, Heartbeat("c@1", (view,)))
    assert "c@1 at" in caplog.text
    assert "to bills (*), orders (*)" in caplog.text
    members.closed(channel)
    assert not members.consumers["G"].differs()


def test_a_client_that_comes_back_on_another_connection_does_not_differ_from_itself(members, caplog):
    """The old connection may not have been noticed as gone yet."""
    join(members, "a@1", {"orders": "paid"})
    join(members, "a@1", {"orders": "open"})
    assert not caplog.records
    assert not members.consumers["G"].differs()


def test_many_groups_that_differ_cannot_flood_the_log(members, caplog):
    """A thousand changes within ten seconds are one line, and later their number."""
    join(members, "a@1", {"orders": "paid"})
    for number in range(1000):
        join(members, f"b@{number}", {"orders": f"open-{number}"})
    assert len(caplog.records) == 1


def keep(members, channel, client_id, lease=60, group="G"):
    view = ConsumerView(group, {"orders": subscribe("orders", "*", 1)}, keep_seconds=lease)
    return members.beat(channel, "PYTHON", 409, Heartbeat(client_id, (view,)))


def test_a_member_that_comes_back_in_time_moves_no_queue(members, clock):
    """Its id stays in the list, and nobody hears of its going or coming: by 35, or by its connection's end."""
    other, first = FakeChannel(), FakeChannel()
    beat(members, other, client_id="z@1")
    keep(members, first, "a@static")
    for leave in (lambda channel: members.unregister(channel, None, "G"), members.closed):
        assert leave(first) == []
        clock.advance(59)
        assert members.give_up_kept() == []
        assert sorted(members.client_ids("G")) == ["a@static", "z@1"]
        first = FakeChannel()
        assert keep(members, first, "a@static") == []
        assert sorted(members.client_ids("G")) == ["a@static", "z@1"]


def test_a_member_that_does_not_come_back_in_time_is_gone_and_all_hear_of_it(members, clock):
    """The notice comes when the time is over."""
    other, first = FakeChannel(), FakeChannel()
    beat(members, other, client_id="z@1")
    keep(members, first, "a@static")
    members.closed(first)
    clock.advance(60)
    assert [effect.channel for effect in members.give_up_kept()] == [other]
    assert members.client_ids("G") == ["z@1"]
    assert next(effect.channel for effect in keep(members, FakeChannel(), "a@static")) is other


def test_a_group_of_which_only_kept_members_are_left_is_offline(members, clock):
    """And the first who comes back finds the others' places kept."""
    first, second = FakeChannel(), FakeChannel()
    keep(members, first, "a@static")
    keep(members, second, "b@static")
    members.closed(first)
    members.closed(second)
    assert members.client_ids("G") == []
    assert members.consumers == {}
    keep(members, FakeChannel(), "b@static")
    assert sorted(members.client_ids("G")) == ["a@static", "b@static"]


def test_a_silent_member_has_had_its_time(members, clock):
    """The 120 s of its lease count."""
    other, first = FakeChannel(), FakeChannel()
    keep(members, first, "a@static", lease=60)
    clock.advance(121)
    beat(members, other, client_id="z@1")
    assert [effect.channel for effect in members.expire()] == [other]
    assert members.client_ids("G") == ["z@1"]


def test_a_member_on_two_connections_leaves_with_the_last(members):
    """A new connection is made before the broker notices that the old one has ended."""
    old, new = FakeChannel(), FakeChannel()
    keep(members, old, "a@static")
    keep(members, new, "a@static")
    members.closed(old)
    assert members.client_ids("G") == ["a@static"]


def test_kept_members_are_bounded(members, caplog):
    """Of one group and of all: who goes beyond leaves at once, which is said."""
    other = FakeChannel()
    beat(members, other, client_id="z@1")
    for number in range(KEPT_OF_GROUP_MAX + 1):
        channel = FakeChannel()
        keep(members, channel, f"a@{number}", lease=10**12)
        effects = members.closed(channel)
    assert [effect.channel for effect in effects] == [other]
    assert len(members.client_ids("G")) == 1 + KEPT_OF_GROUP_MAX
    assert "are not kept for it" in caplog.text
    for host, most in (("127.0.0.1", KEPT_OF_CLIENT_MAX), *((f"10.0.0.{host}", KEPT_MAX) for host in range(4))):
        for group in range(6):
            for number in range(200):
                channel = FakeChannel(f"{host}:1")
                keep(members, channel, f"a@{number}", group=f"{host}-{group}")
                members.closed(channel)
        assert sum(map(len, members._kept.values())) <= most
    assert sum(map(len, members._kept.values())) == KEPT_MAX
    assert set(members._kept_of.values()) == {KEPT_OF_CLIENT_MAX}
    members._clock.advance(KEEP_SECONDS_MAX + 1)
    members.give_up_kept()
    assert (members._kept, members._kept_of, members._kept_for) == ({}, {}, {})


def test_keeping_has_an_end_whatever_is_asked_for(members, clock):
    """Ten minutes."""
    other, first = FakeChannel(), FakeChannel()
    beat(members, other, client_id="z@1")
    keep(members, first, "a@static", lease=10**9)
    members.closed(first)
    clock.advance(KEEP_SECONDS_MAX)
    assert members.give_up_kept() != []


def test_producers_are_found_by_client_id_as_long_as_one_of_their_groups_is_there(members):
    """The connection of the newest heartbeat, and one client id of each connection; nothing is left of those that go."""
    first, second = FakeChannel("1:1"), FakeChannel("1:2")
    beat(members, first, group="", producers=("PG", "PH"))
    beat(members, second, group="", producers=("PG",))
    assert members.connection_of("a@1") is second
    beat(members, first, group="", producers=("PG",))
    assert members.connection_of("a@1") is first
    beat(members, first, group="", producers=("PG",), client_id="b@1")
    assert (members.connection_of("a@1"), members.connection_of("b@1")) == (second, first)
    members.unregister(first, "PG", None)
    assert members.connection_of("b@1") is first
    members.unregister(first, "PH", None)
    members.closed(second)
    assert (members.connection_of("a@1"), members.connection_of("b@1")) == (None, None)
    assert not members._connections and not members._client_of


@pytest.mark.parametrize("seed", range(10))
def test_memory_is_counted_for_who_brought_it_and_given_back(members, clock, seed):
    """Whoever joins, changes, leaves, or falls silent: with the last membership a connection keeps nothing."""
    chance = random.Random(seed)
    channels = [FakeChannel(f"127.0.0.1:{port}") for port in range(4)]
    for version in range(300):
        channel = chance.choice(channels)
        match chance.randrange(6):
            case 0:
                members.closed(channel)
                assert channel.kept == 0
            case 1:
                members.unregister(channel, "P", chance.choice("GH"))
            case 2:
                clock.advance(chance.choice((10, 50)))
                members.expire()
            case _:
                topics = [f"t{number}" for number in range(chance.randrange(1, 20))]
                producers = ("P", "Q")[: chance.randrange(3)]
                beat(members, channel, chance.choice("GH"), topics, version, f"c@{chance.randrange(3)}", producers)
        assert all(channel.kept >= 0 for channel in channels)
        kept = sum(channel.kept for channel in channels)
        assert kept == sum(
            [group.size + sum(member.size for member in group.members.values()) for group in members.consumers.values()]
        ) + sum(member.size for group in members.producers.values() for member in group.values())
    clock.advance(121)
    members.expire()
    assert [channel.kept for channel in channels] == [0, 0, 0, 0]


@pytest.mark.parametrize("tags", [0, 60])
def test_the_memory_counted_is_that_of_python(members, tags):
    """Within a factor: of many small subscriptions, and of few with many tags."""
    count, text = (500, "*") if not tags else (60, " || ".join(f"tag-{number}" for number in range(tags)))
    channel, spare = FakeChannel(), FakeChannel("127.0.0.1:1")
    beat(members, spare, "spare")
    tracemalloc.start()
    view = ConsumerView("G", {f"topic-{number}": subscribe(f"topic-{number}", text) for number in range(count)})
    members.beat(channel, "JAVA", 409, Heartbeat("c@1", (view,), ()))
    del view
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * taken < channel.kept < 2 * taken


def test_more_than_all_clients_may_have_is_refused_before_it_is_kept(members):
    """The heartbeat is answered; the connection stays."""

    class Full(FakeChannel):
        def may_keep(self, more):
            return more < 20_000

    channel = Full()
    beat(members, channel)
    with pytest.raises(Refused, match="peerBytesMax") as error:
        beat(members, channel, "H", [f"t{number}" for number in range(100)])
    assert error.value.reason is Reason.BUSY
    assert list(members.consumers) == ["G"]
    with pytest.raises(Refused, match="client id has 1025 characters"):
        beat(members, channel, client_id="c" * 1025)
