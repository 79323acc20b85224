"""Message traces of sends and deliveries, in RocketMQ's format: collected aside, sent twice a second (docs/formats/trace.md).

What is sent or delivered never waits for its trace, and fails for none. So traces have limits, `trace_rate` and a
number of bytes, which also bound what they cost: a send of a batch some 2 µs, all else 10. What is above, or cannot be
written, is left out, and the log says how much.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Self, TypeAlias

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.sending.sending import Outgoing, Stored
from metaq.client.observing.observing import Observing, Sends, count_of
from metaq.client.shared.core import ClientCore
from metaq.client.shared.futures import SendBatch
from metaq.client.shared.sending import Sender, SendRules
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage, SysFlag, TransactionOutcome
from metaq.model import properties as props
from metaq.model.message import COMPRESSION_ZLIB
from metaq.model.trace import Begun, Handled, Kind, Record, Result, Sent, Settled
from metaq.wire import compression
from metaq.wire.trace import BODY_CHARS_MAX, batch_texts, text_of

log = logging.getLogger("metaq.client")

EVERY_SECONDS = 0.5
"""Interval of trace messages, s: one holds the records of many sends."""
RECORDS_MAX = 400
"""Records of one trace message, at most."""
KEYS_BYTES_MAX = 16_000
"""Bytes of keys of one trace message at most, so that they fit into its properties."""
ID_CHARS_MAX = 64
"""Longest id that is traced."""
BYTES_MAX = 4 * 1024 * 1024
"""Bytes of batches whose messages wait to be traced."""
SEND_SECONDS = 5.0
COMPRESS_OVER = 4096
_STATES = {
    TransactionOutcome.COMMIT: "COMMIT_MESSAGE",
    TransactionOutcome.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionOutcome.UNKNOWN: "UNKNOW",
}


Lines: TypeAlias = tuple[list[str], list[str], str]
"""Records, the id of each one's message, and the keys that all have: words that they are to be found by."""


class TracedEnd(Struct, frozen=True):
    """A traced END_TRANSACTION."""

    topic: str
    message_id: str
    outcome: TransactionOutcome
    from_check: bool = False


class Tracer:
    """The tracer of one producer or consumer. `sent` and `settled` in the loop, `begun` and `ended` in any thread."""

    def __init__(self, core: ClientCore, group: str, topic: str, per_second: int, *, role: str) -> None:
        """Args: role: PRODUCE or CONSUME."""
        # The trace topic belongs to the brokers: no namespace has its own.
        self._core, self._group, self._topic = core.shared(), group, topic
        self._limit = max(1, int(per_second * EVERY_SECONDS))
        self._left = self._limit
        """Messages that may be traced until the next write (trace_rate)."""
        self._bytes = 0
        self._waiting: deque[Sends | tuple[Record, ...]] = deque()
        self._left_out = 0
        # RocketMQ's name for the producer group of a client's traces.
        self._sender = Sender(self._core, f"_INNER_TRACE_PRODUCER-{group}-{role}-0", SendRules())
        self._host = self._core.client_id.partition("@")[0]
        self._requests = itertools.count()
        self._prefix = self._core.id_prefixes.next().decode()
        self._limited_log = RateLimitedLog(log, core.clock)
        self._ticking: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    @classmethod
    def of(cls, core: ClientCore, group: str, observing: Observing, *, role: str) -> Self | None:
        """Return the tracer of a client; None if tracing is off."""
        if not observing.trace:
            return None
        return cls(core, group, observing.trace_topic, observing.trace_rate, role=role)

    def start(self) -> None:
        """In the loop."""
        self._ticking = self._core.every(EVERY_SECONDS, self.write)

    async def close(self) -> None:
        """In the loop: send the remaining records."""
        if self._ticking is not None:
            async with self._writing:  # In the midst of a writing a cancellation would lose what that has taken.
                self._ticking.cancel()
        await self.write()
        self._limited_log.tick()

    # -------------------------------------------------------------- what happens

    def wants(self, outgoing: Outgoing, batch: SendBatch) -> bool:
        # A trace of a trace would be traced, and so on for ever.
        if outgoing.topic == self._topic:
            return False
        if self._left <= 0 or self._bytes + _kept_bytes(outgoing) > BYTES_MAX:
            self._left_out += count_of(batch)
            return False
        return batch.stored is None or batch.stored.trace  # Else its broker wants no traces.

    def sent(self, sends: Sends) -> None:
        self._left -= sends.count
        self._bytes += _kept_bytes(sends.outgoing)
        self._waiting.append(sends)

    def settled(self, end: TracedEnd) -> None:
        if self._left <= 0:
            self._left_out += 1
            return
        self._left -= 1
        record = Settled(
            time_ms=self._core.clock.now_ms(), group=self._group, topic=end.topic, message_id=end.message_id,
            transaction_id=end.message_id, state=_STATES[end.outcome], from_check=end.from_check,
        )  # fmt: skip
        self._waiting.append((record,))

    def begun(self, message: StoredMessage) -> object:
        if message.topic == self._topic:  # The trace of a trace would be traced, and so on for ever.
            return None
        if self._left <= 0:
            self._left_out += 1
            return None
        properties = message.properties
        # As Java's consumers: a message whose broker wants no traces says so.
        if properties.get(props.TRACE) == "false":
            return None
        self._left -= 1
        record = Begun(
            time_ms=self._core.clock.now_ms(), region=properties.get(props.REGION, ""), group=self._group,
            request_id=f"{self._prefix}{next(self._requests):08X}", message_id=message.message_id,
            retry_times=message.reconsume_times, keys=properties.get(props.KEYS, ""), client_host=self._host,
        )  # fmt: skip
        self._waiting.append((record,))
        return record

    def ended(self, message: StoredMessage, begun: object, result: Result, cost_ms: int) -> None:  # noqa: ARG002
        if not isinstance(begun, Begun):
            return
        record = Handled(
            request_id=begun.request_id, message_id=begun.message_id, cost_ms=cost_ms, success=result is Result.SUCCESS,
            keys=begun.keys, code=result, time_ms=self._core.clock.now_ms(), group=self._group,
        )  # fmt: skip
        self._waiting.append((record,))

    # -------------------------------------------------------------- writing

    async def write(self) -> None:
        """Send all collected records. Raises nothing but a cancellation."""
        async with self._writing:
            self._left, self._bytes = self._limit + min(0, self._left), 0  # A batch is traced whole: the next pays.
            lines = self._lines(self._taken())
            for body, keys in _messages(lines):
                if not await self._send(body, keys):
                    self._waiting.clear()  # It would wait as long, and fail as well.
                    break
                await asyncio.sleep(0)  # Others of the loop come first.
            if self._left_out:
                count, self._left_out = self._left_out, 0
                self._limited_log.warning(
                    "rate",
                    "%d messages of group %s were not traced: more than trace_rate=%d in a second",
                    count, self._group, round(self._limit / EVERY_SECONDS),
                )  # fmt: skip

    def _taken(self) -> Iterator[Sends | tuple[Record, ...]]:
        """Take what has gathered; more may come meanwhile."""
        # Its length now: what is sent while this is written waits for the next time.
        for _ in range(len(self._waiting)):
            yield self._waiting.popleft()

    def _lines(self, taken: Iterable[Sends | tuple[Record, ...]]) -> Iterator[Lines]:
        for one in taken:
            if isinstance(one, Sends) and one.outgoing.batch and one.batch.stored is not None:
                yield from self._whole(one, one.batch.stored)
            else:
                for record in self._records(one) if isinstance(one, Sends) else one:
                    yield [text_of(record)], [record.message_id], record.keys

    def _whole(self, sends: Sends, stored: Stored) -> Iterator[Lines]:
        """The records of a batch that was stored whole."""
        shared = Sent(
            time_ms=sends.began_ms, region=stored.region, group=self._group, topic=sends.outgoing.topic, message_id="",
            store_host=self._core.address_of(stored.queue.broker) or "", cost_ms=sends.cost_ms, client_host=self._host,
        )  # fmt: skip
        return batch_texts(shared, sends.outgoing.body, sends.batch.prefix, stored.offset_ids)

    def _records(self, sends: Sends) -> Iterator[Sent]:
        batch, topic, stored = sends.batch, sends.outgoing.topic, sends.batch.stored
        region, address = "", ""
        offset_ids: list[str] = []
        if stored is not None:
            region, address = stored.region, self._core.address_of(stored.queue.broker) or ""
            offset_ids = stored.offset_ids.split(",")
        for one in sends.each(sends.count):
            properties, number = one.properties, one.place - batch.first
            kind = Kind.NORMAL
            if props.TRANSACTION_PREPARED in properties:
                kind = Kind.HALF
            elif props.DELAY in properties:
                kind = Kind.DELAYED
            offset_id, store_host = offset_ids[number] if number < len(offset_ids) else "", address
            if stored is None and one.error is None:  # It was sent again by itself.
                receipt = batch.receipt(one.place)
                offset_id, store_host = receipt.offset_id, self._core.address_of(receipt.queue.broker) or ""
            yield Sent(
                time_ms=sends.began_ms, region=region, group=self._group, topic=topic, message_id=one.message_id,
                tags=properties.get(props.TAGS, ""), keys=properties.get(props.KEYS, ""), store_host=store_host,
                body_bytes=one.body_bytes, cost_ms=sends.cost_ms, kind=kind, offset_id=offset_id,
                success=one.error is None, client_host=self._host,
            )  # fmt: skip

    async def _send(self, body: bytes, keys: str) -> bool:
        """Send one trace message. Returns whether it is stored."""
        flags = 0
        if len(body) >= COMPRESS_OVER:
            packed = compression.compress(body, COMPRESSION_ZLIB, 1)
            if len(packed) < len(body):
                body, flags = packed, int(SysFlag.COMPRESSED | COMPRESSION_ZLIB)
        message_id = f"{self._core.id_prefixes.next().decode()}0000"
        properties = props.join({props.KEYS: keys, props.UNIQUE_ID: message_id, props.WAIT: "true"})
        try:
            await self._sender.send(Outgoing(self._topic, body, flags, properties=properties), SEND_SECONDS)
        except (*FAULTS, MetaqError) as error:
            self._limited_log.warning(
                "lost",
                "traces of group %s could not be written to topic %s and are lost: %s",
                self._group,
                self._topic,
                error,
            )
            return False
        return True


class _Page:
    """The records that fit one trace message."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._words: dict[str, None] = {}
        self._chars = self._word_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def content(self) -> tuple[bytes, str]:
        """Body and keys."""
        return "".join(self._texts).encode("utf-8", "replace"), " ".join(self._words)

    def takes(self, text: str, message_id: str, keys: str) -> bool:
        """Add a record, if it fits or is the first."""
        fresh = _fresh(message_id, keys, self._words)
        more = sum(map(_size, fresh))
        if self._texts and (
            len(self._texts) >= RECORDS_MAX
            or self._chars + len(text) > BODY_CHARS_MAX
            or self._word_bytes + more > KEYS_BYTES_MAX
        ):
            return False
        self._add([text], fresh, len(text), more)
        return True

    def takes_all(self, texts: list[str], ids: list[str], keys: str) -> bool:
        """Add records if they surely fit, judged without a look at each."""
        chars = sum(map(len, texts))
        words = [ids[0], *keys.split(), *ids[1:]]
        more = sum(map(len, words)) + len(words)
        # Words of ASCII only: their characters are their bytes, and nothing has to be encoded to be measured.
        if (
            len(self._texts) + len(texts) > RECORDS_MAX
            or self._chars + chars > BODY_CHARS_MAX
            or self._word_bytes + more > KEYS_BYTES_MAX
            # Only of ASCII are characters and bytes the same number.
            or not "".join(words).isascii()
        ):
            return False
        self._add(texts, words, chars, more)
        return True

    def _add(self, texts: list[str], words: Sequence[str], chars: int, word_bytes: int) -> None:
        self._texts += texts
        self._words.update(dict.fromkeys(words))
        self._chars += chars
        self._word_bytes += word_bytes


def _messages(lines: Iterable[Lines]) -> Iterator[tuple[bytes, str]]:
    """Body and keys of trace messages that hold all of the records."""
    page = _Page()
    for texts, ids, keys in lines:
        if page.takes_all(texts, ids, keys):
            continue
        for text, message_id in zip(texts, ids, strict=True):
            # A first record is always taken, so the next page gets on.
            if not page.takes(text, message_id, keys):
                yield page.content()
                page = _Page()
                page.takes(text, message_id, keys)
    if page:
        yield page.content()


def _kept_bytes(outgoing: Outgoing) -> int:
    """Bytes that wait with a send for its trace to be written: of a single message the body is not kept."""
    return len(outgoing.body) if outgoing.batch else 0


def _size(word: str) -> int:
    """Bytes of a word and the blank before the next."""
    return 1 + (len(word) if word.isascii() else len(word.encode("utf-8", "replace")))


def _fresh(message_id: str, keys: str, known: Container[str]) -> Sequence[str]:
    """Those of a message's words that are not yet known, as far as one trace message can carry them; its id is the first."""
    if not keys and len(message_id) <= ID_CHARS_MAX:  # Nearly always.
        return () if message_id in known else (message_id,)
    kept, size = [], 0
    for word in (message_id, *keys.split()):
        if word in known:
            continue
        size += _size(word)
        if size > KEYS_BYTES_MAX:
            break
        kept.append(word)
    return kept
