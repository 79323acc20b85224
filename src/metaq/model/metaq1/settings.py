"""Settings of single topics of MetaQ 1.x: partitions, flush, retention, who may put and get."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, Self

from msgspec import Struct, field

from metaq.errors import ConfigError
from metaq.options import Metaq1Options

WILDCARD: Final = "*"

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_POLICIES: Final = "delete,168 (hours; or 30m, 90s), archive,168 or archive,168,true (compressed)"


class Expired(StrEnum):
    """What becomes of expired messages."""

    DELETE = "delete"
    ARCHIVE = "archive"


class DeletePolicy(Struct, frozen=True):
    """How long messages of a topic are kept, and what becomes of them then."""

    what: Expired
    keep_seconds: int
    compress: bool = False
    """The archive is a zip file."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `delete,168`, `delete,90s`, `archive,72h`, `archive,72,true`.

        Raises ConfigError, which says what may stand there.
        """
        words = [word.strip() for word in text.split(",")]
        if words[0] not in {"delete", "archive"}:
            right = _put_right(words)
            raise ConfigError(
                f"deletePolicy={text}: need {_POLICIES}" + (f"; perhaps {right} is meant" if right else "")
            )
        what = Expired(words[0])
        found = re.fullmatch(r"([0-9]{1,9})([smh]?)", words[1]) if len(words) > 1 else None
        flags = words[2:]
        if found is None or len(flags) > 1 or (flags and (what is Expired.DELETE or flags[0] not in {"true", "false"})):
            raise ConfigError(f"deletePolicy={text}: need {_POLICIES}")
        seconds = int(found[1]) * _UNITS[found[2] or "h"]
        return cls(what, seconds, flags == ["true"])

    def __str__(self) -> str:
        unit, size = next(((u, s) for u, s in (("h", 3600), ("m", 60)) if self.keep_seconds % s == 0), ("s", 1))
        amount = f"{self.keep_seconds // size}{unit.removesuffix('h')}"
        return f"{self.what},{amount}{',true' if self.compress else ''}"


def _put_right(words: list[str]) -> str:
    """Return `archive,167,true` for `167,archive,true`, the order in which 1.x's old documents show it; "" for
    others."""
    if len(words) > 1 and words[1] in {"delete", "archive"}:
        return ",".join([words[1], words[0], *words[2:]])
    return ""


class PartitionSettings(Struct, frozen=True):
    """Settings of one topic: its section's, and the defaults for the rest."""

    num_partitions: int
    unflush_threshold: int
    unflush_interval_ms: int
    delete_policy: DeletePolicy
    delete_when: str
    accept_publish: bool
    accept_subscribe: bool
    stat: bool
    filters: Mapping[str, str] = field(default_factory=dict)
    """Group → `package.module:Name` of its server-side filter."""

    @classmethod
    def of(cls, options: Metaq1Options) -> Self:
        """Return the defaults, of the section [system]. Raises ConfigError: a delete policy that cannot be read."""
        return cls(
            options.num_partitions,
            options.unflush_threshold,
            options.unflush_interval,
            DeletePolicy.parse(options.delete_policy),
            options.delete_when,
            options.accept_publish,
            options.accept_subscribe,
            options.stat,
        )


class PartitionRules(Struct, frozen=True):
    """Which topics 1.x clients may use, and how."""

    default: PartitionSettings
    topics: Mapping[str, PartitionSettings] = field(default_factory=dict)
    """Settings of topics that have a section of their own."""
    wildcards: tuple[str, ...] = ()
    """Names with a `*`: they admit further topics, which get the defaults, whatever else such a section says."""
    sections: bool = False
    """Whether topics must be named by a section. Without one, the broker's autoCreateTopicEnable decides."""

    def accepts(self, topic: str) -> bool:
        """Return whether a section admits the topic; always true without sections."""
        return not self.sections or topic in self.topics or any(_admits(wildcard, topic) for wildcard in self.wildcards)

    def settings(self, topic: str) -> PartitionSettings:
        """Return the settings of a topic, known or not."""
        return self.topics.get(topic, self.default)

    def keeping(self, before: PartitionRules) -> PartitionRules:
        """Return these rules and those of topics that only `before` has: topics in use stay so while the broker
        runs."""
        wildcards = tuple(dict.fromkeys((*self.wildcards, *before.wildcards)))
        sections = self.sections or before.sections
        return PartitionRules(self.default, {**before.topics, **self.topics}, wildcards, sections=sections)

    def changed(self, before: PartitionRules) -> Collection[str]:
        """Return the topics with a section, now or before, whose settings have changed, or that are new or gone."""
        names = self.topics.keys() | before.topics.keys()
        return {name for name in names if self.topics.get(name) != before.topics.get(name)}


def _admits(wildcard: str, topic: str) -> bool:
    # Not a regular expression: the name is a client's, and one of 128 KiB could keep that busy for hours.
    first, *parts, last = wildcard.split(WILDCARD)
    at, end = len(first), len(topic) - len(last)
    if at > end or not (topic.startswith(first) and topic.endswith(last)):
        return False
    for part in parts:
        if (found := topic.find(part, at, end)) < 0:
            return False
        at = found + len(part)
    return True
