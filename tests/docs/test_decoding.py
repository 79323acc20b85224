"""The program of docs/decoding.md runs as it stands and prints what it says."""

from __future__ import annotations

import re

import pytest

from tests.spark.running import printed_by
from tests.support import ROOT

PAGE = (ROOT / "docs" / "decoding.md").read_text()


@pytest.mark.spark
@pytest.mark.all
@pytest.mark.spark_all
def test_the_first_program_prints_what_the_page_says(spark, metaq_broker, tmp_path):
    """A stream of bodies of which half decode: the query lives, and the others are in _corrupt."""
    ((text, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    program = text.replace("localhost:9876", metaq_broker.namesrv)
    assert printed_by(program, spark, tmp_path) == printed.strip()


def test_every_decoder_has_its_place_on_the_page():
    """Also expand."""
    decode = pytest.importorskip("metaq.spark.decode", exc_type=ImportError)
    missing = [name for name in decode.__all__ if name != "CORRUPT" and f"decode.{name}(" not in PAGE]
    assert missing == []
