"""What a right allows."""

from __future__ import annotations

import pytest

from metaq.model.acl.rights import BOTH, BadRight, Right, parse_right


@pytest.mark.parametrize(
    ("has", "may"),
    [
        (Right.DENY, set()),
        (Right.PUB, {Right.PUB, Right.ANY, BOTH}),
        (Right.SUB, {Right.SUB, Right.ANY, BOTH}),
        (BOTH, {Right.PUB, Right.SUB, Right.ANY, BOTH}),
        (BOTH | Right.DENY, set()),
    ],
)
def test_rights_allow_what_shares_a_bit_unless_denied(has, may):
    """As RocketMQ's checkPermission."""
    assert {needed for needed in (Right.PUB, Right.SUB, Right.ANY, BOTH) if has.allows(needed)} == may


def test_rights_are_written_in_rocketmqs_words_only():
    """RocketMQ takes every other word, even `pub` and ANY, for DENY."""
    assert [parse_right(text) for text in ("DENY", "PUB", " SUB ", "PUB|SUB", "SUB|PUB")] == [
        Right.DENY, Right.PUB, Right.SUB, BOTH, BOTH,
    ]  # fmt: skip
    assert all(parse_right(right.text) is right for right in (Right.DENY, Right.PUB, Right.SUB, BOTH))
    for text in ("pub", "ANY", "", "PUB | SUB", "x" * 99):
        with pytest.raises(BadRight, match="write DENY, PUB, SUB or PUB") as caught:
            parse_right(text)
        assert len(str(caught.value)) < 120
