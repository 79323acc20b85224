"""Pruning: which manifests and records of an archive can be removed, because all of their files have expired. Pure.

A manifest can be removed once its files are gone for all readers: with or without it the archive has the same files. Kept for
other reasons are the newest manifests, which have the archive's end positions and are needed for batches that Spark replays,
and those whose unique ids are in the deduplication window.

A record of replaced files can be removed once no manifest and no other record names any of them. So manifests are removed
first, durably, and then records, oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from metaq.archive.records import Manifest, place_of
from metaq.archive.replacements import Replacement

MANIFESTS_KEPT = 2
"""Newest manifests that are always kept: they have the archive's end positions."""


class PublishedBatch(Struct, frozen=True):
    """The parts of a manifest that pruning needs."""

    files: tuple[str, ...]
    """Paths of its files."""
    ids: tuple[str, ...]
    """Paths of its files of ids."""

    @classmethod
    def of(cls, manifest: Manifest) -> PublishedBatch:
        return cls(tuple(file.path for file in manifest.files), tuple(manifest.id_files))


def batches_over(
    batches: Mapping[str, PublishedBatch], records: Collection[Replacement], has_ids: Callable[[str], bool]
) -> list[str]:
    """Return the names of manifests that can be removed, oldest first.

    Args:
        batches: name → manifest, all of them.
        records: finished replacements.
        has_ids: whether a file of ids exists.
    """
    expired = files_over(records)
    if not expired:
        return []
    return [
        name
        for name in sorted(batches)[:-MANIFESTS_KEPT]
        if expired.issuperset(batches[name].files) and not any(map(has_ids, batches[name].ids))
    ]


def files_over(records: Collection[Replacement]) -> set[str]:
    """Return the files that expired: after any number of merges, no file has their messages."""
    found: set[str] = set()
    # Newest first: merged files are replaced later.
    for record in sorted(records, key=lambda record: -record.number):
        if found.issuperset(file.path for file in record.files):
            found.update(record.replaced)
    return found


def records_over(
    records: Collection[Replacement], finished: Collection[Replacement], batches: Collection[PublishedBatch]
) -> list[Replacement]:
    """Return the records that can be removed.

    Args:
        records: all of them.
        finished: those whose files are gone.
        batches: the manifests that are left.
    """
    expired = files_over(finished)
    named = {path for batch in batches for path in batch.files} | {
        file.path for record in records for file in record.files
    }
    newest = max((record.number for record in records), default=0)
    ends = _ends(finished)
    return [
        record
        for record in sorted(finished, key=lambda record: record.number)
        if expired.issuperset(record.replaced)
        and named.isdisjoint(record.replaced)
        # The next number follows it, and names of merged files must be unique.
        and record.number != newest
        and record.number not in ends
    ]


def _ends(finished: Collection[Replacement]) -> set[int]:
    """Return the numbers of the records that show from which date on a topic is archived, one per topic."""
    newest: dict[str, tuple[str, int]] = {}
    for record in finished:
        if not record.files and (ended := place_of(record.folder)) is not None:
            topic, date = ended
            newest[topic] = max(newest.get(topic, ("", 0)), (date, record.number))
    return {number for _, number in newest.values()}
