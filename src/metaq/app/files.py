"""A broker's files: which holds what, in which format; and its tables folded while no broker runs
(docs/formats/journal.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from metaq.broker.files import BrokerFiles
from metaq.clock import SYSTEM, Clock
from metaq.errors import StoreError
from metaq.model import DataVersion
from metaq.options import StoreOptions
from metaq.saved import SavedTable
from metaq.saved_file import SavedText, TableFile, TextFile
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder
from metaq.store.journalled_file import JournalledFile
from metaq.wire.files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    DELETED_TOPICS,
    GENERATIONS,
    GROUPS,
    LEADERSHIP,
    OPTIONS,
    QUOTAS,
    TOPICS,
)

Value = TypeVar("Value")


def broker_files(
    open_file: Callable[[str], SavedText], open_table: Callable[[str], SavedText] | None = None
) -> BrokerFiles:
    """Return a broker's files, with RocketMQ's names and formats.

    Args:
        open_file: opens a file by name, such as `consumerOffset.json`.
        open_table: the same for tables that grow large, which may have a journal; None: as `open_file`.
    """
    open_table = open_table or open_file
    return BrokerFiles(
        TableFile(open_table(TOPICS.name), TOPICS, TOPICS),
        TableFile(open_table(GROUPS.name), GROUPS, GROUPS),
        TableFile(open_file(DELETED_TOPICS.name), DELETED_TOPICS),
        TableFile(open_file(GENERATIONS.name), GENERATIONS),
        TextFile(open_file(CONSUMER_OFFSETS.name), CONSUMER_OFFSETS),
        TextFile(open_file(DELAY_OFFSETS.name), DELAY_OFFSETS),
        TextFile(open_file(CONSUMER_FILTERS.name), CONSUMER_FILTERS),
        TextFile(open_file(LEADERSHIP.name), LEADERSHIP),
        TableFile(open_file(QUOTAS.name), QUOTAS),
        TextFile(open_file(OPTIONS.name), OPTIONS),
    )


def fold_tables(root: Path, clock: Clock = SYSTEM, disk: Disk | None = None) -> dict[str, bool]:
    """Fold the journals into `topics.json` and `subscriptionGroup.json`. Return for each file whether it had any.

    Afterwards a RocketMQ broker can take over the folder: it does not read journals.

    Raises StoreLocked: a broker is running on the folder. StoreForeign: it is no store. ConfigError: a file or a
    journal cannot be read. StoreError: a file could not be written.
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
