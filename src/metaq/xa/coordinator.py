"""The coordinator: it asks all branches of a transaction whether they can be committed, writes the decision down, and carries it out."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from msgspec import Struct

from metaq.clock import SYSTEM, Clock
from metaq.errors import (
    ClientClosed,
    ClientError,
    ClientForked,
    ConfigError,
    StoreError,
    TransactionEnded,
    TransactionFailed,
)
from metaq.xa.decisions import BranchAt, Decisions, Open
from metaq.xa.resource import Branch, BranchName, OtherwiseEnded, Resource, checked_name

log = logging.getLogger("metaq.client")

Handle = TypeVar("Handle")

OPEN: Final = "going on"
PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"
UNKNOWN: Final = "in an unknown state"


class Committed(Struct, frozen=True):
    """A transaction is committed. `pending`: branches that could not be told yet, with the reasons; `Coordinator.recover` tells them."""

    transaction_id: str
    """Id of the transaction, which operators find in databases and at servers."""
    pending: tuple[str, ...] = ()


class Recovered(Struct, frozen=True):
    """What `Coordinator.recover` has done."""

    committed: tuple[str, ...] = ()
    """Transactions whose last branches are committed now."""
    rolled_back: tuple[str, ...] = ()
    """Transactions of which a branch was found and rolled back."""
    pending: tuple[str, ...] = ()
    """Resources and branches that could not be reached, with the reasons: call it again."""
    otherwise: tuple[str, ...] = ()
    """Branches that somebody has ended by hand, and otherwise than their transactions: these are in disagreement."""


class Coordinator:
    """Runs transactions over several resources. For any number of threads; a transaction belongs to one.

    Args:
        folder: where decisions are kept. It belongs to this coordinator and to no other, now and at its next starts, and to one
            process at a time.
        resources: all that may ever take part, those of earlier runs as well.
        clock: for names.

    Raises StoreLocked, StoreCorrupt, StoreError: of the folder; ConfigError, TypeError.
    """

    def __init__(self, folder: str | Path, resources: Iterable[Resource[Any]], *, clock: Clock = SYSTEM) -> None:
        self._resources: dict[str, Resource[Any]] = {}
        for resource in resources:
            if self._resources.setdefault(checked_name(resource.name), resource) is not resource:
                raise ConfigError(f"two resources are called {resource.name}: give one another name")
        self._clock, self._pid = clock, os.getpid()
        self._decisions = Decisions(Path(folder), clock)
        self._run = clock.token()[:16]
        self._numbers = itertools.count(1)
        self._live: set[str] = set()
        """Transactions of this process that are under way."""
        self._lock = threading.Lock()
        self._recovering = threading.Lock()
        self._recovered = self._closed = False

    @property
    def id(self) -> str:
        """The beginning of all its transactions' ids, by which operators find its branches in databases and at servers."""
        return self._decisions.id

    @property
    def open(self) -> tuple[str, ...]:
        """Transactions that were begun to be prepared, and are not over."""
        return tuple(self._decisions.open)

    def transaction(self) -> GlobalTransaction:
        """Return a new transaction of the calling thread. As a block it commits, and rolls back if the block raises.

        Raises ClientError: `recover` has not been called; ClientClosed, ClientForked.
        """
        self._check_open()
        if not self._recovered:
            raise ClientError(
                "call Coordinator.recover() first: branches of an earlier run may wait for it, with their locks"
            )
        name = f"{self.id}{self._run}{next(self._numbers):x}"
        with self._lock:
            self._live.add(name)
        return GlobalTransaction(self, name)

    def recover(self, *, only: str | None = None) -> Recovered:
        """Finish what an earlier run, or this one, could not: commit what was decided, roll back all else. Call it at the start,
        and again while something is pending.

        Args: only: this transaction; new ones can be begun only when all have been looked at.

        Transactions that are under way are left alone. Raises nothing for a system that is away: see `Recovered.pending`.
        ClientClosed, ClientForked, StoreError.
        """
        self._check_open()
        with self._recovering:
            found = _Recovery(self._resources, self._decisions, self._snapshot, self._is_live, only).run()
            self._recovered = self._recovered or only is None
        return found

    def close(self) -> None:
        """Give the folder to others. Transactions under way stay as they are, for `recover` of the next one."""
        self._closed = True
        if self._pid == os.getpid():
            self._decisions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClientForked(
                f"this coordinator belongs to process {self._pid}: its child {os.getpid()} needs one, and a folder, of its own"
            )
        if self._closed:
            raise ClientClosed(f"the coordinator of {self._decisions.folder} is closed")

    # what a transaction of it asks

    def _resource(self, resource: Resource[Any]) -> None:
        if self._resources.get(resource.name) is not resource:
            raise ConfigError(
                f"{resource.name} is no resource of this coordinator: name it when the coordinator is made, so that recovery knows it"
            )

    def _over(self, transaction: str, pending: Sequence[str]) -> None:
        with self._lock:
            try:
                if pending:
                    self._decisions.wait(transaction, pending)
                else:
                    self._decisions.over(transaction)
            except (StoreError, ClientClosed) as error:  # it is settled once more at the next start
                log.warning("what has become of transaction %s could not be written down: %s", transaction, error)
            self._live.discard(transaction)

    # what a recovery asks

    def _snapshot(self) -> dict[str, Open]:
        """Return the transactions that are not over and not under way. None of them can be under way later."""
        with self._lock:
            return {name: state for name, state in self._decisions.open.items() if name not in self._live}

    def _is_live(self, transaction: str) -> bool:
        with self._lock:
            return transaction in self._live


class GlobalTransaction:
    """One transaction over several resources. Made by `Coordinator.transaction`; as a block it commits, and rolls back if the block
    raises.

    `id`: how operators find its branches. `state`: "going on", "prepared", "committed", "rolled back" or "in an unknown state".
    """

    def __init__(self, coordinator: Coordinator, name: str) -> None:
        self._coordinator, self.id = coordinator, name
        self._decisions = coordinator._decisions  # noqa: SLF001  a part of it
        self._branches: dict[str, Branch[Any]] = {}
        self._prepared: list[tuple[str, Branch[Any]]] = []
        self.state = OPEN

    def enlist(self, resource: Resource[Handle]) -> Handle:
        """Let a resource take part, once or again. Returns what to work with: a connection, a session, a producer, an `Atomic`.

        Raises ConfigError: the coordinator does not know it; TransactionEnded; and what the resource raises.
        """
        self._check(OPEN)
        self._coordinator._check_open()  # noqa: SLF001
        self._coordinator._resource(resource)  # noqa: SLF001
        found = self._branches.get(resource.name)
        if found is None:
            name = resource.name

            def note(text: str) -> None:
                self._decisions.note(self.id, BranchAt(name, text))

            found = self._branches[name] = resource.begin(BranchName(self.id, len(self._branches) + 1), note)
        handle: Handle = found.handle
        return handle

    def prepare(self) -> None:
        """Ask all branches. Afterwards each can be committed, whatever happens, and waits for `commit` or `rollback`.

        Raises TransactionFailed: one refused, and all are rolled back; `__cause__` is its error. TransactionEnded.
        """
        self._check(OPEN)
        name = ""
        try:
            for name, branch in self._branches.items():
                if branch.prepare():
                    self._prepared.append((name, branch))
        except BaseException as error:
            self._undo()
            if not isinstance(error, Exception):
                raise
            raise TransactionFailed(
                f"transaction {self.id} is rolled back: {name} cannot commit it: {error}. Nothing of it was or will be done: do it again",
                self.id,
                "rolled back",
            ) from error
        self.state = PREPARED

    def commit(self) -> Committed:
        """Commit everywhere; prepares first what is not prepared. Once the decision is durable this succeeds, and branches that could
        not be told are `pending`.

        Raises TransactionFailed, "rolled back" as of `prepare`, or "unknown": the decision could not be written, and the next start
        finds out. TransactionEnded. OtherwiseEnded: somebody has ended a branch by hand meanwhile.
        """
        if self.state == OPEN:
            self.prepare()
        self._check(PREPARED)
        if self._prepared:
            branches = tuple(BranchAt(name, branch.text) for name, branch in self._prepared)
            try:
                self._decisions.commit(self.id, branches)
            except (StoreError, ClientClosed) as error:
                self.state = UNKNOWN
                raise TransactionFailed(
                    f"what becomes of transaction {self.id} is unknown: its decision could not be written: {error}. All its branches "
                    "wait, with their locks, for the next start, which commits them if it finds the decision",
                    self.id,
                    "unknown",
                ) from error
        self.state = COMMITTED
        pending, otherwise = [], []
        for name, branch in self._prepared:
            try:
                branch.commit()
            except OtherwiseEnded as error:
                log.error("transaction %s is committed, but not at %s: %s", self.id, name, error)  # noqa: TRY400
                otherwise.append(f"{name}: {error}")
            except Exception as error:  # noqa: BLE001  drivers raise what they like
                log.warning("transaction %s is committed, and %s could not be told: %s", self.id, name, error)
                pending.append(f"{name}: {error}")
        self._coordinator._over(self.id, pending)  # noqa: SLF001
        if otherwise:
            raise OtherwiseEnded(f"transaction {self.id} is committed, but not everywhere: {'; '.join(otherwise)}")
        return Committed(self.id, tuple(pending))

    def rollback(self) -> None:
        """Undo everything. What cannot be told is rolled back by `Coordinator.recover`, or by the system itself. Raises TransactionEnded."""
        if self.state == ROLLED_BACK:
            return
        if self.state not in {OPEN, PREPARED}:
            self._check(PREPARED)
        self._undo()

    def _undo(self) -> None:
        self.state = ROLLED_BACK
        pending = []
        for name, branch in self._branches.items():
            try:
                branch.rollback()
            except Exception as error:  # noqa: BLE001  drivers raise what they like
                log.warning("transaction %s is rolled back, and %s could not be told: %s", self.id, name, error)
                pending.append(f"{name}: {error}")
        self._coordinator._over(self.id, pending)  # noqa: SLF001

    def _check(self, state: str) -> None:
        if self.state != state:
            raise TransactionEnded(f"transaction {self.id} is {self.state}: another one is needed")

    def __enter__(self) -> Self:
        self._check(OPEN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state not in {OPEN, PREPARED}:  # ended inside the block
            return
        if error is None:
            self.commit()
        else:
            self._undo()

    def __repr__(self) -> str:
        return f"<GlobalTransaction {self.id}: {', '.join(self._branches) or 'no branches'}, {self.state}>"


class _Recovery:
    """One pass over all resources and decisions."""

    def __init__(
        self,
        resources: dict[str, Resource[Any]],
        decisions: Decisions,
        snapshot: Callable[[], dict[str, Open]],
        is_live: Callable[[str], bool],
        only: str | None,
    ) -> None:
        self._resources, self._decisions, self._snapshot, self._is_live = resources, decisions, snapshot, is_live
        self._only = only
        self._pending: list[str] = []
        self._reasons: defaultdict[str, list[str]] = defaultdict(list)
        """Transaction → what stands in the way of its end."""
        self._otherwise: list[str] = []
        self._rolled_back: dict[str, None] = {}

    def run(self) -> Recovered:
        known = {name: state for name, state in self._snapshot().items() if self._only in {None, name}}
        over = {
            (one.transaction, resource.name, one.text): self._settle(
                resource.name, one.transaction, one.text, commit=self._is_decided(one.transaction)
            )
            for resource in self._resources.values()
            for one in self._listed(resource)
        }
        committed = []
        for name, state in known.items():
            decided = state.committed is not None
            for one in state.branches:
                if (name, one.resource, one.text) not in over:
                    over[name, one.resource, one.text] = self._settle(one.resource, name, one.text, commit=decided)
            if all(over[name, one.resource, one.text] for one in state.branches):
                self._decisions.over(name)
                if decided:
                    committed.append(name)
            else:
                self._decisions.wait(name, self._reasons[name])
        return Recovered(tuple(committed), tuple(self._rolled_back), tuple(self._pending), tuple(self._otherwise))

    def _listed(self, resource: Resource[Any]) -> list[Any]:
        try:
            found, lacks = resource.in_doubt(self._decisions.id)
        except Exception as error:  # noqa: BLE001  drivers raise what they like
            self._wait(f"{resource.name}: {error}")
            return []
        if lacks:
            self._wait(f"{resource.name}: {lacks}")
        # Asked now, behind the listing: one that has ended meanwhile is over, or its decision is found.
        return [one for one in found if self._only in {None, one.transaction} and not self._is_live(one.transaction)]

    def _is_decided(self, transaction: str) -> bool:
        state = self._decisions.open.get(transaction)
        return state is not None and state.committed is not None

    def _settle(self, name: str, transaction: str, text: str, *, commit: bool) -> bool:
        """Return whether a branch is over."""
        resource = self._resources.get(name)
        if resource is None:
            self._wait(
                f"{name}: branch {text} is there, and the coordinator was made without this resource", transaction
            )
            return False
        try:
            resource.settle(text, commit=commit)
        except OtherwiseEnded as error:
            outcome = COMMITTED if commit else ROLLED_BACK
            log.error("transaction %s is %s, but not at %s: %s", transaction, outcome, name, error)  # noqa: TRY400
            self._otherwise.append(f"{name}: {error}")
            self._reasons[transaction].append(f"{name}: {error}")
            return False
        except Exception as error:  # noqa: BLE001  drivers raise what they like
            self._wait(f"{name}: branch {text}: {error}", transaction)
            return False
        if not commit:
            self._rolled_back[transaction] = None
        return True

    def _wait(self, text: str, transaction: str | None = None) -> None:
        log.warning("a transaction may be in doubt until the next recovery: %s", text)
        self._pending.append(text)
        if transaction is not None:
            self._reasons[transaction].append(text)
