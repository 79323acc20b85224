"""Record of an archive's decoding of bodies, with everything needed to decode them again.

    OUTPUT/_decode/NUMBER.json      the newest is valid; older ones were valid for older files

It contains the schemas themselves, not the names of their files: a reader in ten years has nothing else.
"""

from __future__ import annotations

import msgspec

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import decode
from metaq.durable import make_folder, sync_folder, write_whole
from metaq.errors import StoreCorrupt, StoreForeign

DECODINGS = "_decode"
DECODED, CORRUPT = "decoded", "_corrupt"
"""Columns of the archive: a struct of the body's fields, null if it did not decode; and the body in that case."""


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a decoding of bodies."""

    v: int = 1
    format: str
    """`json`, `avro`, `protobuf`, `utf8` or `hessian`."""
    schema: str = ""
    """JSON: the columns as Spark writes them; Avro: the schema, JSON."""
    framing: str = ""
    """Avro: `plain`, `single-object` or `confluent`."""
    writers: dict[str, str] = {}
    """Avro: key of a body's header, hex → writer schema."""
    descriptors: bytes = b""
    """Protobuf: the descriptor set."""
    message: str = ""
    """Protobuf: the type's full name."""
    keep_body: bool = True
    """Whether the column `body` stays."""
    columns: str = ""
    """Columns as a text, for people."""


def newest_decoding(folder: ArchiveFolder) -> Decoding | None:
    """Return the valid decoding; None: bodies are not decoded.

    Raises: StoreCorrupt: it cannot be read. StoreForeign: a later release wrote it.
    """
    paths = sorted((folder.path / DECODINGS).glob("*.json"))
    if not paths:
        return None
    try:
        return decode(paths[-1].read_bytes(), Decoding)
    except StoreForeign as fault:
        raise StoreForeign(f"{paths[-1]}, which says how bodies are decoded, was {fault}") from None
    except (msgspec.DecodeError, OSError) as fault:
        raise StoreCorrupt(f"{paths[-1]}, which says how bodies are decoded, cannot be read: {fault}") from fault


def save_decoding(folder: ArchiveFolder, decoding: Decoding) -> None:
    """Record the decoding of all later batches. For the holder of the lease. Raises OSError."""
    home = folder.path / DECODINGS
    make_folder(home)
    # The number follows the highest one, not the count: the newest file is the one that is valid.
    known = [int(path.stem) for path in home.glob("*.json") if path.stem.isdigit()]
    write_whole(
        home / f"{1 + max(known, default=0):010d}.json", msgspec.json.format(msgspec.json.encode(decoding), indent=1)
    )


def forget_decodings(folder: ArchiveFolder) -> None:
    """Remove the decodings of an archive without batches. Raises OSError."""
    home = folder.path / DECODINGS
    for path in home.glob("*.json"):
        path.unlink()
    if home.exists():
        sync_folder(home)


def without(columns: tuple[str, ...], decoding: Decoding | None) -> tuple[str, ...]:
    """Return those of the message columns that the archive has."""
    return tuple(name for name in columns if name != "body" or decoding is None or decoding.keep_body)
