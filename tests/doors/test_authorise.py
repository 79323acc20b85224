"""Who may what is asked in one place, whichever lane a request takes."""

from __future__ import annotations

import pytest

from metaq.errors import Reason, Refused
from metaq.model.access import Action, Identity
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.headers import SendHeader
from tests.doors.support import Client, open_door, pull_header, send_header


def forbid(action: Action, topic: str):
    def authorise(_who: Identity, what: Action, resource: str) -> None:
        if (what, resource) == (action, topic):
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours")

    return authorise


def ask(client: Client, code: int, header: object, *, fast: bool, body: bytes = b"x"):
    """One request; in the slow lane because its header is spelled in a way that the hot module leaves to it."""
    ext = header.to_long_ext() if isinstance(header, SendHeader) and not fast else header.to_ext()
    if not fast:
        ext |= {"queueId": "0" + ext["queueId"]}  # a leading zero is for the slow lane to judge
    return client.ask(code, ext, body)


@pytest.mark.parametrize("fast", [True, False])
def test_a_send_is_refused_in_both_lanes(tmp_path, fast) -> None:
    """And the others go on."""
    with open_door(tmp_path, authorise=forbid(Action.PUBLISH, "secret")) as (broker, door):
        broker.topics.ensure("secret")
        client = Client(door)
        for topic, code in (("orders", 0), ("secret", ResponseCode.NO_PERMISSION), ("orders", 0)):
            answer = ask(
                client,
                RequestCode.SEND_MESSAGE if not fast else RequestCode.SEND_MESSAGE_V2,
                send_header(topic),
                fast=fast,
            )
            assert answer.code == code
        assert broker.lookup.max_offset("secret", 0) == 0
        assert client.session.gates.table.keys() == ({b"orders"} if fast else set())


@pytest.mark.parametrize("fast", [True, False])
def test_a_pull_is_refused_in_both_lanes(tmp_path, fast) -> None:
    """Though the topic may be sent to."""
    with open_door(tmp_path, authorise=forbid(Action.SUBSCRIBE, "secret")) as (_, door):
        client = Client(door)
        for topic, code in (("orders", 0), ("secret", ResponseCode.NO_PERMISSION)):
            assert client.send(topic).code == 0
            answer = ask(client, RequestCode.PULL_MESSAGE, pull_header(topic), fast=fast, body=b"")
            assert answer.code == code
        assert "secret is not yours" in answer.remark
