"""Questions to running consumers by way of their broker (223, 307, 309)."""

from __future__ import annotations

from typing import ClassVar

from metaq.client.conversation.call import Call
from metaq.errors import BadRequest
from metaq.model import MessageQueue
from metaq.model.inspection import ConsumedDirectly, MemberState
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request

ANSWER_SECONDS = 15.0
"""Brokers wait 10 s for a member."""


class GetMemberPositions(Call[dict[str, dict[MessageQueue, int]]], frozen=True):
    """Where members of a group stand in a topic (223): client id → the offsets that it would commit now."""

    seconds: ClassVar[float] = ANSWER_SECONDS

    group: str
    topic: str
    client_id: str | None = None

    @property
    def action(self) -> str:
        return f"ask the members of group {self.group} where they are in topic {self.topic}"

    def request(self) -> Command:
        header = headers.ConsumerStatusHeader(group=self.group, topic=self.topic, client_id=self.client_id)
        return request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)

    def read(self, answer: Command) -> dict[str, dict[MessageQueue, int]]:
        return bodies.consumer_positions_of(answer.body)


class GetMemberState(Call[MemberState], frozen=True):
    """Options, queues and rates of a member (307)."""

    seconds: ClassVar[float] = ANSWER_SECONDS

    group: str
    client_id: str
    stacks: bool = False

    @property
    def action(self) -> str:
        return f"ask member {self.client_id} of group {self.group} for its state"

    def request(self) -> Command:
        header = headers.RunningInfoHeader(consumer_group=self.group, client_id=self.client_id, stacks=self.stacks)
        return request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)

    def read(self, answer: Command) -> MemberState:
        return bodies.member_state_of(answer.body)


class ConsumeDirectly(Call[ConsumedDirectly], frozen=True):
    """Have a member consume a message of the broker that is asked (309). `offset_id`: where the message is."""

    seconds: ClassVar[float] = ANSWER_SECONDS

    group: str
    client_id: str
    offset_id: str
    broker: str

    @property
    def action(self) -> str:
        return f"have member {self.client_id} of group {self.group} consume message {self.offset_id}"

    def request(self) -> Command:
        header = headers.ConsumeDirectlyHeader(
            consumer_group=self.group, client_id=self.client_id, message_id=self.offset_id, broker_name=self.broker
        )
        return request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)

    def read(self, answer: Command) -> ConsumedDirectly:
        if not answer.body:
            raise BadRequest("the member answered without an outcome")
        return bodies.consumed_directly_of(answer.body)
