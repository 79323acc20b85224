"""When a slave compares its log with its master's, how fast, and what it keeps of the outcome; who may have a log repaired."""

from __future__ import annotations

import pytest

from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.replication.mending import RepairRequests
from metaq.broker.replication.scrub import FIRST_SECONDS, TOLD_MAX
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.access import Caller, administered_locally
from metaq.model.scrub import DAMAGE_BYTES_MAX, DamagedSide, LogDifference, Mended
from tests.broker.support import open_broker

HERE, ELSEWHERE = Caller("127.0.0.1", True), Caller("10.0.0.7", False)


def difference(place: int, damaged: DamagedSide = DamagedSide.SLAVE) -> LogDifference:
    return LogDifference(place, 100, damaged, "/log/0", place)


def test_a_pass_begins_some_time_after_the_start_and_then_after_each_interval(tmp_path):
    """A slave that starts again every day is compared, too; 0 hours: never."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, scrub_interval=2) as broker:
        scrub = broker.scrub
        assert scrub.due_in() == FIRST_SECONDS
        clock.advance(FIRST_SECONDS)
        assert scrub.due_in() == 0
        scrub.begin()
        clock.advance(50)
        scrub.end(1, alone=False)
        assert scrub.due_in() == 2 * 3600
        clock.advance(3 * 3600)
        assert scrub.due_in() == 0
        broker.settings.change({"scrubInterval": 0})
        assert scrub.due_in() is None


def test_what_was_found_is_kept_until_a_pass_finds_it_no_more(tmp_path):
    """It is told once, and forgotten when it is repaired."""
    clock = FakeClock()
    with open_broker(tmp_path, clock) as broker:
        scrub = broker.scrub
        scrub.begin()
        began = clock.now_ms()
        one, other = difference(100), difference(500, DamagedSide.MASTER)
        assert scrub.found([one]) == [one]
        assert scrub.found([one, other]) == [other]
        assert (scrub.state.found, scrub.state.ended_ms) == (2, 0)
        clock.advance(9)
        scrub.end(1000, alone=False)
        assert (scrub.state.began_ms, scrub.state.ended_ms, scrub.state.compared) == (began, began + 9000, 1000)
        scrub.begin()
        assert scrub.found([one]) == []
        scrub.repaired(50, 100)
        assert scrub.state.differences == (other,)
        scrub.end(1000, alone=True)
        assert (scrub.state.found, scrub.state.alone) == (0, True)


def test_only_the_first_differences_are_told(tmp_path):
    """The runtime information is no place for thousands; their number is told."""
    with open_broker(tmp_path) as broker:
        scrub = broker.scrub
        scrub.begin()
        scrub.found([difference(place) for place in range(100 * TOLD_MAX, 0, -1)])
        assert scrub.state.found == 100 * TOLD_MAX
        assert [one.log_offset for one in scrub.state.differences] == list(range(1, TOLD_MAX + 1))


def test_a_log_is_repaired_for_administrators_one_place_at_a_time():
    """As roles are changed: on this machine, unless it is allowed from elsewhere."""
    asked = []
    requests = RepairRequests(Gatekeeper(administration=administered_locally))

    def reason(*args) -> Reason:
        with pytest.raises(Refused) as refused:
            requests.ask(*args)
        return refused.value.reason

    assert reason(HERE, 0, 10, "h:1") is Reason.UNAVAILABLE
    requests.by(lambda *args: asked.append(args))
    assert reason(ELSEWHERE, 0, 10, "h:1") is Reason.NO_PERMISSION
    for offset, size in ((-1, 10), (0, 0), (0, -5), (0, DAMAGE_BYTES_MAX + 1)):
        assert reason(HERE, offset, size, "h:1") is Reason.INVALID
    assert asked == []
    mending = requests.ask(HERE, 7, DAMAGE_BYTES_MAX, "h:1")
    assert asked == [(mending, 7, DAMAGE_BYTES_MAX, "h:1")]
    assert reason(HERE, 0, 10, "h:1") is Reason.BUSY
    mending.succeed(Mended(7, 9, ""))
    assert requests.ask(HERE, 8, 1, "h:1") is not mending
    requests.by(None)
    assert reason(HERE, 0, 10, "h:1") is Reason.UNAVAILABLE
