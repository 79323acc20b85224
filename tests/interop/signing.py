"""A broker's accounts, and what a foreign client with one of them is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from metaq.admin import Admin
from tests.interop.driver import DriverError, ForeignClient
from tests.interop.servers import Server

SECRET: Final = "45678901-secret"
ADMINISTRATOR: Final = {"access_key": "account-admin", "secret_key": SECRET}
USER: Final = {"access_key": "account-user", "secret_key": SECRET}
WRONG: Final = {**USER, "secret_key": "another-secret"}
ACCOUNTS: Final = f"""\
accounts:
- accessKey: account-admin
  secretKey: {SECRET}
  admin: true
- accessKey: account-user
  secretKey: {SECRET}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


def exchanged(
    client: ForeignClient,
    server: Server,
    topic: str,
    modes: Sequence[str],
    *,
    ours: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
) -> None:
    """Signed, it sends in each way and receives all that it sent; with another secret nothing is stored.

    Args: ours, theirs: how our administration and that client connect, beside their accounts.
    """
    reach = dict(theirs or {})
    with Admin(server.namesrv, **ADMINISTRATOR, **(ours or {})) as admin:
        admin.create_topic(topic, queues=2)
        client.producer(f"p-{topic}", server.namesrv, **USER, **reach)
        bodies = [f"{mode}-{number}" for mode in modes for number in range(3)]
        for mode in modes:
            client.send(f"p-{topic}", topic, [f"{mode}-{number}" for number in range(3)], mode)
        client.consumer(f"c-{topic}", server.namesrv, f"g-{topic}", {topic: "*"}, **USER, **reach)
        assert sorted(event["body"] for event in client.wait(f"c-{topic}", len(bodies))) == sorted(bodies)
        client.producer(f"w-{topic}", server.namesrv, **WRONG, **reach)
        with pytest.raises(DriverError):
            client.send(f"w-{topic}", topic, ["never"])
        assert admin.describe_topic(topic).messages == len(bodies)
    client.shutdown_all()
