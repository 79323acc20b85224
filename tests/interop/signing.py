"""What a foreign client with an account is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from metaq.admin import Admin
from tests.accounts import ADMIN, USER
from tests.interop.driver import DriverError, ForeignClient
from tests.interop.servers import Server

WRONG: Final = {**USER, "secret_key": "another-secret"}


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
    with Admin(server.namesrv, **ADMIN, **(ours or {})) as admin:
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
