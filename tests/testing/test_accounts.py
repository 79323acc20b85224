"""The embedded broker with accounts, by the fixture that users override."""

from __future__ import annotations

import pytest

import metaq

SECRET = "12345678-secret"


@pytest.fixture(scope="session")
def metaq_accounts() -> str:
    return f"accounts:\n- accessKey: account-one\n  secretKey: {SECRET}\n  defaultTopicPerm: PUB|SUB\n"


def test_a_broker_of_a_fixture_has_the_accounts(fresh_metaq_broker):
    """Who signs is served, nobody else; with a temporary folder nothing stays."""
    broker = fresh_metaq_broker
    with metaq.Producer(broker.namesrv, access_key="account-one", secret_key=SECRET) as producer:
        producer.send("orders", b"x")
    with metaq.Producer(broker.namesrv) as producer, pytest.raises(metaq.AccessDenied, match="not signed"):
        producer.send("orders", b"x")
    accounts = broker.data.with_name(broker.data.name + "-accounts")
    assert (accounts / "plain_acl.yml").exists()
    broker.close()
    assert not accounts.exists()
