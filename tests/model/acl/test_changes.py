"""What becomes of the files of accounts by the changes that administrators ask for."""

from __future__ import annotations

import pytest

from metaq.errors import Refused
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.changes import (
    DropAccount,
    PutAccount,
    PutWhite,
    access_key_of,
    changed,
    pattern_of,
    patterns_of,
    right_of,
    rights_of,
    secret_key_of,
)
from metaq.model.acl.rights import BOTH, Right
from metaq.model.acl.secret import Secret
from metaq.model.topics.topic import DataVersion

ANN = Account("account-ann", Secret("11111111"), admin=True, topics={"orders": Right.PUB})
BOB = Account("account-bob", Secret("22222222"))
MAIN, TEAM, OTHER = "plain_acl.yml", "acl/a.yml", "acl/b.yml"


def rules() -> AclRules:
    """Bob in a file of the folder, which counts, and in two more."""
    stale = Account("account-bob", Secret("33333333"), admin=True)
    return AclRules(
        {TEAM: AclFile(accounts=(BOB,)), OTHER: AclFile(accounts=(stale,)), MAIN: AclFile(accounts=(ANN, stale))}
    )


def test_an_account_is_changed_where_it_counts_and_what_is_not_named_stays() -> None:
    """`admin` too where nobody says it, and the secret."""
    (made,) = changed(rules(), MAIN, PutAccount("account-ann", topics={}), 5).items()
    assert made == (
        MAIN,
        AclFile(
            accounts=(Account("account-ann", Secret("11111111"), admin=True), rules().files[MAIN].accounts[1]),
            version=DataVersion(5, 1),
        ),
    )
    (name,) = changed(rules(), MAIN, PutAccount("account-bob", admin=True), 5)
    assert name == TEAM


def test_a_new_account_goes_to_the_main_file() -> None:
    """With RocketMQ's defaults; without a secret there is none."""
    put = PutAccount("account-new", Secret("44444444"), default_group=Right.SUB, white=parse_pattern("10.0.0.*"))
    (made,) = changed(rules(), MAIN, put, 5).values()
    assert made.accounts[-1] == Account(
        "account-new", Secret("44444444"), parse_pattern("10.0.0.*"), default_group=Right.SUB
    )
    assert changed(AclRules(), MAIN, put, 5)[MAIN].accounts == (made.accounts[-1],)
    with pytest.raises(Refused, match="no account account-new here, and a new one needs a secretKey"):
        changed(rules(), MAIN, PutAccount("account-new"), 5)


def test_an_account_goes_from_every_file_and_last_from_the_one_that_counts() -> None:
    """Otherwise its namesake in another file would be in force, here with `admin`."""
    made = changed(rules(), MAIN, DropAccount("account-bob"), 5)
    assert list(made) == [MAIN, OTHER, TEAM]
    assert [file.account("account-bob") for file in made.values()] == [None] * 3
    assert made[MAIN].accounts == (ANN,)
    with pytest.raises(Refused, match="no account 'account-gone' here"):
        changed(rules(), MAIN, DropAccount("account-gone"), 5)


def test_a_white_list_goes_to_the_main_file_or_to_one_that_is_read() -> None:
    """To no other path."""
    white = patterns_of("10.0.0.{1,2}, 10.1.*.*")
    assert [pattern.text for pattern in white] == ["10.0.0.{1,2}", "10.1.*.*"]
    assert changed(rules(), MAIN, PutWhite(white), 5)[MAIN].white == white
    assert changed(rules(), MAIN, PutWhite((), OTHER), 5)[OTHER].white == ()
    with pytest.raises(Refused, match="'/etc/passwd' is none of the files of accounts here"):
        changed(rules(), MAIN, PutWhite(white, "/etc/passwd"), 5)


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (access_key_of, "sixsix", "has 6 characters"),
        (access_key_of, "*anybody", "must not begin with"),
        (access_key_of, "line\nbreak", "can be printed"),
        (secret_key_of, "hidden", "has 6 characters"),
        (secret_key_of, " 12345678", "a blank at an end"),
        (pattern_of, "10.10.300.1", "above 255"),
        (patterns_of, "10.0.0.1,what", "not an IP address"),
        (right_of, "pub", "no permission"),
        (lambda text: rights_of(text, "topic"), "orders", "is written topic=PUB|SUB"),
        (lambda text: rights_of(text, "topic"), "orders=PUB=SUB", "is written topic=PUB|SUB"),
        (lambda text: rights_of(text, "group"), "*=SUB", "is written group=PUB|SUB"),
        (lambda text: rights_of(text, "topic"), "a=PUB,a=SUB", "names 'a' twice"),
        (lambda text: rights_of(text, "topic"), "a=EVERYTHING", "no permission"),
    ],
)  # fmt: skip
def test_a_text_that_means_nothing_is_refused_and_no_secret_shown(read, text, why) -> None:
    """What RocketMQ takes for DENY, or breaks its file with."""
    with pytest.raises(Refused) as caught:
        read(text)
    assert why in caught.value.text
    assert read is not secret_key_of or text.strip() not in caught.value.text


def test_entries_of_rights_are_read_as_files_have_them() -> None:
    """With blanks; an empty list takes all away."""
    assert rights_of("a=PUB|SUB, b = DENY", "topic") == {"a": BOTH, "b": Right.DENY}
    assert rights_of("", "topic") == {}
