"""The dead letters of a group, and many of them sent again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from metaq.admin.messages import Wanted
from metaq.admin.queues import browsing
from metaq.admin.sending import dead_letters
from metaq.admin.topics import TopicNotFound, describe
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.jobs import JobView, Progress
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.messages.rows import MessageRow, number_of, row_of, time_of
from metaq.errors import BadRequest, ConfigError, InvalidMessage, NoRoute, SendFailed
from metaq.model import StoredMessage
from metaq.model.topics.topic import DEAD_LETTER_PREFIX

ROWS_DEFAULT: Final = 50
MANY_MAX: Final = 1000
"""Dead letters that one job sends again."""
AT_ONCE: Final = 50
"""Dead letters that are read at a time."""
SEND_SECONDS: Final = 20.0


class LettersQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`start`, `end`: when they became dead letters. `before`, `skip`: as of a search."""

    start: str = ""
    end: str = ""
    before: Annotated[int, Meta(ge=0)] | None = None
    skip: Annotated[int, Meta(ge=0, le=browsing.CROWD_MAX)] = 0
    rows: Annotated[int, Meta(ge=1, le=200)] = ROWS_DEFAULT


class LetterRow(Struct, frozen=True):
    """`origin`: the topic that it comes from; "": it does not say."""

    message: MessageRow
    origin: str


class Letters(Struct, frozen=True):
    """`total`: dead letters that are kept; None: the topic is not there. `job`: the newest that has sent many again; None: there was none."""

    group: str
    topic: str
    total: int | None
    rows: list[LetterRow]
    start: str
    end: str
    older: dict[str, str] | None
    newer: dict[str, str] | None
    silent: list[str]
    job: JobView | None
    many_max: int


async def load(asked: Asked) -> Letters:
    query: LettersQuery = asked.query
    group = asked.path["group"]
    topic = DEAD_LETTER_PREFIX + group
    page, total = browsing.TopicPage((), None, ()), None
    try:
        total = (await asked.ask(describe(asked.cluster.core, topic))).messages
        cursor = browsing.Cursor(query.before, query.skip) if query.before is not None else None
        page = await asked.ask(
            browsing.newest(asked.cluster.core, _wanted(topic, query.start, query.end, query.rows), cursor)
        )
    except (TopicNotFound, NoRoute):
        total = None
    following = page.following
    return Letters(
        group=group, topic=topic, total=total, rows=[_letter(one) for one in page.messages], start=query.start, end=query.end,
        older={"before": str(following.before_ms), "skip": str(following.skip)} if following is not None else None,
        newer={"before": "", "skip": ""} if query.before is not None else None, silent=list(page.silent),
        job=asked.cluster.jobs.of(_subject(group)), many_max=MANY_MAX,
    )  # fmt: skip


def _wanted(topic: str, start: str, end: str, count: int) -> Wanted:
    return Wanted(topic=topic, start_ms=time_of(start, "from"), end_ms=time_of(end, "until"), limit=count)


def _letter(message: StoredMessage) -> LetterRow:
    return LetterRow(row_of(message), dead_letters.origin_of(message) or "")


def _subject(group: str) -> str:
    return f"resend {group}"


async def resend_many(asked: Asked, form: Mapping[str, str]) -> str:
    """Begin to send the newest dead letters of a time again."""
    group = asked.path["group"]
    count = number_of(form.get("count", ""), "how many")
    if count is None or not 1 <= count <= MANY_MAX:
        raise BadRequest(f"1 to {MANY_MAX} dead letters are sent again at once")
    only_group = only_group_of(form)
    wanted = _wanted(DEAD_LETTER_PREFIX + group, form.get("start", ""), form.get("end", ""), AT_ONCE)
    # What exists now: what fails meanwhile, perhaps because of this, is not sent round and round.
    until_ms = asked.now_ms + 1 if wanted.end_ms is None else min(wanted.end_ms, asked.now_ms + 1)
    wanted = Wanted(topic=wanted.topic, start_ms=wanted.start_ms, end_ms=until_ms, limit=AT_ONCE)

    async def work(progress: Progress) -> None:
        await _resend(asked, group, wanted, progress, only_group=only_group)

    where = f"to group {group} alone" if only_group else "to the topics that they come from"
    asked.cluster.jobs.start(_subject(group), f"Sends the newest {count} dead letters again, {where}", count, work)
    return "It has begun: this page shows how far it is."


async def _resend(asked: Asked, group: str, wanted: Wanted, progress: Progress, *, only_group: bool) -> None:
    core, cursor = asked.cluster.core, None
    while progress.done + progress.failed < progress.total:
        page = await asked.ask(browsing.newest(core, wanted, cursor), SEND_SECONDS)
        for message in page.messages[: progress.total - progress.done - progress.failed]:
            try:
                await asked.ask(_again(core, message, group, only_group=only_group), SEND_SECONDS)
            except (ConfigError, InvalidMessage, NoRoute, SendFailed, *FAULTS) as error:
                progress.fail(f"{message.message_id}: {error}")
            else:
                progress.done += 1
        cursor = page.following
        if cursor is None:
            progress.total = progress.done + progress.failed
            return


async def _again(core: ClientCore, message: StoredMessage, group: str, *, only_group: bool) -> None:
    await dead_letters.resend(core, message, group, dead_letters.unchanged(message), only_group=only_group)


def only_group_of(form: Mapping[str, str]) -> bool:
    """Return whether a form wants a dead letter sent to its group alone. Raises BadRequest: it does not say."""
    to = form.get("to", "")
    if to not in {"group", "topic"}:
        raise BadRequest("say where they are to go: to the topic that they come from, or to the group alone")
    return to == "group"


async def stop(asked: Asked, _form: Mapping[str, str]) -> str:
    """Stop sending many."""
    asked.cluster.jobs.stop(_subject(asked.path["group"]))
    return "It is stopped. What was sent is sent."


PAGE: Final = Page(
    name="dead_letters/group", path="/dead-letters/{group}", title="Dead letters of {group}", under="dead_letters/groups", values=Letters,
    load=load, query=LettersQuery, changes={"resend": resend_many, "stop": stop},
)  # fmt: skip
