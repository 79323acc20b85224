"""One XA branch at one server, from its start to its end in this process.

Its messages take the way of those in a local transaction. What differs: it belongs to the server and not to a connection, it is
begun by its transaction manager, and what comes after its end goes by its name alone (`XaResourceCore`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from metaq.errors import BrokerError, ConnectionFailed, MetaqError, RequestTimeout, XaError
from metaq.metaq1.conversation import answers
from metaq.metaq1.conversation.pipeline import Make
from metaq.metaq1.conversation.xa import XaCode, Xid, as_xa_error, branch_key, xa_error
from metaq.metaq1.producing.transactions import LocalTransactionCore, TransactionState
from metaq.metaq1.shared.connection import Call
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import Link
from metaq.wire.metaq1.commands import Step, TransactionLine

STEP_SECONDS: Final = 5.0
"""Longest wait for the answer to a step, as in Java."""


class BranchCore(LocalTransactionCore):
    """A branch that messages of a thread or task belong to. The coroutines belong to the background loop.

    Args:
        producer: whose messages.
        core: of its factory.
        xid, qualifier: its name.
        session_id: of the producer.
        timeout: seconds after which the server rolls it back unless it is prepared; 0: never.
        broker_id, address: the server.
    """

    def __init__(
        self,
        producer: object,
        core: FactoryCore,
        xid: Xid,
        qualifier: str,
        session_id: str,
        timeout: float,
        broker_id: int,
        address: str,
    ) -> None:
        super().__init__(producer, core, branch_key(xid, qualifier), session_id, timeout)
        self.xid, self.qualifier, self.address = xid, qualifier, address
        self.broker_id = broker_id
        self.failed: MetaqError | None = None
        """Why it can only be rolled back."""

    async def start(self) -> None:
        """Begin it at the server. Raises XaError."""
        self._begun = asyncio.get_running_loop().create_task(self._begin(self.address))
        try:
            await asyncio.shield(self._begun)
        except MetaqError as error:
            self.state = TransactionState.UNKNOWN
            raise as_xa_error(error) from error

    async def _begin(self, address: str) -> None:
        link = link_to(self._core, address)
        self._link = link
        answers.result_of(
            await link.ask(self._line(Step.BEGIN, self._timeout or None), f"begin branch {self.key}", STEP_SECONDS),
            link.address,
            f"begin branch {self.key}",
        )

    async def end(self, state: TransactionState) -> None:
        """No more messages come for now. Nothing is answered to it. Raises XaError: a message that nobody waited for is missing."""
        await self._settled()
        self.state = state
        self.failed = self.failed or self._lacks
        link = self._core.links.get(self.address)
        if link is not None and link.up is not None:
            request = Call(self._line(Step.END), lambda _: None, f"end branch {self.key}")
            link.send(request, STEP_SECONDS)
            request.abandon()
        if self.failed is not None:
            raise self.refusal(self.failed)

    def refusal(self, why: MetaqError) -> XaError:
        """Return the error of a branch that cannot be committed."""
        return xa_error(XaCode.XA_RBROLLBACK, f"branch {self.key} can only be rolled back: {why}")

    async def rollback(self) -> None:
        """Its producer is closed: nobody will end it."""
        self.state = TransactionState.ROLLED_BACK
        await self._settled()
        link = self._core.links.get(self.address)
        if link is not None:
            try:
                await link.ask(self._line(Step.ROLLBACK), f"roll back branch {self.key}", STEP_SECONDS)
            except (BrokerError, ConnectionFailed, RequestTimeout):
                return  # it ends by its time-out

    def _line(self, step: Step, timeout: int | None = None) -> Make:
        return lambda opaque: TransactionLine(self.key, self._session_id, step, opaque, timeout, self.qualifier)


def link_to(core: FactoryCore, address: str) -> Link:
    """In the loop: return the link to a server of the factory. Raises XaError: there is none any more."""
    link = core.links.get(address)
    if link is None:
        raise xa_error(XaCode.XAER_RMFAIL, f"{address} serves none of the published topics any more")
    return link
