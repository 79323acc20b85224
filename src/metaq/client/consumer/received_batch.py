"""Messages of a consumer as one record batch, which is finished, tried again or rejected as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from metaq.client.consumer.handling.handlers import settle_all
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import BROKER_DECIDES, Later, Reject

if TYPE_CHECKING:
    from metaq.client.arrow.reading import RecordBatch


class ReceivedBatch:
    """A record batch of pyarrow, and the messages of one queue that are its rows.

    `with batch:` acknowledges on leaving. An exception inside sends all its messages back and is logged, not passed on, as of a
    `ReceivedMessage`; so do `Later` and `Reject`, which are verdicts. Messages that were settled one by one stay so. Frames of
    others take it as it is: `polars.DataFrame(batch)`. `data` is the pyarrow.RecordBatch, `messages` the `ReceivedMessage` of
    each row, in the order of the rows.
    """

    __slots__ = ("data", "messages")

    def __init__(self, data: RecordBatch, messages: Sequence[ReceivedMessage]) -> None:
        self.data, self.messages = data, messages

    @property
    def num_rows(self) -> int:
        """Number of messages."""
        return len(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def ack(self) -> None:
        """All its messages are done with, but for those that were settled one by one."""
        for message in self.messages:
            # What was said of a message by itself stands.
            if not message.settled:
                message.ack()

    def retry(self, delay_level: int = BROKER_DECIDES) -> None:
        """Deliver them again later, each by itself, see `Later`. Raises TypeError, InvalidMessage: no delay level."""
        settle_all(self.messages, Later(delay_level))

    def reject(self) -> None:
        """File them with the dead letters."""
        settle_all(self.messages, Reject())

    @property
    def settled(self) -> bool:
        """Whether all were acknowledged or failed."""
        return all(message.settled for message in self.messages)

    def settle(self, error: BaseException | None) -> bool:
        """Acknowledge it, or send it back because of what its handling raised. Returns whether the error is swallowed."""
        if error is None:
            self.ack()
            return False
        return settle_all(self.messages, error)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        found: tuple[object, object] = self.data.__arrow_c_array__(requested_schema)
        return found

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.data.__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.settle(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.settle(error)

    def __repr__(self) -> str:
        return f"<ReceivedBatch of {len(self.messages)} messages of {self.messages[0].queue}>"


def records_of(messages: Sequence[ReceivedMessage]) -> Any:
    """The records that messages of one pull were decoded from, if they were kept."""
    return getattr(messages[0]._chunk, "records", None)  # noqa: SLF001  a slot for whoever handed them out
