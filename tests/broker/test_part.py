"""The list of a broker's parts: when each is opened, called and closed."""

from __future__ import annotations

import pytest

from metaq.broker.part import IDLE_SECONDS, BrokerPart, PartList
from tests.broker.support import FakeChannel


class Recorded(BrokerPart):
    """Says what is done with it."""

    def __init__(self, name: str, calls: list[str], pause: float = 0.5, error: Exception | None = None) -> None:
        self.name, self.calls, self.pause, self.error = name, calls, pause, error

    def open(self) -> None:
        self.calls.append(f"open {self.name}")

    def tick(self) -> None:
        self.calls.append(f"tick {self.name}")

    def step(self) -> float:
        return self.pause

    def options_changed(self, names) -> None:
        self.calls.append(f"options {self.name} {sorted(names)}")

    def closed(self, channel) -> None:
        self.calls.append(f"closed {self.name} {channel.remote}")

    def close(self) -> None:
        self.calls.append(f"close {self.name}")
        if self.error is not None:
            raise self.error


class Everywhere(Recorded):
    """Works in a follower, too."""

    leads = False


def taken(calls: list[str]) -> list[str]:
    """The calls since the last look."""
    found = list(calls)
    calls.clear()
    return found


def test_a_follower_opens_some_and_a_leader_the_rest_once():
    """Only open parts are called, in the order of the list whenever they were opened; the last one opened is closed first."""
    calls: list[str] = []
    parts = PartList(
        (Recorded("a", calls, pause=0.1), Everywhere("b", calls, pause=0.2), BrokerPart(), Recorded("c", calls))
    )
    parts.tick()
    parts.options_changed(("x",))
    parts.open(leading=False)
    assert taken(calls) == ["open b"]
    assert parts.step() == 0.2
    parts.tick()
    parts.options_changed(("x",))
    parts.closed(FakeChannel("1.2.3.4:5"))
    assert taken(calls) == ["tick b", "options b ['x']", "closed b 1.2.3.4:5"]
    parts.open(leading=True)
    parts.open(leading=True)
    assert taken(calls) == ["open a", "open c"]
    assert parts.step() == 0.1
    parts.tick()
    assert taken(calls) == ["tick a", "tick b", "tick c"]
    parts.close()
    assert taken(calls) == ["close c", "close a", "close b"]
    parts.tick()
    parts.close()
    assert calls == []


def test_a_leader_that_steps_down_halts_its_own_parts_and_ends_them_when_it_follows():
    """The others go on all the while, and nothing is ended twice."""
    calls: list[str] = []
    parts = PartList((Recorded("a", calls), Everywhere("b", calls), Recorded("c", calls, error=OSError("no room"))))
    parts.open(leading=True)
    parts.halt_leading(halted=True)
    taken(calls)
    parts.tick()
    parts.closed(FakeChannel("1.2.3.4:5"))
    assert taken(calls) == ["tick b", "closed b 1.2.3.4:5"]
    parts.halt_leading(halted=False)
    parts.tick()
    assert taken(calls) == ["tick a", "tick b", "tick c"]
    parts.halt_leading(halted=True)
    with pytest.raises(OSError, match="no room"):
        parts.retire_leading()
    assert taken(calls) == ["close c", "close a"]
    parts.tick()
    parts.retire_leading()
    parts.close()
    assert taken(calls) == ["tick b", "close b"]


def test_a_hook_that_a_part_does_not_have_is_not_called():
    """Nor does it say when the next step is due."""
    parts = PartList((BrokerPart(),))
    parts.open(leading=True)
    parts.tick()
    assert parts.step() == IDLE_SECONDS


def test_all_parts_are_closed_though_one_fails():
    """Positions must be saved although a helper process could not be ended."""
    calls: list[str] = []
    parts = PartList((Recorded("a", calls), Recorded("b", calls, error=OSError("no room"))))
    parts.open(leading=True)
    taken(calls)
    with pytest.raises(OSError, match="no room"):
        parts.close()
    assert calls == ["close b", "close a"]


def test_what_cannot_be_opened_leaves_those_before_it_open():
    """So that whoever gives up can close them."""
    calls: list[str] = []

    class Broken(BrokerPart):
        def open(self) -> None:
            raise ValueError("a file cannot be read")

    parts = PartList((Recorded("a", calls), Broken(), Recorded("c", calls)))
    with pytest.raises(ValueError, match="cannot be read"):
        parts.open(leading=True)
    parts.close()
    assert calls == ["open a", "close a"]
