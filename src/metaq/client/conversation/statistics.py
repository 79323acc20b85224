"""Requests for a broker's statistics: of one topic or group (315), and of all groups (317)."""

from __future__ import annotations

from typing import ClassVar

from metaq.client.conversation.call import Call
from metaq.model import ConsumeStats, MessageQueue
from metaq.model.statistics import StatisticFigures
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request


class GetStatistic(Call[StatisticFigures | None], frozen=True):
    """The windows of one statistic of a broker (315). Outcome None: nothing was counted under this key."""

    # RocketMQ answers SYSTEM_ERROR for a key of which nothing was counted.
    answers = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)

    name: str
    """In RocketMQ's words, TOPIC_PUT_NUMS for example."""
    key: str

    @property
    def action(self) -> str:
        return f"tell its statistic {self.name} of {self.key}"

    def request(self) -> Command:
        return request(
            RequestCode.VIEW_BROKER_STATS_DATA, headers.BrokerStatsHeader(stats_name=self.name, stats_key=self.key)
        )

    def read(self, answer: Command) -> StatisticFigures | None:
        return bodies.broker_stats_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class GetAllProgress(Call[dict[str, list[tuple[dict[MessageQueue, ConsumeStats], float]]]], frozen=True):
    """Every group of a broker that has settings there (317): of each of its topics the offsets, and its messages per second."""

    action = "tell how far all groups are"
    seconds: ClassVar[float] = 10.0

    def request(self) -> Command:
        return request(RequestCode.GET_BROKER_CONSUME_STATS, headers.AllStatsHeader())

    def read(self, answer: Command) -> dict[str, list[tuple[dict[MessageQueue, ConsumeStats], float]]]:
        return bodies.all_consume_stats_of(answer.body)[1]
