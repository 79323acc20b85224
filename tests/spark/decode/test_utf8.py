"""Bodies that are text."""

from __future__ import annotations

import pytest

from metaq.spark import decode
from tests.spark.decode.bodies import anything, decoded


@pytest.mark.spark
def test_text_is_what_python_calls_utf8_and_nothing_else(spark):
    """2 000 bodies of all sorts, with overlong forms, surrogates, and code points beyond the last."""
    odd = [
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xed\xa0\xbd\xed\xb8\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\x80",
    ]
    whole = ["é€😀 text".encode(), b"plain", b"\xef\xbb\xbfmark", b"nul\x00", b"\xf4\x8f\xbf\xbf"]
    bodies = [b"", None, *odd, *whole, *anything(7, whole, 2000)]

    def wanted(body):
        try:
            return {"text": None if body is None else body.decode()}
        except UnicodeDecodeError:
            return body

    assert decoded(spark, bodies, decode.text()) == list(map(wanted, bodies))
