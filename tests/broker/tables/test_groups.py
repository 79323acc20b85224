"""Consumer groups: those of every broker, automatic ones, administration, the file."""

from __future__ import annotations

import errno

import pytest

from metaq.broker.tables.groups import RETRY_MAX, Groups
from metaq.clock import FakeClock
from metaq.errors import ConfigError, Reason, Refused
from metaq.model import GroupConfig
from metaq.model.topics.system import SYSTEM_GROUPS
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.saved_file import TableFile
from metaq.wire.files import GROUPS
from tests.broker.support import MemoryFile, SlowFile


def make(file=None, clock=None, **options):
    return Groups(BrokerOptions(**options), clock or FakeClock(), TableFile(file or MemoryFile(), GROUPS))


def test_every_broker_has_rocketmqs_groups():
    """With their defaults, and whether or not others are made automatically."""
    groups = make(auto_create_subscription_group=False)
    assert set(groups.table) == set(SYSTEM_GROUPS)
    assert groups.require("TOOLS_CONSUMER") == GroupConfig("TOOLS_CONSUMER")


def test_a_group_that_nobody_made_is_made_and_saved_before_it_is_used():
    """Whoever needs it waits for the save; afterwards it is there, also after a restart."""
    file = SlowFile()
    groups = make(file)
    for _ in range(2):
        with pytest.raises(Saving):
            groups.require("mailer")
    assert len(file.under_way) == 1
    assert groups.get("mailer") is None
    file.end()
    assert groups.require("mailer") == GroupConfig("mailer")
    assert make(MemoryFile(file.text)).require("mailer") == GroupConfig("mailer")


def test_no_group_is_made_where_the_broker_forbids_it():
    """Except the system's own; the refusal names the option."""
    groups = make(auto_create_subscription_group=False)
    with pytest.raises(Refused, match="autoCreateSubscriptionGroup is false") as caught:
        groups.require("mailer")
    assert caught.value.reason is Reason.NO_GROUP
    assert groups.require("CID_RMQ_SYS_TRANS") == GroupConfig("CID_RMQ_SYS_TRANS")


def test_automatic_groups_are_limited_and_a_failed_one_does_not_count():
    """So many a minute, whoever asks; one that could not be saved gives its place back."""
    file = MemoryFile()
    groups = make(file, auto_create_groups_per_minute=2)
    file.error = OSError(errno.ENOSPC, "No space left on device")
    for name in ("a", "b", "c"):
        with pytest.raises(Refused, match="No space left"):
            groups.require(name)
    file.error = None
    groups.require("a")
    groups.require("b")
    with pytest.raises(Refused, match="2 a minute"):
        groups.require("c")
    assert groups.require("a")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GroupConfig("../x"), "characters outside"),
        (GroupConfig("g", retry_queues=1025), "retryQueueNums=1025"),
        (GroupConfig("g", retry_max=RETRY_MAX + 1), "retryMaxTimes"),
        (GroupConfig("g", retry_max=-2), "retryMaxTimes=-2"),
    ],
)
def test_impossible_settings_are_refused(config, says):
    """By name and value; nothing is changed."""
    groups = make()
    version = groups.version
    with pytest.raises(Refused, match=says):
        groups.update(config)
    assert groups.version == version


def test_a_change_moves_the_version_and_a_repetition_does_not():
    """`changes` tells those who keep a decision about a group."""
    groups = make()
    groups.update(GroupConfig("mailer", retry_max=3)).settle()
    version, changes = groups.version, groups.changes
    groups.update(GroupConfig("mailer", retry_max=3)).settle()
    assert (groups.version, groups.changes) == (version, changes)
    groups.delete("mailer").settle()
    assert groups.get("mailer") is None
    assert (groups.version.counter, groups.changes) == (version.counter + 1, changes + 1)


def test_a_broken_file_stops_the_start():
    """Starting with defaults would let blocked groups consume."""
    with pytest.raises(ConfigError, match=r"memory\.json cannot be read .*restore it from its \.bak"):
        make(MemoryFile('{"subscriptionGroupTable":5}'))
