"""The archive's files as Iceberg tables, one per topic: `add_files`, nothing is written twice.

    OUTPUT/_iceberg/catalog.db                  pyiceberg's SQL catalog, in SQLite; the tables are metaq.TOPIC
    OUTPUT/_iceberg/TOPIC/metadata/...          Iceberg's own
    OUTPUT/_iceberg/TOPIC/metadata/version-hint.text    for readers without a catalog, as DuckDB's iceberg_scan(FOLDER)

The manifests are the truth, and the tables follow them: each commit makes a table's files equal to those that a reader by the
manifests would open now. All differences are added and removed in one commit, whether they come from a batch, a merge, an
expired date, or work that a crash interrupted. So a commit is never repeated, a missed one is made up for by the next, and a
lost table is made anew.

Files that are about to be replaced are in the table at the path where they stay for the archive's grace time
(`replacements.place`), so that a plan made from a table stays valid as long as one made from the manifests.

The topic is the table's name, and the date is Iceberg's partition, the day of `store_time`: neither is a column of the files.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow.parquet as pq

from metaq.archive.folder import ArchiveFolder
from metaq.archive.iceberg_io import location_of, path_of
from metaq.archive.records import TABLES, ArchivedFile, Manifest
from metaq.archive.replacements import replacements
from metaq.clock import SYSTEM, Clock
from metaq.durable import disk_fault, make_folder, sync_folder, write_whole
from metaq.errors import ConfigError, MetaqError, StoreFailed

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

_LOG = logging.getLogger(__name__)

CATALOG, NAMESPACE = "metaq", "metaq"
HINT = "version-hint.text"
MANIFEST = "metaq.manifest"
"""Snapshot property: newest batch of the archive in it."""
SNAPSHOTS_MIN = 100
"""Snapshots that are always kept. At twice as many, those that no reader can be using are removed."""
_LOCK_SECONDS = 60
"""Time to wait for a reader that locks the catalog's database."""
_CHATTER = "PyArrow statistics missing"
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # No bounds of columns that nobody searches by range: they would only make the table's manifests larger.
    **{f"write.metadata.metrics.column.{name}": "counts" for name in ("body", "_corrupt", "message_id")},
}


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Drop pyiceberg's warning, for each file and column, of columns without statistics: the archive's have none on purpose."""

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_CHATTER)

    logger = logging.getLogger("pyiceberg.io.pyarrow")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


class IcebergTables:
    """The tables of one archive. For the run that has the lease, in the thread that publishes."""

    def __init__(self, folder: ArchiveFolder, grace_seconds: float, clock: Clock = SYSTEM) -> None:
        """Args: grace_seconds: time for which replaced files stay.

        Raises ConfigError: Iceberg's locations cannot name the folder.
        """
        self._folder, self._clock = folder, clock
        self._grace_ms = round(grace_seconds * 1000)
        self._home = folder.path / TABLES
        # `path_of` parses a location as a URL, which would end at either, and locations are not percent-encoded.
        if set("?#") & set(str(folder.path)):
            raise ConfigError(
                f"tableFormat=iceberg: the output {folder.path} has a ? or # in it, which no Iceberg location can have"
            )
        self._catalog: SqlCatalog | None = None
        self._batches: set[str] = set()
        self._files: dict[str, ArchivedFile] = {}
        """Path → file of the archive now: published ones, with finished replacements applied."""
        self._there: dict[str, tuple[int | None, set[str]]] = {}
        """Topic → the table's snapshot id, and the locations of its files."""
        self._newest = ""
        self._swept: set[str] = set()
        """Topics whose tables were cleaned of earlier runs' leftovers."""

    def align(self, *, changed_only: bool = False) -> None:
        """Make the tables' files equal to the archive's. May be repeated, and interrupted anywhere.

        Args: changed_only: skip tables without known differences.
        Raises: StoreFull, StoreFailed: some or all tables are unchanged; the next `align` continues.
        """
        with self._faults():
            for manifest in self._folder.newer(self._batches):
                self._take(manifest)
            wanted = self._wanted()
            for topic in sorted(wanted.keys() | self._tables()):
                # A topic that is not in `_there` failed last time, or was never compared.
                if not changed_only or topic not in self._there or self._there[topic][1] != wanted[topic]:
                    self._bring(topic, wanted[topic])

    def publish(self, manifest: Manifest) -> None:
        """Add a published batch, whose files have their final names. Raises: as `align`."""
        by_topic: dict[str, set[str]] = defaultdict(set)
        for file in manifest.files:
            by_topic[file.topic].add(location_of(self._folder.path / file.path))
        if by_topic.keys() - self._there.keys():  # A new table, or one that could not be changed last time.
            self.align()
            return
        with self._faults():
            self._take(manifest)
            # The cached files plus the batch's are enough: nobody else changes them while this run has the lease.
            for topic, files in sorted(by_topic.items()):
                self._bring(topic, self._there[topic][1] | files)

    def close(self) -> None:
        """Close the catalog's database."""
        if self._catalog is not None:
            self._catalog.engine.dispose()
            self._catalog = None

    # -------------------------------------------------------------- files of the archive
    def _take(self, manifest: Manifest) -> None:
        self._batches.add(manifest.name)
        self._newest = max(self._newest, manifest.name)
        self._files |= {file.path: file for file in manifest.files}

    def _wanted(self) -> dict[str, set[str]]:
        """Return topic → locations of the files to read now. Raises StoreCorrupt."""
        files, links = self._files, dict[str, str]()
        for record in replacements(self._folder):
            # While a replacement is only announced, the old files are the archive, and stay at their links.
            if not record.done_ms:
                links |= {path: record.link(path) for path in record.replaced}
                continue
            # Removed for good: once a date is gone its records are pruned, too.
            for path in record.replaced:
                files.pop(path, None)
            files |= {file.path: file for file in record.files}
        wanted: dict[str, set[str]] = defaultdict(set)
        for path, file in files.items():
            link = links.get(path)
            at = self._folder.path / path
            # Announced: the link outlives the file's place, so that a plan by the table stays valid for the grace time.
            if link is not None and (self._folder.path / link).exists():
                at = (self._folder.path / link).resolve()
            wanted[file.topic].add(location_of(at))
        return wanted

    # -------------------------------------------------------------- the tables
    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Raise StoreFull or StoreFailed for whatever pyiceberg raises inside, and forget the cached tables."""
        what = f"the Iceberg tables in {self._home} could not be brought up to date; the archive itself is whole"
        try:
            yield
        except MetaqError:
            raise
        except Exception as fault:  # pyiceberg's, SQLAlchemy's and Arrow's exceptions have no common base.
            self._there.clear()
            if isinstance(fault, OSError) and not isinstance(fault, FileNotFoundError):
                raise disk_fault(fault, what) from fault
            why = (str(fault).splitlines() or [""])[0]
            raise StoreFailed(
                f"{what}: {type(fault).__name__}: {why}. The next run tries again; if it cannot, remove {self._home}, and they "
                "are made anew"
            ) from fault

    def _tables(self) -> set[str]:
        return {str(name[-1]) for name in self._open().list_tables(NAMESPACE)}

    def _open(self) -> SqlCatalog:
        if self._catalog is None:
            from pyiceberg.catalog.sql import SqlCatalog

            make_folder(self._home)
            self._catalog = SqlCatalog(
                CATALOG,
                uri=f"sqlite:///{self._home / 'catalog.db'}?timeout={_LOCK_SECONDS}",
                warehouse=location_of(self._home),
                **{"py-io-impl": "metaq.archive.iceberg_io.SyncedIO"},
            )
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
            sync_folder(self._home)
        return self._catalog

    def _load(self, topic: str) -> Table | None:
        """Return the table of a topic; None: there is none in this folder (the archive was moved, or its files are lost)."""
        from pyiceberg.exceptions import NoSuchTableError

        name = (NAMESPACE, topic)
        try:
            found = self._open().load_table(name)
        except NoSuchTableError:
            return None
        except FileNotFoundError:
            found = None
        if found is not None and found.location() == location_of(self._place(topic)):
            return found
        _LOG.warning("the Iceberg table of %s is not in %s any more: it is made anew", topic, self._place(topic))
        # Locations in Iceberg's metadata are absolute, so a table that was moved with its archive cannot be read.
        self._open().drop_table(name)
        return None

    def _place(self, topic: str) -> Path:
        return self._home / quote(topic, safe="")

    def _create(self, topic: str, file: str) -> Table:
        from pyiceberg.transforms import DayTransform

        place = self._place(topic)
        if place.exists():  # Files of a table that the catalog lost.
            shutil.rmtree(place)
        schema = _columns_of(file)
        with self._open().create_table_transaction(
            (NAMESPACE, topic), schema=schema, location=location_of(place), properties=_PROPERTIES
        ) as making:
            with making.update_spec() as parts:
                parts.add_field("store_time", DayTransform(), "date")
            # The files have no Iceberg field ids: readers find their columns by name.
            making.set_properties(
                {"schema.name-mapping.default": making.table_metadata.schema().name_mapping.model_dump_json()}
            )
        return self._open().load_table((NAMESPACE, topic))

    def _known(self, topic: str) -> set[str]:
        """Return the locations of a table's files. Cached: only the run that has the lease changes them."""
        if topic not in self._there:
            table = self._load(topic)
            files = set() if table is None else {file.file_path for file in _data_files(table)}
            self._there[topic] = (_snapshot(table), files)
        return self._there[topic][1]

    def _bring(self, topic: str, wanted: set[str]) -> None:
        table = self._load(topic)
        # Another snapshot than ours: a commit whose answer was lost, or somebody else's change.
        if table is None or self._there.get(topic, (None,))[0] != _snapshot(table):
            self._there.pop(topic, None)
        there = self._known(topic)
        added, gone = sorted(wanted - there), there - wanted
        if table is None:
            if not added:
                return
            table = self._create(topic, added[0])
        if added or gone:
            self._there.pop(topic, None)  # Until the commit has succeeded, its result is not known.
            with table.transaction() as changes:
                self._change(
                    changes, added, [file for file in _data_files(table) if file.file_path in gone] if gone else []
                )
                if _expire(changes, self._clock.now_ms() - self._grace_ms):
                    self._swept.discard(topic)
            self._there[topic] = (_snapshot(table), wanted)
        self._tidy(topic, table)

    def _change(self, changes: Transaction, added: list[str], gone: list[DataFile]) -> None:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        files = changes._table.io  # noqa: SLF001  a transaction has no other way to its own
        seen: list[Any] = []
        for location in added:
            columns = _columns_of(location)
            if columns not in seen:  # Decoded bodies may have more fields in newer files; columns are only ever added.
                with changes.update_schema() as schema:
                    schema.union_by_name(columns)
                seen.append(columns)
        with _without_chatter():
            found = [parquet_file_to_data_file(files, changes.table_metadata, location) for location in added]
        update = changes.update_snapshot(snapshot_properties={MANIFEST: self._newest.removesuffix(".json")})
        # Only an overwrite can remove data files.
        with update.overwrite() if gone else update.merge_append() as snapshot:
            for file in gone:
                snapshot.delete_data_file(file)
            for file in found:
                snapshot.append_data_file(file)

    def _tidy(self, topic: str, table: Table) -> None:
        """Write the version hint for readers without a catalog, and remove files that no snapshot needs."""
        newest = path_of(table.metadata_location)
        name = newest.name.removesuffix(".metadata.json").encode()
        hint = newest.with_name(HINT)
        if not hint.exists() or hint.read_bytes() != name:
            write_whole(hint, name)
        # Once per run, and again after snapshots have expired: only a crash or an expiry leaves files that nothing names.
        if topic in self._swept:
            return
        needed = {HINT, newest.name} | {path_of(one.metadata_file).name for one in table.metadata.metadata_log}
        for snapshot in table.metadata.snapshots:
            needed.add(path_of(snapshot.manifest_list).name)
            needed |= {path_of(one.manifest_path).name for one in snapshot.manifests(table.io)}
        # Commits that a crash interrupted have left metadata and manifests that no snapshot names.
        for path in newest.parent.iterdir():
            if path.name not in needed:
                path.unlink()
        self._swept.add(topic)


def _snapshot(table: Table | None) -> int | None:
    return None if table is None else table.metadata.current_snapshot_id


def _columns_of(location: str) -> Any:
    return pq.read_schema(path_of(location)).remove_metadata()


def _data_files(table: Table) -> list[DataFile]:
    """Return the files of a table's newest snapshot."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    return [entry.data_file for one in manifests for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)]


def _expire(changes: Transaction, before_ms: int) -> bool:
    """Remove old snapshots, from before `before_ms`. Returns whether there were any."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    # Ordered by sequence number, not by time: the clock may have been set back.
    known = sorted(changes.table_metadata.snapshots, key=lambda one: one.sequence_number or 0)
    if len(known) <= 2 * SNAPSHOTS_MIN:
        return False
    old = [one.snapshot_id for one in known[:-SNAPSHOTS_MIN] if one.timestamp_ms < before_ms]
    if old:
        ExpireSnapshots(changes).by_ids(old).commit()
    return bool(old)
