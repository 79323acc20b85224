"""The folder of a `metrics` pipeline, and the atomic commit of a step into it.

    FOLDER/metric=messages/date=2026-03-01/STEP.parquet   what readers see; also deliveries, groups, brokers, alerts
    FOLDER/_state                                         open windows, and the number of the last step
    FOLDER/_followed/STEP.npy                             messages that are followed through the traces
    FOLDER/_staging/STEP-METRIC-DATE.part                 unfinished files
    FOLDER/_checkpoint/                                   Spark's checkpoint

A step stages its files, then writes the state, which names them (a temporary file, fsync, rename: the commit), then renames the
files. After a crash before the commit the next run removes the staged files; after a crash behind it, it renames them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metaq.durable import make_folder, sync_file, sync_folder, write_whole
from metaq.errors import ConfigError, StoreCorrupt
from metaq.pipelines.checkpoints import CHECKPOINT, query_id
from metaq.pipelines.metrics.following import KNOWN_TYPE, Known
from metaq.pipelines.metrics.state import STATE, MetricsState, Saved, decode, encode

FOLLOWED, STAGING = "_followed", "_staging"


class MetricsFolder:
    """A metrics folder. Only the run that has its lease writes; anybody may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Saved | None:
        """Finish the last step's renames and return its state. None: there was no step yet.

        Raises: StoreCorrupt: the state is damaged, or a published file is missing.
        """
        try:
            saved = decode((self.path / STATE).read_bytes(), self.path / STATE)
        except FileNotFoundError:
            saved = None
        # Renames first: what the state does not name is rubbish only then.
        if saved is not None:
            self._finish(saved.files)
        self._clean(set(saved.known) if saved is not None else set())
        return saved

    def known(self, saved: Saved) -> Known:
        """Return the followed messages. Raises StoreCorrupt."""
        chunks = []
        for name in saved.known:
            path = self._chunk(name)
            try:
                rows = np.load(path, allow_pickle=False)
            except (OSError, ValueError, EOFError) as fault:
                raise StoreCorrupt(
                    f"{path}, which has the messages that are followed, cannot be read ({fault}): restore it from a copy with the rest "
                    "of its folder, or begin in an empty one"
                ) from None
            if rows.dtype != KNOWN_TYPE:
                raise StoreCorrupt(f"{path} holds {rows.dtype}, not followed messages")
            chunks.append((name, rows))
        return Known(chunks)

    def save(self, state: MetricsState, batch: int | None, tables: Mapping[tuple[str, str], pa.Table]) -> None:
        """Commit a step: publish its tables, by metric and date, together with the state.

        Args: batch: the query's batch that the step added; None: it was a sample.
        Raises OSError: the step may have been committed or not; `load` finds out.
        """
        step = f"{state.step + 1:012d}"
        files = [
            (f"{STAGING}/{step}-{metric}-{date}.part", f"metric={metric}/date={date}/{step}.parquet")
            for metric, date in tables
        ]
        if files:
            make_folder(self.path / STAGING)
        # Files and chunks are durable before the state that names them.
        for (staged, _), table in zip(files, tables.values(), strict=True):
            pq.write_table(table, self.path / staged, compression="zstd", write_page_checksum=True)
            sync_file(self.path / staged)
        if files:
            sync_folder(self.path / STAGING)
        self._save_chunks(state.known.chunks)
        write_whole(self.path / STATE, encode(state.saved(batch, files)))
        self._finish(files)
        # Behind the commit: until then the old state names them.
        self._drop_chunks(set(state.known.chunks))

    def _finish(self, files: list[tuple[str, str]]) -> None:
        for staged, final in files:
            place = self.path / final
            make_folder(place.parent)
            try:
                (self.path / staged).rename(place)
            except FileNotFoundError:
                # Else a run before this one has renamed it.
                if not place.exists():
                    raise StoreCorrupt(
                        f"{place} is missing: it was published, and somebody took it away since"
                    ) from None
            sync_folder(place.parent)

    def _save_chunks(self, chunks: Mapping[str, Any]) -> None:
        # Chunks never change: those that are there are whole.
        new = [name for name in chunks if not self._chunk(name).exists()]
        if not new:
            return
        make_folder(self.path / FOLLOWED)
        for name in new:
            making = self._chunk(name).with_suffix(".tmp")
            with making.open("wb") as file:
                np.save(file, chunks[name], allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            making.rename(self._chunk(name))
        sync_folder(self.path / FOLLOWED)

    def _chunk(self, name: str) -> Path:
        return self.path / FOLLOWED / f"{name}.npy"

    def _drop_chunks(self, known: set[str]) -> None:
        for path in (self.path / FOLLOWED).glob("*"):
            if path.suffix != ".npy" or path.stem not in known:
                path.unlink(missing_ok=True)

    def _clean(self, known: set[str]) -> None:
        shutil.rmtree(self.path / STAGING, ignore_errors=True)
        self._drop_chunks(known)


def check_place(place: Path, window_ms: int) -> None:
    """Do the checks of `guard` before Spark is started; changes nothing. Raises ConfigError, StoreCorrupt."""
    try:
        saved = decode((place / STATE).read_bytes(), place / STATE)
    except FileNotFoundError:
        saved = None
    guard(saved, query_id(place / CHECKPOINT), window_ms, place)


def guard(saved: Saved | None, query: str | None, window_ms: int, place: Path) -> None:
    """Raise ConfigError for a state of another checkpoint, or of windows of another length."""
    if saved is None:
        if query is not None:
            raise ConfigError(
                f"the checkpoint in {place} has a query and the folder no state of the metrics: something took {STATE} away. "
                "Give an empty folder"
            )
        return
    if saved.window_ms != window_ms:
        raise ConfigError(
            f"the windows in {place} are {saved.window_ms / 1000:g} s long, and windowSeconds is {window_ms / 1000:g}: give "
            "another folder for windows of another length"
        )
    if saved.query and saved.query != query:
        which = f"belongs to another query ({query})" if query else "is new or empty"
        raise ConfigError(
            f"{place} was written by the query {saved.query}, and the checkpoint in it {which}: going on would count messages "
            "twice. Give an empty folder"
        )
