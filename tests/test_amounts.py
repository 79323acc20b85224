"""Numbers as people read them."""

from __future__ import annotations

import pytest

from metaq.amounts import count, size


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 43, "8192.0 GiB"),
    ],
)
def test_sizes_are_written_for_people(number, text):
    """In the unit that leaves a short number."""
    assert size(number) == text


def test_one_thing_is_no_plural():
    """Nor are two batches batchs."""
    assert [count(number, "message") for number in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]
    assert [count(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]
