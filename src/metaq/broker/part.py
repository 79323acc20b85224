"""Background parts of a broker: scheduled delivery, transaction checks, expiry, saves and the like.

A part does nothing until it is opened, and no constructor reads the log. A slave keeps the parts closed that only a master
runs; promotion opens them. A part opened later in a process's life finds the same log, files and tables as at a start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import ClassVar, Final

from metaq.broker.channel import Channel

IDLE_SECONDS: Final = 1.0
"""Pause of a part without steps, s. Finite, because parts may be opened meanwhile."""


class BrokerPart:
    """Base of all parts. Hooks that a part does not override do nothing and are not called.

    A class and no Protocol: a part inherits the empty hooks, and an explicit subclass of a Protocol is an ABC, dearer to define.
    """

    leads: ClassVar[bool] = True
    """Whether only a master runs it, because it appends or decides for all replicas. The others run on slaves too."""

    def open(self) -> None:
        """Load the part's state from log, files and tables. Called once, after the parts before it in the list.

        Raises ConfigError: a file cannot be read, or settings contradict each other.
        """

    def lead(self) -> None:
        """Begin what only a master does: the part was opened while this broker followed. In the order of `open`.

        Raises as `open`.
        """

    def tick(self) -> None:
        """Run periodic work. Called ten times a second."""

    def step(self) -> float:
        """Run background work for a bounded time. Returns the seconds until the next call; 0: as soon as possible."""
        return IDLE_SECONDS

    def options_changed(self, names: Collection[str]) -> None:
        """Take over the new values of these options."""

    def closed(self, channel: Channel) -> None:
        """Drop what is kept for a connection that has ended."""

    def retire(self) -> None:
        """End for good what only a leader does: the broker follows another one from now on, in the same process.

        The log is durable up to its end. A part whose `close` waits for a disk overrides this, and does not: clients are served.
        """
        self.close()

    def close(self) -> None:
        """Save, and end threads and processes. The store is still open."""


class PartList:
    """The parts of one broker, in the order in which they are opened."""

    def __init__(self, parts: Sequence[BrokerPart]) -> None:
        self._parts = tuple(parts)
        self._opened = dict[BrokerPart, None]()
        """Those that are open, in the order in which they were opened."""
        self._halted = False
        """Whether those of a leader have no time at present."""
        self._leading = False
        self._ticking: Sequence[BrokerPart] = ()
        self._stepping: Sequence[BrokerPart] = ()
        self._closable: Sequence[BrokerPart] = ()

    def open(self, *, leading: bool) -> None:
        """Open those that are not open yet; without `leading`, those that work in every broker.

        With `leading`, those that are open since this broker followed begin to lead. Raises what a part raises; those before it stay
        open.
        """
        promoted, self._leading = leading and not self._leading, leading
        try:
            for part in self._parts:
                if part in self._opened:
                    if promoted:
                        part.lead()
                elif leading or not part.leads:
                    part.open()
                    self._opened[part] = None  # only after a successful open: a part that failed to open is not closed
        finally:
            self._look()

    def _look(self) -> None:
        # Only parts that override a hook are called: most override few, and `tick` runs ten times a second.
        self._ticking = self._opened_with("tick")
        self._stepping = self._opened_with("step")
        self._closable = self._opened_with("closed")

    def _opened_with(self, hook: str) -> Sequence[BrokerPart]:
        """The open parts that override a hook, and are not halted."""
        empty = getattr(BrokerPart, hook)
        return [
            part
            for part in self._parts
            if part in self._opened and not (self._halted and part.leads) and getattr(type(part), hook) is not empty
        ]

    def halt_leading(self, *, halted: bool) -> None:
        """Give those parts no time that only a leader runs, or time again. They stay open."""
        self._halted = halted
        self._look()

    def retire_leading(self) -> None:
        """End those parts that only a leader runs, the last one opened first; they cannot be opened again. The others go on.

        All of them are ended even if one fails; that error is raised then.
        """
        leading = [part for part in self._opened if part.leads]
        for part in leading:
            del self._opened[part]
        self._look()
        with contextlib.ExitStack() as exits:
            for part in leading:
                exits.callback(part.retire)

    def tick(self) -> None:
        """Run the periodic work of every open part, in their order."""
        for part in self._ticking:
            part.tick()

    def step(self) -> float:
        """Run the background work of every open part. Returns the seconds until the next call."""
        return min([part.step() for part in self._stepping], default=IDLE_SECONDS)

    def options_changed(self, names: Collection[str]) -> None:
        """Report new values of options to every open part. A closed part reads them when it is opened."""
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
        # Taken out first, so that no hook is called while parts are being closed.
        opened, self._opened = self._opened, {}
        with contextlib.ExitStack() as exits:
            for part in opened:
                exits.callback(part.close)
