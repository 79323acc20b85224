"""Delayed messages: how many wait at each level of each broker, and when the next one is due."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin.brokers import masters
from metaq.admin.growth.work import delays
from metaq.admin.transactions import ask_all
from metaq.client.conversation.administration import GetRuntime, GetSettings
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.units import GetUnits
from metaq.client.shared.core import ClientCore
from metaq.model import MessageQueue
from metaq.model.topics.system import SCHEDULE_TOPIC

_LEVELS: Final = "messageDelayLevel"
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WORD: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)


class Level(Struct, frozen=True):
    """A delay level at a broker, whose messages lie in queue `queue` of SCHEDULE_TOPIC_XXXX from offset `delivered` on.

    `seconds`: its delay; None: the broker does not say. `due_ms`: when the next message is due; None: none waits, or it is not known.
    """

    level: int
    queue: MessageQueue
    delivered: int
    end: int
    seconds: int | None
    due_ms: int | None

    @property
    def waiting(self) -> int:
        """Messages that are still to be delivered."""
        return self.end - self.delivered


class Delays(Struct, frozen=True):
    """Broker → its levels, by number. `unreached`: broker → why it could not be asked. `notes`: what else could not be found out."""

    brokers: Mapping[str, list[Level]]
    unreached: Mapping[str, str]
    notes: tuple[str, ...]


async def listing(core: ClientCore) -> Delays:
    """Return the delay levels of all brokers. Raises BrokerNotFound."""
    notes = list[str]()
    found, unreached = await ask_all(await masters(core), lambda name, address: _of_broker(core, name, address, notes))
    return Delays(dict(sorted(found.items())), unreached, tuple(sorted(notes)))


async def _of_broker(core: ClientCore, broker: str, address: str, notes: list[str]) -> list[Level]:
    runtime = await core.ask(address, GetRuntime())
    seconds: dict[int, int] = {}
    try:
        seconds = seconds_of((await core.ask(address, GetSettings())).get(_LEVELS, ""))
    except FAULTS as error:
        notes.append(f"how long the levels of {broker} are: {error}")

    async def one(number: int, delivered: int, end: int) -> Level:
        queue = MessageQueue(SCHEDULE_TOPIC, broker, number - 1)
        due_ms = None
        if end > delivered:
            try:
                # The code of these units is the time of delivery, also at a RocketMQ.
                units = (await core.ask(address, GetUnits(queue, delivered, 1))).units
                due_ms = units[0].tags_code if units else None
            except FAULTS as error:
                notes.append(f"when level {number} of {broker} is due: {error}")
        return Level(number, queue, delivered, end, seconds.get(number), due_ms)

    known = {
        int(number): offsets
        for key, offsets in delays(runtime).items()
        if (number := key.rpartition("_")[2]).isdecimal() and 0 < int(number) <= 1000
    }
    return list(await asyncio.gather(*(one(number, *offsets) for number, offsets in sorted(known.items()))))


def seconds_of(text: str) -> dict[int, int]:
    """Return delay level → seconds, of a broker's `messageDelayLevel`. A word that is none is left out."""
    words = (_WORD.fullmatch(word) for word in text.split())
    return {number: int(word[1]) * _UNITS[word[2]] for number, word in enumerate(words, 1) if word is not None}
