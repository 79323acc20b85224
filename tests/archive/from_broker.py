"""Archives of what a broker holds, made as the pipeline's workers make them, without Spark."""

from __future__ import annotations

from pathlib import Path

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile, Manifest, final_path
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.slices import SliceWriter
from metaq.spark.cluster.client import client_of
from metaq.spark.source.settings import SourceOptions

QUERY = "6f1c9a2e-1111-2222-3333-444455556666"


def archive_until(folder: ArchiveFolder, namesrv: str, ends: dict[MessageQueue, int]) -> Manifest:
    """The next batch of an archive: every queue from where that has come so far to its end."""
    folder.prepare()
    last = folder.last()
    batch, positions = (0, dict[MessageQueue, int]()) if last is None else (last.batch + 1, last.end)
    (topic,) = {queue.topic for queue in ends}
    chosen = SourceOptions.of({"nameServers": namesrv, "subscribe": topic})
    writer = SliceWriter(
        name_servers=namesrv,
        settings=chosen.fetch_of_stream,
        staging=str(folder.staging / f"{batch}-run"),
        dedupe="off",
    )
    files = []
    try:
        for queue, end in ends.items():
            wanted = Slice(queue, positions.get(queue, 0), end)
            for written in writer.write(wanted) if wanted.messages else ():
                (row,) = written.to_pylist()
                files.append(
                    ArchivedFile(
                        path=final_path(QUERY, batch, wanted, row["date"], row["part"]),
                        staged=folder.relative(row["staged"]), topic=topic, date=row["date"], rows=row["rows"],
                        size=Path(row["staged"]).stat().st_size, sha256=row["sha256"],
                    )
                )  # fmt: skip
            positions[queue] = max(positions.get(queue, 0), end)
    finally:
        client_of.cache_clear()
    manifest = Manifest(
        query=QUERY, batch=batch, files=files, rows=sum(file.rows for file in files), repeats=0,
        positions=offsets.to_json(positions),
    )  # fmt: skip
    folder.commit(manifest)
    folder.finish(manifest)
    folder.clean_staging()
    folder.close()
    return manifest
