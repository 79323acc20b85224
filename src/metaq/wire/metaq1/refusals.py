"""Codes of refusals in MetaQ 1.x, by text and by HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import Reason
from metaq.wire.metaq1.commands import Code

CODE_OF: Final[Mapping[Reason, Code]] = {
    Reason.INVALID: Code.ERROR,
    # 403 is the original's code for closed partitions.
    Reason.NO_PERMISSION: Code.FORBIDDEN,
    Reason.DENIED: Code.FORBIDDEN,
    Reason.NO_TOPIC: Code.ERROR,
    Reason.NO_GROUP: Code.ERROR,
    Reason.NOT_SUBSCRIBED: Code.ERROR,
    Reason.SUBSCRIPTION_OLD: Code.ERROR,
    Reason.BAD_FILTER: Code.ERROR,
    Reason.NO_FILTER: Code.ERROR,
    Reason.OFFLINE: Code.ERROR,
    Reason.UNANSWERED: Code.ERROR,
    Reason.NOT_FOUND: Code.NOT_FOUND,
    Reason.ILLEGAL_MESSAGE: Code.ERROR,
    Reason.STALE: Code.ERROR,
    # The original answers 503 when the queue of a thread pool is full.
    Reason.BUSY: Code.UNAVAILABLE,
    Reason.THROTTLED: Code.UNAVAILABLE,
    Reason.UNAVAILABLE: Code.UNAVAILABLE,
    Reason.NOT_LEADING: Code.ERROR,
    Reason.NOT_STORED: Code.ERROR,
}
"""Code of each reason. Complete: a reason without a code would be a command without an answer
(tests/servers/remoting/test_refusals.py)."""
