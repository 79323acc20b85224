"""Body of the answer to FOLLOW_TABLES (30014, docs/formats/extensions.md): `metaq.model.table_changes` as JSON.

What an entry means, and whether a name or a number may be, is the slave's to judge.
"""

from __future__ import annotations

from typing import Final

import msgspec

from metaq.errors import BadRequest
from metaq.model.table_changes import LONG_MAX, TableChanges

_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(TableChanges)


def table_changes(changes: TableChanges) -> bytes:
    """Encode an answer."""
    return _encode(changes)


def table_changes_of(body: bytes | memoryview) -> TableChanges:
    """Decode what `table_changes` encodes. Raises BadRequest."""
    try:
        changes = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the changes of the master's tables cannot be read: {str(error)[:200]}") from None
    for topic, groups in changes.filters.items():
        for group, one in groups.items():
            if one is not None and (
                (one.topic, one.group) != (topic, group) or not _fits(one.version, one.born_ms, one.dead_ms)
            ):
                raise BadRequest(
                    f"the filter of group {group!r:.80} for topic {topic!r:.80} has another's name, or no times"
                )
    return changes


def _fits(*numbers: int) -> bool:
    return all(-LONG_MAX <= number <= LONG_MAX for number in numbers)
