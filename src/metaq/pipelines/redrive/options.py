"""The options of the pipeline `redrive`."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Final

from metaq.errors import ConfigError, Refused
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_group, check_topic
from metaq.option_table import option
from metaq.pipelines.options import FolderOptions

NONE, UTF8, JSON, AVRO, PROTOBUF = "none", "utf8", "json", "avro", "protobuf"
SKIP, FAIL = "skip", "fail"

_TOKEN: Final = re.compile(
    r"""
    (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<comma>,)
    | (?P<raw>(?<!\w)[rR](?:'[^']*'|"[^"]*"))         # r'\d' keeps its backslashes
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`[^`]*`)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<broken>['"`]|/\*)
    """,
    re.VERBOSE | re.DOTALL,
)
_PAIRS: Final = {")": "(", "]": "["}


@dataclass(frozen=True, kw_only=True)
class RedriveOptions(FolderOptions):
    """Options of the pipeline `redrive`."""

    group: str | None = option(
        None, "Consumer group whose dead letters are sent again. Either this or topic is required."
    )
    topic: str | None = option(
        None, "Topic from which messages are sent again, instead of the dead letters of a group."
    )
    where: str | None = option(
        None,
        "Condition in Spark SQL that chooses messages, such as `tag = 'paid' and value.amount > 10`. Default: all messages.",
        aliases=("filter",),
    )
    decode: str = option(
        NONE,
        "Format of the bodies: `utf8` gives the column text; `json`, `avro` and `protobuf` give value, a struct.",
        choices=(NONE, UTF8, JSON, AVRO, PROTOBUF),
    )
    schema: str | None = option(
        None,
        "For `json` a Spark schema, such as `id bigint, amount double`; for `avro` and `protobuf` the path of the schema or "
        "descriptor file.",
    )
    message: str | None = option(None, "Type of `protobuf` bodies, such as `shop.Order`.")
    to: str | None = option(
        None, "Topic to which messages are sent. Default: each goes back to the topic from which it came."
    )
    only_group: bool = option(
        False,
        "Send to the retry topic of the group, so that only the group which failed gets the messages again, as messages of the "
        "topic from which they came.",
    )
    select: str | None = option(
        None,
        "Columns to send, in Spark SQL, such as `upper(text) as body, 'again' as tag`; all others stay as they are.",
    )
    starting: str | None = option(
        None,
        "Choose only dead letters that were stored at this time or later: ISO 8601, in UTC if it names no zone, or ms since "
        "1970.",
    )
    ending: str | None = option(None, "Choose only dead letters that were stored before this time, in the same forms.")
    dry_run: bool = option(False, "Count and show what would be sent, and send nothing.")
    cap: int | None = option(
        None, "Largest number of messages of one run, which says how many are left. Default: no limit.", low=1
    )
    rate: float | None = option(None, "Largest number of messages per second, all topics together. Default: no limit.")
    batch: int = option(10_000, "Largest number of messages that are sent as one transaction.", low=1, high=1_000_000)
    on_corrupt: str = option(
        SKIP,
        "What happens with chosen messages that cannot be sent or decoded: `skip` leaves them where they are and counts them, "
        "`fail` ends the run before anything is sent.",
        choices=(SKIP, FAIL),
    )
    check_target: bool = option(
        False,
        "Read the topics to which messages are sent, and leave out those that are there already; for a folder that is new or "
        "was lost.",
    )
    retry_seconds: float = option(120.0, "Seconds for which brokers that are away are waited for.", low=0)

    @property
    def source(self) -> str:
        """Topic that is read."""
        return self.topic or f"{DEAD_LETTER_PREFIX}{self.group}"

    @property
    def retry_topic(self) -> str | None:
        """Retry topic that all messages go to (onlyGroup); None: each goes to its own topic."""
        return f"{RETRY_PREFIX}{self.group}" if self.only_group else None

    @property
    def topics_read(self) -> list[str]:
        # With a group, `topics` has the better error.
        return [self.topic] if self.topic else []

    def check(self) -> None:
        super().check()
        if bool(self.group) == bool(self.topic):
            raise ConfigError("name either group, whose dead letters are redriven, or topic, any other to take from")
        try:
            check_group(self.group or "none")
            check_topic(self.source)
            check_topic(self.to or "none")
        except Refused as fault:
            raise ConfigError(f"{'group' if self.group else 'topic or to'}: {fault}") from None
        expressions = split_expressions(self.select, "select")
        # Dead letters and retries name the topic that they come from (RETRY_TOPIC); other messages do not.
        if not self.source.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX)) and not (self.to or expressions):
            raise ConfigError(f"to is missing: messages of {self.source} name no topic that they could go back to")
        if self.to and self.to.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX)):
            raise ConfigError(f"to={self.to}: only brokers put messages into retry and dead-letter topics")
        if self.to == self.source:
            raise ConfigError(f"to={self.to}: that is where the messages are taken from")
        if self.only_group and (not self.group or self.to):
            raise ConfigError(
                "onlyGroup sends dead letters back to the group that they are of, as messages of the topic that they come from: it "
                "goes with group, and neither with topic nor with to"
            )
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate={self.rate:g}: nothing would be sent; leave it out for no limit, or use dryRun")
        self._check_decode()
        if self.starting_ms is not None and self.ending_ms is not None and self.ending_ms <= self.starting_ms:
            raise ConfigError("ending is not behind starting: nothing can lie between them")

    def _check_decode(self) -> None:
        needed = {NONE: (), UTF8: (), JSON: ("schema",), AVRO: ("schema",), PROTOBUF: ("schema", "message")}[
            self.decode
        ]
        for name in ("schema", "message"):
            given = bool(getattr(self, name))
            if given and name not in needed:
                raise ConfigError(
                    f"{name} says nothing to decode={self.decode}: take it away, or choose another decode"
                )
            if not given and name in needed:
                raise ConfigError(f"{name} is missing: decode={self.decode} needs it")

    @property
    def starting_ms(self) -> int | None:
        """`starting` in ms since 1970. Raises ConfigError."""
        return moment("starting", self.starting)

    @property
    def ending_ms(self) -> int | None:
        """`ending` in ms since 1970. Raises ConfigError."""
        return moment("ending", self.ending)


def moment(name: str, text: str | None) -> int | None:
    """Parse a time to ms since 1970. Raises ConfigError: not a time."""
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: need a time such as 2026-03-01T12:00:00Z, or ms since 1970") from None
    whole = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    return round(whole.timestamp() * 1000)


def split_expressions(text: str | None, option: str) -> list[str]:
    """Split a list of Spark SQL expressions such as `upper(text) as body, 'a,b' as tag`. None and "": [].

    Spark parses one expression at a time, so the list is split here, at commas outside quotes, brackets and comments.

    Args: option: for errors. Raises ConfigError: a quote or bracket that does not end, or nothing between two commas.
    """
    if text is None or not text.strip():
        return []
    found, begin, inside = list[str](), 0, list[str]()
    for token in _TOKEN.finditer(text):
        kind, value = token.lastgroup, token.group()
        if kind == "broken":
            raise ConfigError(f"{option}: what begins at {text[token.start() :][:40]!r} does not end")
        if kind == "open":
            inside.append(value)
        elif kind == "close":
            if not inside or inside.pop() != _PAIRS[value]:
                raise ConfigError(f"{option}: {value} closes nothing at {text[token.start() :][:40]!r}")
        elif kind == "comma" and not inside:
            found.append(text[begin : token.start()])
            begin = token.end()
    if inside:
        raise ConfigError(f"{option}: {inside[-1]} is not closed in {text.strip()[:200]!r}")
    stripped = [one.strip() for one in (*found, text[begin:])]
    if not all(stripped):
        raise ConfigError(f"{option}: nothing lies between two commas of {text.strip()[:200]!r}")
    return stripped
