"""Whether messages may be posted now: a target that is down is left alone, and asked with one message now and then.

An outage must not make dead letters of a whole topic. So consumption pauses as soon as it is the target that fails and not a message:
nobody takes a connection, the target asks for time, or so many different messages failed in a row that it cannot be them. A pause
doubles with each probe that fails, up to a limit, and is shortened by chance so that several processes do not ask at one moment.
"""

from __future__ import annotations

import enum
import math
from typing import Final

from msgspec import Struct

from metaq.clock import Clock
from metaq.webhooks.answers import Answer, Verdict

_HELD_MAX: Final = 3
"""Attempts of one message, each of them in the way of others that do get through, until it goes the group's way of retries."""
_PROBES_MAX: Final = 10
"""Probes with one message that end without a judgement of it, until it goes the same way: it may be the reason."""
_DOUBLINGS_MAX: Final = 30


class Turn(enum.Enum):
    """What somebody with a message may do."""

    POST = enum.auto()
    PROBE = enum.auto()
    """Post it, as the only one."""
    WAIT = enum.auto()


class Fate(enum.Enum):
    """What becomes of a message after an attempt."""

    DONE = enum.auto()
    RETRY = enum.auto()
    """By the group's delays, which end with the dead letters."""
    HOLD = enum.auto()
    """It stays in hand, and no retry is spent."""
    STOP = enum.auto()
    """It stays unfinished, and nothing more is posted."""


class PauseRules(Struct, frozen=True):
    """When consumption pauses, and for how long. Seconds."""

    failures: int = 5
    """Different messages that fail in a row."""
    least: float = 1.0
    most: float = 60.0


class Held(Struct):
    """For what one message, in somebody's hands, was held."""

    attempts: int = 0
    """No probes: others got through before."""
    probes: int = 0
    """That the target answered, or not in time."""


class Outage:
    """What is known of a target's health. For one event loop; nothing here waits."""

    def __init__(self, rules: PauseRules, clock: Clock) -> None:
        self._rules, self._clock = rules, clock
        self.failures = 0
        """Attempts that failed since the last one that was delivered."""
        self.pauses = 0
        """Pauses since then."""
        self.until: float | None = None
        """End of the pause, monotonic seconds; None: there is none."""
        self._failed: set[str] = set()
        """Messages that failed since then, as many as make a pause."""
        self._probing = False

    @property
    def left(self) -> float:
        """Seconds of the pause; 0: there is none, or it is over and a probe is due."""
        return 0.0 if self.until is None else max(0.0, self.until - self._clock.monotonic())

    @property
    def turn(self) -> Turn:
        """What the next one with a message may do."""
        if self.until is None:
            return Turn.POST
        return Turn.WAIT if self._probing or self.left > 0 else Turn.PROBE

    def begin_probe(self) -> None:
        """Somebody posts a probe: all others wait for its answer."""
        self._probing = True

    def give_up_probe(self) -> None:
        """The probe has no answer, since its sender stops."""
        self._probing = False

    def judge(self, answer: Answer, message_id: str, *, probe: bool, held: Held) -> Fate:
        """Take in an answer. Returns what becomes of the message.

        Args: probe: it was one. held: what it was held for until now; counted here.
        """
        if probe:
            self._probing = False
        if answer.verdict is Verdict.DELIVERED:
            self._well()
            return Fate.DONE
        if answer.verdict is Verdict.GONE:
            return Fate.STOP
        self.failures += 1
        if answer.verdict is Verdict.FAILED:
            return self._judge_failed(answer, message_id, probe=probe, held=held)
        # What began before the pause tells nothing new of it.
        if probe or self.until is None:
            self._pause(answer.wait)
        held.attempts += not probe
        return Fate.HOLD if held.attempts <= _HELD_MAX else Fate.RETRY

    def _judge_failed(self, answer: Answer, message_id: str, *, probe: bool, held: Held) -> Fate:
        if probe:
            self._pause(0.0)
            held.probes += 1
            # A message that a working target refuses does not hold up the others as the probe for ever.
            return Fate.RETRY if answer.judged or held.probes >= _PROBES_MAX else Fate.HOLD
        if self.until is None:
            self._failed.add(message_id)
            if len(self._failed) >= self._rules.failures:
                self._pause(0.0)
        return Fate.RETRY

    def _well(self) -> None:
        self.failures = self.pauses = 0
        self.until = None
        self._failed.clear()

    def _pause(self, asked: float) -> None:
        """Args: asked: seconds that the target wants at least."""
        rules = self._rules
        whole = min(rules.least * 2.0 ** min(self.pauses, _DOUBLINGS_MAX), rules.most)
        chance = 0.5 + self._clock.random_below(1 << 20) / (1 << 21)
        seconds = max(asked, whole * chance)
        assert math.isfinite(seconds), "both are bounded"
        self.pauses += 1
        self.until = self._clock.monotonic() + seconds
