"""Lines of a journal (docs/formats/journal.md): a checksum and a text each. No file is touched here."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from metaq.errors import BadRequest

_SUM_CHARS: Final = 8


class Lines(NamedTuple):
    """Content of a journal: the texts of its lines, and the size of a last line that was not written to its end."""

    texts: list[str]
    torn_bytes: int


def line(text: str) -> bytes:
    """Encode a text without line breaks: its CRC-32 as 8 hexadecimal digits, a blank, the text as UTF-8, a line
    feed."""
    data = text.encode()
    # Text with a checksum of fixed width: a person can read and cut it, and a torn line shows.
    return b"%08x %b\n" % (zlib.crc32(data), data)


def lines(data: bytes) -> Lines:
    """Decode a journal.

    Bytes behind the last whole line are torn: a power cut may leave any part of what was being written, with zeros for
    the rest. Raises BadRequest: a line is damaged, and whole ones follow it.
    """
    texts: list[str] = []
    damaged_at, place = -1, 0
    while (end := data.find(b"\n", place)) >= 0:
        text = _text(data[place:end])
        if text is None:
            # Not an error yet: only whole lines behind it prove that no crash did this.
            damaged_at = place if damaged_at < 0 else damaged_at
        elif damaged_at >= 0:
            raise BadRequest(f"the line at byte {damaged_at} is damaged, and whole ones follow it")
        else:
            texts.append(text)
        place = end + 1
    return Lines(texts, len(data) - (damaged_at if damaged_at >= 0 else place))


def _text(data: bytes) -> str | None:
    """Return the text of a line without its line feed; None if it is damaged."""
    if len(data) <= _SUM_CHARS or data[_SUM_CHARS : _SUM_CHARS + 1] != b" ":
        return None
    text = data[_SUM_CHARS + 1 :]
    if data[:_SUM_CHARS] != b"%08x" % zlib.crc32(text):
        return None
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None
