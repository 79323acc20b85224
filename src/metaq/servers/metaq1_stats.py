"""Bodies of answers to `stats`, in the original's words: people read them in telnet, tools split them at spaces.

STATS
NAME WORD ...
END
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from metaq.broker.metaq1.service import Metaq1Service
from metaq.clock import Clock
from metaq.in_pieces import InPieces, finish
from metaq.model.metaq1.partition import PartitionFigures, Published
from metaq.net.address import join_address
from metaq.servers.metaq1_counters import SHOWN_CHARS_MAX, Counted, Counters

SCHEME: Final = "meta://"
HELP: Final = (
    ("*EMPTY*", "Returns broker info."),
    ("help", "Returns help menu."),
    ("topics", "Returns topics statistics detail info."),
    ("offsets", "Returns partitions detail info."),
    ("realtime", "Returns realtime statistics detail info."),
    ("config", "Returns broker's config file content."),
)
HAS_DATA, UNKNOWN, NO_DATA = 0, 1, 2
UNTOUCHED: Final = -1
"""Shown for the offsets of a partition without positions: no 1.x client has put or got anything yet."""
_REALTIME: Final = tuple(Counted)
PIECE: Final = 20
"""Topics that are looked at in one piece of work."""
Lines: TypeAlias = Iterator[Sequence[object] | None]
"""Lines as words, and None between pieces of work."""


class StatsBodies:
    """Makes the bodies, for all servers of one broker: `counters` has what they count together.

    Args:
        metaq1: the broker's services.
        clock: of the uptime.
        version: that is shown.
    """

    def __init__(self, metaq1: Metaq1Service, clock: Clock, version: str) -> None:
        self._partitions, self._settings = metaq1.partitions, metaq1.settings
        self.counters = Counters(metaq1.settings, clock, metaq1.fast_path.counts)
        self._transactions = metaq1.transactions
        self._clock, self._version = clock, version
        self._started = clock.monotonic()
        self.place = "", 0
        """Host and port under which clients know the server of the text protocol."""
        self.connections: Callable[[], int] = lambda: 0
        """Returns the number of its connections."""

    @property
    def url(self) -> str:
        """Address of that server."""
        return SCHEME + join_address(*self.place)

    def body(self, item: str | None) -> bytes:
        """Return the body for an item; None: the broker."""
        return finish(self.in_pieces(item))

    def in_pieces(self, item: str | None) -> InPieces[bytes]:
        """The same, in pieces: a broker may have many topics."""
        self.counters.collect()
        lines: Lines
        match item:
            case None:
                lines = self._broker()
            case "help":
                lines = iter(HELP)
            case "topics":
                lines = self._topics()
            case "offsets":
                lines = self._offsets()
            case "realtime":
                lines = ((f"realtime_{what.value}", self.counters.text(what)) for what in _REALTIME)
            case "reset":
                self.counters.reset()
                lines = iter([("reset", "ok")])
            case "config":
                return self._settings.text
            case _:
                lines = self._topic(item)
        parts = ["STATS\r\n"]
        for line in lines:
            if line is None:
                yield
            else:
                parts.append(" ".join(map(str, line)) + "\r\n")
        return "".join([*parts, "END\r\n"]).encode("utf-8", "replace")

    def _published(self) -> Iterator[tuple[str, Published] | None]:
        """Yield the topics that 1.x clients may use, and None between pieces."""
        for count, name in enumerate(self._partitions.names()):
            published = self._partitions.published_topic(name)
            if published is not None:
                yield name, published
            if count % PIECE == 0:
                yield None

    def _broker(self) -> Lines:
        totals = self.counters.totals
        topics = messages = 0
        for found in self._published():
            if found is None:
                yield None
            else:
                topics += 1
                messages += self._partitions.messages(found[0])
        ended = self._transactions
        yield from (
            ("pid", os.getpid()),
            ("broker_id", self._settings.options.broker_id),
            ("port", self.place[1]),
            ("uptime", int(self._clock.monotonic() - self._started)),
            ("version", self._version),
            ("slave", _word(self._partitions.leading.refusal is not None)),
            ("curr_connections", self.connections()),
            ("threads", threading.active_count()),
            ("cmd_put", totals[Counted.PUT]),
            ("cmd_get", totals[Counted.GET]),
            ("cmd_offset", totals[Counted.OFFSET]),
            ("tx_begin", ended.begun),
            ("tx_xa_begin", ended.begun_xa),
            ("tx_commit", ended.committed),
            ("tx_rollback", ended.rolled_back),
            ("get_miss", totals[Counted.GET_MISS]),
            ("put_failed", totals[Counted.PUT_FAILED]),
            ("total_messages", messages),
            ("topics", topics),
            ("config_checksum", zlib.crc32(self._settings.text)),
        )

    def _topics(self) -> Lines:
        # Topics without a partition come last, as in the original.
        empty = []
        for found in self._published():
            if found is None:
                yield None
                continue
            topic, published = found
            figures = list(self._partitions.figures(topic))
            if figures:
                accept = ("accept_publish", _word(published.publish), "accept_subscribe", _word(published.subscribe))
                yield (topic, "partitions", len(figures), *_sums(figures), *accept)
            else:
                empty.append(topic)
        for count, topic in enumerate(empty):
            yield topic, "*Empty*"
            if count % PIECE == 0:
                yield None

    def _offsets(self) -> Lines:
        for found in self._published():
            if found is None:
                yield None
                continue
            for each in self._partitions.figures(found[0]):
                offsets = ("min_offset", _offset(each.min_position), "max_offset", _offset(each.max_position))
                yield (found[0], "part", each.partition, *offsets)

    def _topic(self, topic: str) -> Lines:
        known = self._partitions.published_topic(topic) is not None
        figures = list(self._partitions.figures(topic)) if known else []
        yield (topic[:SHOWN_CHARS_MAX],)
        yield "resultCode", HAS_DATA if figures else NO_DATA if known else UNKNOWN
        yield "partitions", len(figures)
        yield "message_count", sum(each.messages for each in figures)
        yield "bytes", _bytes(figures)
        for what in _REALTIME:
            yield f"topic_realtime_{what.value}", self.counters.text(what, topic)


def _sums(figures: Sequence[PartitionFigures]) -> tuple[object, ...]:
    return "message_count", sum(each.messages for each in figures), "message_bytes", _bytes(figures)


def _bytes(figures: Sequence[PartitionFigures]) -> int:
    """Return the bytes of the partitions that have positions."""
    return sum((each.max_position or 0) - (each.min_position or 0) for each in figures)


def _offset(position: int | None) -> int:
    return UNTOUCHED if position is None else position


def _word(value: bool) -> str:
    return "true" if value else "false"
