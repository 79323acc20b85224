"""Half messages whose transactions are open: what producers have stored and neither committed nor rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin.brokers import masters
from metaq.admin.transactions import ask_all
from metaq.client.conversation.administration import GetRuntime
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConsumeStats, GetProducers
from metaq.client.conversation.reading.newest import between
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError
from metaq.model import MessageQueue, StoredMessage
from metaq.model import properties as props
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

HALVES_MAX: Final = 512
"""Half messages that are read at a broker, the oldest first."""
OPS_MAX: Final = 2048
"""Ends of half messages that are read at a broker."""
_PULL_SECONDS: Final = 5.0


class OpenHalf(Struct, frozen=True):
    """A half message. `checks`: how often its producers were asked; `producers`: of its group that are connected to the broker; None: unknown."""

    message: StoredMessage
    topic: str
    group: str
    checks: int
    producers: int | None


class BrokerHalves(Struct, frozen=True):
    """Half messages of a broker that are open, the oldest first.

    `count`: all of them; None: a RocketMQ does not tell. `complete`: the list has them all. `certain`: each of them is open. Brokers save how
    far they are from time to time, and one of ours shows nobody which have ended since: then more may be listed than are open.
    """

    halves: list[OpenHalf]
    count: int | None
    complete: bool
    certain: bool


async def listing(core: ClientCore) -> tuple[dict[str, BrokerHalves], dict[str, str]]:
    """Return broker → its open half messages, and broker → why it could not be asked. Raises BrokerNotFound."""
    found, unreached = await ask_all(await masters(core), lambda name, address: _of_broker(core, name, address))
    return dict(sorted(found.items())), unreached


async def _of_broker(core: ClientCore, broker: str, address: str) -> BrokerHalves:
    told = (await core.ask(address, GetRuntime())).get("metaqOpenHalves", "")
    count = int(told) if told.isdecimal() else None
    if count == 0:
        return BrokerHalves([], 0, complete=True, certain=True)
    table, _ = await core.ask(address, GetConsumeStats(TRANSACTION_GROUP))
    saved = {queue.topic: stats.consumer_offset for queue, stats in table.items()}
    half, op = MessageQueue(HALF_TOPIC, broker, 0), MessageQueue(OP_TOPIC, broker, 0)
    op_start, op_end = await _bounds(core, address, op, saved.get(OP_TOPIC))
    op_stop = min(op_end, op_start + OPS_MAX)
    ended = {offset for one in await _read(core, address, op, op_start, op_stop) for offset in offsets_of(one.body)}
    start, end = await _bounds(core, address, half, saved.get(HALF_TOPIC))
    stop = min(end, start + HALVES_MAX)
    messages = await _read(core, address, half, start, stop)
    alive = [one for one in messages if one.queue_offset not in ended]
    producers = await _producers(core, address, {one.properties.get(props.PRODUCER_GROUP, "") for one in alive})
    halves = [_half(one, producers) for one in alive]
    whole = stop == end and (count is None or len(halves) >= count)
    return BrokerHalves(
        halves, count, complete=whole, certain=op_stop == op_end and (count is None or len(halves) <= count)
    )


async def _bounds(core: ClientCore, address: str, queue: MessageQueue, saved: int | None) -> tuple[int, int]:
    """Return where reading of one of the two queues begins, the place that the broker has saved, and its end; (0, 0): it is not there."""
    try:
        end = await core.ask(address, GetMaxOffset(queue))
        # Before its first round a broker has saved none.
        return (await core.ask(address, GetMinOffset(queue)) if saved is None else saved), end
    except BrokerError:
        return 0, 0


async def _read(core: ClientCore, address: str, queue: MessageQueue, start: int, stop: int) -> list[StoredMessage]:
    return await core.converse_at(address, between(queue, start, stop), _PULL_SECONDS) if stop > start else []


async def _producers(core: ClientCore, address: str, groups: set[str]) -> Mapping[str, int | None]:
    """Return producer group → members that are connected to the broker, who are those that it asks."""
    found: dict[str, int | None] = {}
    for group in sorted(groups - {""}):
        try:
            found[group] = len(await core.ask(address, GetProducers(group)))
        except FAULTS:
            found[group] = None
    return found


def _half(message: StoredMessage, producers: Mapping[str, int | None]) -> OpenHalf:
    pairs = message.properties
    group, checks = pairs.get(props.PRODUCER_GROUP, ""), pairs.get(props.CHECK_TIMES, "0")
    return OpenHalf(
        message, pairs.get(props.REAL_TOPIC, ""), group, int(checks) if checks.isdecimal() and len(checks) < 10 else 0,
        producers.get(group),
    )  # fmt: skip


def offsets_of(body: bytes) -> list[int]:
    """Return the offsets in the half topic that an op message names: one, or several with commas between them."""
    return [int(word) for word in body.split(b",") if word.strip().isdigit() and len(word) < 20]
