"""What a consumer group wants to see of a topic."""

from __future__ import annotations

from dataclasses import dataclass, field

from metaq.errors import BadRequest

ALL = "*"
TAG_CHARS_MAX = 255


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: 31-polynomial over UTF-16 code units, wrapped to a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic's filter, with the version by which a broker knows the newer of two."""

    topic: str
    expression: str = ALL
    expression_type: str = "TAG"
    tags: frozenset[str] = field(default_factory=frozenset)
    tag_hashes: frozenset[int] = field(default_factory=frozenset)
    version: int = 0
    class_filter: bool = False

    @property
    def takes_all(self) -> bool:
        return not self.tags and self.expression_type == "TAG"


def subscribe(topic: str, expression: str | None = ALL, version: int = 0) -> SubscriptionData:
    """Parse a tag expression: `*`, empty or None for all, else tags joined by `||`.

    Raises BadRequest if nothing is left between the bars.
    """
    if expression is None or not expression.strip() or expression.strip() == ALL:
        return SubscriptionData(topic, ALL, version=version)
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise BadRequest(f"the subscription {expression!r} of topic {topic} has no tag between its bars", 23)
    hashes = frozenset(java_string_hash(tag) for tag in tags)
    return SubscriptionData(topic, expression, "TAG", tags, hashes, version)
