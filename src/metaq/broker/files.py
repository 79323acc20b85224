"""The broker's table files, with their formats."""

from __future__ import annotations

from msgspec import Struct

from metaq.broker.pulls.filters import FilterTable
from metaq.broker.quota.service import QuotaFile
from metaq.broker.tables.offsets import OffsetTable
from metaq.changed_options import ChangedFile
from metaq.model import DataVersion, DelayProgress, GroupConfig, TopicConfig
from metaq.model.leadership import Leadership
from metaq.saved_file import TableFile, TextFile


class BrokerFiles(Struct, frozen=True):
    """State of a broker that is not in its log."""

    topics: TableFile[str, TopicConfig, DataVersion]
    groups: TableFile[str, GroupConfig, DataVersion]
    deleted: TableFile[str, int, DataVersion]
    """Deleted topics → LogOffset below which their records are dead."""
    generations: TableFile[str, int, DataVersion]
    """Topics that were deleted at some time → LogOffset of the last deletion."""
    offsets: TextFile[OffsetTable]
    delay: TextFile[DelayProgress]
    filters: TextFile[FilterTable]
    leadership: TextFile[Leadership]
    quotas: QuotaFile
    options: ChangedFile
