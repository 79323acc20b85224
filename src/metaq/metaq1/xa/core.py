"""The steps of a transaction manager at one server; `XAResource` and `aio.XAResource` are facades around it.

All coroutines belong to the background loop and raise XaError.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from metaq.client.identity.options import checked_seconds
from metaq.errors import ConfigError, MetaqError, XaError
from metaq.metaq1.conversation import answers
from metaq.metaq1.conversation.answers import Reply
from metaq.metaq1.conversation.xa import Vote, XaCode, Xid, as_xa_error, branch_key, recovered, voted, xa_error
from metaq.metaq1.producing.transactions import TransactionState
from metaq.metaq1.xa import branch as branches
from metaq.metaq1.xa.branch import BranchCore, link_to
from metaq.metaq1.xa.producing import XaProducerBase
from metaq.model.transactions.metaq1 import BranchKey
from metaq.wire.metaq1.commands import Step, TransactionLine

log = logging.getLogger("metaq.client")

Result = TypeVar("Result")


class XaFlag(enum.Flag):
    """Flags of start and end, as in JTA."""

    TMNOFLAGS = 0
    """Of `start`: the branch begins."""
    TMJOIN = 0x200000
    """Of `start`: the thread joins a branch that was begun."""
    TMRESUME = 0x8000000
    """Of `start`: a suspended branch goes on."""
    TMSUCCESS = 0x4000000
    """Of `end`: for good, and all went well."""
    TMSUSPEND = 0x2000000
    """Of `end`: until it is resumed."""
    TMFAIL = 0x20000000
    """Of `end`: for good, and it can only be rolled back."""


class XaResourceCore:
    """One resource.

    Args: producer: whose messages; broker_id, address: the server.
    """

    def __init__(self, producer: XaProducerBase, broker_id: int, address: str) -> None:
        self._producer, self.broker_id, self.address = producer, broker_id, address
        self._core = producer._core  # noqa: SLF001  the facades of one factory share it
        self.timeout = 0.0
        self.unreached: tuple[str, ...] = ()
        """Servers that the newest `recover` could not ask, with the reasons."""
        self.places: dict[Xid, str] = {}
        """Recovered branch → its server."""

    # -------------------------------------------------------------- any thread

    def set_timeout(self, seconds: float) -> None:
        """Raises ConfigError, TypeError."""
        self.timeout = checked_seconds("timeout", seconds, least=0.0)

    @property
    def _branches(self) -> dict[Xid, BranchCore]:
        return self._producer._branches  # noqa: SLF001  a part of the producer

    @contextlib.contextmanager
    def starting(self, xid: Xid, flags: XaFlag) -> Iterator[BranchCore | None]:
        """Have the caller's messages belong to a branch; the block begins the one that it gets at the server. Raises as `begun`, and
        what the branch's `enter` raises."""
        branch, new = self.begun(xid, flags)
        try:
            branch.enter()
        except BaseException:
            if new:
                self.gone(xid)
            raise
        if not new:
            yield None
            return
        try:
            yield branch
        except BaseException:
            branch.leave()
            self.gone(xid)
            raise

    def begun(self, xid: Xid, flags: XaFlag) -> tuple[BranchCore, bool]:
        """Return the branch that messages belong to from now on, and whether it must be begun at the server. Raises XaError."""
        self._producer._check_open()  # noqa: SLF001
        if not isinstance(xid, Xid):
            raise TypeError(f"xid is {xid!r:.100}: pass an Xid")
        found = self._branches.get(xid)
        if flags in {XaFlag.TMJOIN, XaFlag.TMRESUME}:
            if found is None:
                raise xa_error(XaCode.XAER_NOTA, f"no branch {xid} was started by this producer")
            if found.address != self.address:
                raise xa_error(XaCode.XAER_INVAL, f"branch {xid} is at {found.address} and not at {self.address}")
            found.state = TransactionState.OPEN
            return found, False
        if flags is not XaFlag.TMNOFLAGS:
            raise xa_error(XaCode.XAER_INVAL, f"start takes TMNOFLAGS, TMJOIN or TMRESUME, and not {flags}")
        if found is not None:
            raise xa_error(XaCode.XAER_DUPID, f"branch {xid} was started already: join or resume it")
        branch = BranchCore(
            self._producer, self._core, xid, self._producer.unique_qualifier,
            self._producer._session_id, self.timeout, self.broker_id, self.address,  # noqa: SLF001
        )  # fmt: skip
        self._producer._hold(branch)  # noqa: SLF001
        return branch, True

    def gone(self, xid: Xid) -> None:
        """The branch could not be started, or is over."""
        self.places.pop(xid, None)
        found = self._branches.pop(xid, None)
        if found is not None and found.state in {TransactionState.OPEN, TransactionState.ENDED}:
            found.state = TransactionState.UNKNOWN

    def started(self, xid: Xid) -> BranchCore:
        """Raises XaError."""
        found = self._branches.get(xid)
        if found is None:
            raise xa_error(XaCode.XAER_NOTA, f"no branch {xid} was started by this producer")
        return found

    # -------------------------------------------------------------- in the loop

    async def end(self, xid: Xid, flags: XaFlag) -> None:
        branch = self.started(xid)
        if flags not in {XaFlag.TMSUCCESS, XaFlag.TMSUSPEND, XaFlag.TMFAIL}:
            raise xa_error(XaCode.XAER_INVAL, f"end takes TMSUCCESS, TMSUSPEND or TMFAIL, and not {flags}")
        if flags is XaFlag.TMFAIL:
            branch.failed = branch.failed or xa_error(XaCode.XA_RBROLLBACK, "its work has failed")
            try:
                await branch.end(TransactionState.ENDED)
            except XaError:
                return  # as asked
        await branch.end(TransactionState.ENDED)

    async def prepare(self, xid: Xid) -> Vote:
        branch = self._branches.get(xid)
        if branch is not None:
            if branch.state is TransactionState.OPEN:
                raise xa_error(XaCode.XAER_PROTO, f"branch {xid} is prepared before its end")
            if branch.failed is not None:
                raise branch.refusal(branch.failed)
        vote = await self._asked(xid, Step.PREPARE, voted)
        if vote is Vote.READ_ONLY:
            self.gone(xid)
        return vote

    async def commit(self, xid: Xid, *, one_phase: bool) -> None:
        branch = self._branches.get(xid)
        if one_phase and branch is not None:
            if branch.state is TransactionState.OPEN:
                raise xa_error(XaCode.XAER_PROTO, f"branch {xid} is committed before its end")
            if branch.failed is not None:
                raise branch.refusal(branch.failed)
        await self._finished(xid, Step.COMMIT_ONE_PHASE if one_phase else Step.COMMIT_TWO_PHASE)

    async def rollback(self, xid: Xid) -> None:
        branch = self._branches.get(xid)
        if branch is not None and branch.state is TransactionState.OPEN:
            raise xa_error(XaCode.XAER_PROTO, f"branch {xid} is rolled back before its end")
        await self._finished(xid, Step.ROLLBACK)

    async def forget(self, xid: Xid) -> None:
        await self._finished(xid, Step.FORGET)

    async def recover(self) -> list[Xid]:
        qualifier = self._producer.unique_qualifier
        addresses = self._producer._known() or [self.address]  # noqa: SLF001
        outcomes = await asyncio.gather(*(self._recovered(address, qualifier) for address in addresses))
        found: dict[Xid, str] = {}
        unreached: list[tuple[str, XaError]] = []
        for address, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, XaError):
                log.warning("branches at %s stay in doubt, for it could not be asked: %s", address, outcome)
                unreached.append((address, outcome))
                continue
            for key in outcome:
                # The original lists those of all qualifiers to one that it takes for a time-out.
                if key.qualifier == qualifier:
                    found[Xid(key.format_id, key.global_id, key.branch_id)] = address
        self.unreached = tuple(f"{address}: {error}" for address, error in unreached)
        if len(unreached) == len(addresses):
            raise unreached[0][1]
        self.places = found
        return list(found)

    async def _recovered(self, address: str, qualifier: str) -> list[BranchKey] | XaError:
        try:
            action = f"list branches of {qualifier}"
            answer = await self._ask(address, None, Step.RECOVER, action)
            keys = recovered(answer, address, action)
            for key in keys:
                Xid(key.format_id, key.global_id, key.branch_id)  # as long as XA allows
        except ConfigError as error:
            return xa_error(XaCode.XAER_INVAL, f"a branch at {address} has a name that XA does not allow: {error}")
        except MetaqError as error:
            return as_xa_error(error)
        return keys

    async def _finished(self, xid: Xid, step: Step) -> None:
        try:
            await self._asked(xid, step, answers.result_of)
        except XaError as error:
            # Heuristic outcomes stay known until they are forgotten.
            over = error.code == XaCode.XAER_NOTA or XaCode.XA_RBROLLBACK <= error.code <= XaCode.XA_RBTRANSIENT
            if over and not error.in_doubt:
                self.gone(xid)
            raise
        self.gone(xid)

    async def _asked(self, xid: Xid, step: Step, read: Callable[[Reply, str, str], Result]) -> Result:
        branch = self._branches.get(xid)
        qualifier = branch.qualifier if branch is not None else self._producer.unique_qualifier
        address = branch.address if branch is not None else self.places.get(xid, self.address)
        key = branch_key(xid, qualifier)
        action = f"{step.value.partition('_')[0].lower()} branch {key}"
        try:
            return read(await self._ask(address, key, step, action), address, action)
        except MetaqError as error:
            raise as_xa_error(error) from error

    def _ask(self, address: str, key: BranchKey | None, step: Step, action: str) -> Awaitable[Reply]:
        qualifier = key.qualifier if key is not None else self._producer.unique_qualifier
        session = self._producer._session_id  # noqa: SLF001

        def line(opaque: int) -> TransactionLine:
            return TransactionLine(key, session, step, opaque, None, qualifier)

        return link_to(self._core, address).ask(line, action, branches.STEP_SECONDS)


class XaResourceView:
    """What a transaction manager asks of a resource without waiting, whichever facade it has.

    It has JTA's flags for `start` and `end`: `TMNOFLAGS`, `TMJOIN`, `TMRESUME`, `TMSUCCESS`, `TMSUSPEND`, `TMFAIL`.
    """

    TMNOFLAGS, TMJOIN, TMRESUME = XaFlag.TMNOFLAGS, XaFlag.TMJOIN, XaFlag.TMRESUME
    TMSUCCESS, TMSUSPEND, TMFAIL = XaFlag.TMSUCCESS, XaFlag.TMSUSPEND, XaFlag.TMFAIL

    def __init__(self, producer: XaProducerBase, broker_id: int, address: str) -> None:
        self._producer, self._core = producer, producer._core  # noqa: SLF001  parts of one factory
        self._resource = XaResourceCore(producer, broker_id, address)

    @property
    def address(self) -> str:
        """`host:port` of the server."""
        return self._resource.address

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the server rolls back a branch that is not prepared; 0: its own limit."""
        return self._resource.timeout

    def set_transaction_timeout(self, seconds: float) -> None:
        """Set `transaction_timeout`, seconds, of branches that are started from now on. Raises ConfigError, TypeError: no such time."""
        self._resource.set_timeout(seconds)

    @property
    def unreached(self) -> tuple[str, ...]:
        """`host:port: reason` of the servers that the newest `recover` could not ask; empty: it has asked all."""
        return self._resource.unreached

    def is_same_rm(self, other: object) -> bool:
        """Return whether both are at the same server."""
        return isinstance(other, type(self)) and other.address == self.address

    def __repr__(self) -> str:
        return f"<XAResource at {self.address}>"
