"""Where those with a message in hand wait while consumption pauses, first come first served, so that probes take turns."""

from __future__ import annotations

import asyncio
from collections import deque

from metaq.errors import MetaqError
from metaq.webhooks.answers import Answer
from metaq.webhooks.outage import Fate, Held, Outage, Turn


class GateShut(MetaqError):
    """Nothing more is posted: the webhook stops."""


class Gate:
    """Lets attempts through as an `Outage` decides. For one event loop."""

    def __init__(self, outage: Outage) -> None:
        self.outage = outage
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._shut = False

    async def enter(self) -> bool:
        """Wait until a message may be posted. Returns whether it is the probe. Raises GateShut."""
        while True:
            if self._shut:
                raise GateShut("the webhook stops")
            turn = self.outage.turn
            if turn is Turn.POST:
                return False
            if turn is Turn.PROBE:
                self.outage.begin_probe()
                return True
            await self._wait()

    async def _wait(self) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._set_timer()
        try:
            await mine
        except asyncio.CancelledError:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:
                self._wake()  # it was this one's turn
            raise

    def leave(self, answer: Answer, message_id: str, *, probe: bool, held: Held) -> Fate:
        """Take in the answer of an attempt. Returns what becomes of the message."""
        fate = self.outage.judge(answer, message_id, probe=probe, held=held)
        self._wake()
        return fate

    def give_up(self, *, probe: bool) -> None:
        """An attempt has no answer, since whoever made it was cancelled."""
        if probe:
            self.outage.give_up_probe()
            self._wake()

    def shut(self) -> None:
        """Let nobody through any more."""
        self._shut = True
        self._wake()

    def _wake(self) -> None:
        """Wake those who have something to do now, or see to it that they are woken later."""
        if self._shut or self.outage.turn is Turn.POST:
            while self._waiting:
                _settle(self._waiting.popleft())
        elif self.outage.turn is Turn.PROBE and self._waiting:
            _settle(self._waiting.popleft())
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # During a probe nothing is waited for but its answer.
        if self._waiting and (left := self.outage.left) > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._wake)


def _settle(one: asyncio.Future[None]) -> None:
    if not one.done():
        one.set_result(None)
