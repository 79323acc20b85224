"""Which bits stand for a group and a topic: those of RocketMQ's own BloomFilter."""

import pytest

from metaq.wire.files import bit_positions


@pytest.mark.parametrize(
    ("key", "bits"),
    [
        ("G#T", [24, 26, 83]),
        ("CG#TopicA", [36, 20, 4]),
        ("orders-reader#orders", [88, 63, 38]),
        ("%RETRY%x#y", [69, 62, 55]),
        ("a-very-long-group-name-of-more-than-sixteen#topic_with_underscores", [77, 31, 97]),
        ("Ünï#漢字", [8, 58, 13]),
    ],
)
def test_bits_are_those_of_rocketmq(key, bits):
    """Made by `BloomFilter.createByFn(20, 32).generate(key)` of rocketmq-filter 4.9.7."""
    assert bit_positions(*key.split("#")) == bits
