"""Records of the archive: files and manifest of a batch, and their names."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec

from metaq.errors import StoreForeign
from metaq.model import offsets
from metaq.model.offsets import Positions, Slice

MANIFESTS, IDS, TABLES = "_manifests", "_ids", "_iceberg"

VERSION: Final = 2
"""Version of written manifests. Files of version 1 lack the columns after the twelfth."""
COLUMNS: Final = (
    "broker", "queue_id", "queue_offset", "message_id", "tag", "keys", "body", "born_time", "store_time", "properties", "flag",
    "reconsume_times", "sys_flag", "born_host", "store_host", "log_offset", "prepared_offset", "properties_raw", "born_ms",
    "store_ms",
)  # fmt: skip
"""Columns of archived messages; the topic is in the folder's name."""


_FOLDER = re.compile(r"topic=(?P<topic>[^/]+)/date=(?P<date>[^/]+)(/.*)?")


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file: the messages of one slice that were stored on one day."""

    path: str
    """Final path, relative to the archive."""
    staged: str
    """Staged path, relative to the archive (in a folder beside it)."""
    topic: str
    date: str
    """Store date, UTC, YYYY-MM-DD."""
    rows: int
    size: int
    """Bytes."""
    sha256: str = ""
    """SHA-256 of the file, in hex; empty: not known, in archives on Hadoop file systems and of earlier releases."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One published batch."""

    v: int = VERSION
    query: str
    """Id of the streaming query, from its checkpoint."""
    batch: int
    files: list[ArchivedFile]
    rows: int
    repeats: int
    """Messages left out because their unique id had been archived within the window."""
    positions: dict[str, Any]
    """Offsets JSON: the archive's end in every queue, this batch included."""
    ids: dict[str, str | list[str]] = {}
    """Topic → file of this batch's unique ids, or several, relative to the archive."""
    newest_ms: int = 0
    """Newest store time of the batch, ms since 1970; that of the last deduplicated batch if this one was not."""
    partition_by: str = "date"
    """The option `partitionBy` (metaq.pipelines.archive.parting)."""
    corrupt: int = 0
    """Messages whose bodies did not decode, if the archive decodes (metaq.archive.decoding)."""

    @property
    def name(self) -> str:
        return manifest_name(self.query, self.batch)

    @property
    def id_files(self) -> dict[str, str]:
        """File of ids → its topic."""
        return {
            path: topic for topic, paths in self.ids.items() for path in ([paths] if isinstance(paths, str) else paths)
        }

    @property
    def end(self) -> Positions:
        return offsets.from_json(self.positions, "an archive's manifest")


_Record = TypeVar("_Record")


def decode(data: bytes, kind: type[_Record]) -> _Record:
    """Decode a record. Raises: msgspec.DecodeError: malformed. StoreForeign: a later release wrote it."""
    # The version is read alone first: a later release may have changed the type of any other field.
    version = msgspec.json.decode(data, type=_Versioned).v
    if version > VERSION:
        raise StoreForeign(
            f"written in version {version} of the archive's format, and this release reads up to {VERSION}: take a newer one"
        )
    return msgspec.json.decode(data, type=kind)


class _Versioned(msgspec.Struct):
    v: int


def manifest_name(query: str, batch: int) -> str:
    return f"{query[:8]}-{batch:010d}.json"


def final_path(query: str, batch: int, wanted: Slice, date: str, part: str = "") -> str:
    """Return the final path of a slice's messages of a date (and part), relative to the archive."""
    topic, broker, queue_id = wanted.queue
    name = f"{query[:8]}-{batch:010d}-{quote(broker, safe='')}-{queue_id}-{wanted.start:020d}.parquet"
    return f"topic={quote(topic, safe='')}/date={date}/{part}{'/' if part else ''}{name}"


def place_of(folder: str) -> tuple[str, str] | None:
    """Return topic and date of a folder of files, relative to the archive; None: not such a folder."""
    found = _FOLDER.fullmatch(folder)
    return None if found is None else (unquote(found["topic"]), found["date"])
