"""What an import of data of MetaQ 1.x tells."""

from __future__ import annotations

from msgspec import Struct


class Imported(Struct):
    """What became of one partition."""

    topic: str
    partition: int
    begin: int
    """Position of the first message that it has."""
    end: int
    """Position behind the last one that was taken."""
    messages: int = 0
    """Taken in this run."""
    bytes: int = 0
    already: int = 0
    """Bytes that an earlier run had taken."""
    damaged: str = ""
    """What stands behind `end` in the last file, and was not taken: a server of 1.x would have cut it off as well."""
    problem: str = ""
    """Why it could not be taken, or not wholly; empty if all is well."""
