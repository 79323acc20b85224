"""The fetches of one partition, as a state machine: what to ask for next, and after which pause. No socket, no clock.

As Java's client: a pause grows by a tenth of the longest one. What differs: fetches without a whole message are counted apart from
messages that fail. In Java they share a counter, by which a message larger than a fetch goes to the reject handler in place of the
listener.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.metaq1.config import MAX_OFFSET, NEVER_SKIP, ConsumerConfig

STEPS: Final = 10


class FetchRules(Struct, frozen=True):
    """What the configuration says of fetches."""

    longest_delay: float
    """Seconds."""
    retries_max: int
    short_max: int
    """Fetches without a whole message after which the size is doubled."""
    bytes_max: int
    """Size from which on it is not doubled any more."""

    @classmethod
    def of(cls, config: ConsumerConfig, bytes_max: int) -> FetchRules:
        return cls(
            config.max_delay_fetch_time, config.max_fetch_retries, config.max_increase_fetch_data_retries, bytes_max
        )

    @property
    def step(self) -> float:
        return self.longest_delay / STEPS


class PartitionFetch:
    """Where one partition's consumer stands.

    Args:
        rules: of the consumer.
        offset: byte position of the first message that is not consumed.
        message_id: of the last message before it; -1: unknown.
        max_bytes: to ask for at once.
        saved: what the storage has; None: nothing.
    """

    def __init__(
        self, rules: FetchRules, offset: int, message_id: int, max_bytes: int, saved: int | None = None
    ) -> None:
        self._rules = rules
        self.acknowledged, self.message_id = offset, message_id
        """What is to be saved."""
        self.saved = saved
        self.position = offset
        """Where the next fetch begins; beyond `acknowledged` while a batch is open."""
        self.max_bytes = self._asked = max_bytes
        self.delay = 0.0
        """Seconds before the next fetch."""
        self.retries = 0
        """Failures of the message at `position`."""
        self._short = 0
        self.unproved = offset == saved and 0 < offset < MAX_OFFSET
        """The position is the storage's, and no answer has shown yet that the server has it."""
        self.restarted_at = -1
        """Position of a damaged frame from which the server was asked where to go on."""

    @property
    def is_changed(self) -> bool:
        """There is something to save."""
        return self.acknowledged != self.saved

    @property
    def must_skip(self) -> bool:
        """The next message has failed too often: it goes to the reject handler."""
        return self.retries > self._rules.retries_max and self._rules.retries_max != NEVER_SKIP

    @property
    def may_be_beyond(self) -> bool:
        """It waits as long as it can for the first message behind a position that may be beyond the server's end."""
        return self.unproved and self.delay >= self._rules.longest_delay

    def nothing(self) -> None:
        """There is no message yet."""
        self.delay = min(self._rules.longest_delay, self.delay + self._rules.step)

    failed = nothing
    """The fetch itself has failed."""

    def moved(self, offset: int) -> None:
        """The server says where to go on. That counts as consumed."""
        self.position = self.acknowledged = offset
        self.retries = self._short = 0
        self.unproved = False
        self.nothing()

    def restart(self, offset: int, damaged_at: int) -> None:
        """A frame was damaged, and the server says where to go on. What is acknowledged stays so."""
        self.restarted_at = damaged_at
        self.position = offset
        self.unproved = False
        self.nothing()

    def incomplete(self) -> None:
        """There were bytes, and no whole message."""
        self._short += 1
        self.delay = min(self._rules.longest_delay, self.delay + self._rules.step)
        if self._short > self._rules.short_max and self.max_bytes < self._rules.bytes_max:
            self.max_bytes = min(2 * self.max_bytes, max(self._rules.bytes_max, self.max_bytes))

    def got(self, size: int) -> None:
        """A fetch has returned so many bytes, with a whole message."""
        self._short = 0
        self.unproved = False
        if self.max_bytes > self._asked and size < self.max_bytes // 2:
            self.max_bytes = max(self._asked, self.max_bytes // 2)

    def consumed(self, position: int, message_id: int, *, acknowledged: bool) -> None:
        """Messages up to `position` are processed. `acknowledged`: and are never to be delivered again."""
        self.position = position
        # After a restart messages come again that were acknowledged long ago.
        if acknowledged and (position > self.acknowledged or self.acknowledged == MAX_OFFSET):
            self.acknowledged, self.message_id = position, message_id
        self.retries, self.delay = 0, 0.0

    def refused(self) -> None:
        """The message at `position` has failed, and none before it was processed."""
        self.retries += 1
        self.delay = min(self._rules.longest_delay, self._rules.step * self.retries)

    def rolled_back(self) -> None:
        """All messages after the acknowledged ones are to be delivered again."""
        self.position = self.acknowledged
        self.refused()
