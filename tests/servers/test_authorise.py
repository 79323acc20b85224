"""Who may what is asked in one place, whichever path a request takes."""

from __future__ import annotations

import pytest

from metaq.client.conversation.staged.staging import Decide, ForgetStaged, SealPart
from metaq.errors import Reason, Refused
from metaq.model.access import Action, Identity
from metaq.model.transactions.staging import Outcome
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.headers import SendHeader
from metaq.wire.staging import DecideBody
from tests import staged
from tests.servers.support import Client, open_server, pull_header, send_header
from tests.staged import PlannedPart


def forbid(action: Action, topic: str):
    def authorise(_who: Identity, what: Action, resource: str) -> None:
        if (what, resource) == (action, topic):
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours")

    return authorise


def ask(client: Client, code: int, header: object, *, fast: bool, body: bytes = b"x"):
    """One request; in the slow path because its header is spelled in a way that the compiled extension leaves to it."""
    ext = header.to_long_ext() if isinstance(header, SendHeader) and not fast else header.to_ext()
    if not fast:
        ext |= {"queueId": " " + ext["queueId"]}  # a blank is for the slow path to judge
    return client.ask(code, ext, body)


@pytest.mark.parametrize("fast", [True, False])
def test_a_send_is_refused_in_both_paths(tmp_path, fast) -> None:
    """And the others go on."""
    with open_server(tmp_path, authorise=forbid(Action.PUBLISH, "secret")) as (broker, server):
        broker.topics.ensure("secret")
        client = Client(server)
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
def test_a_pull_is_refused_in_both_paths(tmp_path, fast) -> None:
    """Though the topic may be sent to."""
    with open_server(tmp_path, authorise=forbid(Action.SUBSCRIBE, "secret")) as (_, server):
        client = Client(server)
        for topic, code in (("orders", 0), ("secret", ResponseCode.NO_PERMISSION)):
            assert client.send(topic).code == 0
            answer = ask(client, RequestCode.PULL_MESSAGE, pull_header(topic), fast=fast, body=b"")
            assert answer.code == code
        assert "secret is not yours" in answer.remark


def test_staged_transactions_may_what_their_topics_allow(tmp_path) -> None:
    """Chunks, seals and decisions are sends; a part of a topic that is closed meanwhile cannot be committed by this client."""
    closed: set[str] = {"secret"}

    def authorise(_who: Identity, what: Action, resource: str) -> None:
        if (what is Action.PUBLISH and resource in closed) or what is Action.ADMINISTER:
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours")

    with open_server(tmp_path, authorise=authorise) as (broker, server):
        client = Client(server)
        broker.topics.ensure("secret")
        client.send("orders")

        def told(call) -> int:
            asked = call.request()
            return client.ask(asked.code, asked.ext, asked.body).code

        secret, orders = (PlannedPart("broker-a", "p", topic, 0, ((b"x",),)) for topic in ("secret", "orders"))
        assert told(staged.stage("t1@broker-a", [secret])) == ResponseCode.NO_PERMISSION
        assert told(staged.stage("t1@broker-a", [orders])) == 0
        closed.add("orders")
        commit = Decide("t1@broker-a", DecideBody(Outcome.COMMIT, (orders.manifest,)))
        assert told(commit) == ResponseCode.NO_PERMISSION
        assert told(SealPart("t1@broker-a", "p", orders.seal)) == ResponseCode.NO_PERMISSION
        assert told(ForgetStaged(transaction="t1@broker-a")) == ResponseCode.NO_PERMISSION
        assert broker.lookup.max_offset("orders", 0) == 1
        closed.clear()
        assert told(commit) == 0
        assert broker.lookup.max_offset("orders", 0) == 2
