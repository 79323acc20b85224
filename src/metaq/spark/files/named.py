"""Whether the topics that a query names are in the files that it reads: a misspelt one must not look like an empty one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import MANIFESTS
from metaq.archive.replacements import view
from metaq.errors import ConfigError
from metaq.model.upkeep.floors import topic_of
from metaq.option_table import nearest
from metaq.spark.files.found import FoundArchived, FoundFile, FoundLog, FoundSegment
from metaq.spark.files.settings import FilesOptions
from metaq.store.offline.damage import Damage

_GLOB = frozenset("*?[")


def check_topics(options: FilesOptions, found: Sequence[FoundFile]) -> None:
    """Raise ConfigError for a topic named whole that none of the files is of, if that is known of all of them.

    Not known: of a log whose consume queues lie elsewhere, and where something is damaged. A topic without messages is there.
    """
    missing = {name for name in options.wanted.patterns if not _GLOB.intersection(name)}
    there: set[str] = set()
    for topics in _topics(options, found):
        if topics is None:
            return
        there |= topics
        missing -= topics
        if not missing:
            return
    roots = [one.folder.parent for one in found if isinstance(one, FoundLog)]
    missing = {name for name in missing if not any(_is_told(root, name) for root in roots)}
    if missing:
        name = min(missing)
        known = ", ".join(sorted(there)[:10]) or "none"
        raise ConfigError(
            f"topics: nothing in {', '.join(options.all_paths)} is of the topic {name}{nearest(name, there)}; there are {known}"
        )


def _topics(options: FilesOptions, found: Sequence[FoundFile]) -> Iterator[set[str] | None]:
    """Yield the topics of one source after the other; None: they are not known."""
    for one in found:
        if isinstance(one, FoundArchived):
            yield {one.file.topic}
        elif isinstance(one, FoundSegment):
            yield {one.segment.topic}
        elif isinstance(one, FoundLog):
            queues = one.folder.parent / "consumequeue"
            yield {*(path.name for path in queues.iterdir()), *map(topic_of, one.hidden)} if queues.is_dir() else None
        elif isinstance(one, Damage):
            yield None
    # Last, since they are read a second time: topics of an archive whose dates are all over.
    for path in map(Path, options.all_paths):
        for home in (path / MANIFESTS, *path.rglob(MANIFESTS)) if path.is_dir() else ():
            if home.is_dir():
                yield set(view(ArchiveFolder(home.parent), []).topics)


def _is_told(root: Path, topic: str) -> bool:
    """Return whether the tables of a store, or their journals, name a topic: it has no messages then."""
    quoted = json.dumps(topic, ensure_ascii=False)
    return any(
        quoted in path.read_text(encoding="utf-8", errors="replace") for path in (root / "config").glob("topics.json*")
    )
