"""Partition folders below the date's (option `partitionBy`): none, one per tag, or one of N by the hash of the first key.

The folders are `by_tag=…` and `by_key=…`, partition columns of their own as Hive names them. `tag=…` would be a second column
`tag`, of whatever type a reader infers from the text.
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
    """`tag`, `key`, or empty: by date only."""
    buckets: int = 0
    """Number of folders of `key`."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse the option: `date`, `date,tag` or `date,key:16`. Raises ConfigError."""
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
        """Yield ((day, folder), mask of its rows). Args: days: days since 1970 of each row, an array."""
        import numpy as np  # Lazily: options are parsed without it.

        # Nearly all batches: one mask and no passes over rows.
        if not self.by and len(days) and days.min() == days.max():
            yield (int(days[0]), ""), np.ones(len(days), bool)
            return
        names, of_row = self._names(batch)
        for day in np.unique(days).tolist():
            of_day = days == day
            for number in np.unique(of_row[of_day]).tolist():
                yield (day, names[number]), of_day & (of_row == number)

    def check(self, files: int, wanted: Slice) -> None:
        """Raise ConfigError if a slice with `files` files may not have another."""
        if files >= PARTS_MAX:
            raise ConfigError(
                f"the messages {wanted} have more than {PARTS_MAX} different tags and dates: partitionBy=date,tag is for few. Archive "
                "them into a new folder with partitionBy=date,key:16, or date"
            )

    def _names(self, batch: pa.RecordBatch) -> tuple[list[str], Any]:
        """Return the folders, and the number of each row's folder."""
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
            # `list_flatten` leaves out rows without a key: the others' keys are put back to their rows.
            has = np.asarray(pc.greater(pc.list_value_length(lists), 0).fill_null(False))
            at = np.cumsum(has) - 1
            texts = flat.take(pa.array(np.where(has, at, 0), pa.int64(), mask=~has))
        found = texts.dictionary_encode()
        codes = found.indices.fill_null(len(found.dictionary)).to_numpy(zero_copy_only=False)
        return [self.folder(text) for text in [*found.dictionary.to_pylist(), None]], codes

    def folder(self, text: str | None) -> str:
        """Return the folder of a message with this tag, or this first key. None, for a message without, counts as empty."""
        if self.by == "key":
            # Fixed by docs/formats/archive.md: readers find a key's folder by this hash.
            return f"by_key={zlib.crc32((text or '').encode()) % self.buckets:03d}"
        # A tag that is Hive's word for null would be read as no tag.
        return f"by_tag={quote(text, safe='').replace(NONE, NONE.replace('_', '%5F')) if text else NONE}"
