"""Progress of groups by HTTP, without a session: what is consumed is what the group's offset at the broker says.

`GET` and `PUT /groups/{group}/topics/{topic}/queues/{queue}/offset`, `POST /groups/{group}/ack`, and
`POST /groups/{group}/messages/{message}/retry`. What they have answered holds over kill -9 of the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.requests import OffsetCommit, SendBack
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import MessageQueue, QueueLocks
from metaq.options import KIB, MIB
from metaq.servers.http.answers import json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.messages.saves import OffsetSaves
from metaq.servers.http.operations import JSON, Content, Operation
from metaq.servers.http.problems import Problem, ProblemError
from metaq.servers.http.requests import Acks, body_of, when_ready
from metaq.servers.record_access import check_record
from metaq.wire.http.received import AckId, Acknowledged, GroupOffset, GroupOffsets, ack_id

KIND = TypeVar("KIND", bound=Struct)

BODY_BYTES_MAX: Final = 64 * KIB
ACK_BYTES_MAX: Final = 4 * MIB
_ID_CHARS: Final = (32, 56)
"""Length of an offset id, with an IPv4 and an IPv6 address in it."""


class Offset(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of both: the next offset to consume. None: the group has consumed nothing of the queue."""

    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None


class Retry(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Body of a retry: the level of its delay; 0: by the number of failures; -1: to the dead letters at once."""

    delay_level: Annotated[int, Meta(ge=-1, le=18)] = 0


def check_offline(broker: Broker, group: str) -> None:
    """Raise ProblemError: members of the group are connected, who commit the group's offset themselves."""
    online = broker.members.consumers.get(group)
    if online is not None and online.members:
        clients = ", ".join(online.client_ids()[:3])
        raise ProblemError(
            Problem(
                409, "members of the group are connected",
                f"group {group} has {len(online.members)} members ({clients:.300}), who consume its messages and commit its offset: "
                "take another group for HTTP, or stop them", "group-online",
            )
        )  # fmt: skip


class GroupProgress:
    """The pages. Args: saves: of the broker's offsets. acks: waits for the broker's promises."""

    def __init__(self, broker: Broker, callers: Callers, saves: OffsetSaves, acks: Acks) -> None:
        self._broker, self._callers, self._saves, self._acks = broker, callers, saves, acks

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
                name="acknowledge", method="POST", path="/groups/{group}/ack", text="Acknowledge messages that the group has received.",
                run=self._acknowledge, bodies=(Content(JSON, Acknowledged),), answers={200: Content(JSON, GroupOffsets)},
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
        check_offline(self._broker, group)
        commit = OffsetCommit(group=group, topic=topic, queue_id=queue, offset=told.offset, client=caller.client)
        await when_ready(lambda: self._broker.commit_offset(commit))
        await self._saves.saved()
        return json_answer(told)

    async def _acknowledge(self, request: Request) -> Response:
        broker, group, caller = self._broker, request.path_params["group"], self._callers.of(request)
        broker.gatekeeper.check_consumer(caller, group, ())
        told = _decoded(await body_of(request, ACK_BYTES_MAX), Acknowledged)
        ids = sorted({ack_id(text) for text in told.ack_ids})
        if strange := next((one for one in ids if one.group != group), None):
            raise BadRequest(f"an ackId is of group {strange.group!r:.100}, not of {group}")
        broker.gatekeeper.check_consumer(caller, group, {one.topic for one in ids})
        await when_ready(lambda: broker.groups.require(group, caller.client))
        check_offline(broker, group)
        # From here to the commits nobody else has a turn.
        reached = {place: self._reached(group, place, run) for place, run in _by_queue(ids).items()}
        offsets = list[GroupOffset]()
        for (topic, queue), offset in reached.items():
            commit = OffsetCommit(group=group, topic=topic, queue_id=queue, offset=offset, client=caller.client)
            broker.lookup.commit_offset(commit)
            offsets.append(GroupOffset(topic, queue, offset))
        await self._saves.saved()
        for one in ids:
            if (
                one.end <= reached[one.topic, one.queue]
            ):  # nothing of what it got is left: the next one may have the queue
                queues = (MessageQueue(one.topic, broker.environment.name, one.queue),)
                broker.locks.unlock(caller, QueueLocks(group, one.client, queues))
        return json_answer(GroupOffsets(offsets))

    def _reached(self, group: str, place: tuple[str, int], ids: list[AckId]) -> int:
        """Return how far a queue is acknowledged with these ids, in their order. Raises ProblemError: a message before one is not,
        or they are of messages that were never there."""
        lookup, (topic, queue) = self._broker.lookup, place
        end, low = lookup.max_offset(topic, queue), lookup.min_offset(topic, queue)
        stored = lookup.consumer_offset(group, topic, queue, young_is_zero=False)
        at = low if stored is None else max(low, stored)
        for one in ids:
            if one.start > at:
                raise ProblemError(
                    Problem(
                        409, "earlier messages are not acknowledged",
                        f"group {group} goes on at offset {at} of queue {queue} of {topic}, and an ackId begins at {one.start}: "
                        "acknowledge those before with it, or have them retried and then acknowledge them", "not-in-order",
                    )
                )  # fmt: skip
            at = max(at, one.stop)
        if at > max(end, stored or 0):
            detail = f"queue {queue} of {topic} ends at offset {end}, and an ackId at {at}: its topic was deleted since, or its log is lost"
            raise ProblemError(Problem(409, "there are no such messages", detail, "no-such-messages"))
        return at if stored is None else max(at, stored)

    async def _retry(self, request: Request) -> Response:
        broker, caller = self._broker, self._callers.of(request)
        group, message = request.path_params["group"], request.path_params["message"]
        broker.gatekeeper.check_consumer(caller, group, ())
        body = await body_of(request, BODY_BYTES_MAX)
        told = _decoded(body, Retry) if body else Retry()
        place = _log_offset(message)
        # What is given back is delivered to the group: who may not read its topic must not get it that way.
        check_record(broker, caller, place)
        back = SendBack(group=group, log_offset=place, delay_level=told.delay_level, client=caller.client)
        await when_ready(lambda: broker.retries.send_back(back))
        if broker.held_pulls.grown:
            broker.answer_pulls()
        await self._acks.kept()
        return Response(status_code=204)

    def _place(self, request: Request) -> tuple[str, str, int]:
        """Return group, topic and queue of the path. Raises Refused: the caller may not consume there."""
        group, topic, queue = (request.path_params[name] for name in ("group", "topic", "queue"))
        self._broker.gatekeeper.check_consumer(self._callers.of(request), group, (topic,))
        return group, topic, queue


def _by_queue(ids: Sequence[AckId]) -> dict[tuple[str, int], list[AckId]]:
    found = dict[tuple[str, int], list[AckId]]()
    for one in ids:
        found.setdefault((one.topic, one.queue), []).append(one)
    return found


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
