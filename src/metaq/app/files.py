"""Which file holds what, in which format."""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.files import BrokerFiles
from metaq.saved import SavedText, TableFile, TextFile
from metaq.wire.files import CONSUMER_FILTERS, CONSUMER_OFFSETS, DELAY_OFFSETS, DELETED_TOPICS, GROUPS, TOPICS


def broker_files(
    open_file: Callable[[str], SavedText], open_table: Callable[[str], SavedText] | None = None
) -> BrokerFiles:
    """A broker's files, of RocketMQ's names and formats.

    Args: open_file: the file of a name, `consumerOffset.json` for example. open_table: the same for the tables that grow
          large and may have a journal.
    """
    open_table = open_table or open_file
    return BrokerFiles(
        TableFile(open_table(TOPICS.name), TOPICS, TOPICS),
        TableFile(open_table(GROUPS.name), GROUPS, GROUPS),
        TableFile(open_file(DELETED_TOPICS.name), DELETED_TOPICS),
        TextFile(open_file(CONSUMER_OFFSETS.name), CONSUMER_OFFSETS),
        TextFile(open_file(DELAY_OFFSETS.name), DELAY_OFFSETS),
        TextFile(open_file(CONSUMER_FILTERS.name), CONSUMER_FILTERS),
    )
