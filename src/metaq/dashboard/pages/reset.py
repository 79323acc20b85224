"""A group moved to another place in a topic: looked at first, then done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from metaq.admin import groups
from metaq.dashboard.page import Asked, Done, Page
from metaq.dashboard.pages.messages.rows import time_of
from metaq.dashboard.rendering.filters import count
from metaq.dashboard.rendering.filters import time as time_text
from metaq.dashboard.rendering.renderer import segment
from metaq.errors import BadRequest, MetaqError
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX

SECONDS: Final = 10.0
QUEUES_MAX: Final = 500


class ResetQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`to`: "earliest", "latest" (which skips the backlog), or "time", then `time`: ISO 8601, UTC."""

    topic: str = ""
    to: Annotated[str, Meta(pattern="^(earliest|latest|time)?$")] = ""
    time: str = ""


class MoveRow(Struct, frozen=True):
    """A queue: the group is at `consumed`, and goes on at `offset`."""

    broker: str
    queue: int
    consumed: int
    offset: int
    skipped: int
    repeated: int


class MovePreview(Struct, frozen=True):
    """What would happen. `online`: members are told, and go on there within seconds. `time_ms`: place that was asked for; None: an end."""

    rows: list[MoveRow]
    rows_more: int
    skipped: int
    repeated: int
    online: bool
    time_ms: int | None


class Reset(Struct, frozen=True):
    """`topics`: in which the group has progress. `preview`: None: nothing was asked for yet, or `problem` says why there is none."""

    group: str
    topics: list[str]
    topic: str
    to: str
    time: str
    members: int
    broadcasting: bool
    preview: MovePreview | None
    problem: str


async def load(asked: Asked) -> Reset:
    query: ResetQuery = asked.query
    group, core = asked.path["group"], asked.cluster.core
    progress = await asked.ask(groups.progress(core, group))
    own = {RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group}
    topics = sorted({one.queue.topic for one in progress.queues} - own)
    preview, problem = None, ""
    if query.topic and query.to:
        try:
            start = _start(query.to, query.time)
            moved = await asked.ask(groups.move(core, group, query.topic, start, dry_run=True))
            preview = _preview(moved, start if isinstance(start, int) else None)
        except MetaqError as error:
            problem = str(error)
    return Reset(
        group, topics, query.topic, query.to, query.time, len(progress.members), progress.broadcasting, preview, problem
    )


def _start(to: str, time: str) -> str | int:
    if to in {"earliest", "latest"}:
        return to
    start = time_of(time, "the time") if to == "time" else None
    if start is None:
        raise BadRequest("say where the group is to go: to the first message, behind the last one, or to a time")
    return start


def _preview(moved: list[groups.MovedProgress], time_ms: int | None) -> MovePreview:
    rows = [
        MoveRow(one.queue.broker, one.queue.queue_id, one.consumed, one.offset, one.skipped, one.repeated)
        for one in moved
    ]
    return MovePreview(
        rows[:QUEUES_MAX], max(0, len(rows) - QUEUES_MAX), sum(one.skipped for one in moved), sum(one.repeated for one in moved),
        any(one.online for one in moved), time_ms,
    )  # fmt: skip


async def reset(asked: Asked, form: Mapping[str, str]) -> Done:
    """Move the group."""
    group, topic, to = asked.path["group"], form.get("topic", ""), form.get("to", "")
    if not topic:
        raise BadRequest("say in which topic the group is to be moved")
    start = _start(to, form.get("time", ""))
    moved = await asked.ask(groups.move(asked.cluster.core, group, topic, start), SECONDS)
    done = _preview(moved, None)
    where = {"earliest": "to the first message", "latest": "behind the last message"}.get(to) or (
        f"to the first message from {time_text(start if isinstance(start, int) else None)} on"
    )
    text = f"Group {group} goes on in topic {topic} {where}: {count(done.skipped)} messages are skipped, {count(done.repeated)} come again."
    return Done(text, f"/groups/{segment(group)}")


PAGE: Final = Page(
    name="reset", path="/groups/{group}/reset", title="Move group {group}", under="groups", values=Reset, load=load, query=ResetQuery,
    changes={"reset": reset}, follows=False,
)  # fmt: skip
