"""What requests bring: forms, and places to go on at."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

FORM_BYTES_MAX: Final = 8 * 1024 * 1024
"""A form may bring the body of a message."""
FORM_FIELDS_MAX: Final = 200
_KIND: Final = "application/x-www-form-urlencoded"


async def fields_of_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of one that came twice, the last. Raises HTTPException: it is none, or too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise HTTPException(415, f"a form is {_KIND}")
    keep, parts, size = request.state.connection.peer.keep, list[bytes](), 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            keep(len(part))
            if size > FORM_BYTES_MAX:
                raise HTTPException(
                    413, f"a form of more than {FORM_BYTES_MAX} bytes, the limit", {"connection": "close"}
                )
        text = b"".join(parts).decode()
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX))
    except ValueError as error:  # also a wrong encoding
        raise HTTPException(400, f"the form cannot be read: {error}") from None
    finally:
        keep(-size)


def raw_path(request: Request) -> str:
    """Return the path as it came, with names still quoted."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    return bytes(raw).partition(b"?")[0].decode("ascii", "replace")


def relative(text: str) -> str:
    """Return a place of ours to go on at; "/" for anything that would lead elsewhere."""
    if not text.startswith("/") or text.startswith("//") or "\\" in text or not text.isprintable():
        return "/"
    parts = urlsplit(text)
    return text if not (parts.scheme or parts.netloc) else "/"
