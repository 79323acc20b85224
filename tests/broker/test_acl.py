"""The rules of access control in force: who is judged by them, and until when."""

from __future__ import annotations

import pytest

from metaq.broker.acl import AccessControl
from metaq.errors import Reason
from metaq.model.access import Action, Caller
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.judgement import Denied
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Secret

ANN = Account("account-ann", Secret("11111111"), topics={"orders": Right.PUB})
ADMIN = Account("account-admin", Secret("22222222"), admin=True)
FAR, OFFICE, DESK = (Caller(address, loopback=False) for address in ("192.0.2.1", "10.0.0.1", "10.0.0.2"))


def rules(*accounts: Account, white: str = "") -> AclRules:
    return AclRules({"plain_acl.yml": AclFile((parse_pattern(white),) if white else (), accounts)})


def known(access: AccessControl, caller: Caller, key: str) -> Caller:
    return access.identify(caller, key, lambda _secret: True)


def sends(access: AccessControl, caller: Caller, topic: str = "orders") -> bool:
    return access.gatekeeper.allows(caller, Action.PUBLISH, topic)


def test_a_signer_has_the_rights_of_the_account() -> None:
    """Only those, and only where the signature is right."""
    access = AccessControl(rules(ANN))
    ann = known(access, FAR, "account-ann")
    assert (ann.identity, ann.address) == ("account-ann", FAR.address)
    assert (sends(access, ann), sends(access, ann, "bills")) == (True, False)
    with pytest.raises(Denied, match="Check signature failed"):
        access.identify(FAR, "account-ann", lambda _secret: False)


def test_whoever_has_not_signed_is_refused_with_the_address() -> None:
    """Also if nobody asked who it is: a connection's own caller has no rights."""
    access = AccessControl(rules(ANN, white="10.0.0.1"))
    for caller in (FAR, DESK):
        with pytest.raises(Denied, match=f"No accessKey is configured, .*{caller.address} is not in") as caught:
            access.gatekeeper.check(caller, Action.PUBLISH, "orders")
        assert caught.value.reason is Reason.DENIED
        assert not access.gatekeeper.trusts(caller)
    assert sends(access, known(access, OFFICE, ""))


def test_other_rules_count_from_the_next_question_on() -> None:
    """For those who were proven before, too: rights that are taken away, an account that is gone."""
    access = AccessControl(rules(ANN, ADMIN))
    ann, admin = known(access, FAR, "account-ann"), known(access, FAR, "account-admin")
    changes = access.gatekeeper.changes
    assert sends(access, ann)
    assert access.gatekeeper.trusts(admin)
    access.take(rules(Account("account-ann", Secret("11111111"))))
    assert access.gatekeeper.changes != changes
    assert not sends(access, ann)
    assert not access.gatekeeper.trusts(admin)
    with pytest.raises(Denied, match="No acl config for account-admin"):
        access.gatekeeper.check(admin, Action.PUBLISH, "orders")


def test_a_white_listed_address_is_a_client_of_its_own_and_judged_for_itself() -> None:
    """What one of them may is not kept for the other, which the next rules may leave out."""
    access = AccessControl(rules(white="10.0.0.*"))
    office, desk = known(access, OFFICE, ""), known(access, DESK, "")
    assert office.kind != desk.kind
    assert (office.client, desk.client) == (OFFICE.address, DESK.address)
    assert sends(access, office)
    assert sends(access, desk)
    access.take(rules(white="10.0.0.1"))
    assert sends(access, office)
    assert not sends(access, desk)
    assert not access.gatekeeper.trusts(desk)


def test_what_changes_settings_is_refused_by_its_name() -> None:
    """In RocketMQ's words."""
    access = AccessControl(rules(ANN, ADMIN))
    access.gatekeeper.check(known(access, FAR, "account-admin"), Action.ADMINISTER, "RELOAD")
    with pytest.raises(Denied, match="Need admin permission for request code=RELOAD, but accessKey=account-ann is not"):
        access.gatekeeper.check(known(access, FAR, "account-ann"), Action.ADMINISTER, "RELOAD")


def test_a_request_about_neither_topic_nor_group_needs_an_account() -> None:
    """Any, whatever its rights; a topic of such a request's name is open to nobody by that."""
    access = AccessControl(rules(ANN))
    ann = known(access, FAR, "account-ann")
    assert access.gatekeeper.allows(ann, Action.OBSERVE, "")
    assert not access.gatekeeper.allows(FAR, Action.OBSERVE, "")
    assert not access.gatekeeper.allows(ann, Action.SUBSCRIBE, "HEART_BEAT")


def test_a_white_listed_address_that_was_not_identified_opens_nothing_for_others() -> None:
    """Verdicts are kept for all who are not identified, from wherever they come."""
    access = AccessControl(rules(ANN, white="10.0.0.1"))
    assert not sends(access, OFFICE)
    assert not sends(access, FAR)
    assert sends(access, known(access, OFFICE, ""))
    assert not sends(access, FAR)


def test_what_is_open_to_all_needs_no_account_and_everything_else_does() -> None:
    """A signature that is there is looked at all the same."""
    access = AccessControl(rules(ANN, white="10.0.0.1"), open_to_all=[Action.OBSERVE])
    far = access.identify(FAR, "", lambda _secret: False)
    assert access.gatekeeper.allows(far, Action.OBSERVE, "")
    assert not sends(access, far)
    assert sends(access, known(access, OFFICE, ""))
    with pytest.raises(Denied, match="Check signature failed"):
        access.identify(FAR, "account-ann", lambda _secret: False)
