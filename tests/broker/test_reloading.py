"""Who may have the configuration read again, and when they hear of it."""

from __future__ import annotations

import pytest
from msgspec import structs

from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.process.reloading import Reloading, ended
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.reload import ReloadedFile

HERE, THERE = Caller("127.0.0.1", loopback=True), Caller("10.0.0.9", loopback=False)


def test_without_access_control_only_this_machine_may_ask():
    """A neighbour in the network has no business with our files; a table of permissions decides for itself."""
    read = []
    reloading = Reloading(Gatekeeper())
    reloading.by(lambda: read.append(1))
    with pytest.raises(Refused) as refused:
        reloading.ask(THERE)
    assert refused.value.reason is Reason.NO_PERMISSION
    assert not read
    reloading.ask(HERE)
    assert read

    def table(who, _action, _resource):
        if who.identity != "admin":
            raise Refused(Reason.NO_PERMISSION, "not you")

    reloading = Reloading(Gatekeeper(table))
    reloading.by(lambda: read.append(2))
    with pytest.raises(Refused):
        reloading.ask(HERE)
    reloading.ask(structs.replace(THERE, identity="admin"))
    assert read == [1, 2]


def test_without_a_file_there_is_nothing_to_read():
    """Said, rather than left unanswered."""
    with pytest.raises(Refused, match="without a configuration file"):
        Reloading(Gatekeeper()).ask(HERE)


def test_a_wish_that_comes_during_a_reading_waits_for_the_next():
    """The reading under way may have seen the file as it was before."""
    reloading = Reloading(Gatekeeper())
    reloading.by(lambda: None)
    first = reloading.ask(HERE)
    taken = reloading.begin()
    second = reloading.ask(HERE)
    ended(taken, ReloadedFile("f", ("one",)))
    assert first.done
    assert first.outcome() == ReloadedFile("f", ("one",))
    assert not second.done
    ended(reloading.begin(), Refused(Reason.INVALID, "line 3"))
    assert second.done
    assert second.error is not None
