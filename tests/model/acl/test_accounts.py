"""The rules of several files together, and the changes that requests make in one."""

from __future__ import annotations

from metaq.model.acl.accounts import Account, AclFile, AclRules, reading_order
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Secret
from metaq.model.topics.topic import DataVersion

ANN, BOB = Account("account-ann", Secret("11111111")), Account("account-bob", Secret("22222222"))
OTHER_ANN = Account("account-ann", Secret("33333333"), admin=True)


def test_files_of_the_folder_count_before_the_main_one():
    """As in RocketMQ 4.9.7, but always in the same order."""
    assert reading_order("conf/plain_acl.yml", ["conf/acl/b.yml", "conf/acl/a.yml"]) == [
        "conf/acl/a.yml", "conf/acl/b.yml", "conf/plain_acl.yml",
    ]  # fmt: skip
    assert reading_order("conf/acl/a.yml", ["conf/acl/b.yml", "conf/acl/a.yml"]) == ["conf/acl/b.yml", "conf/acl/a.yml"]


def test_an_access_key_counts_as_the_first_file_has_it():
    """And the warning names both files; white lists add up."""
    rules = AclRules(
        {
            "a.yml": AclFile((parse_pattern("10.0.0.1"),), (ANN,)),
            "plain_acl.yml": AclFile((parse_pattern("10.0.0.2"),), (OTHER_ANN, BOB)),
        }
    )
    assert rules.accounts == {"account-ann": ANN, "account-bob": BOB}
    assert rules.file_of == {"account-ann": "a.yml", "account-bob": "plain_acl.yml"}
    assert [rules.white.find(address) is not None for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3")] == [
        True,
        True,
        False,
    ]
    [warning] = rules.warnings
    assert warning == (
        "plain_acl.yml: the accessKey account-ann is in a.yml too, and only that one counts: take one of them away"
    )


def test_white_lists_that_let_everybody_in_are_warned_of():
    """A forgotten `*` switches the whole of access control off."""
    everybody = parse_pattern("*")
    rules = AclRules({"f.yml": AclFile((everybody,), (Account("account-ann", Secret("11111111"), everybody),))})
    assert [warning.partition(":")[0] for warning in rules.warnings] == ["f.yml", "f.yml"]
    assert "unsigned" in rules.warnings[0]
    assert AclRules().warnings == []


def test_changes_keep_the_order_and_count_the_version():
    """An account is changed where it is, and added at the end; the version is what clients compare."""
    file = AclFile(accounts=(ANN, BOB), version=DataVersion(5, 1))
    changed = file.with_account(OTHER_ANN, 9)
    assert changed.accounts == (OTHER_ANN, BOB)
    assert changed.version == DataVersion(9, 2)
    carl = Account("account-carl", Secret("44444444"))
    assert file.with_account(carl, 9).accounts == (ANN, BOB, carl)
    assert file.without_account("account-ann", 9).accounts == (BOB,)
    assert file.with_white([parse_pattern("10.0.0.1")], 9).white == (parse_pattern("10.0.0.1"),)
    assert file.accounts == (ANN, BOB)
    assert file.account("nobody") is None


def test_rights_to_a_group_may_stand_under_its_retry_topic():
    """RocketMQ has one table for both, in which topicPerms win."""
    account = Account(
        "account-ann", Secret("11111111"), topics={"%RETRY%g": Right.SUB}, groups={"g": Right.DENY, "h": Right.SUB}
    )
    assert [account.right_to_group(group) for group in "ghi"] == [Right.SUB, Right.SUB, Right.DENY]
    assert account.right_to_topic("orders") is Right.DENY
