"""Handlers at work: which has been busy with one hand for too long (Java's consumeTimeout).

A worker writes what it has in hand into its slot, which costs it nothing else: no clock is read per message. `look` goes
through the slots now and then, and remembers since when each has held the same.
"""

from __future__ import annotations

import logging

from metaq.client.consumer.handling.handlers import Hand
from metaq.client.consumer.received.message import give_up
from metaq.clock import Clock
from metaq.model.message import FIRST_RETRY_LEVEL

log = logging.getLogger("metaq.client")

TIMED_IN_A_ROW = 16
"""Calls of each worker that are timed after one sample of the rates: each would cost two looks at the clock."""
LOOKS = 10
"""Looks during one time-out."""


class Slot:
    """What one worker of `run` has in hand: a message, a list of them, or nothing."""

    __slots__ = ("hand", "handler", "timing")

    def __init__(self, handler: str) -> None:
        self.handler = handler
        self.hand: Hand | None = None
        self.timing = TIMED_IN_A_ROW
        """How many of the next calls are timed."""


class _HeldHand:
    def __init__(self, hand: Hand, since: float) -> None:
        self.hand, self.since, self.logged = hand, since, False


class Watch:
    """The workers of one consumer."""

    def __init__(self, group: str, timeout: float, clock: Clock, *, orderly: bool) -> None:
        """
        Args:
            timeout: seconds.
            orderly: a message that takes too long is not delivered again: its queue waits for it.
        """
        self._group, self._timeout, self._clock, self._orderly = group, timeout, clock, orderly
        self._slots: dict[Slot, _HeldHand | None] = {}
        self.every = min(max(timeout / LOOKS, 0.05), 30.0)
        """Seconds between two looks."""

    def enter(self, handler: str) -> Slot:
        """Any thread: a worker begins."""
        slot = Slot(handler)
        self._slots[slot] = None
        return slot

    def leave(self, slot: Slot) -> None:
        """Any thread: a worker ends."""
        self._slots.pop(slot, None)

    @property
    def workers(self) -> int:
        """The number of workers, now."""
        return len(self._slots)

    def time_again(self) -> None:
        """Have the next calls of all workers timed."""
        for slot in list(self._slots):
            slot.timing = TIMED_IN_A_ROW

    async def look(self) -> None:
        """Look for workers that hold the same for too long. Called by the loop every `every` seconds."""
        now = self._clock.monotonic()
        # A copy: workers enter and leave in their own threads.
        for slot, seen in list(self._slots.items()):
            hand = slot.hand
            if hand is None:
                continue
            if seen is None or seen.hand is not hand:
                # The worker may have left meanwhile: its entry must not come back.
                if slot in self._slots:
                    self._slots[slot] = _HeldHand(hand, now)
            elif now - seen.since >= self._timeout and not seen.logged:
                seen.logged = True
                self._overdue(slot, hand)

    def _overdue(self, slot: Slot, hand: Hand) -> None:
        messages = hand if isinstance(hand, list) else [hand]
        # Those that were settled are done with, whatever their handler does now.
        left = [message for message in messages if not message.settled]
        log.warning(
            "the handler %s of group %s has not returned for more than %g s (consume_timeout) with %s in hand%s: %s",
            slot.handler, self._group, self._timeout, messages[0],
            f" and {len(messages) - 1} more" if len(messages) > 1 else "",
            "its queue waits for it, because it is consumed in order" if self._orderly
            else f"{len(left)} will be delivered again, and what it says of them is ignored",
        )  # fmt: skip
        if not self._orderly:
            for message in left:
                give_up(message, FIRST_RETRY_LEVEL)  # as Java's clients do it
