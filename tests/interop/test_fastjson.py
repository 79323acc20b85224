"""The committed vectors are what fastjson says today."""

import json
from pathlib import Path

import pytest

from tests.interop import fastjson

pytestmark = pytest.mark.interop


def test_committed_vectors_are_what_fastjson_makes_of_the_texts(tmp_path: Path) -> None:
    """RocketMQ's own classes, read by the fastjson that they bring, agree with the file that the unit tests read."""
    assert fastjson.run(tmp_path) == json.loads(fastjson.VECTORS.read_text("utf-8"))
