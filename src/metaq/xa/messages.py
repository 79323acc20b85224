"""Messages of MetaQ 1.x as a resource: XA branches at a server, the original one or ours."""

from __future__ import annotations

from collections.abc import Callable

from metaq.errors import XaError
from metaq.metaq1 import Vote, XaCode, XAMessageProducer, XAResource, Xid
from metaq.xa.resource import FORMAT, Branch, BranchName, InDoubt, OtherwiseEnded, checked_name


class XaMessages:
    """The messages of an XA producer, which is what `enlist` returns: sends of the thread belong to the transaction until its end.

    Args:
        producer: has published all topics that may take part, and is used by this coordinator alone for transactions.
        name: of the resource.
        timeout: seconds after which the server rolls back a branch that is not prepared, for its process may be dead; servers cut it
            to their `maxTxTimeoutInSeconds`, 60 by default.
    """

    def __init__(self, producer: XAMessageProducer, name: str = "messages", *, timeout: float = 60.0) -> None:
        self.name, self._producer, self._timeout = checked_name(name), producer, timeout

    def begin(self, name: BranchName, note: Callable[[str], None]) -> Branch[XAMessageProducer]:  # noqa: ARG002  RECOVER lists branches
        """Begin a branch at a server. As `Resource.begin`. Raises NoRoute, XaError, ClientClosed."""
        resource = self._producer.get_xa_resource()
        resource.set_transaction_timeout(self._timeout)
        return XaBranch(self._producer, resource, name)

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:
        """Return the prepared branches that servers list. As `Resource.in_doubt`. Raises XaError, NoRoute: none can be asked."""
        resource = self._producer.get_xa_resource()
        found = [
            InDoubt(xid.global_id.decode(), _text(xid, place))
            for xid, place in resource.recovered().items()
            if xid.format_id == FORMAT and xid.global_id.startswith(prefix.encode())
        ]
        return found, "; ".join(resource.unreached)

    def settle(self, text: str, *, commit: bool) -> None:
        """End a prepared branch by its text. As `Resource.settle`. Raises NoRoute: its server is not connected; OtherwiseEnded, XaError."""
        name, _, address = text.partition("@")
        transaction, _, number = name.partition(":")
        _end(self._producer.get_xa_resource(address), _xid(transaction, number), commit=commit)


class XaBranch:
    """One branch. `handle`: the producer."""

    def __init__(self, producer: XAMessageProducer, resource: XAResource, name: BranchName) -> None:
        self.handle, self._resource = producer, resource
        self._xid = _xid(name.transaction, str(name.number))
        self.text = _text(self._xid, resource.address)
        self._open, self._over = True, False
        resource.start(self._xid)

    def prepare(self) -> bool:
        self._end()
        self._over = self._resource.prepare(self._xid) is Vote.READ_ONLY
        return not self._over

    def commit(self) -> None:
        _end(self._resource, self._xid, commit=True, waits=True)

    def rollback(self) -> None:
        if self._open:
            try:
                self._end()
            except XaError:  # a message is missing in it, which does not matter any more
                self._open = False
        if not self._over:
            _end(self._resource, self._xid, commit=False)

    def _end(self) -> None:
        self._open = False
        self._resource.end(self._xid)


def _xid(transaction: str, number: str) -> Xid:
    return Xid(FORMAT, transaction.encode(), number.encode())


def _text(xid: Xid, address: str) -> str:
    return f"{xid.global_id.decode()}:{xid.branch_id.decode()}@{address}"


def _end(resource: XAResource, xid: Xid, *, commit: bool, waits: bool = False) -> None:
    """Args: waits: it was prepared, and nobody of ours has ended it."""
    try:
        if commit:
            resource.commit(xid)
        else:
            resource.rollback(xid)
    except XaError as error:
        if error.code == XaCode.XAER_NOTA:
            if waits:
                raise OtherwiseEnded(f"{error}; it was prepared there, and is gone") from error
            return  # it is over
        if not error.heuristic:
            raise
        if error.code != (XaCode.XA_HEURCOM if commit else XaCode.XA_HEURRB):
            raise OtherwiseEnded(str(error)) from error
        resource.forget(xid)
