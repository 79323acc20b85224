"""What memory a helper process has reserved."""

from __future__ import annotations

import mmap
import sys

import pytest

from metaq.app.predicate_helper import data_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only what is used is known")
def test_what_is_reserved_counts_before_it_is_used():
    """As RLIMIT_DATA counts it."""
    before = data_bytes()
    with mmap.mmap(-1, 1 << 28, flags=mmap.MAP_PRIVATE):
        assert data_bytes() >= before + (1 << 28)
    assert data_bytes() < before + (1 << 28)
