"""Health of a broker, for load balancers and orchestrators: whether it lives, and whether it is ready to serve."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.servers.http.answers import json_answer
from metaq.servers.http.operations import JSON, Content, Operation
from metaq.servers.server import Watched
from metaq.store.retention.expiry import DiskStep


class Health(Struct, frozen=True):
    """What a health page says.

    `status`: `ok`, `ready` or `unready`. `reasons`: why it is not. `notes`: what does not keep clients from it.
    """

    status: str
    broker: str
    role: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class HealthPages:
    """`/health/live` and `/health/ready`. Open to everybody: of topics and groups they tell no names.

    Args: watched: what the process watches beside its services; None: nothing.
    """

    def __init__(self, broker: Broker, watched: Watched | None) -> None:
        self._broker, self._watched = broker, watched

    def operations(self) -> list[Operation]:
        """Return the operations."""
        told = Content(JSON, Health)
        answers = {200: told, 503: told}
        return [
            Operation(
                name="health", method="GET", path="/health", text="Tell whether clients are served.", run=self._ready,
                answers=answers,
            ),
            Operation(
                name="healthLive", method="GET", path="/health/live", text="Tell that the process lives.", run=self._live,
                answers={200: told},
            ),
            Operation(
                name="healthReady", method="GET", path="/health/ready", text="Tell whether clients are served, and why not.",
                run=self._ready, answers=answers,
            ),
        ]  # fmt: skip

    async def _live(self, _request: Request) -> Response:
        """Answer 200 while the event loop runs and the store keeps its promises; a failed store ends the process."""
        return self._answer("ok", ())

    async def _ready(self, _request: Request) -> Response:
        """Answer 200 if clients are served, 503 with the reasons if not."""
        reasons = tuple(self._reasons())
        return self._answer("unready" if reasons else "ready", reasons)

    def _answer(self, status: str, reasons: tuple[str, ...]) -> Response:
        broker = self._broker
        role = broker.options.broker_role
        health = Health(status, broker.environment.name, role, reasons, tuple(self._notes()))
        return json_answer(health, 503 if reasons else 200)

    def _reasons(self) -> Iterator[str]:
        store = self._broker.store
        if (failed := store.state.failed) is not None:
            yield f"the store has failed: {failed}"
        if store.keeper.disk_step is DiskStep.REFUSE:
            yield f"the disk is {store.keeper.disk_ratio:.0%} full, and no message is taken"
        for name in store.keeper.dead:
            yield f"the background thread {name} of the store has died: restart the broker"
        if self._watched is not None:
            yield from self._watched.reasons()

    def _notes(self) -> Iterator[str]:
        broker = self._broker
        if broker.options.draining:
            yield "it is draining: its topics are announced as read-only"
        if not broker.leads and (follows := broker.store.state.follows) is not None:
            yield follows
            told = broker.roles.master_end
            if told < 0:
                yield "it has heard nothing of its master yet"
            elif (behind := told - broker.store.log.end) > 0:
                seconds = (broker.clock.now_ms() - broker.roles.master_heard_ms) // 1000
                yield f"it is {behind} bytes behind its master, as that said {seconds} s ago"
        if trouble := broker.store.keeper.trouble:
            yield trouble
        for name, why in broker.reports.unsaved().items():
            yield f"{name} could not be saved: {why}"
        if trouble := broker.predicates.trouble:
            yield trouble
        if self._watched is not None:
            yield from self._watched.notes()
