"""Requests of a slave to its master (21, 43, 45, 201): what of a broker is not in its log."""

from __future__ import annotations

from typing import ClassVar

from metaq.client.conversation.call import Call
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request

TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
GROUP_OFFSETS = RequestCode.GET_ALL_CONSUMER_OFFSET
DELAY_OFFSETS = RequestCode.GET_ALL_DELAY_OFFSET


class GetTable(Call[bytes], frozen=True):
    """Return one of a broker's tables, as its answer has it: most are what they were the last time.

    `metaq.wire.bodies` decodes them: `topic_table_in_pieces`, `group_table_of`, `group_offsets_of`, `delay_offsets_of`.
    """

    seconds: ClassVar[float] = 10.0

    table: RequestCode
    """One of the four above."""

    @property
    def action(self) -> str:
        return f"answer {self.table.name}"

    def request(self) -> Command:
        return request(self.table)

    def read(self, answer: Command) -> bytes:
        return bytes(answer.body)
