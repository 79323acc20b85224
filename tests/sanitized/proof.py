"""That `make test-sanitized` tests what it says: no test of `make test`, `tests.sanitized` names this file. It never skips."""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

from metaq.wire import hot

HOT, SWEEP = "metaq.wire.hot._native", "metaq.net._sweep"
OVER_READ = """
import ctypes, metaq.wire.hot._native as hot
block = (ctypes.c_ubyte * 64)()
print(hot.crc31(block), flush=True)
hot.crc31((ctypes.c_ubyte * 65).from_address(ctypes.addressof(block)))
"""


@pytest.mark.parametrize("name", [HOT, SWEEP])
def test_the_module_under_test_is_the_sanitized_one(name):
    """Of the tree of its own, with calls of both sanitizers in it; undefined behaviour ends the process."""
    place = pathlib.Path(importlib.import_module(name).__file__)
    assert place.is_relative_to(os.environ["METAQ_SANITIZED_TREE"])
    code = place.read_bytes()
    # Overflows too: Python's own flags say -fwrapv, with which they would not be looked for.
    for call in (b"__asan_report_load", b"__asan_report_store", b"__ubsan_handle_add_overflow_abort"):
        assert call in code, call


def test_it_is_what_the_broker_runs_on_and_the_runtime_is_there():
    maps = pathlib.Path("/proc/self/maps").read_text()
    assert hot.NATIVE, hot.WHY
    assert "libasan" in maps
    assert os.environ["PYTHONMALLOC"] == "malloc"
    assert "detect_leaks=0" in os.environ["ASAN_OPTIONS"]


def test_a_byte_read_too_many_is_seen():
    """By the compiled extension itself: a buffer that claims one byte more than its memory has."""
    done = subprocess.run([sys.executable, "-c", OVER_READ], capture_output=True, text=True, check=False)
    assert done.stdout.strip().isdigit(), done.stderr
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "crc" in done.stderr
