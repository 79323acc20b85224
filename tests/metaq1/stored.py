"""What a server has stored, read over a raw connection."""

from __future__ import annotations

from metaq.wire.metaq1.frame import frames, split_attribute
from tests.interop.metaq1 import TextConnection


def read(address: str, topic: str, partition: int) -> list[tuple[int, bytes | None, bytes]]:
    """(id, attribute, payload) of each message of a partition."""
    with TextConnection(address) as text:
        answer = text.ask(f"get {topic} test {partition} 0 1048576 1")
    assert answer is not None
    if answer.code == 404:
        return []
    assert answer.code is None, answer
    return [(one.message_id, *split_attribute(one.flag, one.body)) for one in frames(answer.body)]


def payloads(address: str, topic: str, partitions: int = 3) -> list[list[bytes]]:
    """Of each partition."""
    return [[payload for _, _, payload in read(address, topic, number)] for number in range(partitions)]
