"""XA producers and resources for asyncio."""

from __future__ import annotations

from metaq.metaq1.conversation.xa import Vote, Xid
from metaq.metaq1.producing.producer_async import MessageProducer
from metaq.metaq1.xa.core import XaFlag, XaResourceView
from metaq.metaq1.xa.producing import XaProducerBase


class XAMessageProducer(XaProducerBase, MessageProducer):
    """`metaq.metaq1.XAMessageProducer` for asyncio. Made by `XAMetaMessageSessionFactory.create_xa_producer`."""

    def get_xa_resource(self, address: str | None = None) -> XAResource:
        """Return a resource. As `metaq.metaq1.XAMessageProducer.get_xa_resource`."""
        return XAResource(self, *self._placed(address))


class XAResource(XaResourceView):
    """`metaq.metaq1.XAResource` for asyncio, made by `XAMessageProducer.get_xa_resource`: from `start` to `end` the messages of the calling task belong to the branch."""

    async def start(self, xid: Xid, flags: XaFlag = XaFlag.TMNOFLAGS) -> None:
        """Begin a branch, or go on with one. As `metaq.metaq1.XAResource.start`."""
        with self._resource.starting(xid, flags) as branch:
            if branch is not None:
                await self._core.awaited(branch.start)

    async def end(self, xid: Xid, flags: XaFlag = XaFlag.TMSUCCESS) -> None:
        """No more messages come for the branch. As `metaq.metaq1.XAResource.end`."""
        branch = self._resource.started(xid)
        try:
            await self._core.awaited(lambda: self._resource.end(xid, flags))
        finally:
            branch.leave()

    async def prepare(self, xid: Xid) -> Vote:
        """Make the branch durable. As `metaq.metaq1.XAResource.prepare`."""
        return await self._core.awaited(lambda: self._resource.prepare(xid))

    async def commit(self, xid: Xid, one_phase: bool = False) -> None:
        """Make its messages visible. As `metaq.metaq1.XAResource.commit`."""
        await self._core.awaited(lambda: self._resource.commit(xid, one_phase=one_phase))

    async def rollback(self, xid: Xid) -> None:
        """Drop its messages. As `metaq.metaq1.XAResource.rollback`."""
        await self._core.awaited(lambda: self._resource.rollback(xid))

    async def recover(self) -> list[Xid]:
        """Return the branches in doubt. As `metaq.metaq1.XAResource.recover`."""
        return await self._core.awaited(self._resource.recover)

    async def recovered(self) -> dict[Xid, str]:
        """Return the same, each with its server. As `metaq.metaq1.XAResource.recovered`."""
        await self.recover()
        return self._resource.places

    async def forget(self, xid: Xid) -> None:
        """Let the server forget a branch that was ended by hand. As `metaq.metaq1.XAResource.forget`."""
        await self._core.awaited(lambda: self._resource.forget(xid))
