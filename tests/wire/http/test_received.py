"""Ids by which a group acknowledges what it has received."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.wire.http.received import AckId, ack_id

NAMES = st.from_regex(r"[%A-Za-z0-9_-]{1,20}", fullmatch=True)


@given(
    NAMES,
    NAMES,
    st.integers(0, 2**31),
    st.lists(st.integers(0, 2**63 - 1), min_size=3, max_size=3, unique=True),
    st.text(),
)
def test_an_id_is_what_it_was(group, topic, queue, offsets, client):
    one = AckId(group, topic, queue, *sorted(offsets), client)
    assert ack_id(str(one)) == one
    assert str(AckId("billing", "orders", 2, 5, 7, 9, "a:b")) == "billing:orders:2:5:7:9:a:b"


@pytest.mark.parametrize(
    "text",
    [
        "", "a:b:0:1:2:3", "a:b:0:2:2:3:", "a:b:0:1:3:2:c", "a:b:-1:1:2:3:c", "a:b:0:１:2:3:c", "a:b:0:1:2:x:c",
        f"a:b:0:1:2:{2**63}:c", "a:b:0:1:" + "9" * 5000 + ":3:c",
    ],
)  # fmt: skip
def test_what_is_no_id(text):
    with pytest.raises(BadRequest):
        ack_id(text)
