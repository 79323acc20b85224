"""Parts of a broker: what it does by itself, beside answering requests.

A part appends, delivers, checks, expires or saves when its time comes. Until it is opened it does nothing, and no constructor
reads the log: a broker that follows another keeps the parts closed that only a leader runs, and promotion is nothing but
opening them. Opened in the middle of a process's life, a part finds in log, files and tables what it finds at a start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import ClassVar, Final

from metaq.broker.channel import Channel

IDLE_SECONDS: Final = 1.0
"""The pause of a part that has no steps to take. Finite: parts may be opened meanwhile."""


class BrokerPart:
    """Base of all parts: a hook that a part does not override does nothing, and is not called.

    A class and no Protocol: a part inherits the empty hooks, and an explicit subclass of a Protocol is an ABC, dearer to define.
    """

    leads: ClassVar[bool] = True
    """Whether only a leader runs it: it appends, or decides for all replicas. The others work in every broker."""

    def open(self) -> None:
        """Take up what log, files and tables say. Called once, after the parts before it in the list.

        Raises ConfigError: a file cannot be read, or settings contradict each other.
        """

    def tick(self) -> None:
        """Let time pass; called ten times a second."""

    def step(self) -> float:
        """Go on for a bounded time. Returns the seconds until the next call, 0: soon."""
        return IDLE_SECONDS

    def options_changed(self, names: Collection[str]) -> None:
        """These options have other values now."""

    def closed(self, channel: Channel) -> None:
        """A connection has ended."""

    def close(self) -> None:
        """Save, and end what runs beside the event loop; the store is still open."""


class PartList:
    """The parts of one broker, in the order in which they are opened."""

    def __init__(self, parts: Sequence[BrokerPart]) -> None:
        self._parts = tuple(parts)
        self._opened = set[BrokerPart]()
        self._exits = contextlib.ExitStack()
        self._ticking: Sequence[BrokerPart] = ()
        self._stepping: Sequence[BrokerPart] = ()
        self._closable: Sequence[BrokerPart] = ()

    def open(self, *, leading: bool) -> None:
        """Open those that are not open yet; without `leading`, those that work in every broker.

        Raises what a part raises; those before it stay open.
        """
        try:
            for part in self._parts:
                if part not in self._opened and (leading or not part.leads):
                    part.open()
                    self._opened.add(part)
                    self._exits.callback(part.close)
        finally:
            self._ticking = self._opened_with("tick")
            self._stepping = self._opened_with("step")
            self._closable = self._opened_with("closed")

    def _opened_with(self, hook: str) -> Sequence[BrokerPart]:
        """The open parts that override a hook."""
        empty = getattr(BrokerPart, hook)
        return [part for part in self._parts if part in self._opened and getattr(type(part), hook) is not empty]

    def tick(self) -> None:
        """Let time pass for every open part, in their order."""
        for part in self._ticking:
            part.tick()

    def step(self) -> float:
        """Let every open part go on. Returns the seconds until the next call."""
        return min([part.step() for part in self._stepping], default=IDLE_SECONDS)

    def options_changed(self, names: Collection[str]) -> None:
        """Report new values of options to every open part; one that is closed looks at them when it is opened."""
        for part in self._parts:
            if part in self._opened:
                part.options_changed(names)

    def closed(self, channel: Channel) -> None:
        """Report the end of a connection to every open part."""
        for part in self._closable:
            part.closed(channel)

    def close(self) -> None:
        """Close the open parts, the last one opened first: a part may use those before it until its own end.

        All of them are closed even if one fails; that error is raised then.
        """
        self._ticking = self._stepping = self._closable = ()
        self._opened.clear()
        self._exits.close()
