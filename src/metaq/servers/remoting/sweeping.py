"""Sweep of connections that send plain messages one by one: all that are ready are stored and answered in one pass.

A request that comes alone costs the loop's event, the session's turn and a write: twice as much as reading, storing and
answering it. `BrokerSession` joins the sweep (`metaq.net.sweep`) when such requests follow each other. What the pass
cannot do is left to the session, in the order in which it came.
"""

from __future__ import annotations

import logging

from metaq.net.sweep import ANSWERED, COLUMNS, Sweep, SweptStream, awake_micros
from metaq.servers.remoting.workspace import Workspace
from metaq.wire.command import frame_bytes

log = logging.getLogger(__name__)


class SweptSends:
    """The sweep of one server, and its handler."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self.sweep = Sweep(self._handle, awake_micros(space.broker.options.busy_poll_micros))

    def _handle(self, sweep: Sweep) -> None:
        space = self._space
        parts = sweep.read()
        if not parts:
            return
        left: list[tuple[SweptStream, memoryview]] = []
        try:
            space.appender.parts(sweep.buffer, parts, sweep.senders, space.table, space.acks, space.outcome)
            left = sweep.left(parts)  # before any write, which may make a member leave
            # Held pulls before the producers' answers: consumers have waited for longer.
            if space.broker.held_pulls.grown:
                space.broker.answer_pulls()
            if len(space.acks):
                self._answer(sweep, parts)
        except Exception as error:  # noqa: BLE001  those whose answers are lost pay, the others notice nothing
            space.acks.clear()
            log.error("the answers of a pass are lost: %s", error or type(error).__name__)  # noqa: TRY400
            for lost in sweep.answered(parts):
                if lost is not None:
                    lost.abort("its answer is lost")
        # The rest is presented after the answers are sent: it came behind them, and its own answers have to as well.
        for member, data in left:
            member.take(data)
        if space.broker.held_pulls.grown:
            space.broker.answer_pulls()

    def _answer(self, sweep: Sweep, parts: memoryview) -> None:
        due, answers = self._space.broker.acks.due(), self._space.acks.take()
        if due is None:
            sweep.write(answers, parts)
        else:
            self._space.held_acks.hold(SweptAnswers(sweep, parts, answers), due, answers)


class SweptAnswers:
    """Held answers of one pass. A connection that leaves the sweep meanwhile gets its answer all the same."""

    def __init__(self, sweep: Sweep, parts: memoryview, answers: bytes) -> None:
        self._sweep, self._answers = sweep, answers
        # Parts and members are copied now: the next pass overwrites the parts, and a slot may be another connection's
        # by then.
        self._parts, self.members = memoryview(bytearray(parts)).cast("i"), sweep.answered(parts)

    def write(self, data: bytes) -> None:
        """Write the answers, or as many others in their place, in the same order (`too_late`)."""
        if data is not self._answers:
            self._measure(data)
        self._sweep.write(data, self._parts, self.members)

    def _measure(self, data: bytes) -> None:
        """Set where the parts' answers end in `data`."""
        before = after = 0
        for place in range(ANSWERED, len(self._parts), COLUMNS):
            while before < self._parts[place]:
                before += frame_bytes(self._answers, before, len(self._answers))
                after += frame_bytes(data, after, len(data))
            if self._parts[place]:
                self._parts[place] = after
