"""Into which folders below its date a message goes: none more, one per tag, or one of N by the hash of its key.

The folders are `by_tag=…` and `by_key=…`: Hive's names for columns of their own. `tag=…` would be a second column `tag`, of
whatever type a reader takes from the text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

from metaq.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from metaq.model.offsets import Slice

PARTS_MAX = 256
"""Most files per slice: each needs a row group in memory, and a folder."""
BUCKETS_MAX = 256
NONE = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null: no tag."""


class Parting(msgspec.Struct, frozen=True):
    """The option `partitionBy`."""

    by: str = ""
    """`tag`, `key`, or empty."""
    buckets: int = 0
    """Of `key`."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read the option: `date`, `date,tag` or `date,key:16`. Raises ConfigError."""
        first, *more = [part.strip() for part in text.split(",")]
        name, _, count = (more[0] if more else "").partition(":")
        if first == "date" and not more:
            return cls()
        if first == "date" and len(more) == 1 and (name, count) == ("tag", ""):
            return cls("tag")
        if first == "date" and len(more) == 1 and name == "key" and count.isdigit() and 2 <= int(count) <= BUCKETS_MAX:
            return cls("key", int(count))
        raise ConfigError(
            f"partitionBy={text!r}: need `date`, `date,tag` or `date,key:N` with 2 to {BUCKETS_MAX} for N"
        )

    def __str__(self) -> str:
        return {"": "date", "tag": "date,tag", "key": f"date,key:{self.buckets}"}[self.by]

    def parts(self, batch: pa.RecordBatch, days: Any) -> Iterator[tuple[tuple[int, str], Any]]:
        """The rows of each day and part, as masks. Args: days: of each row, an array."""
        import numpy as np  # here and not above: the options are read without it

        if not self.by and len(days) and days.min() == days.max():  # As nearly all are.
            yield (int(days[0]), ""), np.ones(len(days), bool)
            return
        names, of_row = self._names(batch)
        for day in np.unique(days).tolist():
            of_day = days == day
            for number in np.unique(of_row[of_day]).tolist():
                yield (day, names[number]), of_day & (of_row == number)

    def check(self, files: int, wanted: Slice) -> None:
        """Raises ConfigError: a slice with so many files already cannot have another."""
        if files >= PARTS_MAX:
            raise ConfigError(
                f"the messages {wanted} have more than {PARTS_MAX} different tags and dates: partitionBy=date,tag is for few. Archive "
                "them into a new folder with partitionBy=date,key:16, or date"
            )

    def _names(self, batch: pa.RecordBatch) -> tuple[list[str], Any]:
        """The folders, and for each row the number of its own."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.by:
            return [""], np.zeros(len(batch), np.int64)
        if self.by == "tag":
            texts = batch.column("tag")
        else:
            lists = batch.column("keys")
            first = pc.list_slice(lists, 0, 1)
            flat = pc.list_flatten(first)
            has = np.asarray(pc.greater(pc.list_value_length(lists), 0).fill_null(False))
            at = np.cumsum(has) - 1
            texts = flat.take(pa.array(np.where(has, at, 0), pa.int64(), mask=~has))
        found = texts.dictionary_encode()
        codes = found.indices.fill_null(len(found.dictionary)).to_numpy(zero_copy_only=False)
        return [self.folder(text) for text in [*found.dictionary.to_pylist(), None]], codes

    def folder(self, text: str | None) -> str:
        """Folder of a message with this tag, or this first key; None: it has none, which counts as empty."""
        if self.by == "key":
            return f"by_key={zlib.crc32((text or '').encode()) % self.buckets:03d}"
        return f"by_tag={quote(text, safe='').replace(NONE, NONE.replace('_', '%5F')) if text else NONE}"
