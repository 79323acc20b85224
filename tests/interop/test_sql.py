"""The committed vectors are what RocketMQ's SQL filter says today."""

import json
from pathlib import Path

import pytest

from tests.interop import sql

pytestmark = [pytest.mark.interop, pytest.mark.all]


def test_committed_vectors_are_what_the_filter_makes_of_the_expressions(tmp_path: Path) -> None:
    """rocketmq-filter 4.9.7 agrees with the file that the unit tests read."""
    assert sql.run(tmp_path) == json.loads(sql.VECTORS.read_text("utf-8"))
