"""Who may what by the files of RocketMQ's ACL, in its order, with its words."""

from __future__ import annotations

import pytest

from metaq.errors import Reason
from metaq.model.access import Action
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.judgement import ACL_EXCEPTION, Denied, admit, admitted, authorise, judge, needed
from metaq.model.acl.rights import BOTH, Right
from metaq.model.acl.secret import Secret

OFFICE, NEAR, FAR = "10.0.0.1", "10.1.0.1", "192.0.2.1"
USER = Account(
    "account-user",
    Secret("11111111"),
    default_topic=Right.DENY,
    default_group=Right.SUB,
    topics={"orders": Right.PUB, "prices": Right.SUB, "both": BOTH, "closed": Right.DENY},
    groups={"shut": Right.DENY},
)
ADMIN = Account("account-admin", Secret("22222222"), admin=True)
CURBED = Account("account-curbed", Secret("33333333"), admin=True, topics={"orders": Right.PUB})
NEAR_ONE = Account("account-near", Secret("44444444"), parse_pattern("10.1.*.*"))
RULES = AclRules({"plain_acl.yml": AclFile((parse_pattern("10.0.0.*"),), (USER, ADMIN, CURBED, NEAR_ONE))})

PUB, SUB, SEE = Action.PUBLISH, Action.SUBSCRIBE, Action.OBSERVE
CHANGE, REGISTER = Action.ADMINISTER, Action.REGISTER


def right(_secret):
    return True


def wrong(_secret):
    return False


def never(_secret):
    raise AssertionError("the signature does not matter here")


def ask(account, *needs, request="10"):
    """The verdict on a signed request of an account, from far away."""
    return judge(RULES, FAR, account.access_key, right, [needed(*need) for need in needs], request)


def test_the_global_white_list_lets_everything_in_first():
    """Whatever the request says of itself, and without a look at its signature."""
    for key in ("", "nobody at all", "account-user"):
        verdict = judge(RULES, OFFICE, key, never, [needed(CHANGE, "topics")])
        assert verdict.allowed
        assert "globalWhiteRemoteAddresses (10.0.0.*)" in verdict.why


@pytest.mark.parametrize(
    ("key", "signed", "sentence", "why"),
    [
        ("", never, "No accessKey is configured", "192.0.2.1 is not in globalWhiteRemoteAddresses"),
        ("nobody", never, "No acl config for nobody", "no such account"),
        ("account-user", wrong, "Check signature failed for accessKey=account-user", "the secretKey is another one"),
        ("account-near", wrong, "Check signature failed for accessKey=account-near", "the secretKey is another one"),
    ],
)
def test_who_is_not_proven_is_refused_in_rocketmqs_words(key, signed, sentence, why):
    """Clients and tools look for the exception's name, people read the rest."""
    verdict = judge(RULES, FAR, key, signed, [])
    assert not verdict.allowed
    assert verdict.remark.startswith(f"{ACL_EXCEPTION}: {sentence}, ")
    assert why in verdict.why
    assert verdict.remark.endswith(verdict.why)
    with pytest.raises(Denied) as caught:
        admit(RULES, FAR, key, signed)
    assert caught.value.reason is Reason.DENIED


def test_an_accounts_white_list_spares_the_signature_and_allows_everything():
    """But only for those that name the account, and from its addresses."""
    verdict = judge(RULES, NEAR, "account-near", never, [needed(CHANGE, "topics"), needed(PUB, "orders")])
    assert verdict.allowed
    assert "whiteRemoteAddress (10.1.*.*) of the account account-near" in verdict.why
    assert not judge(RULES, NEAR, "account-user", wrong, []).allowed
    assert not judge(RULES, NEAR, "", never, []).allowed


@pytest.mark.parametrize(
    ("need", "why"),
    [
        ((PUB, "orders"), "topicPerms has orders=PUB"),
        ((SUB, "prices"), "topicPerms has prices=SUB"),
        ((PUB, "both"), "topicPerms has both=PUB|SUB"),
        ((SUB, "%RETRY%mine"), "groupPerms does not name mine and defaultGroupPerm is SUB"),
        (
            (PUB, "%RETRY%mine"),
            "groupPerms does not name mine and defaultGroupPerm is SUB, for the account account-user",
        ),
        ((SEE, "orders"), "PUB or SUB is needed"),
        ((SEE, "prices"), "PUB or SUB is needed"),
        ((SEE, "%RETRY%mine"), "PUB or SUB is needed"),
        ((SEE,), "the request needs no right"),
        ((PUB, "RMQ_SYS_TRACE_TOPIC"), "every account may send traces"),
    ],
)
def test_what_a_right_covers_is_allowed(need, why):
    """And the reason names the entry by which it is."""
    verdict = ask(USER, need)
    assert verdict.allowed
    assert verdict.remark == ""
    assert all(part in verdict.why for part in why.split(", "))


@pytest.mark.parametrize(
    ("need", "sentence", "why"),
    [
        ((SUB, "orders"), "No default permission for topic:orders", "SUB is needed to receive messages"),
        ((PUB, "prices"), "No default permission for topic:prices", "topicPerms has prices=SUB"),
        ((PUB, "closed"), "No default permission for topic:closed", "topicPerms has closed=DENY"),
        ((SEE, "closed"), "No default permission for topic:closed", "PUB or SUB is needed to look at"),
        ((PUB, "x"), "No default permission for topic:x", "topicPerms does not name x and defaultTopicPerm is DENY"),
        ((SUB, "%RETRY%shut"), "No default permission for group:shut", "groupPerms has shut=DENY"),
        ((PUB, "%RETRY%shut"), "No default permission for group:shut", "SUB is needed"),
        ((SUB, "RMQ_SYS_TRACE_TOPIC"), "No default permission for topic:RMQ_SYS_TRACE_TOPIC", "SUB is needed"),
        (
            (CHANGE, "topics"),
            "Need admin permission for request code=17, but accessKey=account-user is not",
            "admin: true",
        ),
        ((REGISTER, "broker-a"), "Need admin permission for request code=17", "to make a broker known"),
    ],
)
def test_what_no_right_covers_is_refused(need, sentence, why):
    """In RocketMQ's words, and with what is missing."""
    verdict = ask(USER, need, request="17")
    assert not verdict.allowed
    assert verdict.remark.startswith(f"{ACL_EXCEPTION}: {sentence}")
    assert why in verdict.why


def test_all_that_a_request_names_must_be_allowed():
    """A heartbeat has several groups and topics, a staged transaction several topics: traces open no other door."""
    assert ask(USER, (SUB, "prices"), (SUB, "%RETRY%mine")).allowed
    assert not ask(USER, (SUB, "prices"), (SUB, "%RETRY%shut")).allowed
    assert not ask(USER, (PUB, "RMQ_SYS_TRACE_TOPIC"), (PUB, "prices")).allowed


def test_administrators_may_everything_unless_topics_are_named_for_them():
    """RocketMQ's rule: one entry, and the defaults count for the others too."""
    assert ask(ADMIN, (CHANGE, "topics"), (REGISTER, "broker-a"), (PUB, "x"), (SUB, "%RETRY%shut")).allowed
    assert ask(CURBED, (CHANGE, "topics"), (PUB, "orders")).allowed
    assert not ask(CURBED, (PUB, "x")).allowed
    assert admit(RULES, FAR, "account-admin", right).trusted
    assert not admit(RULES, FAR, "account-curbed", right).trusted
    assert not admit(RULES, FAR, "account-user", right).trusted
    assert admit(RULES, OFFICE, "", never).trusted


def test_an_identity_leads_back_to_the_same_admission_while_it_is_there():
    """What is cached under an identity must be what it would be for the next request of the same one."""
    cases = [
        (OFFICE, ""),
        (OFFICE, "account-user"),
        (NEAR, "account-near"),
        (FAR, "account-user"),
        (FAR, "account-near"),
    ]
    admissions = [admit(RULES, address, key, right) for address, key in cases]
    assert [admission.identity for admission in admissions] == [
        "*", "*", "*account-near", "account-user", "account-near",
    ]  # fmt: skip
    for (address, _), admission in zip(cases, admissions, strict=True):
        again = admitted(RULES, address, admission.identity)
        assert (again.account, again.trusted) == (admission.account, admission.trusted)
        assert admitted(AclRules(), address, admission.identity) is None
    assert admitted(RULES, NEAR, "*account-user") is None
    assert admitted(RULES, NEAR, "") is None
    assert admitted(RULES, FAR, "*") is None
    assert admitted(RULES, FAR, "*account-near") is None


def test_what_a_peer_sends_is_shortened_and_printable_in_texts():
    """They go into logs and answers."""
    verdict = judge(RULES, FAR, "\x1b[2J\n" + "x" * 5000, never, [])
    assert len(verdict.remark) < 300
    assert verdict.remark.isprintable()
    assert len(ask(USER, (PUB, "x" * 5000)).remark) < 500


def test_authorise_needs_no_request_bytes():
    """So that its answers may be kept for all requests of an account."""
    admission = admit(RULES, FAR, "account-user", right)
    assert "orders=PUB" in authorise(admission, [needed(PUB, "orders"), None])
    with pytest.raises(Denied):
        authorise(admission, [needed(PUB, "prices")])
