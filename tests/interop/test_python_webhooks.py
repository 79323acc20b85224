"""A webhook on our broker and, with `--rocketmq`, on RocketMQ's own: posted, tried again, dead letter, and told by its member."""

from __future__ import annotations

import itertools
import os

import pytest

from metaq.admin import Admin
from metaq.webhooks.figures import of_properties
from tests.interop.servers import Server
from tests.support import eventually
from tests.webhooks.receiver import OK, Receiver, status
from tests.webhooks.running import Group, running

pytestmark = pytest.mark.interop

_names = itertools.count()


def test_a_group_is_posted(server: Server) -> None:
    group = Group(server.namesrv, f"hooked_{os.getpid()}_{next(_names)}")

    async def answers(posted, writer):
        await (status(500) if posted.body == b"bad" else OK)(posted, writer)

    with Receiver(answers) as receiver:
        group.send(*(b"%d" % number for number in range(100)), b"bad", keys=["k"])
        with running(server.namesrv, group.name, receiver.url, retries=0) as one, Admin(server.namesrv) as admin:
            eventually(lambda: len(receiver.posted) >= 101, what="all messages")
            eventually(lambda: group.dead == [b"bad"], what="the dead letter")
            group.consumed()
            client = admin.group_progress(group.name).members[0].client_id
            told = of_properties(admin.consumer_running_info(group.name, client).state.properties)
            assert (told.messages, told.failed, told.retries) == (100, 1, 1)
            # An outage holds the group's progress, and spends nothing.
            receiver.shut()
            group.send(b"later")
            eventually(lambda: one.figures.unreachable >= 3, what="probes")
            assert group.lag() == 1
            receiver.open()
            group.consumed()
    assert sorted(set(receiver.bodies)) == sorted([*(b"%d" % number for number in range(100)), b"bad", b"later"])
    assert group.dead == [b"bad"]
