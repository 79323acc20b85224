"""Who may copy the log: by address, by white lists, and by a proof that does not last."""

from __future__ import annotations

from metaq.broker.acl import AccessControl
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.replication.admission import PROOF_SECONDS, PROOFS_MAX, SlaveAdmission
from metaq.clock import FakeClock
from metaq.model.access import Caller
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.changes import patterns_of
from metaq.model.acl.secret import Secret

USER = Account("account-user", Secret("11111111"))
ADMIN = Account("account-admin", Secret("22222222"), admin=True)


def guarded(clock: FakeClock, allowed: str = "") -> SlaveAdmission:
    rules = AclRules({"plain_acl.yml": AclFile(patterns_of("10.1.0.1"), (USER, ADMIN))})
    return SlaveAdmission(AccessControl(rules).gatekeeper, patterns_of(allowed), clock)


def by(account: str, address: str) -> Caller:
    return Caller(address, loopback=False, identity=account)


def test_without_access_control_a_list_lets_in_its_addresses_and_no_list_everybody() -> None:
    """As RocketMQ's port."""
    assert not SlaveAdmission(Gatekeeper(), (), FakeClock()).why_not("10.0.0.1")
    listed = SlaveAdmission(Gatekeeper(), patterns_of("10.0.0.*"), FakeClock())
    assert not listed.why_not("10.0.0.1")
    assert "10.0.1.1 is not in haAllowedAddresses" in listed.why_not("10.0.1.1")


def test_with_accounts_an_address_is_listed_or_proven() -> None:
    """By an administrator's signature, for a while; not by another account, nor by having been let in for an address."""
    clock = FakeClock()
    admission = guarded(clock, "10.2.0.1")
    assert not admission.why_not("10.2.0.1")
    assert not admission.why_not("10.1.0.1")
    for caller in (
        by("account-user", "10.0.0.1"),
        by("*", "10.0.0.1"),
        by("", "10.0.0.1"),
        by("account-gone", "10.0.0.1"),
    ):
        admission.prove(caller)
        assert "nobody at 10.0.0.1 has proven to be a broker" in admission.why_not("10.0.0.1")
    admission.prove(by("account-admin", "10.0.0.1"))
    assert not admission.why_not("10.0.0.1")
    assert admission.why_not("10.0.0.2")
    clock.advance(PROOF_SECONDS + 1)
    assert admission.why_not("10.0.0.1")


def test_proofs_are_bounded() -> None:
    """The oldest goes."""
    admission = guarded(FakeClock())
    for number in range(PROOFS_MAX + 1):
        admission.prove(by("account-admin", f"10.9.{number // 256}.{number % 256}"))
    assert admission.why_not("10.9.0.0")
    assert not admission.why_not("10.9.0.1")
