"""Findings: one line each of what a look has shown, and the remedy where something is wrong."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

OK: Final = "ok"
NOTICE: Final = "notice"
WRONG: Final = "wrong"


class Finding(Struct, frozen=True):
    """One line of the report. `state`: ok; notice, works but could be better; wrong, something will not work."""

    what: str
    state: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)
