"""Bodies of answers to `stats`, in the original's words: people read them in telnet, tools split them at spaces.

STATS
NAME WORD ...
END
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from metaq.broker.metaq1.service import Metaq1Service
from metaq.clock import Clock
from metaq.model.metaq1.partition import PartitionFigures
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
        self.counters.collect()
        match item:
            case None:
                return _block(self._broker())
            case "help":
                return _block(HELP)
            case "topics":
                return _block(self._topics())
            case "offsets":
                return _block(self._offsets())
            case "realtime":
                return _block((f"realtime_{what.value}", self.counters.text(what)) for what in _REALTIME)
            case "reset":
                self.counters.reset()
                return _block([("reset", "ok")])
            case "config":
                return self._settings.text
        return _block(self._topic(item))

    def _broker(self) -> list[Sequence[object]]:
        totals = self.counters.totals
        published = self._partitions.published()
        ended = self._transactions
        return [
            ("pid", os.getpid()),
            ("broker_id", self._settings.options.broker_id),
            ("port", self.place[1]),
            ("uptime", int(self._clock.monotonic() - self._started)),
            ("version", self._version),
            ("slave", "false"),  # a broker is nobody's 1.x slave
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
            ("total_messages", sum(self._partitions.messages(topic) for topic in published)),
            ("topics", len(published)),
            ("config_checksum", zlib.crc32(self._settings.text)),
        ]

    def _topics(self) -> Iterable[Sequence[object]]:
        # Topics without a partition come last, as in the original.
        empty = []
        for topic, published in self._partitions.published().items():
            figures = list(self._partitions.figures(topic))
            if figures:
                accept = ("accept_publish", _word(published.publish), "accept_subscribe", _word(published.subscribe))
                yield (topic, "partitions", len(figures), *_sums(figures), *accept)
            else:
                empty.append(topic)
        for topic in empty:
            yield topic, "*Empty*"

    def _offsets(self) -> Iterable[Sequence[object]]:
        for topic in self._partitions.published():
            for each in self._partitions.figures(topic):
                offsets = ("min_offset", _offset(each.min_position), "max_offset", _offset(each.max_position))
                yield (topic, "part", each.partition, *offsets)

    def _topic(self, topic: str) -> Iterable[Sequence[object]]:
        known = topic in self._partitions.published()
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


def _block(lines: Iterable[Sequence[object]]) -> bytes:
    text = "".join(" ".join(map(str, line)) + "\r\n" for line in lines)
    return f"STATS\r\n{text}END\r\n".encode("utf-8", "replace")
