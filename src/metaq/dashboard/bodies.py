"""Bodies of messages as text: JSON set out, text, or hexadecimal; of a long one the beginning."""

from __future__ import annotations

import codecs
from typing import Final

import msgspec
from msgspec import Struct

from metaq.dashboard.decoding.schemas import Decoder

SHOWN_MAX: Final = 64 * 1024
"""Bytes of a body that are shown."""
HEX_MAX: Final = 8 * 1024
"""Bytes that are shown in hexadecimal: each takes four characters."""
SET_OUT_MAX: Final = 4 * SHOWN_MAX
"""Characters of JSON with its indents."""
PREVIEW_MAX: Final = 80
KINDS: Final = ("avro", "protobuf", "json", "text", "hex")
_ALLOWED: Final = frozenset("\t\n\r")
_LINE: Final = 16
_DEEP: Final = 200
"""Brackets of JSON in one another that are set out: an indent for each makes pages of little."""


class Body(Struct, frozen=True):
    """A body. `kind`: "empty", or one of KINDS; `kinds`: as which it may be asked for. `text`: what is shown, `shown` of `size` bytes. `note`: why it is not as was asked for."""

    kind: str
    text: str
    size: int
    shown: int
    note: str = ""
    kinds: tuple[str, ...] = ("json", "text", "hex")

    @property
    def is_cut(self) -> bool:
        """Whether a part of it is not shown."""
        return self.shown < self.size


def body_of(body: bytes, wanted: str = "", decoder: Decoder | None = None) -> Body:
    """Return what is shown of a body.

    Args:
        wanted: one of KINDS; "": the first of them that fits.
        decoder: of its topic's schema; None: it has none.
    """
    if decoder is None or not body:
        return _plain(body, wanted)
    kinds = (decoder.format, "json", "text", "hex")
    note = ""
    if wanted in {"", decoder.format}:
        text, why = _decoded(body, decoder)
        if text is not None:
            return Body(decoder.format, text, len(body), len(body), kinds=kinds)
        note, wanted = f"it cannot be shown by the schema of its topic ({decoder.format}): {why}", ""
    found = _plain(body, wanted)
    return msgspec.structs.replace(found, kinds=kinds, note=note or found.note)


def _decoded(body: bytes, decoder: Decoder) -> tuple[str | None, str]:
    if len(body) > SHOWN_MAX:
        return None, f"it is decoded up to {SHOWN_MAX // 1024} KiB"
    try:
        text = msgspec.json.format(decoder.decode(body).encode(), indent=2).decode()
    except ValueError as error:
        return None, str(error)
    return (text, "") if len(text) <= SET_OUT_MAX else (None, "set out it would be too long")


def _plain(body: bytes, wanted: str) -> Body:
    if not body:
        return Body("empty", "", 0, 0)
    if wanted == "hex":
        return _hex(body)
    text = text_of(body[:SHOWN_MAX], cut=len(body) > SHOWN_MAX)
    if text is None:
        return _hex(body, f"it is no {'JSON' if wanted == 'json' else 'text'} in UTF-8" if wanted else "")
    plain = Body("text", text, len(body), min(len(body), SHOWN_MAX))
    if wanted == "text":
        return plain
    set_out, why = _json(body)
    if set_out is not None:
        return Body("json", set_out, len(body), len(body))
    return msgspec.structs.replace(plain, note=why) if wanted == "json" else plain


def text_of(part: bytes, *, cut: bool) -> str | None:
    """Return bytes as text; None: they are none. Args: cut: more bytes follow, so that a character may be cut off at the end."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(part, final=not cut)
    except UnicodeDecodeError:
        return None
    # Tabs and ends of lines apart, texts have no control characters: other formats do.
    return text if all(one >= " " or one in _ALLOWED for one in text) and "\x7f" not in text else None


def preview(body: bytes) -> str:
    """Return the beginning of a body in one line."""
    part = body[: 4 * PREVIEW_MAX]
    text = text_of(part, cut=len(body) > len(part))
    if text is None:
        return part[:24].hex(" ") + ("…" if len(body) > 24 else "")
    line = " ".join(text.split())
    return line if len(line) < PREVIEW_MAX and len(part) == len(body) else f"{line[:PREVIEW_MAX]}…"


def _json(body: bytes) -> tuple[str | None, str]:
    """Return JSON set out, as it is otherwise: numbers and names that come twice stay. None and the reason: it is none."""
    if len(body) > SHOWN_MAX:
        return None, f"JSON is set out up to {SHOWN_MAX // 1024} KiB"
    if body.lstrip()[:1] not in {b"{", b"["}:
        return None, "it is no JSON object or array"
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        if _depth(body) > _DEEP:
            return None, f"it is more than {_DEEP} levels deep"
        text = msgspec.json.format(body, indent=2).decode()
        return (text, "") if len(text) <= SET_OUT_MAX else (None, "set out it would be too long")
    except (msgspec.DecodeError, RecursionError) as error:
        return None, f"it is no JSON: {error}"


def _depth(body: bytes) -> int:
    """Return how deep JSON is at most: brackets in texts are counted too."""
    depth = deepest = 0
    for one in body:
        if one in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif one in b"}]":
            depth -= 1
    return deepest


def _hex(body: bytes, note: str = "") -> Body:
    part = body[:HEX_MAX]
    lines = []
    for start in range(0, len(part), _LINE):
        row = part[start : start + _LINE]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        lines.append(f"{start:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  {letters}")
    return Body("hex", "\n".join(lines), len(body), len(part), note)
