"""What a master tells that counts records of the log holds at a slave once they are there."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class WithTheLog(Generic[T]):
    """Values that hold from a LogOffset on: the newest is taken when the log is there, and none is passed over for ever."""

    def __init__(self) -> None:
        self._first: tuple[int, T] | None = None
        self._last: tuple[int, T] | None = None

    def put(self, place: int, value: T) -> None:
        if self._first is None:
            self._first = place, value
        else:
            self._last = place, value

    def due(self, log_end: int) -> tuple[int, T] | None:
        """Return the newest value that holds where the log ends, with its place, once."""
        found = None
        while self._first is not None and self._first[0] <= log_end:
            found, self._first, self._last = self._first, self._last, None
        return found
