"""What arrived: counted from the Parquet files with pyarrow, by unique id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds


class Archived(NamedTuple):
    rows: int
    lost: int
    """Flights whose id is not in the archive."""
    twice: int
    """Rows whose id another row has."""
    strangers: int
    """Rows whose id no flight has."""
    size: int
    """Bytes of the files."""
    files: int


def examine(archive: Path, sent: Sequence[str]) -> Archived:
    """Compare the archive with the ids of the flights that were sent."""
    data = ds.dataset(archive, partitioning="hive")
    column = data.to_table(columns=["message_id"])["message_id"]
    found = set(pc.unique(column).to_pylist())
    wanted = set(sent)
    files = [Path(name) for name in data.files]
    return Archived(
        rows=len(column),
        lost=len(wanted - found),
        twice=len(column) - len(found),
        strangers=len(found - wanted),
        size=sum(file.stat().st_size for file in files),
        files=len(files),
    )
