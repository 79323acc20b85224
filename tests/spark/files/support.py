"""Reading files as Spark's workers do, without Spark; and small data of each kind."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metaq.client.arrow import records
from metaq.spark.files.found import find
from metaq.spark.files.plan import partitions
from metaq.spark.files.read import read_parts
from metaq.spark.files.settings import FilesOptions
from metaq.store.offline.damage import Damage
from metaq.wire.metaq1.frame import frame, with_attribute

ALL = tuple(records.TYPES)


def planned(path: Path | str, **options: Any) -> tuple[FilesOptions, list[list[Any]]]:
    """The options, and the parts of each partition."""
    given = FilesOptions.of({"path": str(path), **{name: str(value) for name, value in options.items()}})
    return given, partitions(find(given.all_paths), given)


def read(path: Path | str, columns: Sequence[str] = ALL, **options: Any) -> tuple[list[dict[str, Any]], list[Damage]]:
    """The rows, and what could not be read."""
    given, planned_parts = planned(path, **options)
    rows: list[dict[str, Any]] = []
    damage: list[Damage] = []
    for parts in planned_parts:
        for found in read_parts(parts, given, columns):
            if isinstance(found, Damage):
                damage.append(found)
            else:
                assert found.schema == records.schema_of(columns)
                rows += found.to_pylist()
    return rows, damage


def bodies(path: Path | str, **options: Any) -> list[bytes]:
    """Of everything, in the order of the partitions; nothing may be damaged."""
    rows, damage = read(path, ("body",), **options)
    assert damage == []
    return [row["body"] for row in rows]


def write_segment(root: Path, name: str, frames: Sequence[tuple[int, str | None, bytes]]) -> tuple[Path, int]:
    """A data file of MetaQ 1.x with frames of (id, attribute, payload); the file and the position behind it."""
    data = b"".join(
        frame(number, 0 if text is None else 1, payload if text is None else with_attribute(text, payload))
        for number, text, payload in frames
    )
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("it.meta", data)
    else:
        path.write_bytes(data)
    return path, int(path.name.split(".")[0]) + len(data)


FRAMES = [(None, None, b"plain"), ("paid", "paid", b"with a tag"), ("a | b", None, b"with no tag")]
"""Attribute, tag and payload of what `put_frames` puts."""


def put_frames(text: Any) -> list[tuple[int, int]]:
    """Put them into partition 0 of the topic `test`, as a client of MetaQ 1.x. Returns their ids and positions."""
    told = []
    for attribute, _, payload in FRAMES:
        body = payload if attribute is None else with_attribute(attribute, payload)
        answer = text.ask(f"put test 0 {len(body)} {int(attribute is not None)} 1", body)
        assert answer.code == 200, answer
        number, _, position = map(int, answer.text.split())
        told.append((number, position))
    return told
