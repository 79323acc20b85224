"""Spark's checkpoint of a query: its location, and the query's id, which Spark keeps for the checkpoint's life."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metaq.errors import StoreFailed
from metaq.pipelines.uris import is_uri, plain_path

CHECKPOINT = "_checkpoint"
"""Default name, in the pipeline's folder."""
_METADATA = "metadata"


def query_id(checkpoint: Path) -> str | None:
    """Return the id that Spark gave the query of this checkpoint; None before its first start."""
    try:
        return _id_in((checkpoint / _METADATA).read_bytes())
    except OSError:
        return None


def _id_in(metadata: bytes) -> str | None:
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError):
        return None


def spark_path(path: Path) -> str:
    """Return a local path for Spark: with a scheme, or spark.hadoop.fs.defaultFS would decide; nothing percent-encoded."""
    return f"file:{path}"


class Checkpoint:
    """The checkpoint of a query, on a local disk."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.uri = spark_path(place)
        """Location, as Spark takes it."""

    def __str__(self) -> str:
        return str(self._place)

    def query_id(self) -> str | None:
        """Return the id that Spark gave the query; None before its first start. Raises StoreFailed: it cannot be read."""
        return query_id(self._place)


class _HadoopCheckpoint(Checkpoint):
    def __init__(self, spark: Any, uri: str) -> None:
        # Lazily: local checkpoints do not need it.
        from metaq.spark.engine.hadoop import HadoopFiles

        self.uri, self._files = uri, HadoopFiles(spark, uri)

    def __str__(self) -> str:
        return self.uri

    def query_id(self) -> str | None:
        try:
            return _id_in(self._files.read(_METADATA))
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise StoreFailed(f"the checkpoint {self.uri} cannot be read: {fault.strerror}") from None


def checkpoint_of(spark: Any, given: str | None, output: str) -> Checkpoint:
    """Return the checkpoint of the query that writes to `output`: inside the output, unless `given` names another place."""
    if given is None:
        given = f"{output.rstrip('/')}/{CHECKPOINT}"
    return _HadoopCheckpoint(spark, given) if is_uri(given) else Checkpoint(plain_path(given))
