"""Clients of MetaQ 1.x with access control: accounts by the addresses they connect from."""

from __future__ import annotations

import pytest

from metaq.broker.acl import AccessControl
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.changes import accounts_of, patterns_of
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Secret
from metaq.servers.metaq1.server import Metaq1Server
from tests.servers.metaq1.support import TextClient, open_metaq1_server
from tests.servers.metaq1.test_transactions import LOCAL, SESSION

ACCOUNTS = accounts_of("10.0.0.1=account-old; 127.0.0.*,::1=account-legacy;127.0.0.1=account-other")


PUT = b"put test 0 1 0 1\r\na"


def rules(*, white: str = "", **more) -> AclRules:
    account = Account("account-legacy", Secret("12345678"), **more)
    return AclRules({"plain_acl.yml": AclFile(patterns_of(white), (account,))})


def codes(server: Metaq1Server) -> list[int]:
    """Answers to a put, a get, an offset, a local transaction of a put, figures, and the version."""
    text = TextClient(server)
    commands = (
        "put test 0 1 0 1\r\na", "get test g 0 0 1024 2\r\n", "offset test g 0 0 3\r\n",
        f"transaction {LOCAL} {SESSION} BEGIN 4\r\n", f"put test 0 1 0 -1 {LOCAL} 5\r\nb",
        f"transaction {LOCAL} {SESSION} ROLLBACK 6\r\n", "stats 7\r\n", "version 8\r\n",
    )  # fmt: skip
    answers = [text.ask(command.encode()) for command in commands]
    # A put into a transaction is refused with 500, as each is that fails there.
    assert answers[4][0] == 200 or b"AclException" in answers[4][1]
    return [answers[place][0] or 200 for place in (0, 1, 2, 4, 6, 7)]


PUBLISHES, CONSUMES = {"topics": {"test": Right.PUB}}, {"topics": {"test": Right.SUB}, "groups": {"g": Right.SUB}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (rules(**PUBLISHES), [200, 403, 403, 200, 200, 200]),
        (rules(**CONSUMES), [403, 200, 200, 500, 200, 200]),
        (rules(topics={"test": Right.SUB}), [403, 403, 200, 500, 200, 200]),
        (rules(admin=True), [200, 200, 200, 200, 200, 200]),
        (rules(white="127.0.0.1"), [200, 200, 200, 200, 200, 200]),
        (AclRules(), [403, 403, 403, 500, 403, 200]),
    ],
    ids=["publishes", "consumes", "no-group", "admin", "white-list", "no-account"],
)
def test_a_client_is_the_account_of_its_address(tmp_path, found, expected) -> None:
    """Topics for puts, topics and groups for gets, puts into transactions, figures; the version is told to everybody."""
    access = AccessControl(rules(admin=True))
    with open_metaq1_server(tmp_path, access=access, identify=lambda caller: access.by_address(caller, ACCOUNTS)) as (
        _,
        server,
    ):
        assert codes(server) == [200] * 6  # there is something to get
        access.take(found)
        assert codes(server) == expected


def test_a_connection_from_elsewhere_is_nobody_and_rights_change_for_connections_that_are_open(tmp_path) -> None:
    """On the fast path, too."""
    access = AccessControl(rules(**PUBLISHES))
    accounts = list(ACCOUNTS)
    with open_metaq1_server(tmp_path, access=access, identify=lambda caller: access.by_address(caller, accounts)) as (
        _,
        server,
    ):
        text = TextClient(server)
        for _ in range(3):
            assert text.ask(PUT)[0] == 200
        access.take(rules(**CONSUMES))
        assert text.ask(PUT)[0] == 403
        access.take(rules(**PUBLISHES))
        assert text.ask(PUT)[0] == 200
        accounts.clear()
        assert codes(server) == [403, 403, 403, 500, 403, 200]
