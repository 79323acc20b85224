"""Files that pages load: read once, named by what is in them."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Final

from msgspec import Struct

FOLDER: Final = pathlib.Path(__file__).parent.parent / "static"
_KINDS: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class StaticFile(Struct, frozen=True):
    """A file. `url`: with its digest, so that browsers keep it for good."""

    name: str
    kind: str
    body: bytes
    url: str


def read_static(folder: pathlib.Path = FOLDER) -> dict[str, StaticFile]:
    """Return all files by their names."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _KINDS:
            body = path.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:12]
            found[path.name] = StaticFile(path.name, _KINDS[path.suffix], body, f"/static/{path.name}?v={digest}")
    return found
