"""Bodies as text: what is JSON, text, or neither; and how much of it is shown."""

from __future__ import annotations

import pytest

from metaq.dashboard.bodies import HEX_MAX, SHOWN_MAX, body_of, preview


@pytest.mark.parametrize(
    ("body", "wanted", "kind", "text"),
    [
        (b"", "", "empty", ""),
        (b'{"a":1,"a":12345678901234567890.10}', "", "json", '{\n  "a": 1,\n  "a": 12345678901234567890.10\n}'),
        (b'{"a":1}', "text", "text", '{"a":1}'),
        (b"hi\n\xc3\xa9", "", "text", "hi\n\xe9"),
        (b"17", "", "text", "17"),
        (b'{"a":', "", "text", '{"a":'),
        (b"\x00\x01ab", "", "hex", "00000000  00 01 61 62                                       ..ab"),
        (b"\xff\xfe", "text", "hex", "00000000  ff fe                                             .."),
        (b"ab", "hex", "hex", "00000000  61 62                                             ab"),
    ],
)
def test_the_first_kind_that_fits(body: bytes, wanted: str, kind: str, text: str):
    found = body_of(body, wanted)
    assert (found.kind, found.text) == (kind, text)
    assert found.shown == len(body)


def test_why_it_is_not_as_was_asked_for():
    assert "no JSON" in body_of(b'{"a":', "json").note
    assert "no text" in body_of(b"\xff", "text").note
    assert "no JSON object" in body_of(b"17", "json").note


def test_long_bodies_are_cut_also_within_a_character():
    found = body_of("é".encode() * SHOWN_MAX)
    assert (found.kind, found.shown, found.size) == ("text", SHOWN_MAX, 2 * SHOWN_MAX)
    odd = body_of(b"x" + "é".encode() * SHOWN_MAX)
    assert (odd.kind, len(odd.text)) == ("text", SHOWN_MAX // 2)
    assert body_of(b"\xff" * SHOWN_MAX).shown == HEX_MAX
    assert body_of(b"[" + b"1," * SHOWN_MAX + b"1]", "json").note == "JSON is set out up to 64 KiB"


@pytest.mark.parametrize(
    "body", [b"[" * 60_000, b"[" * 30_000 + b"]" * 30_000, b"[" * 199 + b"1," * 30_000 + b"1" + b"]" * 199]
)
def test_json_made_to_grow_stays_text(body: bytes):
    assert body_of(body).kind == "text"


def test_a_preview_is_one_line():
    assert preview(b"a\n  b\tc") == "a b c"
    assert preview(b"x" * 200) == "x" * 80 + "…"
    assert preview(b"\x00" * 30) == "00 " * 23 + "00…"
    assert preview(b"") == ""
