"""Which manifests and records of an archive nobody needs any more: those that tell only of files whose time is over. Pure.

Such a manifest may go once its files are gone for everybody: whether it is read or not, an archive has the same files. What is
needed of it otherwise stays: the newest ones, for how far the archive has come and for batches that Spark does again, and those
whose unique ids are in the window in which repeats are looked for.

A record of replaced files may go once no manifest and no other record tells of any of them. So manifests go first, for good, and
records after them, the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from metaq.archive.records import Manifest, place_of
from metaq.archive.replacements import Replacement

MANIFESTS_KEPT = 2
"""Newest manifests that are always kept: they say how far the archive has come."""


class PublishedBatch(Struct, frozen=True):
    """The parts of a manifest that pruning looks at."""

    files: tuple[str, ...]
    ids: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> PublishedBatch:
        return cls(tuple(file.path for file in manifest.files), tuple(manifest.id_files))


def batches_over(
    batches: Mapping[str, PublishedBatch], records: Collection[Replacement], has_ids: Callable[[str], bool]
) -> list[str]:
    """Names of manifests that can be removed, oldest first.

    Args:
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
    """Files that expired: nothing stands in for them, after any number of merges."""
    found: set[str] = set()
    for record in sorted(records, key=lambda record: -record.number):  # What stands in for files is replaced later.
        if found.issuperset(file.path for file in record.files):
            found.update(record.replaced)
    return found


def records_over(
    records: Collection[Replacement], finished: Collection[Replacement], batches: Collection[PublishedBatch]
) -> list[Replacement]:
    """Records that can be removed, given the manifests that are left.

    Args:
        records: all of them.
        finished: those whose files are gone.
    """
    expired = files_over(finished)
    told = {path for batch in batches for path in batch.files} | {
        file.path for record in records for file in record.files
    }
    newest = max((record.number for record in records), default=0)
    ends = _ends(finished)
    return [
        record
        for record in sorted(finished, key=lambda record: record.number)
        if expired.issuperset(record.replaced)
        and told.isdisjoint(record.replaced)
        and record.number != newest  # The next number is counted from it: names of merged files come once.
        and record.number not in ends
    ]


def _ends(finished: Collection[Replacement]) -> set[int]:
    """The records that say from which date on a topic is archived: one each."""
    newest: dict[str, tuple[str, int]] = {}
    for record in finished:
        if not record.files and (ended := place_of(record.folder)) is not None:
            topic, date = ended
            newest[topic] = max(newest.get(topic, ("", 0)), (date, record.number))
    return {number for _, number in newest.values()}
