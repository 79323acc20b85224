"""Keys of transactions of MetaQ 1.x, and texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model.transactions.metaq1 import BranchKey, LocalKey, transaction_key

INTS = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(st.characters(blacklist_characters=":", blacklist_categories=["Cs"]))
KEYS = st.builds(LocalKey, NAMES, INTS) | st.builds(BranchKey, INTS, st.binary(), st.binary(), NAMES.filter(bool))


def test_recorded_keys_are_read() -> None:
    """As the Java client 1.4.6.2 writes them."""
    assert transaction_key("TX:10.0.0.5-1373971200000-1:1") == LocalKey("10.0.0.5-1373971200000-1", 1)
    assert transaction_key("XID:7:6731:6231:uqA") == BranchKey(7, b"g1", b"b1", "uqA")
    assert transaction_key("XID:-1:::q") == BranchKey(-1, b"", b"", "q")


@given(KEYS)
def test_a_key_is_read_back_from_its_text(key) -> None:
    """Any key without a colon in its names."""
    assert transaction_key(str(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "", "TX", "TX:s", "TX:s:", "TX:s:x", "TX:s:1:2", "TX:s:2147483648", "TX:s:+1", "TX:s:1 ", "tx:s:1", "TX:::1:1",
        "XID:7:6731:6231", "XID:7:6731:6231:", "XID:7:6731:6231:q:r", "XID:x:6731:6231:q", "XID:7:673:6231:q",
        "XID:7:67 31:6231:q", "XID:7:zz:6231:q", "XID:2147483648:::q", "XID:7:６7:6231:q", "null", "X" * 100_000,
    ],
)  # fmt: skip
def test_a_text_that_is_no_key_is_refused_by_name(text) -> None:
    """The refusal quotes its beginning, and says what a key looks like."""
    with pytest.raises(BadRequest, match="names no transaction: TX:session:number or XID") as refused:
        transaction_key(text)
    assert len(str(refused.value)) < 500
