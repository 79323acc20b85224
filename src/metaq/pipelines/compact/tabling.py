"""The Iceberg tables of an archive, if it has any. Loads pyiceberg only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import TABLES
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.archive.iceberg import IcebergTables

ICEBERG = "iceberg"


def tables_of(
    folder: ArchiveFolder, table_format: str | None, grace_seconds: float, clock: Clock = SYSTEM
) -> IcebergTables | None:
    """Return the tables of an archive; None: none are asked for, and none exist.

    Existing tables follow the archive even if the options no longer ask for them: otherwise they would name files that
    merging and retention remove.

    Raises: ConfigError: pyiceberg is missing, or tables cannot be in a folder of that name.
    """
    if table_format is None and not (folder.path / TABLES).exists():
        return None
    try:
        from pyiceberg.catalog import sql  # noqa: F401  it wants SQLAlchemy, which is pyiceberg's own extra

        from metaq.archive.iceberg import IcebergTables
    except ImportError as fault:
        if fault.name is not None and fault.name.startswith("metaq"):
            raise
        raise ConfigError(
            f"the Iceberg tables in {folder.path / TABLES} need pyiceberg: pip install 'pymetaq[spark,iceberg]'; or do without "
            "them: leave tableFormat away, and remove that folder"
        ) from fault
    return IcebergTables(folder, grace_seconds, clock)
