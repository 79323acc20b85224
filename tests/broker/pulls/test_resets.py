"""Moving a group's progress: where to, and who is told."""

from __future__ import annotations

import pytest

from metaq.broker.pulls.resets import TO_THE_END
from metaq.errors import Reason, Refused
from metaq.in_pieces import finish
from metaq.model import ConsumerView, Heartbeat, MessageQueue
from metaq.model.filters.subscription import subscribe
from tests.broker.support import FakeChannel
from tests.servers.support import Client, open_server
from tests.store.support import message


@pytest.fixture
def filled(tmp_path):
    """Ten messages in queue 0 of four, of which group G has consumed three."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        for _ in range(10):
            assert client.send("orders").code == 0
        broker.offsets.put("G", "orders", 0, 3)
        yield broker


def join(broker) -> FakeChannel:
    channel = FakeChannel()
    view = ConsumerView("G", {"orders": subscribe("orders", "*", 1)})
    broker.members.beat(channel, "CPP", 409, Heartbeat("a@1", (view,)))
    return channel


def test_members_hear_where_to_go_on(filled):
    """All writable queues: to the end, also those without progress; the broker's own table stays."""
    channel = join(filled)
    offsets, [effect] = finish(filled.resets.reset("G", "orders", TO_THE_END, force=True))
    assert offsets[MessageQueue("orders", filled.environment.name, 0)] == 10
    assert len(offsets) == filled.topics.get("orders").write_queues
    assert (effect.channel, effect.what.group, effect.what.offsets, effect.what.language) == (
        channel,
        "G",
        offsets,
        "CPP",
    )
    assert filled.offsets.get("G", "orders", 0) == 3


def test_without_force_progress_moves_backwards_only(filled):
    """To the end is forwards, to the first moment backwards."""
    join(filled)
    queue = MessageQueue("orders", filled.environment.name, 0)
    assert finish(filled.resets.reset("G", "orders", TO_THE_END, force=False))[0][queue] == 3
    assert finish(filled.resets.reset("G", "orders", 1, force=False))[0][queue] == 0


def test_the_first_message_at_a_time_or_later_is_found_exactly(filled):
    """Not the one stored nearest to it, as RocketMQ does: that may be older, and for a time to come it is the newest."""
    join(filled)
    queue, reader = MessageQueue("orders", filled.environment.name, 0), filled.environment.store.reader
    filled.environment.clock.advance(1)
    with_later = filled.environment.clock.now_ms()
    filled.environment.store.writer.put([message("orders", 0, b"late")])
    last = reader.store_time("orders", 0, 9)
    assert reader.store_time("orders", 0, 10) == with_later

    def place(time_ms, **options):
        return finish(filled.resets.reset("G", "orders", time_ms, force=True, **options))[0][queue]

    assert (place(last + 1), place(last + 1, exact=True)) == (9, 10)
    assert (place(with_later), place(with_later, exact=True)) == (10, 10)
    assert (place(with_later + 1), place(with_later + 1, exact=True)) == (10, 11)
    assert place(0, exact=True) == 0
    assert place(253_402_300_799_999, exact=True) == 11


def test_what_cannot_be_moved_is_refused(filled):
    """No topic, no progress, nobody online; in RocketMQ's order."""
    for group, topic, reason in (
        ("G", "nothing", Reason.INVALID), ("other", "orders", Reason.INVALID), ("G", "orders", Reason.OFFLINE),
    ):  # fmt: skip
        with pytest.raises(Refused) as caught:
            finish(filled.resets.reset(group, topic, TO_THE_END, force=True))
        assert caught.value.reason is reason
