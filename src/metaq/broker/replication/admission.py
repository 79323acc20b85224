"""Who may copy the log from here. The stream has no word for who a slave is, so its address counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from metaq.broker.gatekeeper import Gatekeeper
from metaq.clock import Clock
from metaq.model.access import WHITE, Action, Caller
from metaq.model.acl.addresses import AddressList, AddressPattern

PROOF_SECONDS: Final = 30.0
"""How long a proof lets connections in. A slave of ours asks its master for its state before each."""
PROOFS_MAX: Final = 1000


class SlaveAdmission:
    """Decides by `haAllowedAddresses` and, with access control, by white lists and by who has proven to be a broker.

    Args:
        gatekeeper: access control.
        allowed: `haAllowedAddresses`. Without access control an empty list lets everybody in, as RocketMQ does.
        clock: of proofs.
    """

    def __init__(self, gatekeeper: Gatekeeper, allowed: Iterable[AddressPattern], clock: Clock) -> None:
        self._gatekeeper, self._allowed, self._clock = gatekeeper, AddressList(allowed), clock
        self._proven = dict[str, float]()
        """Address → when an administrator's account has last signed a request from there, monotonic seconds."""

    def prove(self, caller: Caller) -> None:
        """Note a request as slaves send them: if an account that has `admin: true` signed it, its address is a broker's for now."""
        signed = bool(caller.identity) and not caller.identity.startswith(WHITE)
        if signed and self._gatekeeper.allows(caller, Action.ADMINISTER, "REPLICA_STATE"):
            self._proven.pop(caller.address, None)  # to the end
            self._proven[caller.address] = self._clock.monotonic()
            if len(self._proven) > PROOFS_MAX:
                del self._proven[next(iter(self._proven))]

    def why_not(self, address: str) -> str:
        """Return why nobody at an address may copy the log; "": they may."""
        if self._allowed.find(address) is not None:
            return ""
        if self._gatekeeper.unguarded:
            return f"{address} is not in haAllowedAddresses" if self._allowed.patterns else ""
        if self._gatekeeper.trusts(Caller(address, loopback=False, identity=WHITE)):
            return ""
        at = self._proven.get(address)
        if at is not None and self._clock.monotonic() - at <= PROOF_SECONDS:
            return ""
        return (
            f"nobody at {address} has proven to be a broker: give the slave aclCredentials with an account that has admin: true, or, "
            "as for a slave of RocketMQ, which never signs, put its address into haAllowedAddresses or globalWhiteRemoteAddresses"
        )
