"""What `run` was asked to do: the handler and how it is called, looked at before the first message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from metaq.client.consumer.handling.handlers import check_handler, name_of
from metaq.client.shared.options import check_whole
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.client.consumer.handling.processes import Worker


class Job(Struct, frozen=True):
    """One call of `run`."""

    handler: Any
    workers: int
    """Threads or tasks."""
    batch: int | None
    """How many messages the handler gets at most, in a list; None: it gets one, as it is."""
    pickled: bytes | None
    """The handler for a process per worker."""

    @classmethod
    def of(cls, handler: object, workers: int, batch: int | None, processes: int, *, awaited: bool) -> Self:
        """Args: awaited: it runs here and is asynchronous. Raises TypeError: the handler will not do. ConfigError."""
        taking = "one message" if batch is None else "a list of messages"
        check_handler(handler, awaited=awaited and not processes, taking=taking)
        what = "tasks" if awaited else "threads"
        for name, number in ((what, workers), ("batch", 1 if batch is None else batch), ("processes", processes)):
            check_whole(name, number)
        if workers < 1:
            raise ConfigError(f"{what}={workers}: need at least 1")
        if batch is not None and batch < 1:
            raise ConfigError(f"batch={batch}: need at least 1, or None for one message that is no list")
        if processes < 0 or (processes and workers > 1):
            raise ConfigError(f"processes={processes} with {what}={workers}: need one of the two, at least 1")
        if not processes:
            return cls(handler, workers, batch, None)
        from metaq.client.consumer.handling.processes import pickled  # Only who needs it pays for multiprocessing.

        return cls(handler, processes, batch, pickled(handler))

    @property
    def name(self) -> str:
        return name_of(self.handler)

    def worker(self) -> Worker:
        """A process for one worker."""
        from metaq.client.consumer.handling.processes import Worker

        assert self.pickled is not None
        return Worker(self.pickled, f"metaq-{self.name}")

    def hand_size(self, worker: Worker, *, orderly: bool) -> int:
        """How many messages one worker takes at a time."""
        if self.batch is not None:
            return self.batch
        return 1 if orderly else worker.slice
