"""Which replica a client is told to pull from next (suggestWhichBrokerId)."""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.environment import Environment
from metaq.model import GroupConfig
from metaq.model.topics.route import MASTER_ID
from metaq.store.reads.pull import ReadResult


class Redirect:
    """Sends groups that are far behind to a slave, and back: with `slaveReadEnable`, by RocketMQ's rule.

    Far behind is what lies further from the log's end than `accessMessageInMemoryMaxRatio` of the machine's memory. Unlike
    RocketMQ's, a master sends nobody to a slave while none that copies its log has what the client would read there: a Java
    client keeps asking a slave that is away until the name servers forget it, and one that lags would hold the client.
    """

    def __init__(self, environment: Environment, is_copied: Callable[[int], bool]) -> None:
        """`is_copied`: whether a slave that copies the log has it up to a LogOffset."""
        self._environment, self._is_copied = environment, is_copied
        self._in_memory = environment.store.reader.in_memory

    def after(self, group: GroupConfig, pulled: ReadResult) -> int:
        """Return the broker id to suggest with the answer of a group's pull."""
        if not self._environment.options.slave_read_enable:
            return MASTER_ID
        near = not pulled.count or self._in_memory(pulled.last_log)
        wanted = group.broker_id if near else group.slow_broker_id
        if wanted == MASTER_ID or self._environment.store.state.follows is not None:
            return wanted
        # The log's stream does not say which slave has which number: the one that has most of the log counts.
        return wanted if self._is_copied(pulled.last_log) else MASTER_ID
