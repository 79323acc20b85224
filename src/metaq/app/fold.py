"""A broker's tables without the broker: their files with all that their journals say (docs/formats/journal.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from metaq.clock import SYSTEM, Clock
from metaq.errors import StoreError
from metaq.model import DataVersion
from metaq.options import StoreOptions
from metaq.saved import SavedTable, TableFile
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder
from metaq.store.journalled_file import JournalledFile
from metaq.wire.files import GROUPS, TOPICS

Value = TypeVar("Value")


def fold_tables(root: Path, clock: Clock = SYSTEM, disk: Disk | None = None) -> dict[str, bool]:
    """Leave `topics.json` and `subscriptionGroup.json` whole, without journals. Returns for each whether it had any.

    Raises StoreLocked: a broker is running on the folder. StoreForeign: it is no store. ConfigError: a file or a journal
    cannot be read. StoreError: a file could not be written.
    """
    folder = StoreFolder(StoreOptions(store_path_root_dir=str(root)), disk)
    folder.open()
    try:
        folder.secure_config()
        files = {form.name: JournalledFile(folder.config / form.name, disk) for form in (TOPICS, GROUPS)}
        found = {name: file.is_behind for name, file in files.items()}
        _fold(TableFile(files[TOPICS.name], TOPICS, TOPICS), clock)
        _fold(TableFile(files[GROUPS.name], GROUPS, GROUPS), clock)
        return found
    finally:
        folder.close()


def _fold(file: TableFile[str, Value, DataVersion], clock: Clock) -> None:
    version, entries = file.read(DataVersion())
    saved = SavedTable(file, entries, version, clock=clock)  # writes the file anew if there are journals
    if saved.failing:
        raise StoreError(f"{file.file.where} could not be written: {saved.failing}")
