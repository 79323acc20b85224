"""A topic as one table: its archived messages, and those stored since (`metaq.spark.table`)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pyspark.sql import functions as sql

from metaq.archive.decoding import CORRUPT, DECODED, Decoding, newest_decoding, without
from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import SPARK_CHECKS
from metaq.archive.replacements import place, view
from metaq.client.arrow import records
from metaq.errors import ConfigError
from metaq.model import offsets
from metaq.model.offsets import Positions
from metaq.pipelines.archive.decoding import BodyColumns
from metaq.pipelines.archive.hadoop.folder import HadoopFolder
from metaq.pipelines.checkpoints import spark_path
from metaq.pipelines.uris import is_uri, plain_path
from metaq.spark import interpreter
from metaq.spark.engine.hadoop import HadoopFiles
from metaq.spark.engine.session import session


def table(
    topic: str,
    *,
    archive: str | Path,
    name_servers: str | None = None,
    acl_file: str | None = None,
    spark: Any = None,
    fail_on_data_loss: bool = True,
) -> Any:
    """Return a DataFrame of all messages of a topic: the archive's files, then the live tail.

    Columns: `topic string, broker string, queue_id int, queue_offset bigint, message_id string, tag string, keys array<string>, body
    binary, born_time timestamp, store_time timestamp`, those of `format("metaq")`.

    If the archive decodes bodies, both parts have `decoded` and `_corrupt`, and neither has `body` if it is not kept.

    The manifests are read first, and the tail begins at the offsets where they end: a batch that the archive publishes
    meanwhile is in one part, never in both. The tail is not deduplicated: that happens when it is archived.

    Args:
        topic: its name.
        archive: the folder that `archive` writes, or its URI.
        name_servers: of the cluster; None: only archived messages.
        acl_file: what requests to it are signed with, as of the source.
        spark: the session; None: `metaq.spark.session()`.
        fail_on_data_loss: whether a query fails, with `MessagesLost`, if messages left the brokers before they were
            archived; False: it logs how many of which queue and goes on.

    Raises: ConfigError: nothing of the topic is archived, and no cluster is named.
    """
    spark = spark or session()
    files, end, decoding = _archived(spark, str(archive), topic)
    bodies = None if decoding is None else BodyColumns.of(decoding)
    columns = without(records.LEAN, decoding) + (() if bodies is None else (DECODED, CORRUPT))
    parts = []
    if files:
        # With an explicit schema: Spark would take one file's columns for all, and decoded bodies may have more fields since.
        reader = spark.read if bodies is None else spark.read.schema(bodies.spark_columns(records.LEAN[1:]))
        # The files have no column `topic`: it is in the name of their folder.
        parts.append(
            reader.options(**SPARK_CHECKS).parquet(*files).withColumn("topic", sql.lit(topic)).select(*columns)
        )
    if name_servers is not None:
        interpreter.check(interpreter.running_context())
        tail = spark.read.format("metaq").option("nameServers", name_servers).option("subscribe", topic)
        if acl_file is not None:
            tail = tail.option("aclFile", acl_file)
        tail = tail.option("failOnDataLoss", str(fail_on_data_loss).lower())
        mine = {queue: offset for queue, offset in end.items() if queue.topic == topic}
        if mine:
            tail = tail.option("startingOffsets", offsets.to_text(mine))
        live = tail.load()
        parts.append(live if bodies is None else bodies.expanded(live).select(*columns))
    if not parts:
        raise ConfigError(f"{archive} holds nothing of topic {topic}; give name_servers to read the live topic")
    return functools.reduce(lambda one, other: one.unionByName(other), parts)


def _archived(spark: Any, archive: str, topic: str) -> tuple[list[str], Positions, Decoding | None]:
    """Return the paths of a topic's files for Spark, the archive's end positions, and its decoding (None: bytes)."""
    if is_uri(archive):
        remote = HadoopFolder(HadoopFiles(spark, archive))
        seen = view(remote)
        return list(remote.places([file for file in seen.files if file.topic == topic]).values()), seen.end, None
    folder = ArchiveFolder(plain_path(archive))
    seen = view(folder)
    files = [spark_path(place(folder, seen, file)) for file in seen.files if file.topic == topic]
    return files, seen.end, newest_decoding(folder)
