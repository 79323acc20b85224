"""The files that a broker keeps beside its log, with their formats."""

from __future__ import annotations

from msgspec import Struct

from metaq.broker.pulls.filters import FilterTable
from metaq.broker.tables.offsets import OffsetTable
from metaq.model import DataVersion, DelayProgress, GroupConfig, TopicConfig
from metaq.saved_file import TableFile, TextFile


class BrokerFiles(Struct, frozen=True):
    """What a broker needs to remember that is not in its log."""

    topics: TableFile[str, TopicConfig, DataVersion]
    groups: TableFile[str, GroupConfig, DataVersion]
    deleted: TableFile[str, int, DataVersion]
    """Deleted topics: the LogOffset below which the records of each are dead."""
    offsets: TextFile[OffsetTable]
    delay: TextFile[DelayProgress]
    filters: TextFile[FilterTable]
