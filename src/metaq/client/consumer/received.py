"""A message in the hands of a consumer: it can be finished, tried again later, or rejected."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Self

from metaq.client.consumer.outcome import BROKER_DECIDES, DEAD_LETTER_LEVEL, Later, Reject, delay_level_of
from metaq.client.consumer.window import Chunk
from metaq.errors import ClientError
from metaq.model import StoredMessage

log = logging.getLogger("metaq.client")


class ReceivedMessage(StoredMessage):
    """A message of a consumer group, unfinished until somebody says otherwise.

    `with message:` finishes it on leaving. An exception inside sends it back and is logged, not passed on: a bad
    message must not end the loop over the others. `Reject` and `Later` are verdicts and not logged. What is no
    `Exception` (Ctrl-C, a cancelled task) passes through and leaves the message unfinished: it comes again when the
    group's queues are next distributed.

    It can be pickled, for a process pool: the copy has all that is known of the message, and what finishes one raises
    ClientError there.
    """

    __slots__ = ("_chunk",)

    _chunk: Chunk[ReceivedMessage] | _Settled | _Copied

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._chunk = COPIED

    def ack(self) -> None:
        """The message is done with."""
        chunk = self._chunk
        chunk.flags[self.queue_offset - chunk.base] = 1

    def retry(self, delay_level: int = BROKER_DECIDES) -> None:
        """Deliver it again later, see `Later`. After too many times (`max_reconsume_times`) it is a dead letter."""
        self._send_back(Later(delay_level).delay_level)

    def reject(self) -> None:
        """File it with the dead letters."""
        self._send_back(DEAD_LETTER_LEVEL)

    def _send_back(self, delay_level: int) -> None:
        chunk = self._chunk
        if isinstance(chunk, Chunk):
            self._chunk = SETTLED  # What is said of it from now on, such as an ack on leaving `with`, changes nothing.
            assert chunk.window.send_back is not None
            chunk.window.send_back(chunk, self, delay_level)
        else:
            chunk.flags[0] = 1  # A copy says that it is one.

    def settle(self, error: BaseException | None) -> bool:
        """Finish it, or send it back for what its handling raised. Returns whether the error ends here."""
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            return False
        if not isinstance(error, Reject | Later):
            log.warning("handling %s failed, it will be delivered again", self, exc_info=error)
        self._send_back(delay_level_of(error))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            chunk = self._chunk
            chunk.flags[self.queue_offset - chunk.base] = 1
            return False
        return self.settle(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.settle(error)


class _Ignored:
    """Flags of a message that was settled before."""

    def __setitem__(self, key: int, value: int) -> None: ...


class _Uncommittable:
    """Flags of a copy."""

    def __setitem__(self, key: int, value: int) -> None:
        raise ClientError(
            "this is a copy of a received message, pickled or copied: acknowledge, retry or reject the message itself, "
            "in the process and by the consumer that received it"
        )


class _Settled:
    base = 0
    flags: Any = _Ignored()


class _Copied:
    base = 0
    flags: Any = _Uncommittable()


SETTLED = _Settled()
COPIED = _Copied()
