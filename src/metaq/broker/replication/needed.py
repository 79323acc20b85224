"""Log files of a slave stay as long as its master needs records in them: delayed messages, half messages, staged parts.

The master writes such records anew before their file goes. A slave may be shorter of room, or its settings let go of files sooner,
and it may be promoted then.
"""

from __future__ import annotations

from metaq.broker.replication.with_the_log import WithTheLog


class NeededThere:
    """A `metaq.store.retention.expiry.Owed`: `oldest` may be called by any thread, all else by the one that owns the broker."""

    what = "messages that the master still needs, or may"

    def __init__(self) -> None:
        self._from: int | None = None
        self._told = WithTheLog[int]()
        self.told: int | None = None
        """LogOffset below which the master needs nothing, as it was told last; 0: it has not said yet; None: it does not say."""

    def begin(self) -> None:
        """Begin to follow: until the master has told what it needs, that may be anything."""
        self._from, self._told, self.told = 0, WithTheLog(), 0

    def tell(self, needed_from: int, log_end: int) -> None:
        """The master needs nothing below `needed_from`, as soon as the log is here up to `log_end`: with what was written anew."""
        self.told = needed_from
        self._told.put(log_end, needed_from)

    def advance(self, flushed: int) -> None:
        """The log is on the disk up to there."""
        if (due := self._told.due(flushed)) is not None:
            self._from = due[1]

    def end(self) -> None:
        """Nothing is known of a master, or this broker leads: its own services tell what they need."""
        self._from, self._told, self.told = None, WithTheLog(), None

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest record that is needed; None: none is."""
        return self._from

    def carry(self, before: int) -> None:
        """The master writes it anew, and that is copied."""
