"""XA producers and resources for threads."""

from __future__ import annotations

from metaq.metaq1.conversation.xa import Vote, Xid
from metaq.metaq1.producing.producer import MessageProducer
from metaq.metaq1.xa.core import XaFlag, XaResourceView
from metaq.metaq1.xa.producing import XaProducerBase


class XAMessageProducer(XaProducerBase, MessageProducer):
    """A producer whose messages may belong to transactions of a transaction manager; made by
    `XAMetaMessageSessionFactory.create_xa_producer`. Outside of them it sends as any other.

    All topics of one transaction must be published, and at least one server must have them all: `publish` raises NoRoute otherwise.
    """

    def get_xa_resource(self, address: str | None = None) -> XAResource:
        """Return a resource at one of the servers that have all published topics: `host:port`, or one chosen by chance.

        Raises NoRoute: there is none, or no such one; ClientClosed, ClientForked.
        """
        return XAResource(self, *self._placed(address))


class XAResource(XaResourceView):
    """What a transaction manager does with a server, by JTA's names; made by
    `XAMessageProducer.get_xa_resource`. `metaq.xa` has transaction managers.

    From `start` to `end` the messages of the calling thread belong to the branch. All calls raise XaError, with `code` and `name`
    of JTA; -7 (XAER_RMFAIL): the server is not connected; 106 (XA_RBTIMEOUT): it did not answer in 5 s. ClientClosed, ClientForked.
    """

    def start(self, xid: Xid, flags: XaFlag = XaFlag.TMNOFLAGS) -> None:
        """Begin a branch, or (TMJOIN, TMRESUME) go on with one that this producer has begun. Raises ClientError: the thread is in a
        transaction of this producer already."""
        with self._resource.starting(xid, flags) as branch:
            if branch is not None:
                self._core.run(branch.start)

    def end(self, xid: Xid, flags: XaFlag = XaFlag.TMSUCCESS) -> None:
        """No more messages come for the branch: for good (TMSUCCESS, TMFAIL), or until it is resumed (TMSUSPEND).

        Raises XaError 100: a message that nobody waited for is missing in it, so that it can only be rolled back.
        """
        branch = self._resource.started(xid)
        try:
            self._core.run(lambda: self._resource.end(xid, flags))
        finally:
            branch.leave()

    def prepare(self, xid: Xid) -> Vote:
        """Make the branch durable; from then on it waits for its end, for ever. READ_ONLY: there is no message in it, and it is over."""
        return self._core.run(lambda: self._resource.prepare(xid))

    def commit(self, xid: Xid, one_phase: bool = False) -> None:
        """Make the messages of a prepared branch visible; with `one_phase`, of one that is not prepared."""
        self._core.run(lambda: self._resource.commit(xid, one_phase=one_phase))

    def rollback(self, xid: Xid) -> None:
        """Drop the messages of a branch."""
        self._core.run(lambda: self._resource.rollback(xid))

    def recover(self) -> list[Xid]:
        """Return the prepared branches with this producer's `unique_qualifier` at all servers of published topics, and those that were
        ended by hand. `commit`, `rollback` and `forget` of this resource then go to where they are.

        A server that cannot be asked is skipped, and named in `unreached`. Raises XaError: that is so with all.
        """
        return self._core.run(self._resource.recover)

    def recovered(self) -> dict[Xid, str]:
        """Return the same, each with the server where it is, `host:port`."""
        self.recover()
        return self._resource.places

    def forget(self, xid: Xid) -> None:
        """Let the server forget a branch that was ended by hand."""
        self._core.run(lambda: self._resource.forget(xid))
