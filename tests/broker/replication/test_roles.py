"""Who may change the role of a broker, and what is refused before anything changes."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from tests.broker.support import open_broker

HERE, SLAVE, STRANGER = Caller("127.0.0.1", True), Caller("10.0.0.2", False), Caller("10.0.0.3", False)


def test_a_master_steps_down_for_its_slaves_and_for_its_own_machine(tmp_path):
    """A slave has all messages already; a stranger may stop nobody's sends."""
    with open_broker(tmp_path, FakeClock()) as broker:
        roles, asked = broker.roles, list[tuple[int, str]]()
        roles.by(lambda *_: None, lambda _change, number, master: asked.append((number, master)))
        replica = broker.replicas.connect("10.0.0.2:40000")
        with pytest.raises(Refused, match=r"not from 10\.0\.0\.2"):  # it has not reported: anybody can connect
            roles.ask_to_follow(SLAVE, 1, "")
        broker.replicas.report(replica, 0)
        roles.ask_to_follow(SLAVE, 1, "10.0.0.2:10911")
        with pytest.raises(Refused, match=r"not from 10\.0\.0\.3"):
            roles.ask_to_follow(STRANGER, 1, "")
        roles.ask_to_follow(HERE, 2, "")
        assert asked == [(1, "10.0.0.2:10911"), (2, "")]


def test_only_its_own_machine_promotes_a_slave(tmp_path):
    """Unless remoteAdministrationEnable says otherwise."""
    with open_broker(tmp_path, FakeClock(), broker_role="SLAVE", broker_id=1) as broker:
        broker.follow()
        asked = list[tuple[str, bool]]()
        broker.roles.by(lambda _change, role, force: asked.append((role, force)), lambda *_: None)
        with pytest.raises(Refused, match=r"not from 10\.0\.0\.3"):
            broker.roles.ask_to_lead(STRANGER, "", force=True)
        broker.roles.ask_to_lead(HERE, "SYNC_MASTER", force=False)
        assert asked == [("SYNC_MASTER", False)]


def test_a_broker_that_starts_is_promoted_a_moment_later(tmp_path):
    """It is busy, and not unable: `Admin.promote` tries again while a broker that has led before starts anew."""
    with open_broker(tmp_path, FakeClock(), broker_role="SLAVE", broker_id=1) as broker:
        broker.follow()
        with pytest.raises(Refused, match="promote it again in a moment") as refusal:
            broker.roles.ask_to_lead(HERE, "", force=False)
        assert refusal.value.reason is Reason.BUSY


def test_who_leads_next_may_be_left_open_where_there_is_failover(tmp_path):
    """0 is no number of a slave, and no member."""
    asked = list[int]()
    with open_broker(tmp_path / "pair", FakeClock()) as broker:
        broker.roles.by(lambda *_: None, lambda _change, number, _master: asked.append(number))
        with pytest.raises(Refused, match=r"brokerId=0: a slave has a number from 1 on"):
            broker.roles.ask_to_follow(HERE, 0, "")
    with open_broker(tmp_path / "group", FakeClock(), failover="zookeeper", broker_id=1) as broker:
        broker.roles.by(lambda *_: None, lambda _change, number, _master: asked.append(number))
        broker.roles.ask_to_follow(HERE, 0, "")
        with pytest.raises(Refused, match=r"brokerId=-1"):
            broker.roles.ask_to_follow(HERE, -1, "")
    assert asked == [0]


def test_a_broker_that_does_not_lead_tells_for_how_long_nobody_has_asked_it_to(tmp_path):
    clock = FakeClock()
    with open_broker(tmp_path, clock, broker_role="SLAVE", broker_id=1) as broker:
        assert broker.roles.state().quiet_ms == -1
        broker.follow()
        clock.advance(2.5)
        assert broker.roles.state().quiet_ms == 2500
        broker.roles.asked_to_lead_at = clock.monotonic()
        assert broker.roles.state().quiet_ms == 0
