"""The ledger of a run: every event goes to a file when it happens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from metaq.clock import SYSTEM, Clock
from metaq.testing.checking.history import (
    SUFFIX,
    Committed,
    Event,
    Observed,
    Outcome,
    Place,
    SendBegun,
    SendEnded,
    Trouble,
    encoded,
)


class Ledger:
    """Writes events to `FOLDER/NAME.jsonl`, from any number of threads.

    A program of several processes has one for each, with names of their own: times are of the machine's monotonic clock, so
    `read_history` puts the files of one folder together. `file` is the path of this one.
    """

    def __init__(self, folder: Path, name: str = "history", clock: Clock = SYSTEM) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / (name + SUFFIX)
        self._clock = clock
        self._lock = threading.Lock()
        # Unbuffered: what is written is there for other processes, also when this one is killed.
        self._out = self.file.open("ab", buffering=0)
        self._ops = 0

    def now(self) -> float:
        """Return the time of an event that happens now, monotonic seconds."""
        return self._clock.monotonic()

    def write(self, event: Event) -> None:
        """Write an event."""
        with self._lock:
            self._out.write(encoded(event))

    def write_all(self, events: Sequence[Event]) -> None:
        """Write events that follow one another, with no other thread's in between."""
        with self._lock:
            self._out.write(b"".join(map(encoded, events)))

    def begin(
        self, process: str, keys: Sequence[str], queue: str = "", *, atomic: bool = False, copies_max: int = 1
    ) -> int:
        """Note that a send begins; to be called before it. Arguments: the fields of `SendBegun`. Returns its number for `end`."""
        with self._lock:
            self._ops += 1
            op = self._ops
            self._out.write(encoded(SendBegun(self.now(), process, op, tuple(keys), queue, atomic, copies_max)))
        return op

    def end(
        self, process: str, op: int, outcome: Outcome, places: Sequence[Place] = (), status: str = "", why: str = ""
    ) -> None:
        """Note what the producer was told; to be called after it was. Arguments: the fields of `SendEnded`."""
        self.write(SendEnded(self.now(), process, op, outcome, tuple(places), status, why))

    def observed(self, process: str, place: Place, key: str, group: str = "", *, orderly: bool = False) -> None:
        """Note that a consumer or reader has got a message; before it is acknowledged. Arguments: the fields of `Observed`."""
        self.write(Observed(self.now(), process, place, key, group, orderly))

    def committed(self, process: str, group: str, place: Place) -> None:
        """Note that a consumer was told that its group's progress is saved: everything before `place` was handled."""
        self.write(Committed(self.now(), process, group, place))

    def tell(self, text: str) -> None:
        """Note a fault or anything else that a reader of the report should know."""
        self.write(Trouble(self.now(), text))

    def close(self) -> None:
        """Close the file. Nothing can be written any more."""
        with self._lock:
            self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
