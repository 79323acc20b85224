"""Ids and checksums of staged transactions."""

from __future__ import annotations

import pytest

from metaq.errors import Reason, Refused
from metaq.model.transactions.staging import check_part, check_row, chunk_crc, coordinator_of, part_crc, transaction_id


def test_an_id_of_a_transaction_names_its_coordinator():
    """Whatever a broker is called: names with dots and letters of any script are usual."""
    assert transaction_id("spark:q-1%0.7", "broker-a") == "spark:q-1%0.7@broker-a"
    assert coordinator_of("spark:q-1%0.7@broker-a") == "broker-a"
    assert coordinator_of(transaction_id("t", "Büro_2.example")) == "Büro_2.example"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t",
        "@broker",
        "t@",
        "t@a@b",
        "t t@broker",
        "t\x01@broker",
        "t@bro ker",
        "t@bro\nker",
        "x" * 101 + "@b",
        "t@" + "b" * 128,
    ],
)
def test_what_is_no_id_of_a_transaction_is_refused(text):
    """Its characters go into properties and index keys, where some of them have a meaning."""
    with pytest.raises(Refused, match="transaction id") as refused:
        coordinator_of(text)
    assert refused.value.reason is Reason.INVALID


def test_ids_of_parts_and_keys_of_rows_have_the_same_characters():
    """The refusal says which of them is meant."""
    assert check_part("p%1:a_B-9.") == "p%1:a_B-9."
    assert check_row("x" * 100) == "x" * 100
    with pytest.raises(Refused, match="part id"):
        check_part("a b")
    with pytest.raises(Refused, match="row's key"):
        check_row("")


def test_the_checksum_of_a_part_is_made_of_its_chunks_checksums_in_order():
    """Golden: CRC-32 over 4 bytes of each, so that record heads are enough to know it."""
    crcs = [chunk_crc(b"one"), chunk_crc(b"two")]
    assert crcs == [0x7A6C86F1, 0x11CA8A66]
    assert part_crc(part_crc(0, crcs[0]), crcs[1]) == 0xB8396D48
    assert part_crc(part_crc(0, crcs[1]), crcs[0]) != 0xB8396D48
