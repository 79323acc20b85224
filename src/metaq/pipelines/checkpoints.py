"""Spark's checkpoint of a query: its location, and the query's id, which Spark keeps for the checkpoint's life."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from metaq.durable import make_folder, write_whole
from metaq.errors import ConfigError, StoreFailed
from metaq.pipelines.uris import is_uri, plain_path

PROGRESS_GROUPS = "metaq-progress-groups.json"
"""Names of the consumer groups that the query has stored its progress for."""
CHECKPOINT = "_checkpoint"
"""Default name, in the pipeline's folder."""
_METADATA = "metadata"


class _ProgressGroups(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    groups: list[str]


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

    def progress_groups(self) -> list[str]:
        """Return the consumer groups that the query has stored its progress for. Raises ConfigError, StoreFailed."""
        data = self._read(PROGRESS_GROUPS)
        if data is None:
            return []
        try:
            return msgspec.json.decode(data, type=_ProgressGroups).groups
        except msgspec.DecodeError as fault:
            raise ConfigError(f"{self}/{PROGRESS_GROUPS} cannot be read: {fault}") from None

    def add_progress_group(self, group: str) -> None:
        """Record, durably, that the query stores its progress for the group. Raises ConfigError, StoreFailed, OSError."""
        groups = self.progress_groups()
        if group not in groups:
            self._write(PROGRESS_GROUPS, msgspec.json.encode(_ProgressGroups(groups=[*groups, group])))

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._place / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise StoreFailed(f"the checkpoint {self} cannot be read: {fault.strerror}") from None

    def _write(self, name: str, data: bytes) -> None:
        make_folder(self._place)
        write_whole(self._place / name, data)


class _HadoopCheckpoint(Checkpoint):
    def __init__(self, spark: Any, uri: str) -> None:
        # Lazily: local checkpoints do not need it.
        from metaq.spark.engine.hadoop import HadoopFiles

        self.uri, self._files = uri, HadoopFiles(spark, uri)

    def __str__(self) -> str:
        return self.uri

    def query_id(self) -> str | None:
        data = self._read(_METADATA)
        return None if data is None else _id_in(data)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._files.read(name)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise StoreFailed(f"the checkpoint {self.uri} cannot be read: {fault.strerror}") from None

    def _write(self, name: str, data: bytes) -> None:
        self._files.write(name, data)


def checkpoint_of(spark: Any, given: str | None, output: str) -> Checkpoint:
    """Return the checkpoint of the query that writes to `output`: inside the output, unless `given` names another place."""
    if given is None:
        given = f"{output.rstrip('/')}/{CHECKPOINT}"
    return _HadoopCheckpoint(spark, given) if is_uri(given) else Checkpoint(plain_path(given))
