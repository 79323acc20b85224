"""`sync` at the MetaQ 1.x server of a pair's slave, and the words with which it refuses transactions."""

from __future__ import annotations

from typing import Final

from metaq.errors import BadRequest, Reason, Refused
from metaq.model.metaq1.pair import BranchCopy, PartitionSync
from metaq.wire.metaq1.branches import decode_copy
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


def copy_of(line: SyncLine) -> BranchCopy:
    """Return the step of a branch that a line has. Raises Refused."""
    try:
        return decode_copy(line.body)
    except BadRequest as error:
        raise Refused(Reason.INVALID, str(error)) from None
