"""How the slave of a pair does: after so many failures in a row its master leaves ZooKeeper, until the slave takes a test message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from metaq.model.metaq1.pair import SamsaSettings

log = logging.getLogger(__name__)

_PAUSE: Final = -1


class SlaveHealth:
    """Counts failures, and asks for tests.

    Args:
        now: monotonic seconds.
        changed: called when `suspended` has changed.
    """

    def __init__(self, settings: SamsaSettings, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self._settings, self._now, self._changed = settings, now, changed
        self.failures = 0
        """In a row."""
        self.suspended = False
        """The slave has failed too often: the broker is to be in no registry."""
        self._test: tuple[int | None, float] = None, 0.0
        """Opaque of the test under way, None in a pause; and when that ends."""

    def took(self) -> None:
        """The slave has taken a message."""
        self.failures = 0

    def failed(self) -> None:
        """The slave has not taken a message: it was refused, or not answered."""
        self.failures += 1
        if self.failures >= self._settings.failures_max and not self.suspended:
            self.failures, self.suspended, self._test = 0, True, (None, self._now())
            log.error(
                "the slave %s has failed %d times in a row: this broker leaves ZooKeeper until it takes a message again",
                self._settings.url, self._settings.failures_max,
            )  # fmt: skip
            self._changed()

    @property
    def due(self) -> bool:
        """Whether a test is to be begun, now that a pause or an unanswered test is over."""
        return self.suspended and self._test[1] <= self._now()

    def begin(self, opaque: int) -> None:
        """A test was sent."""
        self._test = opaque, self._now() + self._settings.send_timeout

    def is_test(self, opaque: int) -> bool:
        """Return whether an answer is that of the test under way."""
        return self.suspended and self._test[0] == opaque

    def pause(self) -> None:
        """The test has failed, or there is nobody to ask."""
        self._test = None, self._now() + self._settings.check_interval

    def tested(self, *, good: bool) -> None:
        """Take the outcome of the test under way."""
        if not good:
            self.pause()
            return
        self.failures, self.suspended = 0, False
        log.warning("Slave %s is back.", self._settings.url)
        self._changed()
