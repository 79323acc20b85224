"""A ledger of what clients were told, and checkers of it (docs/testing.md).

with Ledger(folder) as ledger:
    op = ledger.begin("producer-1", ["key-1"], str(queue))
    receipt = producer.send(...)
    ledger.end("producer-1", op, "acked", [Place(str(receipt.queue), receipt.offset)], receipt.status.name)
verdict = judge(read_history(folder), Promises(groups=("billing",)))
"""

from metaq.testing.checking.history import (
    Committed,
    EndedByItself,
    Event,
    GroupAt,
    Held,
    History,
    LeaderSeen,
    Observed,
    Outcome,
    Place,
    QueueHolds,
    SendBegun,
    SendEnded,
    Trouble,
    read_history,
)
from metaq.testing.checking.judging import Verdict, judge, report
from metaq.testing.checking.ledger import Ledger
from metaq.testing.checking.violation import Promises, Violation

__all__ = [
    "Committed",
    "EndedByItself",
    "Event",
    "GroupAt",
    "Held",
    "History",
    "LeaderSeen",
    "Ledger",
    "Observed",
    "Outcome",
    "Place",
    "Promises",
    "QueueHolds",
    "SendBegun",
    "SendEnded",
    "Trouble",
    "Verdict",
    "Violation",
    "judge",
    "read_history",
    "report",
]
