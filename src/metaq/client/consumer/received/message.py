"""A message in the hands of a consumer: it can be finished, tried again later, or rejected."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, Protocol, Self

from metaq.client.consumer.received.outcome import BROKER_DECIDES, Later, Pause, Reject
from metaq.client.consumer.received.replying import NO_KEYS, REPLY_SECONDS, Reply, ReplyFuture, reply_to
from metaq.client.shared.values import Received_co
from metaq.errors import ClientError
from metaq.model import StoredMessage
from metaq.model import properties as props

log = logging.getLogger("metaq.client")


class Holder(Protocol):
    """The chunk or run that a message belongs to: a message finishes by one assignment into `flags`, or fails."""

    base: int
    """The queue offset of the first flag."""

    in_order: bool
    """Whether nothing behind a message is handed out before it is settled."""

    @property
    def flags(self) -> Any: ...

    @property
    def lost(self) -> bool:
        """Whether acks and failures of its messages are ignored, although none was given yet."""
        ...

    def reply(self, message: Any, reply: Reply) -> ReplyFuture: ...

    def fail(self, message: Any, verdict: BaseException) -> None: ...


class ReceivedMessage(StoredMessage, Generic[Received_co]):
    """A message of a consumer group, unfinished until somebody says otherwise.

    `with message:` finishes it on leaving. An exception inside sends it back and is logged, not passed on: a bad
    message must not end the loop over the others. `Reject`, `Later` and `Pause` are verdicts and not logged. What is
    no `Exception` (Ctrl-C, a cancelled task) passes through and leaves the message unfinished: it comes again when
    the group's queues are next distributed; in orderly consumption, where nothing can overtake it, at once.

    It can be pickled, for a process pool: the copy has all that is known of the message, and what finishes one raises
    ClientError there.
    """

    __slots__ = ("_chunk", "_value")

    _chunk: Holder
    _value: Received_co

    @property
    def value(self) -> Received_co:
        """What the consumer's `deserialize` made of the body; the body itself if it was made without."""
        # Consumers without `deserialize` never set the slot, and pay nothing for it.
        try:
            return self._value
        except AttributeError:
            return self.body  # type: ignore[return-value]

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        if hasattr(self, "_value"):
            state["_value"] = self._value
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        # The chunk belongs to the consumer's process; what a copy says of it could not be committed.
        self._chunk = COPIED

    def ack(self) -> None:
        """The message is done with. Raises ClientError: it is a copy in another process."""
        # Read once: `give_up`, in another thread, may exchange it between the two uses.
        chunk = self._chunk
        chunk.flags[self.queue_offset - chunk.base] = 1

    def retry(self, delay_level: int = BROKER_DECIDES) -> None:
        """Deliver it again later, see `Later`. After too many times (`max_reconsume_times`) it is a dead letter.

        Raises TypeError, InvalidMessage: no delay level. ClientError: it is a copy in another process.
        """
        self._fail(Later(delay_level))

    def reject(self) -> None:
        """File it with the dead letters, topic `%DLQ%group`. Raises ClientError: it is a copy in another process."""
        self._fail(Reject())

    def pause(self, seconds: float) -> None:
        """Stop its queue for so many seconds; then it comes again, see `Pause`. Raises TypeError, ValueError: not above 0."""
        self._fail(Pause(seconds))

    @property
    def wants_reply(self) -> bool:
        """Whether it is a request: somebody waits for `reply`."""
        return bool(self.properties.get(props.CORRELATION_ID) and self.properties.get(props.REPLY_TO))

    def reply(
        self,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        properties: dict[str, str] | None = None,
        flag: int = 0,
        timeout: float = REPLY_SECONDS,
    ) -> ReplyFuture:
        """Send the reply to a request, which is still to be finished as any message is.

        It goes on its way at once. Who wants to know that the requester has it calls `result()` of what is returned, or
        awaits it: it gives the reply's receipt, and raises SendFailed or BrokerError if the requester is gone or did not
        confirm in `timeout` (3) seconds. The log says so in any case. The other arguments are as in `metaq.Message`.

        Raises: ClientError: the message is no request, was given back, or is a copy in another process. TypeError,
        InvalidMessage: what no message can be, such as a body above 4 MiB.
        """
        reply = reply_to(self, body, tag=tag, keys=keys, properties=properties, flag=flag, timeout=timeout)
        return self._chunk.reply(self, reply)

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or failed, so that a further verdict changes nothing."""
        chunk = self._chunk
        return bool(chunk.flags[self.queue_offset - chunk.base])

    @property
    def lost(self) -> bool:
        """Whether it was taken from us: what we say of it from now on changes nothing, and it comes again.

        In orderly consumption: the lock of its queue was lost, so another member may work on the message at this very
        moment. Otherwise: its handler took longer than `consume_timeout`.
        """
        return self._chunk.lost

    def timed_out(self) -> None:
        """Called when the message is taken from its handler, which took too long. For observers."""

    def _fail(self, verdict: BaseException) -> None:
        chunk = self._chunk
        if not isinstance(chunk, _Settled | _Copied):
            self._chunk = SETTLED  # What is said of it from now on, such as an ack on leaving `with`, changes nothing.
        chunk.fail(self, verdict)

    def settle(self, error: BaseException | None) -> bool:
        """Acknowledge it, or send it back because of what its handling raised. Returns whether the error is swallowed."""
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            if self._chunk.in_order:  # Unfinished for ever, it would hold its queue.
                self._fail(error)
            return False
        if not isinstance(error, Reject | Later | Pause):
            log.warning("handling %s failed, it will be delivered again", self, exc_info=error)
        self._fail(error)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            # `ack` written out: this runs for every message of a `with`.
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


def give_up(message: ReceivedMessage, delay_level: int) -> None:
    """Deliver it again later, and ignore what its handler says of it. It is `lost` from now on."""
    # Exchanged first, so that what the handler says from now on is ignored.
    chunk, message._chunk = message._chunk, GIVEN_UP  # noqa: SLF001  of the same module
    chunk.fail(message, Later(delay_level))
    message.timed_out()


class _Ignored:
    """Flags that ignore verdicts: of a message that was settled before."""

    def __getitem__(self, key: int) -> int:
        return 1

    def __setitem__(self, key: int, value: int) -> None: ...


class _Uncommittable:
    """Flags of a copy, which cannot be committed."""

    def __getitem__(self, key: int) -> int:
        return 0

    def __setitem__(self, key: int, value: int) -> None:
        raise ClientError(
            "this is a copy of a received message, pickled or copied: acknowledge, retry or reject the message itself, "
            "in the process and by the consumer that received it"
        )


class _Settled:
    base = 0
    flags: Any = _Ignored()
    in_order = lost = False

    def reply(self, message: ReceivedMessage, reply: Reply) -> ReplyFuture:  # noqa: ARG002
        raise ClientError(f"{message} was given back, to be handled again: whoever handles it then replies to it")

    def fail(self, message: ReceivedMessage, verdict: BaseException) -> None:
        """Ignore a verdict on a message that was settled before."""


class _GivenUp(_Settled):
    lost = True


class _Copied:
    base = 0
    flags: Any = _Uncommittable()
    in_order = lost = False

    def reply(self, message: ReceivedMessage, reply: Reply) -> ReplyFuture:  # noqa: ARG002
        raise ClientError(
            f"{message} is a copy, pickled or copied: reply in the process and by the consumer that received it"
        )

    def fail(self, message: ReceivedMessage, verdict: BaseException) -> None:  # noqa: ARG002
        self.flags[0] = 1  # A copy says that it is one.


SETTLED = _Settled()
GIVEN_UP = _GivenUp()
COPIED = _Copied()
