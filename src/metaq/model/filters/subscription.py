"""What a consumer group wants to see of a topic, and what a broker remembers of it while the group is offline."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec import Struct, field

from metaq.errors import ConfigError, LocalProtocolError, Reason, Refused
from metaq.model.filters.predicates import PREDICATE, Predicate
from metaq.model.filters.sql import SQL92, Sql
from metaq.model.message import check_tag

ALL = "*"
Expression = str | Sql | Predicate
"""What a user subscribes to: a tag expression, an SQL filter or a predicate."""
_NO_WORD = re.compile(r"""[\s,;|()'"<>=!&*\x00-\x1f\x7f]""")
_CONDITION = re.compile(r"[<>=!&*\x00-\x08\x0e-\x1f\x7f]|\s(?:AND|IN|IS|LIKE|BETWEEN)\s|^NOT\s", re.IGNORECASE)
_BETWEEN_TAGS = re.compile(r"""(?:[\s,;|()'"]|\bOR\b(?=\s))+""", re.IGNORECASE)


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text: 31-polynomial over UTF-16 code units, a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class SubscriptionData(Struct, frozen=True):
    """Subscription of one topic. Of two, a broker takes the one with the higher `version`."""

    topic: str
    """Topic that is subscribed to."""
    expression: str = ALL
    """Text of the filter: `*`, `a || b`, a condition of SQL, or the name of a predicate."""
    expression_type: str = "TAG"
    """Kind of the filter: `TAG`, `SQL92`, or ours, `PREDICATE`."""
    tags: frozenset[str] = field(default_factory=frozenset)
    """Tags that are wanted; empty: all, or it is no filter of tags."""
    tag_hashes: frozenset[int] = field(default_factory=frozenset)
    """Their hash codes, as `String.hashCode` of Java, by which brokers choose; consumers compare the tags themselves."""
    version: int = 0
    class_filter: bool = False
    """The filter is a Java class (RocketMQ's `classFilterMode`), which brokers of MetaQ refuse."""

    @property
    def spelling(self) -> str:
        """Normal form of the filter, equal for equal filters: sorted tags, `*`, or type and text of another filter."""
        if self.expression_type != "TAG":
            return f"{self.expression_type}: {self.expression}"
        return " || ".join(sorted(self.tags)) or self.expression or ALL

    @property
    def takes_all(self) -> bool:
        """Whether every message of the topic is wanted."""
        return not self.tags and self.expression_type == "TAG"


def subscribe(topic: str, expression: Expression | None = ALL, version: int = 0) -> SubscriptionData:
    """Parse a tag expression: `*`, empty or None for all, else tags joined by `||`. An SQL filter or a predicate is
    taken as it is.

    Raises Refused BAD_FILTER: no tag between the bars.
    """
    if isinstance(expression, Sql):
        return SubscriptionData(topic, expression.expression, SQL92, version=version)
    if isinstance(expression, Predicate):
        return SubscriptionData(topic, expression.name, PREDICATE, version=version)
    if expression is None or not expression.strip() or expression.strip() == ALL:
        return SubscriptionData(topic, ALL, version=version)
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise Refused(
            Reason.BAD_FILTER, f"the subscription {expression!r} of topic {topic} has no tag between its bars"
        )
    hashes = frozenset(java_string_hash(tag) for tag in tags)
    return SubscriptionData(topic, expression, "TAG", tags, hashes, version)


def checked_expression(topic: str, tags: str | Collection[str] | Sql | Predicate | None) -> Expression:
    """Return what a user of our client subscribes to: a tag expression that can match, `*` for all, an `Sql` or a
    `Predicate`.

    RocketMQ takes any text between bars for a tag: `a,b` or `a > 5` subscribes to a tag of that name, and silently gets
    nothing. Here such a text is refused. A list or set of tags is taken literally, whatever characters they have but
    `|`.

    Raises: ConfigError: no list of tags; the text says how to write it. TypeError: neither text nor texts.
    """
    if tags is None:
        return ALL
    if isinstance(tags, Sql | Predicate):
        return tags
    if not isinstance(tags, str):
        return _literal(topic, tags)
    if tags.strip() in {"", ALL}:
        return ALL
    parts = [part for part in map(str.strip, tags.split("||")) if part]
    if not parts:
        raise ConfigError(f"the tag expression {tags!r} of topic {topic} has no tag between its bars")
    odd = [part for part in parts if _NO_WORD.search(part)]
    if not odd:
        return tags
    if ALL in parts:
        raise ConfigError(
            f"the tag expression {tags!r} of topic {topic} names '*' beside tags, which is no tag there: write '*'"
        )
    words = [word for word in _BETWEEN_TAGS.split(tags) if word]
    if not words or any(_CONDITION.search(part) for part in odd):
        raise ConfigError(
            f"the tag expression {tags!r} of topic {topic} is no list of tags and can match nothing: name tags joined "
            "by ||, such as 'paid || refunded'. It knows no comparison, wildcard or other operator: for those, pass "
            "metaq.Sql(\"amount > 10\"), which asks for properties, or take '*' and choose in your program"
        )
    raise ConfigError(
        f"the tag expression {tags!r} of topic {topic} can match nothing: tags are joined by ||, "
        f"write {' || '.join(words)!r}"
    )


def _literal(topic: str, tags: Collection[str]) -> str:
    if isinstance(tags, bytes | Mapping) or not isinstance(tags, Collection):
        raise TypeError(f"the tags of topic {topic} are {tags!r}: pass a text such as 'paid || refunded', or a list")
    for tag in tags:
        if not isinstance(tag, str):
            raise TypeError(f"among the tags of topic {topic} is {tag!r}: each must be a str")
        try:
            check_tag(tag)
        except LocalProtocolError as error:
            raise ConfigError(f"the tags of topic {topic}: {error}") from None
    if not tags:
        raise ConfigError(f"the list of tags of topic {topic} is empty: leave it out for all")
    return " || ".join(sorted(tags) if isinstance(tags, set | frozenset) else tags)


class GroupFilter(Struct, frozen=True):
    """A group's filter of a topic that is not by tags, as a broker keeps it (`consumerFilter.json`). Times in ms."""

    topic: str
    """The topic."""
    group: str
    """The group."""
    expression: str
    """The filter, such as `a > 5`."""
    expression_type: str = "SQL92"
    """The language of it."""
    version: int = 0
    """Version of the subscription that named it."""
    born_ms: int = 0
    """When the group first had it."""
    dead_ms: int = 0
    """When the group went offline or dropped the subscription; 0 while it is in use."""

    @property
    def dead(self) -> bool:
        """Whether it is out of use: the group is offline, or has dropped the subscription."""
        return self.dead_ms >= self.born_ms
