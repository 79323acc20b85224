"""What the ledger has ever known: a leader may copy back from its slave what it had lost."""

from __future__ import annotations

from tests.crash.pairs.side import Side
from tests.crash.simulation.bare import BareRecord, read_log
from tests.crash.simulation.ledger import Broken, Transaction, short
from tests.crash.simulation.life import Life


class Archive:
    """Of records that were lost, everything that is expected of them when they are there again."""

    def __init__(self) -> None:
        self._records = set[BareRecord]()
        self._delayed: dict[bytes, tuple[str, int]] = {}
        self._transactions: dict[bytes, Transaction] = {}
        self._keys: dict[bytes, str] = {}
        self._staged = set[bytes]()
        self._noted = 0

    def note(self, life: Life) -> None:
        """Note what is new in the ledger."""
        ledger = life.ledger
        self._records.update(ledger.log)
        self._delayed |= ledger.delayed
        self._transactions |= ledger.transactions
        self._keys |= ledger.keys
        self._staged |= ledger.staged

    def hold_against(self, life: Life, leader: Side) -> None:
        """Hold the ledger against the leader's log as a power cut has left it."""
        self.note(life)
        log, ledger = leader.log_store.log, life.ledger
        found = read_log(leader.disk.root, log.min, log.end)
        life.report.lost += ledger.hold_against(found, log.min, power_was_cut=life.power_was_cut)
        ledger.log_end, ledger.log_min = log.end, max(ledger.log_min, log.min)
        ledger.durable_end = log.end

    def bring_back(self, life: Life, leader: Side) -> None:
        """Enter what the leader has copied behind that. Raises Broken: it was never sent."""
        ledger, log = life.ledger, leader.log_store.log
        found = read_log(leader.disk.root, ledger.log_end, log.end)
        for record in found:
            if record not in self._records:
                raise Broken(f"{short(record)} was copied back, and nobody has ever known it")
            if record.body in self._delayed:
                ledger.delayed[record.body] = self._delayed[record.body]
            if record.body in self._transactions:
                ledger.transactions[record.body] = self._transactions[record.body]
            if record.body in self._keys:
                ledger.keys[record.body] = self._keys[record.body]
        ledger.staged |= self._staged
        ledger.added(found, log.end)
