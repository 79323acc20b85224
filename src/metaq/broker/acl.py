"""Access control by accounts: the gatekeeper of a server that has ACL rules, which may change while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from msgspec.structs import replace

from metaq.broker.gatekeeper import Gatekeeper
from metaq.model.access import WHITE, Action, Caller
from metaq.model.acl.accounts import AclRules
from metaq.model.acl.addresses import AddressPattern
from metaq.model.acl.changes import AclChange
from metaq.model.acl.judgement import Denied, admit, admitted, authorise, needed
from metaq.model.acl.secret import Secret
from metaq.saved import Pending


class AccountFiles(Protocol):
    """The files that the rules come from."""

    @property
    def main(self) -> str:
        """Name of the main file, which has accounts that are made over the wire."""
        ...

    def change(self, change: AclChange) -> Pending:
        """Save a change, then put it in force; changes end in their order. It is refused if it cannot be, or not be saved."""
        ...


class AccessControl:
    """The rules in force, and who asks them.

    Args:
        rules: those at the start.
        files: where they come from; None: they cannot be changed by requests.
        compatible: whether any account may what RocketMQ asks no right for.
        open_to_all: actions that need not even an account.
    """

    def __init__(
        self,
        rules: AclRules,
        files: AccountFiles | None = None,
        *,
        compatible: bool = False,
        open_to_all: Iterable[Action] = (),
    ) -> None:
        self._open: Final = frozenset(open_to_all)
        self._rules = rules
        self.files: Final = files
        self.gatekeeper: Final = Gatekeeper(self._authorise, self._trusts, compatible=compatible)

    @property
    def rules(self) -> AclRules:
        return self._rules

    def take(self, rules: AclRules) -> None:
        """Put other rules in force, for the next request on any path."""
        self._rules = rules
        self.gatekeeper.changed()

    def identify(self, caller: Caller, access_key: str, signed: Callable[[Secret], bool]) -> Caller:
        """Return the caller of one request. Raises Denied: nobody is proven, or no such account.

        Args:
            caller: the connection's.
            access_key: of the request; "" if it has none.
            signed: whether the request's signature is right by the given secret. Asked once at most.
        """
        if self._open and not access_key and self._rules.white.find(caller.address) is None:
            return caller  # nobody is proven: what is not open is refused
        admission = admit(self._rules, caller.address, access_key, signed)
        return replace(caller, identity=admission.identity)

    def by_address(self, caller: Caller, accounts: Iterable[tuple[Iterable[AddressPattern], str]]) -> Caller:
        """Return the caller of a connection whose protocol has no signatures: by a white list, or by an account for its address.

        Args:
            caller: the connection's.
            accounts: (addresses, access key): the first that matches counts.
        """
        if self._rules.white.find(caller.address) is not None:
            return replace(caller, identity=WHITE)
        found = (key for patterns, key in accounts if any(one.matches(caller.address) for one in patterns))
        return replace(caller, identity=next(found, ""))

    def _authorise(self, caller: Caller, action: Action, resource: str) -> None:
        if action in self._open:
            return
        admission = admitted(self._rules, caller.address, caller.identity)
        if admission is None:
            # Of no account, or of one that is gone: what `admit` raises says which.
            admission = admit(self._rules, caller.address, caller.identity, _unsigned)
            if not caller.identity.startswith(WHITE):
                # Let in by its address, which such an identity does not prove: the verdict is kept for all callers of the kind,
                # whatever their addresses. Its next request has the right identity.
                raise Denied("No accessKey is configured", "the white list that lets this address in is new: ask again")
        # Requests that change settings name themselves: their resource is what RocketMQ calls the request code.
        authorise(admission, [needed(action, resource)], resource)

    def _trusts(self, caller: Caller) -> bool:
        admission = admitted(self._rules, caller.address, caller.identity)
        return admission is not None and admission.trusted


def _unsigned(_secret: Secret) -> bool:
    return False
