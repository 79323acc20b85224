"""The last lines of a broker's log."""

from __future__ import annotations

from metaq.admin.configuring import reading
from metaq.client.conversation.administration import GetLogLines
from metaq.client.shared.core import ClientCore
from metaq.model.servers.log_line import LogLine

COUNT = 100


async def last(core: ClientCore, broker: str, *, count: int = COUNT, level: str = "INFO") -> list[LogLine] | None:
    """Return the last lines of the log of the process that a broker runs in, the oldest first; None: a RocketMQ, or an earlier one of
    ours, which does not tell.

    Args:
        broker: its name (the master), or its address.
        count: 1 to 500.
        level: lines of at least this.

    Raises BrokerNotFound.
    """
    _, address = await reading.find(core, broker)
    return await core.ask(address, GetLogLines(count, level))
