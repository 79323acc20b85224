"""`/cluster` and `/stats[/item]`."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.metaq1.service import Metaq1Service
from metaq.model.access import Action
from metaq.servers.http.answers import in_turns
from metaq.servers.http.metaq1.pages.answers import ANY_JSON, Guarded, either
from metaq.servers.http.metaq1.pages.config import ConfigPages
from metaq.servers.http.metaq1.pages.html import Inner, element, link, table, void
from metaq.servers.http.operations import JSON, Content, Operation, query_of
from metaq.servers.http.same_site import refuse_cross_site
from metaq.servers.metaq1_stats import HELP, StatsBodies

ITEMS: Final = tuple(item for item, _ in HELP if item.isalpha())
CONFIG, RESET = "config", "reset"


class StatsQuery(Struct, frozen=True):
    """Parameters of the figures."""

    item: Annotated[str, Meta(description="A topic, or what `stats help` names; none: the broker.")] = ""


class ClusterPages:
    """The pages. Args: guarded: lets callers in. stats: bodies of `stats`. config: has the configuration's text."""

    def __init__(
        self, broker: Broker, metaq1: Metaq1Service, guarded: Guarded, stats: StatsBodies, config: ConfigPages
    ) -> None:
        self._broker, self._metaq1, self._guarded, self._stats, self._config = broker, metaq1, guarded, stats, config

    def operations(self) -> list[Operation]:
        """Return the operations."""
        told = {200: Content(JSON, ANY_JSON)}
        return [
            Operation(
                name="metaq1Cluster", method="GET", path="/cluster", text="Tell the brokers of MetaQ 1.x in ZooKeeper.",
                run=self._guarded.page(self._cluster), answers=told,
            ),
            Operation(
                name="metaq1Stats", method="GET", path="/stats", text="Tell what `stats` says.",
                run=self._guarded.page(self._show_stats), query=StatsQuery, answers=told,
            ),
            Operation(
                name="metaq1StatsItem", method="GET", path="/stats/{item}", text="Tell what `stats ITEM` says.",
                run=self._guarded.page(self._show_stats), answers=told,
            ),
        ]  # fmt: skip

    async def _cluster(self, request: Request) -> Response:
        neighbours, own = self._metaq1.neighbours, self._stats.url
        found = await neighbours.brokers() if neighbours is not None else []
        nodes = [
            {
                "id": broker_id,
                "brokers": [{"slave": one.slave is not None, "broker-uri": one.uri} for one in brokers],
            }
            for broker_id, brokers in itertools.groupby(found, key=lambda one: one.broker_id)
        ]
        value: dict[str, Any] = {"current": own, "nodes": nodes}

        def show() -> tuple[Inner, ...]:
            rows = [
                (
                    one.broker_id,
                    "no" if one.slave is None else "yes",
                    one.uri,
                    "this broker" if one.uri.startswith(own) else "",
                )
                for one in found
            ]
            why = [] if neighbours is not None else [element("p", "This broker is not registered in ZooKeeper.")]
            return (element("p", f"This broker: {own}"), *why, table(("Id", "Slave", "Address", ""), rows))

        return either(request, value, "Cluster", show)

    async def _show_stats(self, request: Request) -> Response:
        item = request.path_params.get("item") or query_of(request, StatsQuery).item or None
        if item in {CONFIG, RESET}:
            caller = self._guarded.callers.of(request)
            self._broker.gatekeeper.check(caller, Action.ADMINISTER, "")
        if item == RESET:
            refuse_cross_site(request)
        if item == CONFIG:
            text = self._config.text()
        else:
            text = (await in_turns(self._stats.in_pieces(item))).decode("utf-8", "replace")
        box = element(
            "form",
            element("label", "Item ", void("input", name="item")),
            " ",
            element("button", "Show"),
            action="/stats",
        )
        items = element("p", "Items: ", *(part for one in ITEMS for part in (link(one, f"/stats/{one}"), " ")))
        return either(
            request, {"result": text}, f"stats {item or ''}".rstrip(), lambda: (box, items, element("pre", text))
        )
