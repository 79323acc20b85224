"""`Admin.activity`: what a cluster does at this moment, by a bounded number of requests."""

from __future__ import annotations

import os

import pytest

import metaq
from metaq.admin import Admin
from metaq.admin.figures import activity
from metaq.errors import ClientError
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

TOPIC, GROUP = "activity-orders", "activity-mailer"


def test_topics_and_groups_with_what_they_do(metaq_broker):
    """Rates, lag and members, and how the lag grows from one look to the next."""
    with Admin(metaq_broker.namesrv) as admin, metaq.Producer(metaq_broker.namesrv) as producer:
        admin.create_topic(TOPIC, queues=2)
        for number in range(6):
            producer.send(TOPIC, b"%d" % number)
        with metaq.Consumer(metaq_broker.namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer:
            for _ in range(4):
                consumer.receive(PATIENCE).ack()
            looked = admin.activity()
            assert group_of(looked).members == 1
        looked = eventually(lambda: found if group_of(found := admin.activity()).lag == 2 else None)
        [broker] = looked.brokers
        assert broker.connections >= 1
        assert broker.put_p99_ms is not None
        assert (group_of(looked).topics, group_of(looked).members, group_of(looked).growth) == (1, 0, None)
        assert (topic_of(looked).lag, topic_of(looked).groups) == (2, 1)
        # The broker samples each ten seconds.
        looked = eventually(
            lambda: (
                found
                if topic_of(found := admin.activity(looked)).stored
                and topic_of(found).delivered
                and group_of(found).delivered
                else None
            )
        )
        assert topic_of(looked).stored_bytes > topic_of(looked).stored * 91
        assert topic_of(looked).delivered == group_of(looked).delivered
        for _ in range(3):
            producer.send(TOPIC, b"more")
        later = admin.activity(looked)
        assert group_of(later).lag == 5
        assert group_of(later).growth == pytest.approx(3 / (later.at - looked.at))
        assert not {"TOOLS_CONSUMER", f"%RETRY%{GROUP}"} & {one.group for one in later.groups}
        assert later.notes == ()


def group_of(found):
    return next(one for one in found.groups if one.group == GROUP)


def topic_of(found):
    return next(one for one in found.topics if one.topic == TOPIC)


def test_a_look_takes_a_bounded_number_of_requests(metaq_broker, monkeypatch):
    """However many topics and groups there are: each comes to its turn."""
    monkeypatch.setattr(activity, "FIRST_MAX", 8)
    monkeypatch.setattr(activity, "LATER_MAX", 3)
    names = [f"activity-many-{number}" for number in range(12)]
    with Admin(metaq_broker.namesrv) as admin:
        for name in names:
            admin.create_topic(name, queues=1)
            admin.set_group(name)
        looked = admin.activity()
        known = [sum(one.stored is not None for one in looked.topics)]
        assert looked.requests <= 2 + 1 + 1 + 2 * 8 + 8
        while any(one.stored is None for one in looked.topics) or any(one.members is None for one in looked.groups):
            looked = admin.activity(looked)
            known.append(sum(one.stored is not None for one in looked.topics))
            assert looked.requests <= 2 + 1 + 1 + 2 * 3 + 3
        assert known[0] == 8
        assert known[1] == 11
        assert known == sorted(known)
        for name in names:
            admin.delete_topic(name)
            admin.delete_group(name)
        looked = admin.activity(looked)
        assert not set(names) & ({one.topic for one in looked.topics} | {one.group for one in looked.groups})


@pytest.mark.skipif(os.name != "posix", reason="processes are killed")
def test_what_goes_away_meanwhile_is_told_and_the_rest_goes_on():
    """A broker, and then the name server, whose knowledge goes on to hold."""
    with Cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
        looked = admin.activity()
        assert [one.error for one in looked.brokers] == ["", ""]
        gone, left = cluster.brokers
        gone.kill()
        looked = eventually(lambda: found if len(states(found := admin.activity(looked))) == 1 else None)
        assert looked.asked == ("broker-1",)
        assert topic_of(looked).stored is not None
        eventually(lambda: not admin.activity(looked).brokers[0].registered)
        looked = admin.activity(looked)
        [name_server] = cluster.name_servers
        name_server.kill()
        looked = admin.activity(looked)
        assert looked.notes[0].startswith("name servers: ")
        assert [bool(one.error) for one in looked.brokers] == [True, False]
        assert topic_of(looked).stored is not None
        assert left.port
        with pytest.raises(ClientError):
            admin.activity()
        name_server.start()
        gone.start()
        eventually(lambda: all(one.registered and not one.error for one in admin.activity(looked).brokers))


def states(found):
    return [one.error for one in found.brokers if one.error]
