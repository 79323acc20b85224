"""Requests that wait, whatever their protocol: resumed in order, refused, withdrawn, given up, and bounded."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.saved import Pending, Saving
from metaq.servers.waiting import ATTEMPTS_MAX, REQUEST_BYTES, WAIT_SECONDS, Parked, Parking, Then, Wording


class Desk:
    """Requests of one connection, and what became of them."""

    def __init__(self, **limits: int) -> None:
        self.clock, self.parked, self.said = FakeClock(), Parked(lambda _: None), list[str]()
        self.parking = Parking(self.clock, Wording(too_late="after {seconds:g} s. "), **limits)

    def park(self, name: str, *pending: Pending, then: Then = None, body_bytes: int = 0):
        def resume(then: Then) -> None:
            self.said.append(f"{name} resumed" if then is None else then())

        def refuse(error: Refused) -> None:
            self.said.append(f"{name}: {error.text}")

        return self.parking.park(Saving(*pending, then=then), self.parked, resume, refuse, body_bytes)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_waits_for_one_change_goes_on_in_the_order_in_which_it_came(desk) -> None:
    """One that waits for two changes goes on with the last of them."""
    one, two = Pending(), Pending()
    desk.park("a", one)
    desk.park("b", one, two)
    desk.park("c", one, then=lambda: "c went on")
    one.finish()
    assert desk.said == ["a resumed", "c went on"]
    two.finish()
    assert desk.said[2:] == ["b resumed"]
    assert desk.parking.bytes == desk.parked.kept.bytes == 0


def test_a_change_that_is_refused_refuses_all_that_needs_it_once(desk) -> None:
    one, two = Pending(), Pending()
    desk.park("a", one, two)
    desk.park("b", two)
    one.finish(Refused(Reason.UNAVAILABLE, "no disk"))
    two.finish(Refused(Reason.UNAVAILABLE, "no disk at all"))
    assert desk.said == ["a: no disk", "b: no disk at all"]


def test_a_change_that_is_there_already_is_not_waited_for(desk) -> None:
    """The request is over before `park` returns; withdrawing it then does nothing."""
    done = Pending()
    done.finish()
    request = desk.park("a", done)
    assert (desk.said, request.over) == (["a resumed"], True)
    desk.parking.withdraw(request)
    assert desk.parking.bytes == 0


def test_a_request_that_is_withdrawn_is_not_heard_of_again(desk) -> None:
    """Neither when what it needs comes nor when its time is up."""
    pending = Pending()
    request = desk.park("a", pending)
    desk.parking.withdraw(request)
    desk.clock.advance(WAIT_SECONDS)
    desk.parking.expire()
    pending.finish()
    assert desk.said == []
    assert desk.parking.bytes == desk.parked.kept.bytes == 0


def test_who_waits_too_long_is_told_whether_it_may_still_happen(desk) -> None:
    """And nothing comes behind that."""
    pending = Pending()
    desk.park("a", pending)
    desk.park("b", pending, then=lambda: "never")
    desk.clock.advance(WAIT_SECONDS - 0.1)
    desk.park("c", pending)
    desk.clock.advance(0.1)
    desk.parking.expire()
    assert desk.said == [
        "a: after 5 s. Nothing was done for it, try again",
        "b: after 5 s. It may still take effect: look, and repeat it if it has not",
    ]
    pending.finish()
    assert desk.said[2:] == ["c resumed"]


def test_a_request_that_waits_again_and_again_is_given_up(desk) -> None:
    """Each time what it needs comes, and is gone."""
    tries = []

    def attempt(_then: Then) -> None:
        done = Pending()
        done.finish()
        tries.append(1)
        desk.parking.park(Saving(done), desk.parked, attempt, lambda error: None)

    with pytest.raises(Refused, match="deleted as often as it is made"):
        attempt(None)
    assert len(tries) == ATTEMPTS_MAX + 1
    desk.park("another", Pending())


def test_what_waits_is_bounded() -> None:
    """Over a connection and over all, bodies included."""
    desk, pending = Desk(bytes_max=4 * REQUEST_BYTES, peer_bytes_max=3 * REQUEST_BYTES), Pending()
    desk.park("a", pending, body_bytes=REQUEST_BYTES)
    with pytest.raises(Refused, match=f"{2 * REQUEST_BYTES} bytes of your requests"):
        desk.park("b", pending, body_bytes=REQUEST_BYTES)
    desk.park("c", pending)
    desk.parked = Parked(lambda _: None)
    desk.park("d", pending)
    desk.parked = Parked(lambda _: None)
    with pytest.raises(Refused, match=f"0 bytes of your requests, {4 * REQUEST_BYTES} of all"):
        desk.park("e", pending)
    pending.finish()
    assert desk.said == ["a resumed", "c resumed", "d resumed"]


def test_a_change_that_takes_longer_is_waited_for_longer(desk) -> None:
    """And who waits for another one behind it is told in time."""

    class Long(Pending):
        __slots__ = ()
        wait_seconds = 60.0

    desk.park("long", Long(), then=lambda: "")
    desk.park("short", Pending())
    desk.clock.advance(WAIT_SECONDS)
    desk.parking.expire()
    assert [said.partition(":")[0] for said in desk.said] == ["short"]
    desk.clock.advance(60.0)
    desk.parking.expire()
    assert desk.said[1].startswith("long: after 60 s")
