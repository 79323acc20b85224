"""`sync` at the MetaQ 1.x server of a pair's slave, and the words with which it refuses transactions."""

from __future__ import annotations

from typing import Final

from metaq.model.metaq1.pair import PartitionSync
from metaq.wire.metaq1.commands import Step, SyncLine

UNSUPPORTED_BEGIN: Final = "Unsupported beginTransaction"
UNSUPPORTED: Final = {Step.RECOVER: "Unsupported getPreparedTransactions"}
"""Texts of the original's slave, which has no transactions; `UNSUPPORTED_BEGIN` for all other steps."""


def sync_of(line: SyncLine, born_host: bytes) -> PartitionSync:
    """Return the message of a line."""
    return PartitionSync(
        topic=line.topic,
        partition=line.partition,
        message_id=line.message_id,
        body=line.body,
        flag=line.flag,
        checksum=line.checksum,
        born_host=born_host,
    )
