"""The options of the pipeline `audit`."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import NamedTuple

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.model.topics.system import TRACE_TOPIC
from metaq.option_table import option
from metaq.pipelines.options import FolderOptions, names

TRACE, TOPIC, LEDGER, PROGRESS = "trace", "topic", "ledger", "progress"
KEY, QUEUE, OFF = "key", "queue", "off"
ID = "id"

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Expected(NamedTuple):
    """A group and a topic that it should consume; None: all topics of the audit."""

    group: str
    topic: str | None


class Span(NamedTuple):
    """Audited time, in ms since 1970."""

    since_ms: int | None
    """First send time; None: from the oldest stored message."""
    until_ms: int
    """End of the send times, exclusive."""
    deadline_ms: int
    """End of the consumption times that count."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(FolderOptions):
    """Options of the pipeline `audit`."""

    topics: str = option(
        "", "Topics to audit, separated by `,`. Required unless `sent` is `ledger`.", aliases=("topic",)
    )
    groups: str = option(
        "",
        "Consumer groups, separated by `,`: `billing` must consume all of the topics, `billing@orders` only this one. Default: "
        "the groups that have consumed any of them.",
        aliases=("group",),
    )
    sent: str = option(
        TOPIC,
        "What counts as sent: `topic`, the messages stored in the topics; `trace`, what producers traced; `ledger`, what an "
        "application wrote into `sentLedger`.",
        choices=(TOPIC, TRACE, LEDGER),
    )
    consumed: str = option(
        TRACE,
        "What counts as consumed: `trace`, what consumers traced; `ledger`, what applications wrote into `consumedLedger`; "
        "`progress`, all messages below the groups' committed offsets, of which nothing else is known.",
        choices=(TRACE, LEDGER, PROGRESS),
    )
    trace_topic: str = option(TRACE_TOPIC, "Topic to which clients send their message traces.")
    sent_ledger: str = option("", "Topic with the ledger of sent messages.")
    consumed_ledger: str = option("", "Topic with the ledger of consumed messages.")
    match: str = option(
        ID,
        "How a message is recognised on both sides: by its `id`, or by its `key`, which is all keys of the message together.",
        choices=(ID, KEY),
    )
    tags: str = option("", "Audit only messages with one of these tags, `paid || refunded`. Not with a ledger.")
    since: str = option(
        "",
        "Audit messages that were sent at this time or later: ISO 8601 (UTC unless it says otherwise), ms since 1970, or `2h` "
        "for two hours ago (s, m, h, d). Default: all that are kept.",
        aliases=("from",),
    )
    until: str = option("now", "Audit messages that were sent before this time, in the same forms.", aliases=("to",))
    grace_seconds: float = option(
        10.0,
        "Seconds after the end of the audited time in which consumption still counts. If they are not over yet, the audit "
        "waits.",
        low=0,
    )
    look_back_seconds: float = option(
        3600.0,
        "Seconds before `since` from which on sent messages are known: if they are consumed in the audited time, they are no "
        "strays.",
        low=0,
    )
    late_seconds: float = option(
        60.0, "Seconds after a message was stored from which on its consumption is late.", low=0
    )
    order: str = option(
        KEY,
        "Check that messages were consumed in the order in which they were stored: those of one `key`, those of one `queue`, "
        "or `off`.",
        choices=(KEY, QUEUE, OFF),
    )
    window_seconds: float | None = option(
        None,
        "Length in seconds of the windows for which figures are shown. Default: as fits the audited time.",
        low=0.001,
    )
    keys_top: int = option(
        20, "Number of keys that the report names for each group, those with the most findings.", low=0
    )
    allow_missing: int | None = option(
        0, "Number of messages of a group that may be missing; empty: any number.", low=0
    )
    allow_dead: int | None = option(
        0, "Number of messages of a group that may be dead letters; empty: any number.", low=0
    )
    allow_repeated: int | None = option(
        None, "Number of messages of a group that may be consumed more than once. Default: any number.", low=0
    )
    allow_late: int | None = option(
        None, "Number of messages of a group that may be consumed late. Default: any number.", low=0
    )
    allow_out_of_order: int | None = option(
        0, "Number of messages of a group that may be consumed out of order; empty: any number.", low=0
    )
    allow_stray: int | None = option(
        None,
        "Number of messages that a group may consume although no record says that they were sent. Default: any number.",
        low=0,
    )
    sent_min: int = option(
        1,
        "Number of messages that must have been sent: with fewer, the audit fails, because it would prove nothing.",
        low=0,
    )

    @property
    def topics_named(self) -> list[str]:
        return names(self.topics)

    @property
    def expected(self) -> list[Expected]:
        """Groups and the topics that they should consume; empty: any that they did consume."""
        parts = [one.partition("@") for one in names(self.groups)]
        return [Expected(group, topic or None) for group, _, topic in parts]

    @property
    def tags_named(self) -> list[str]:
        return [tag for part in self.tags.split("||") if (tag := part.strip())]

    @property
    def topics_read(self) -> list[str]:
        found = list(self.topics_named) if self.sent != LEDGER else []
        found += [self.trace_topic] if TRACE in (self.sent, self.consumed) else []
        found += [self.sent_ledger] if self.sent == LEDGER else []
        found += [self.consumed_ledger] if self.consumed == LEDGER else []
        return list(dict.fromkeys(found))

    def check(self) -> None:
        super().check()
        if self.sent != LEDGER and not self.topics_named:
            raise ConfigError("topics is missing: name at least one topic (--topic, or topics = [...] in the file)")
        for side, chosen, ledger in (
            ("sent", self.sent, self.sent_ledger), ("consumed", self.consumed, self.consumed_ledger),
        ):  # fmt: skip
            if chosen == LEDGER and not ledger:
                raise ConfigError(f"{side}=ledger needs {side}Ledger, the topic that the ledger is in")
            if chosen != LEDGER and ledger:
                raise ConfigError(f"{side}Ledger={ledger} is not read, for {side}={chosen}: say {side}=ledger")
        if self.consumed == PROGRESS and self.sent != TOPIC:
            raise ConfigError(
                f"consumed=progress needs sent=topic: only stored messages have the offsets that progress is told in, not sent={self.sent}"
            )
        if self.consumed == PROGRESS and not self.expected:
            raise ConfigError("consumed=progress needs groups: name those whose progress is to be looked at")
        if self.order == QUEUE and self.sent != TOPIC:
            raise ConfigError(f"order=queue needs sent=topic: sent={self.sent} does not tell the queue of a message")
        if self.tags_named and self.sent == LEDGER:
            raise ConfigError("tags cannot choose from a ledger, whose records have none: take the option away")
        strangers = [one for one in self.expected if one.topic and one.topic not in self.topics_named]
        if strangers and self.topics_named:
            raise ConfigError(
                f"groups: {strangers[0].group}@{strangers[0].topic} names a topic that is not audited; topics are {self.topics}"
            )
        self.span(SYSTEM.now_ms())

    def span(self, now_ms: int) -> Span:
        """Return the audited time. Raises ConfigError: a malformed time, or an end that is not after the beginning."""
        since, until = moment_ms("since", self.since, now_ms), moment_ms("until", self.until or "now", now_ms)
        assert until is not None
        if since is not None and until <= since:
            raise ConfigError(f"until={self.until} is not behind since={self.since}: nothing can lie between them")
        return Span(since, until, until + round(self.grace_seconds * 1000))


def moment_ms(name: str, text: str, now_ms: int) -> int | None:
    """Parse a time of an option to ms since 1970; None for an empty text. Raises ConfigError: not a time."""
    if not text:
        return None
    if text == "now":
        return now_ms
    if ago := _AGO.fullmatch(text):
        return now_ms - round(float(ago[1]) * _UNIT_MS[ago[2]])
    # Not 10 digits: those are seconds.
    if re.fullmatch(r"\d{11,14}", text):
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{name}={text!r}: need a time as 2026-03-01T08:00:00Z, ms since 1970, or 2h for two hours ago"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
