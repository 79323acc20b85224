"""Where clients' reads of a master's log end while its sends wait for slaves.

A record that only the master has may be lost with it. The slave that leads then gives its queue offset to another message; a group
that had read the first one would pass over the second, though that is acknowledged. Kafka has its high watermark against that,
RocketMQ 5 its confirmOffset.
"""

from __future__ import annotations

import logging

from metaq.broker.environment import Environment
from metaq.log import RateLimitedLog
from metaq.store.reads.pull import READ_ALL

log = logging.getLogger(__name__)


class ReadLimit:
    """Decides up to where clients may read.

    Slaves that are there and report nothing hold up readers as long as they hold up a send: `slaveTimeout`.
    """

    def __init__(self, environment: Environment) -> None:
        self._options, self._clock = environment.options, environment.clock
        self.end = READ_ALL
        """LogOffset up to which clients may read."""
        self._copied = 0
        self._lacking_since: float | None = None
        """Since when slaves lack something and have reported nothing new, monotonic seconds; None: they have all."""
        self._faults = RateLimitedLog(log, environment.clock)

    def look(self, *, waited_for: bool, copied: int, log_end: int) -> bool:
        """Decide anew. Returns whether `end` has moved.

        Args:
            waited_for: whether sends wait for slaves.
            copied: LogOffset up to which enough slaves have the log.
        """
        end = copied if waited_for else READ_ALL
        if not waited_for or copied >= log_end:
            self._lacking_since = None
        elif self._lacking_since is None or copied > self._copied:
            self._lacking_since = self._clock.monotonic()
        elif self._is_stalled(copied, log_end):
            end = READ_ALL
        self._copied = copied
        moved, self.end = end != self.end, end
        return moved

    def _is_stalled(self, copied: int, log_end: int) -> bool:
        assert self._lacking_since is not None, "asked while slaves lack something"
        if self._clock.monotonic() - self._lacking_since < self._options.slave_timeout / 1000:
            return False
        if self.end != READ_ALL:
            self._faults.warning(
                "stalled",
                "slaves have the log up to %d, of %d, and have reported nothing new for %d ms (slaveTimeout): until they do, clients "
                "read messages that only this broker has",
                copied,
                log_end,
                self._options.slave_timeout,
            )
        return True

    def tick(self) -> None:
        """Let time pass: what was left out of the log is counted there."""
        self._faults.tick()
