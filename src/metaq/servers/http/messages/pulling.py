"""Pulls by HTTP: `GET /topics/{topic}/queues/{queue}/messages?offset=N`, with long polling."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.requests import FILTER, HOLD, PullRequest
from metaq.model.topics.system import TOOLS_GROUP
from metaq.options import MIB
from metaq.servers.http.answers import json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.messages.puller import OUTCOMES, HttpChannel, Puller, telling
from metaq.servers.http.operations import JSON, Content, Operation, query_of
from metaq.servers.http.requests import connection_of
from metaq.wire.http.stored import StoredAsJson

WAIT_SECONDS_MAX: Final = 60.0
BYTES_MAX: Final = 4 * MIB
"""Bytes of records of one answer; one message at least, whatever its size."""

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1, description="Offset of the first message.")]


class PullQuery(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of a pull."""

    offset: Offset = 0
    max: Annotated[int, Meta(ge=1, le=1000, description="Messages at most.")] = 32
    wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for a message.")] = 0.0
    group: Annotated[str, Meta(description="Group whose traffic this counts as.")] = TOOLS_GROUP
    filter: Annotated[str, Meta(description="Tags (`a || b`), or an expression of `filterType`.")] = "*"
    filter_type: Annotated[str, Meta(description="TAG, SQL92, or METAQ_PREDICATE.")] = "TAG"
    body: Annotated[Literal["text", "base64"], Meta(description="base64: all bodies in Base64.")] = "text"


class Pulled(Struct, frozen=True):
    """Answer to a pull.

    `outcome`: found; nothing-new: nobody has sent more; go-on: nothing that fits, up to `next`; out-of-range: the queue holds other
    offsets. `next`: offset to go on at. `min`, `end`: first offset of the queue, and the one behind its last message.
    """

    outcome: str
    next: int
    min: int
    end: int
    messages: list[StoredAsJson]


class Pulling:
    """The pages. Args: puller: of the server. callers: finds who pulls."""

    def __init__(self, puller: Puller, callers: Callers) -> None:
        self._puller, self._callers = puller, callers

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="pull", method="GET", path="/topics/{topic}/queues/{queue:int}/messages",
                text="Return messages of a queue from an offset on; wait for some.", run=self._pull, query=PullQuery,
                answers={200: Content(JSON, Pulled)},
            )
        ]  # fmt: skip

    async def _pull(self, request: Request) -> Response:
        query = query_of(request, PullQuery)
        wanted = PullRequest(
            group=query.group.encode("utf-8", "replace"),
            topic=request.path_params["topic"].encode("utf-8", "replace"),
            queue_id=request.path_params["queue"],
            offset=query.offset,
            count_max=query.max,
            flags=FILTER | (HOLD if query.wait else 0),
            hold_ms=int(query.wait * 1000),
            subscription=query.filter.encode("utf-8", "replace"),
            expression_type=query.filter_type.encode("utf-8", "replace"),
            bytes_max=BYTES_MAX,
        )
        connection, raw = connection_of(request), query.body == "base64"
        answer = await self._puller.pull(HttpChannel(connection, self._callers.of(request)), wanted)
        pulled, messages = answer.pulled, await self._puller.told(connection, answer, telling(raw=raw))
        # As `Pulled`, with messages that are encoded already.
        return json_answer(
            {
                "outcome": OUTCOMES[answer.outcome], "next": answer.next_offset, "min": pulled.min_offset,
                "end": pulled.max_offset, "messages": [one.text for one in messages],
            }
        )  # fmt: skip
