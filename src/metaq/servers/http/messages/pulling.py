"""Pulls by HTTP: `GET /topics/{topic}/queues/{queue}/messages?offset=N`, with long polling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metaq.broker.requests import FILTER, HOLD, PullRequest
from metaq.errors import BadRequest
from metaq.model.topics.system import TOOLS_GROUP
from metaq.options import MIB
from metaq.servers.http.answers import json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.messages.puller import OUTCOMES, Puller
from metaq.servers.http.requests import connection_of
from metaq.wire.http.message import whole

COUNT: Final = 32
COUNT_MAX: Final = 1000
WAIT_SECONDS_MAX: Final = 60.0
BYTES_MAX: Final = 4 * MIB
"""Bytes of records of one answer; one message at least, whatever its size."""


class Pulling:
    """The pages. Args: puller: of the server. callers: finds who pulls."""

    def __init__(self, puller: Puller, callers: Callers) -> None:
        self._puller, self._callers = puller, callers

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/topics/{topic}/queues/{queue:int}/messages", self._pull, methods=["GET"], name="pull")]

    async def _pull(self, request: Request) -> Response:
        query = request.query_params
        pairs = {name: query[name] for name in query}
        if unknown := sorted(set(pairs) - {"offset", "max", "wait", "group", "filter", "filterType", "body"}):
            raise BadRequest(
                f"there is no parameter {unknown[0]!r:.100} of a pull: offset, max, wait, group, filter, filterType, body"
            )
        offset, count = whole(pairs, "offset", 0), min(max(1, whole(pairs, "max", COUNT)), COUNT_MAX)
        wait = min(_seconds(pairs), WAIT_SECONDS_MAX)
        wanted = PullRequest(
            group=pairs.get("group", TOOLS_GROUP).encode("utf-8", "replace"),
            topic=request.path_params["topic"].encode("utf-8", "replace"),
            queue_id=request.path_params["queue"],
            offset=offset,
            count_max=count,
            flags=FILTER | (HOLD if wait else 0),
            hold_ms=int(wait * 1000),
            subscription=pairs.get("filter", "*").encode("utf-8", "replace"),
            expression_type=pairs.get("filterType", "TAG").encode("utf-8", "replace"),
            bytes_max=BYTES_MAX,
        )
        connection = connection_of(request)
        answer = await self._puller.pull(connection, self._callers.of(request), wanted)
        pulled = answer.pulled
        return json_answer(
            {
                "outcome": OUTCOMES[answer.outcome],
                "next": answer.next_offset,
                "min": pulled.min_offset,
                "end": pulled.max_offset,
                "messages": self._puller.objects(answer, raw=pairs.get("body") == "base64"),
            }
        )


def _seconds(pairs: Mapping[str, str]) -> float:
    text = pairs.get("wait", "0")
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise BadRequest(f"wait is {text!r:.50}, no number of seconds")
    return found
