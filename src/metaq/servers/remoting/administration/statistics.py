"""Statistics by topic and group (315), by the names that RocketMQ's BrokerStatsManager has for them."""

from __future__ import annotations

from typing import Final

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.model.access import Action
from metaq.model.statistics import Statistic
from metaq.servers.remoting.handlers import Call, handles
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode

NAMES: Final = {
    "TOPIC_PUT_NUMS": Statistic.TOPIC_MESSAGES_PUT,
    "TOPIC_PUT_SIZE": Statistic.TOPIC_BYTES_PUT,
    "GROUP_GET_NUMS": Statistic.GROUP_MESSAGES_GOT,
    "GROUP_GET_SIZE": Statistic.GROUP_BYTES_GOT,
    "SNDBCK_PUT_NUMS": Statistic.GROUP_SENT_BACK,
    "BROKER_PUT_NUMS": Statistic.BROKER_MESSAGES_PUT,
    "BROKER_GET_NUMS": Statistic.BROKER_MESSAGES_GOT,
}
"""Those that are counted here. For others, as for any key of which nothing was counted, the answer is that they do not exist."""


class StatisticsHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._statistics = broker.statistics

    @handles(RequestCode.VIEW_BROKER_STATS_DATA, headers.BrokerStatsHeader, Action.OBSERVE)
    def _view(self, call: Call[headers.BrokerStatsHeader]) -> bytes:
        name, key = call.header.stats_name, call.header.stats_key
        statistic = NAMES.get(name)
        figures = None
        if statistic is not None:
            topic, at, group = key.partition("@")
            figures = self._statistics.figures(statistic, topic, group if at else None)
        if figures is None:
            raise Refused(Reason.INVALID, f"The stats <{name:.255}> <{key:.600}> not exist")
        return bodies.broker_stats(figures)
