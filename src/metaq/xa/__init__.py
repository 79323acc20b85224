"""Messages and rows that are committed together, or not at all: two-phase commit over brokers and databases.

    with Coordinator("xa-log", [messages, database]) as coordinator:
        coordinator.recover()
        with coordinator.transaction() as tx:
            connection = tx.enlist(database)
            connection.execute("UPDATE stock SET count = count - 1 WHERE item = %s", ["lamp"])
            tx.enlist(messages).send_message(Message("orders", b"lamp"))

Resources: `AtomicMessages` (brokers of MetaQ, `producer.atomic()`), `XaMessages` (servers of MetaQ 1.x), `TpcDatabase` (drivers with
the two-phase calls of PEP 249: psycopg), `MariaDb`, and `SqlAlchemySessions` of `metaq.xa.sessions`. `join` makes a transaction of the `transaction` package
carry all of them. docs/xa.md says when each is needed.

How it is built: `resource` has what a resource is; `decisions` is the file of decisions; `coordinator` asks all branches, writes the
decision down, and carries it out, now or at the next start. A branch of which no decision is found is rolled back.
"""

from metaq.xa.atomic import AtomicMessages
from metaq.xa.coordinator import Committed, Coordinator, GlobalTransaction, Recovered
from metaq.xa.data_manager import DataManager, join
from metaq.xa.database import MariaDb, TpcDatabase
from metaq.xa.messages import XaMessages
from metaq.xa.resource import Branch, BranchName, InDoubt, OtherwiseEnded, Resource

__all__ = [
    "AtomicMessages",
    "Branch",
    "BranchName",
    "Committed",
    "Coordinator",
    "DataManager",
    "GlobalTransaction",
    "InDoubt",
    "MariaDb",
    "OtherwiseEnded",
    "Recovered",
    "Resource",
    "TpcDatabase",
    "XaMessages",
    "join",
]
