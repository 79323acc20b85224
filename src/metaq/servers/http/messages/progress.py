"""Progress of groups by HTTP, without a session: what is consumed is what the group's offset at the broker says.

`GET` and `PUT /groups/{group}/topics/{topic}/queues/{queue}/offset`, and `POST /groups/{group}/messages/{message}/retry`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.requests import OffsetCommit, SendBack
from metaq.errors import BadRequest, Reason, Refused
from metaq.options import KIB
from metaq.servers.http.answers import json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.operations import JSON, Content, Operation
from metaq.servers.http.requests import body_of, when_ready

KIND = TypeVar("KIND", bound=Struct)

BODY_BYTES_MAX: Final = 64 * KIB
_ID_CHARS: Final = (32, 56)
"""Length of an offset id, with an IPv4 and an IPv6 address in it."""


class Offset(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of both: the next offset to consume. None: the group has consumed nothing of the queue."""

    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None


class Retry(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Body of a retry: the level of its delay; 0: by the number of failures; -1: to the dead letters at once."""

    delay_level: Annotated[int, Meta(ge=-1, le=18)] = 0


class GroupProgress:
    """The pages."""

    def __init__(self, broker: Broker, callers: Callers) -> None:
        self._broker, self._callers = broker, callers

    def operations(self) -> list[Operation]:
        """Return the operations."""
        place, offset = "/groups/{group}/topics/{topic}/queues/{queue:int}/offset", Content(JSON, Offset)
        return [
            Operation(
                name="offset", method="GET", path=place, text="Return where a group goes on in a queue.", run=self._offset,
                answers={200: offset},
            ),
            Operation(
                name="commit", method="PUT", path=place, text="Acknowledge all messages of a queue before an offset.",
                run=self._commit, bodies=(offset,), answers={200: offset},
            ),
            Operation(
                name="retry", method="POST", path="/groups/{group}/messages/{message}/retry",
                text="Have a message delivered to a group again, after a delay.", run=self._retry, bodies=(Content(JSON, Retry),),
                answers={204: None},
            ),
        ]  # fmt: skip

    async def _offset(self, request: Request) -> Response:
        group, topic, queue = self._place(request)
        self._broker.lookup.max_offset(topic, queue)  # raises: there is no such queue
        return json_answer(Offset(self._broker.lookup.consumer_offset(group, topic, queue, young_is_zero=False)))

    async def _commit(self, request: Request) -> Response:
        group, topic, queue = self._place(request)
        caller = self._callers.of(request)
        told = _decoded(await body_of(request, BODY_BYTES_MAX), Offset)
        if told.offset is None:
            raise BadRequest("the offset is null: a group that has consumed something cannot go back to nothing")
        commit = OffsetCommit(group=group, topic=topic, queue_id=queue, offset=told.offset, client=caller.client)
        await when_ready(lambda: self._broker.commit_offset(commit))
        return json_answer(told)

    async def _retry(self, request: Request) -> Response:
        broker, caller = self._broker, self._callers.of(request)
        group, message = request.path_params["group"], request.path_params["message"]
        broker.gatekeeper.check_consumer(caller, group, ())
        body = await body_of(request, BODY_BYTES_MAX)
        told = _decoded(body, Retry) if body else Retry()
        back = SendBack(
            group=group, log_offset=_log_offset(message), delay_level=told.delay_level, client=caller.client
        )
        await when_ready(lambda: broker.retries.send_back(back))
        if broker.held_pulls.grown:
            broker.answer_pulls()
        return Response(status_code=204)

    def _place(self, request: Request) -> tuple[str, str, int]:
        """Return group, topic and queue of the path. Raises Refused: the caller may not consume there."""
        group, topic, queue = (request.path_params[name] for name in ("group", "topic", "queue"))
        self._broker.gatekeeper.check_consumer(self._callers.of(request), group, (topic,))
        return group, topic, queue


def _log_offset(message: str) -> int:
    """Return the place of a message in the log. Raises Refused: its id does not tell it."""
    try:
        if len(message) not in _ID_CHARS:
            raise ValueError(message)  # noqa: TRY301  one way for all
        return int(message[-16:], 16)
    except ValueError:
        raise Refused(
            Reason.INVALID,
            f"{message!r:.100} is no offset id, which a retry needs: 32 hexadecimal digits, 56 with IPv6",
        ) from None


def _decoded(body: bytes, kind: type[KIND]) -> KIND:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from None
