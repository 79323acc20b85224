"""Messages that are sent if, and only if, a transaction of the user's database commits (docs/outbox.md).

    outbox = Outbox()
    with Session() as session:
        session.add(order)
        outbox.add(session, metaq.Message("orders", b"..."), ordering_key="order-42")
        session.commit()

    with OutboxSender(outbox, Session, metaq.Producer("localhost:9876")):
        ...

`entry` is a message in the table, `table` has the statements, `outbox` adds, lists, resends and drops; `outlets` hands entries to
producers of either generation; `work` is one round of a sender, which `sender` runs in a thread and `sender_async` in an event loop.
"""

from metaq.outbox.entry import PARKED, SENT, WAITING, Entry
from metaq.outbox.outbox import Outbox
from metaq.outbox.outlets import Outlet
from metaq.outbox.sender import OutboxSender
from metaq.outbox.sender_async import AsyncOutboxSender
from metaq.outbox.work import Rules

__all__ = ["PARKED", "SENT", "WAITING", "AsyncOutboxSender", "Entry", "Outbox", "OutboxSender", "Outlet", "Rules"]
"""What users import."""
