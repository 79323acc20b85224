"""Sends by HTTP: `POST /topics/{topic}/messages`."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.requests import Send
from metaq.broker.send import Sent
from metaq.errors import MetaqError, Refused
from metaq.model.access import Action, Caller
from metaq.model.message import host_bytes
from metaq.saved import Saving
from metaq.servers.http.answers import json_answer, problem_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.operations import BINARY, Content, NoQuery, Operation, query_of
from metaq.servers.http.problems import problem_of
from metaq.servers.http.requests import Acks, body_of, connection_of, fields_of, fields_of_head, when_ready
from metaq.wire.http import cloud_events
from metaq.wire.http.message import (
    JSON,
    NDJSON,
    JsonMessage,
    JsonMessages,
    NewMessage,
    Stored,
    StoredMessages,
    of_json,
    of_ndjson,
    of_raw,
)


class Sending:
    """The pages. Args: broker: stores. acks: waits for its promises. callers: finds who sends."""

    def __init__(self, broker: Broker, acks: Acks, callers: Callers) -> None:
        self._broker, self._acks, self._callers = broker, acks, callers

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="send", method="POST", path="/topics/{topic}/messages", text="Store a message, or several.", run=self._send,
                bodies=(
                    Content(JSON, JsonMessage, JsonMessages), Content(NDJSON), Content(BINARY), Content(cloud_events.STRUCTURED),
                    Content(cloud_events.BATCH),
                ),
                answers={200: Content(JSON, Stored, StoredMessages)},
            )
        ]  # fmt: skip

    async def _send(self, request: Request) -> Response:
        query_of(request, NoQuery)  # what says more of a message is in the body, or in header fields
        topic, broker = request.path_params["topic"], self._broker
        caller = self._callers.of(request)
        broker.gatekeeper.check(caller, Action.PUBLISH, topic)
        body = await body_of(request, broker.options.frame_bytes_max)
        messages, several = _messages(topic, body, fields_of(request))
        born_host = _born_host(connection_of(request))
        stored = list[Stored]()
        for message in messages:
            try:
                sent = await when_ready(functools.partial(broker.sends.send, self._request(message, born_host, caller)))
            except MetaqError as error:
                if not stored:
                    raise
                return self._half_done(error, stored)
            stored.append(self._told(topic, sent))
        if broker.held_pulls.grown:
            broker.answer_pulls()
        if any(one.message.wait_store_ok for one in messages) and (lack := await self._acks.kept()):
            warning = f"it is stored, but {lack}"
            stored = [msgspec.structs.replace(one, warning=warning) for one in stored]
        return json_answer(StoredMessages(stored) if several else stored[0])

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
        try:
            caller = self._callers.named(connection.peer, fields.get("authorization", ""))
            broker.gatekeeper.check(caller, Action.PUBLISH, topic)
            messages, several = _messages(topic, body, fields)
            if several:
                return None
            sent = broker.sends.send(self._request(messages[0], _born_host(connection), caller))
        except (MetaqError, HTTPException, Saving):
            return None  # the application says what is wrong, or waits
        if broker.held_pulls.grown:
            broker.answer_pulls()
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
        if self._broker.held_pulls.grown:
            self._broker.answer_pulls()
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


def _messages(topic: str, body: bytes, fields: dict[str, Any]) -> tuple[list[NewMessage], bool]:
    """Return the messages of a request, and whether the answer is a list. Raises BadRequest; HTTPException 415."""
    kind = fields.get("content-type", "").partition(";")[0].strip().lower()
    match kind:
        case cloud_events.STRUCTURED:
            return [cloud_events.of_structured(topic, body)], False
        case cloud_events.BATCH:
            return cloud_events.of_batch(topic, body), True
        case _ if cloud_events.has_fields(fields):
            return [cloud_events.of_fields(topic, body, fields)], False
        case _ if kind == JSON:
            return of_json(topic, body)
        case _ if kind == NDJSON:
            return of_ndjson(topic, body), True
        case _ if kind.startswith("application/cloudevents"):
            raise HTTPException(415, f"{kind}: CloudEvents come as {cloud_events.STRUCTURED} or {cloud_events.BATCH}")
    return [of_raw(topic, body, fields)], False
