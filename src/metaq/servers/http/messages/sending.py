"""Sends by HTTP: `POST /topics/{topic}/messages`, and `POST /messages` for several topics at once."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.requests import Send
from metaq.broker.send import Sent
from metaq.errors import BadRequest, MetaqError, Reason, Refused
from metaq.in_pieces import InPieces, finish
from metaq.model.access import Action, Caller
from metaq.model.message import host_bytes
from metaq.saved import Saving
from metaq.servers.http.answers import Turns, in_turns, json_answer, problem_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.messages.atomic import AtomicSends
from metaq.servers.http.operations import BINARY, Content, Operation, query_of
from metaq.servers.http.problems import problem_of
from metaq.servers.http.requests import Acks, body_of, connection_of, fields_of, fields_of_head, when_ready
from metaq.servers.tally import Tally
from metaq.wire.http import cloud_events
from metaq.wire.http.message import (
    JSON,
    NDJSON,
    JsonMessage,
    JsonMessages,
    JsonTopicMessages,
    NewMessage,
    NewMessages,
    Stored,
    StoredMessages,
    StoredTogether,
    of_json,
    of_json_topics,
    of_ndjson,
    of_raw,
)


class SendQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a send."""

    atomic: Annotated[bool, Meta(description="All messages are stored, or none.")] = False
    transaction: Annotated[
        str, Meta(description="With `atomic`: a name of the request, with which it may be repeated.", max_length=90)
    ] = ""


class Sending:
    """The pages.

    Args:
        broker: stores.
        acks: waits for its promises.
        callers: finds who sends.
        address: this process's.
        tally: counts what is answered without the application.
    """

    def __init__(self, broker: Broker, acks: Acks, callers: Callers, address: str, tally: Tally) -> None:
        self._broker, self._acks, self._callers, self._tally = broker, acks, callers, tally
        self._atomic = AtomicSends(broker, address)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="send", method="POST", path="/topics/{topic}/messages", text="Store a message, or several.", run=self._send,
                query=SendQuery,
                bodies=(
                    Content(JSON, JsonMessage, JsonMessages), Content(NDJSON), Content(BINARY), Content(cloud_events.STRUCTURED),
                    Content(cloud_events.BATCH),
                ),
                answers={200: Content(JSON, Stored, StoredMessages, StoredTogether)},
            ),
            Operation(
                name="sendTogether", method="POST", path="/messages",
                text="Store messages of any topics together, or none of them.", run=self._send_together,
                bodies=(Content(JSON, JsonTopicMessages),), answers={200: Content(JSON, StoredTogether)},
            ),
        ]  # fmt: skip

    async def _send(self, request: Request) -> Response:
        topic, query = request.path_params["topic"], query_of(request, SendQuery)
        caller = self._callers.of(request)
        self._broker.gatekeeper.check(caller, Action.PUBLISH, topic)
        self._check_leader()
        body = await body_of(request, self._broker.options.frame_bytes_max)
        batch = await in_turns(_messages(topic, body, fields_of(request)))
        if batch.atomic or query.atomic:
            return await self._together(request, batch.messages, caller, query.transaction)
        if query.transaction:
            raise BadRequest("`transaction` names a request with `atomic`")
        return await self._one_by_one(request, batch, caller)

    async def _send_together(self, request: Request) -> Response:
        caller = self._callers.of(request)
        body = await body_of(request, self._broker.options.frame_bytes_max)
        messages, name = await in_turns(of_json_topics(body))
        for topic in {one.message.topic for one in messages}:
            self._broker.gatekeeper.check(caller, Action.PUBLISH, topic)
        self._check_leader()
        return await self._together(request, messages, caller, name)

    def _check_leader(self) -> None:
        """Return unless this broker has led until a moment ago. Raises Refused: whoever asks again soon finds the one that leads."""
        if self._broker.roles.relays():
            leader = self._broker.roles.leader_address
            raise Refused(
                Reason.UNAVAILABLE,
                f"{self._broker.store.state.follows}{f'; the broker at {leader} leads' if leader else ''}: send to the HTTP server of "
                "the one that leads now",
            )

    async def _one_by_one(self, request: Request, batch: NewMessages, caller: Caller) -> Response:
        broker, born_host, turns = self._broker, _born_host(connection_of(request)), Turns()
        topic, stored = request.path_params["topic"], list[Stored]()
        for message in batch.messages:
            try:
                sent = await when_ready(functools.partial(broker.sends.send, self._request(message, born_host, caller)))
            except MetaqError as error:
                if not stored:
                    raise
                return self._half_done(error, stored)
            stored.append(self._told(topic, sent))
            await turns.next()
        self._wake()
        if any(one.message.wait_store_ok for one in batch.messages) and (lack := await self._acks.kept()):
            warning = f"it is stored, but {lack}"
            stored = [msgspec.structs.replace(one, warning=warning) for one in stored]
        return json_answer(StoredMessages(stored) if batch.several else stored[0])

    async def _together(self, request: Request, messages: list[NewMessage], caller: Caller, name: str) -> Response:
        found = await self._atomic.send(messages, _born_host(connection_of(request)), caller, name)
        self._wake()
        lack = await self._acks.kept() if any(one.message.wait_store_ok for one in messages) else ""
        warning = f"they are stored, but {lack}" if lack else ""
        return json_answer(StoredTogether(found.transaction, found.delivered, found.messages, found.repeated, warning))

    def _wake(self) -> None:
        """Answer the pulls that wait for what was stored."""
        if self._broker.held_pulls.grown:
            self._broker.answer_pulls()

    # ------------------------------------------------------------------ metaq.servers.http.connection.Direct

    def wants(self, url: bytes) -> bool:
        """Return whether this is the URL of sends to a topic whose name needs no decoding."""
        return url[:8] == b"/topics/" and url[-9:] == b"/messages" and url.count(b"/") == 3 and b"%" not in url

    def answer(
        self, connection: HttpConnection, url: bytes, head: list[tuple[bytes, bytes]], body: bytes
    ) -> bytes | None:
        """Store one message of which nothing has to be waited for. Return the answer; None: nothing was stored."""
        broker = self._broker
        if broker.quotas.active or broker.acks.due() is not None:
            return None
        topic, fields = url[8:-9].decode("latin-1"), fields_of_head(head)
        if "origin" in fields or "sec-fetch-site" in fields:
            return None  # of a browser, which may do it for another site's page
        try:
            caller = self._callers.named(connection.peer, fields.get("authorization", ""))
            broker.gatekeeper.check(caller, Action.PUBLISH, topic)
            batch = finish(_messages(topic, body, fields))
            if batch.several:
                return None
            sent = broker.sends.send(self._request(batch.messages[0], _born_host(connection), caller))
        except (MetaqError, HTTPException, Saving):
            return None  # the application says what is wrong, or waits
        self._wake()
        self._tally.answered("send", 200)
        return msgspec.json.encode(self._told(topic, sent))

    def _request(self, new: NewMessage, born_host: bytes, caller: Caller) -> Send:
        message = new.message
        return Send(
            topic=message.topic, body=message.body, born_ms=self._broker.clock.now_ms(), born_host=born_host,
            queue_id=new.queue, properties=message.property_text(None), flag=message.flag, client=caller.client,
        )  # fmt: skip

    def _told(self, topic: str, sent: Sent) -> Stored:
        return Stored(topic, self._broker.environment.name, sent.queue_id, sent.put.queue_offset, sent.message_id)

    def _half_done(self, error: MetaqError, stored: list[Stored]) -> Response:
        """Tell that a message was refused when others were stored already."""
        self._wake()
        if not isinstance(error, Refused):
            raise error
        problem = problem_of(error)
        answer = problem_answer(problem)
        answer.body = msgspec.json.encode({**msgspec.to_builtins(problem), "stored": stored})
        answer.headers["content-length"] = str(len(answer.body))
        return answer


def _born_host(connection: HttpConnection) -> bytes:
    host, port = connection.peer.address
    return host_bytes(host.partition("%")[0] or "0.0.0.0", port)  # noqa: S104  no address to bind


def _messages(topic: str, body: bytes, fields: dict[str, Any]) -> InPieces[NewMessages]:
    """Return the messages of a request, some at a time. Raises BadRequest; HTTPException 415."""
    kind = fields.get("content-type", "").partition(";")[0].strip().lower()
    match kind:
        case cloud_events.STRUCTURED:
            return NewMessages([cloud_events.of_structured(topic, body)], several=False)
        case cloud_events.BATCH:
            return NewMessages((yield from cloud_events.of_batch(topic, body)))
        case _ if cloud_events.has_fields(fields):
            return NewMessages([cloud_events.of_fields(topic, body, fields)], several=False)
        case _ if kind == JSON:
            return (yield from of_json(topic, body))
        case _ if kind == NDJSON:
            return NewMessages((yield from of_ndjson(topic, body)))
        case _ if kind.startswith("application/cloudevents"):
            raise HTTPException(415, f"{kind}: CloudEvents come as {cloud_events.STRUCTURED} or {cloud_events.BATCH}")
    return NewMessages([of_raw(topic, body, fields)], several=False)
