"""Compressed bodies: every kind comes back, none expands beyond its limit."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest, ConfigError
from metaq.model.message import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from metaq.wire.compression import compress, decompress

KINDS = {"zlib": COMPRESSION_ZLIB, "LZ4": COMPRESSION_LZ4, "ZSTD": COMPRESSION_ZSTD}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@kinds
def test_body_comes_back(kind: int) -> None:
    """What was compressed is expanded, up to exactly the limit."""

    @given(st.binary(max_size=5000))
    def round_trip(body: bytes) -> None:
        packed = compress(body, kind)
        assert decompress(memoryview(packed), 1 | kind, len(body)) == body

    round_trip()


def test_old_clients_zlib_has_no_type_bits() -> None:
    """Go, Node and older Java set the compressed bit alone."""
    assert decompress(zlib.compress(b"hello"), 1, 5) == b"hello"


def test_uncompressed_body_is_left_alone() -> None:
    """Without the bit nothing is expanded, whatever the type bits and the size say."""
    assert decompress(b"\x00" * 10, 0x300, 1) == b"\x00" * 10


@kinds
def test_bomb_is_refused_before_its_memory_is_taken(kind: int) -> None:
    """64 MiB out of a few KiB end at the limit of 1 MiB, and so does the memory."""
    bomb = compress(bytes(64 << 20), kind)
    decompress(compress(b"warm", kind), 1 | kind, 100)
    tracemalloc.start()
    with pytest.raises(BadRequest, match="expand to more than the limit of 1048576"):
        decompress(bomb, 1 | kind, 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_zstd_bomb_that_hides_its_size_is_refused() -> None:
    """A stream without the content size in its header is bounded too."""
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor().compressobj()
    bomb = packer.compress(bytes(8 << 20)) + packer.flush()
    with pytest.raises(BadRequest, match="within the limit of 1048576"):
        decompress(bomb, 1 | COMPRESSION_ZSTD, 1 << 20)
    assert len(decompress(bomb, 1 | COMPRESSION_ZSTD, 8 << 20)) == 8 << 20


@kinds
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"garbage", lambda data: b""])
def test_broken_body_is_a_bad_request(kind: int, damage) -> None:
    """Cut short, garbage, or nothing."""
    with pytest.raises(BadRequest, match="cannot be expanded"):
        decompress(damage(compress(bytes(range(256)) * 20, kind)), 1 | kind, 1 << 20)


@given(st.binary(max_size=300), st.sampled_from([0, *KINDS.values()]))
def test_arbitrary_bodies_raise_nothing_else(data: bytes, kind: int) -> None:
    """Garbage expands or is a BadRequest."""
    with contextlib.suppress(BadRequest):
        assert len(decompress(data, 1 | kind, 1000)) <= 1000


def test_unknown_kind_is_named() -> None:
    """For a peer's body a BadRequest, for our own setting a ConfigError."""
    with pytest.raises(BadRequest, match="compression type 5"):
        decompress(b"x", 0x501, 10)
    with pytest.raises(ConfigError, match="ZLIB, LZ4 and ZSTD"):
        compress(b"x", 0x500)


@pytest.mark.parametrize("kind", [COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_missing_library_says_what_to_install(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional; the error names it."""

    def missing(name: str) -> None:
        raise builtins.ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'pymetaq\[compression\]'"):
        decompress(b"x", 1 | kind, 10)
