"""What is asked of `arrow_batches`, and pyarrow only then: a client without it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout

ARROW_ROWS: Final = 10_000


def batch_layout(columns: Sequence[str] | None, rows: int) -> BatchLayout:
    """Raises ConfigError: a column that does not exist, or pyarrow is missing. TypeError."""
    try:
        from metaq.client.arrow import reading as arrow_reading
    except ImportError as error:
        raise ConfigError(f"arrow_batches needs pyarrow: pip install 'pymetaq[arrow]' ({error})") from None
    return arrow_reading.BatchLayout.of(columns, rows)
