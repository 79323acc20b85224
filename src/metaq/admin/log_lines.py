"""The last lines of a broker's log."""

from __future__ import annotations

from typing import Final

from metaq.admin.configuring import reading
from metaq.client.conversation.administration import GetLogLines
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError
from metaq.model.servers.log_line import LogLine

COUNT: Final = 100
COUNT_MAX: Final = 500
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


async def last(core: ClientCore, broker: str, *, count: int = COUNT, level: str = "INFO") -> list[LogLine] | None:
    """Return the last lines of the log of the process that a broker runs in, the oldest first; None: a RocketMQ, or an earlier one of
    ours, which does not tell.

    Args:
        broker: its name (the master), or its address.
        count: 1 to 500.
        level: lines of at least this, one of `LEVELS`.

    Raises BrokerNotFound; ConfigError: no such level, or `count` is out of bounds.
    """
    if level.upper() not in LEVELS:
        raise ConfigError(f"there is no log level {level[:50]!r}: give {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
    if not 1 <= count <= COUNT_MAX:
        raise ConfigError(f"{count} lines of the log cannot be asked for: give 1 to {COUNT_MAX}")
    _, address = await reading.find(core, broker)
    return await core.ask(address, GetLogLines(count, level.upper()))
