"""The tries of one send: which failures count, when the next one is made, and what the last error says. No I/O, no clock.

At most 1 + `retries` tries count: those that a broker may have stored, and refusals that waiting does not mend. Not counted, and
bounded by the time-out only, are tries that were surely not stored because the broker was busy, away, or does not lead: a pair that
changes its leader, or a broker that restarts, costs time and no tries. Brokers that have not failed are tried at once; when all
have, there is a pause, and each is tried again.
"""

from __future__ import annotations

from collections.abc import Collection

from metaq.client.conversation.retry import Judgement, Purpose, judge
from metaq.client.conversation.sending.sending import Stored
from metaq.errors import MetaqError, RequestTimeout, SendFailed

ROUTE_PAUSE = 0.2
"""Between two look-ups of a route while no name server can be reached, s."""


class Tries:
    """The tries of one send: errors so far, and whether another one may be made. Times are those of one clock, in seconds."""

    def __init__(self, topic: str, retries: int, now: float, timeout: float, *, strict: bool) -> None:
        self._topic, self._retries, self._timeout, self._started = topic, retries, timeout, now
        self._strict = strict
        self.deadline = now + timeout
        self.count = 0
        """Failed tries that count."""
        self.waits = 0
        """Pauses because there was no other broker to try."""
        self.needs_route = False
        """Whether the route that was known is in doubt: a broker of it has failed."""
        self.failed: dict[str, None] = {}
        """Brokers, in the order in which they failed."""
        self.kept: Stored | None = None
        """The last outcome with another status than SEND_OK."""
        self._lately: set[str] = set()
        """Brokers that have failed since the last pause."""
        self._made = 0
        """Failed tries at brokers, without those at busy ones."""
        self._attempts: list[tuple[str, str]] = []
        self._unknown = False

    def failure(self, error: MetaqError, judgement: Judgement, broker: str | None, others: Collection[str]) -> float:
        """Note a failed try; brokers of `others` may be tried next. Returns the pause before, s.

        Args: judgement: for a send, with `waits` + 1 as the number of failures. broker: that was tried; None: there was none.
        """
        self._note(broker or "name server", error)
        if broker is not None:
            self._unknown = self._unknown or judgement.maybe_done
            self._fell(broker)
        if judgement.only_busy:
            return judgement.pause
        self.needs_route = True
        self._made += broker is not None
        self.count += not judgement.away
        if judgement.elsewhere and self._is_left(others):
            return 0.0
        return self._paused(judgement.pause)

    def unrouted(self, error: MetaqError) -> float:
        """Note that no name server told the route, which costs no try. Returns the pause before the next look-up, s."""
        self._note("name server", error)
        return ROUTE_PAUSE

    def not_ok(self, stored: Stored, broker: str, others: Collection[str]) -> float:
        """Note a try with another status than SEND_OK. Returns the pause before the next, s."""
        self.kept, self.needs_route = stored, True
        self._fell(broker)
        self._made += 1
        self.count += 1
        if self._is_left(others):
            return 0.0
        return self._paused(judge(RequestTimeout(""), Purpose.SEND, self.waits + 1).pause)

    def _note(self, peer: str, error: MetaqError) -> None:
        # A peer that is busy or away for seconds would otherwise fill the error with the same line.
        if (attempt := (peer, str(error))) not in self._attempts:
            self._attempts.append(attempt)

    def _fell(self, broker: str) -> None:
        # Moved to the end: the last broker that failed is avoided the longest.
        self.failed.pop(broker, None)
        self.failed[broker] = None
        self._lately.add(broker)

    def _is_left(self, others: Collection[str]) -> bool:
        return any(one not in self._lately for one in others)

    def _paused(self, seconds: float) -> float:
        self._lately.clear()
        self.waits += 1
        return seconds

    def over(self, next_at: float) -> bool:
        """Return whether no try is left at `next_at`."""
        return self.count > self._retries or next_at >= self.deadline

    @property
    def nowhere(self) -> bool:
        """Whether no broker could be asked at all."""
        return len(self._attempts) == 1 and not self.failed

    def error(self, now: float, pause: float) -> SendFailed:
        """Make the error for the user, after the last try."""
        count = "1 try" if self._made == 1 else f"{self._made} tries" if self._made else "no try at a broker"
        late = now + pause >= self.deadline
        why = f"the timeout of {self._timeout:g} s is over" if late else f"retries={self._retries}"
        reasons = "; ".join(f"{broker}: {text}" for broker, text in self._attempts)
        outcome = (
            "Whether a try without an answer was stored is unknown: sending again may store it twice"
            if self._unknown
            else f"{'All tries failed before a' if self._made else 'No'} broker took it, so nothing was stored"
        )
        stays = ". In strict order it goes to no other queue" if self._strict else ""
        return SendFailed(
            f"sending to topic {self._topic} failed after {count} in {now - self._started:.2f} s, {why} "
            f"({reasons}){stays}. {outcome}",
            tuple(self._attempts),
        )
