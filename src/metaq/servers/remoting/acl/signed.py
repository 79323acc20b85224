"""Callers of signed requests, by the rules of access control (docs/formats/acl.md).

The slow path asks `by_signature` for each request. On the fast paths the compiled extension verifies runs of requests, and
`ConnectionCallers` says who their caller is. Each signature is verified, also one that came before: a request is not known by it,
and its body would have to be compared all the same. What is kept until the rules change is the secret, made ready, and who an
access key is at a connection's address.
"""

from __future__ import annotations

from typing import Final

from metaq.broker.acl import AccessControl
from metaq.errors import Refused
from metaq.model.access import Caller
from metaq.servers.remoting.dispatch import Identify
from metaq.wire import hot
from metaq.wire.command import Command
from metaq.wire.extensions import RELAYED_FIELD
from metaq.wire.signing import ACCESS_KEY, verify


def by_signature(access: AccessControl) -> Identify:
    """Return what finds the caller of a request: the account that has signed it, or whom a white list lets in.

    It raises Denied for everybody else, and so for all that is not signed and comes from elsewhere.
    """

    def identify(caller: Caller, command: Command) -> Caller:
        ext = command.ext
        if RELAYED_FIELD in ext:  # a broker has added it to what the client has signed
            ext = {name: value for name, value in ext.items() if name != RELAYED_FIELD}
        return access.identify(caller, ext.get(ACCESS_KEY, ""), lambda secret: verify(ext, command.body, secret))

    return identify


class Signers:
    """The accounts of a server whose requests the fast paths verify."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self.keys: Final = dict[bytes, hot.SignKey]()
        """Those of accounts that have signed since the last change of the rules, by access key. Always the same dict."""
        access.gatekeeper.watch(self.keys.clear)

    @property
    def changes(self) -> int:
        """Number of changes of the rules."""
        return self._access.gatekeeper.changes

    def key(self, access_key: bytes) -> hot.SignKey | None:
        """Return the key of an account; None: there is no such account."""
        key = self.keys.get(access_key)
        if key is None:
            account = self._access.rules.accounts.get(access_key.decode())
            if account is not None:
                secret = account.secret_key.reveal().encode("utf-8", "replace")
                key = self.keys[access_key] = hot.SignKey(access_key, secret)
        return key

    def caller(self, caller: Caller, access_key: str = "") -> Caller | None:
        """Return the caller of requests with a right signature of an account, or of all requests of a connection; None: nobody.

        Args:
            caller: the connection's.
            access_key: whose signature was right; "": none is needed, the address is in a white list.
        """
        try:
            return self._access.identify(caller, access_key, lambda _secret: access_key != "")
        except Refused:
            return None


def callers_of(signers: Signers | None, caller: Caller) -> ConnectionCallers | None:
    """Return the callers of a new connection; None without access control. Arguments as of `ConnectionCallers`."""
    return None if signers is None else ConnectionCallers(signers, caller)


class ConnectionCallers:
    """The callers of one connection's requests on the fast paths.

    Args:
        signers: of the server.
        caller: of unsigned requests.
    """

    def __init__(self, signers: Signers, caller: Caller) -> None:
        self._signers, self._connection = signers, caller
        self._changes = -1
        self._white: Caller | None = None
        """Caller of all requests, because of its address."""
        self._key: hot.SignKey | None = None
        """With which the last run was signed, and by whom."""
        self._caller: Caller | None = None

    @property
    def changed(self) -> bool:
        """Whether the rules have changed since `run`: what it said holds no more."""
        return self._signers.changes != self._changes

    def run(self, table: hot.FrameTable, row: int, end: int) -> tuple[int, Caller | None]:
        """Return the end of the run of requests with one proven caller that begins at `row`, and that caller.

        `row` and None: the slow path judges the request.
        """
        if self.changed:
            self._changes = self._signers.changes
            self._white, self._key = self._signers.caller(self._connection), None
        if self._white is not None:
            return end, self._white
        if self._key is not None:
            stop = hot.signed_rows(table, row, end, self._key)
            if stop > row:
                return stop, self._caller
        access_key = hot.access_key_of(table, row)
        if not access_key or (self._key is not None and access_key == self._key.access_key):
            return row, None
        key = self._signers.key(access_key)
        if key is None:
            return row, None
        stop = hot.signed_rows(table, row, end, key)
        if stop == row:
            return row, None
        caller = self._signers.caller(self._connection, access_key.decode())
        if caller is None:
            return row, None
        self._key, self._caller = key, caller
        return stop, caller

    @property
    def proof(self) -> tuple[()] | tuple[dict[bytes, hot.SignKey], hot.SignKey] | None:
        """What a sweep needs beside gates and host to judge this connection's requests as the last run; None: nothing is proven."""
        if self.changed:
            return None
        if self._white is not None:
            return ()
        return None if self._key is None else (self._signers.keys, self._key)
