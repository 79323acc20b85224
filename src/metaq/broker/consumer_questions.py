"""Questions of administrators to running consumers, which the broker passes on: positions (221), state (307), a message to be
consumed at once (309)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from metaq.broker.channel import Unanswered
from metaq.broker.environment import Tables
from metaq.broker.tables.members import Member
from metaq.errors import Reason, Refused
from metaq.model import MessageQueue
from metaq.saved import PendingOutcome

POSITIONS_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
"""How long clients have to answer; RocketMQ's times."""
UNDER_WAY_MAX: Final = 64
"""Questions of administrators that wait for answers at most. Their answers are kept until all of one question's are there."""
MEMBERS_MAX: Final = 1024
"""Members of a group that one question goes to at most."""
POSITIONS_VERSION: Final = 28
"""V3_0_7_SNAPSHOT, from which on clients answer 221."""
RELAY_VERSION: Final = 62
"""V3_1_8_SNAPSHOT, from which on clients answer 307 and 309."""

Positions = dict[MessageQueue, int]


class AskPositions(Struct, frozen=True):
    """The question GET_CONSUMER_STATUS_FROM_CLIENT (221): where a member stands in its queues. The answer is `Positions`."""

    group: str
    topic: str


class AskState(Struct, frozen=True):
    """The question GET_CONSUMER_RUNNING_INFO (307). The answer is passed on as it is."""

    group: str
    client_id: str
    stacks: bool
    """With the stacks of its threads."""


class AskToConsume(Struct, frozen=True):
    """The question CONSUME_MESSAGE_DIRECTLY (309): consume this message, and say how that went. The answer is passed on."""

    group: str
    client_id: str
    message_id: str
    broker: str
    """Name of the broker that has the message."""
    record: bytes


class ConsumerQuestions:
    """Asks members of consumer groups for administrators."""

    def __init__(self, tables: Tables) -> None:
        self._members = tables.members
        self._under_way = 0

    def positions(self, group: str, topic: str, client_id: str | None = None) -> PendingOutcome[dict[str, Positions]]:
        """Ask each member, or one, where it stands. Returns client id → positions, pending, of those that answer in time.

        Raises Refused: OFFLINE (the group has no member), INVALID (a member's client is too old), BUSY.
        """
        members = [one for one in self._online(group) if not client_id or one.client_id == client_id][:MEMBERS_MAX]
        for member in members:
            _check_version(group, member, POSITIONS_VERSION)
        outcome: PendingOutcome[dict[str, Positions]] = PendingOutcome()
        found, left = dict[str, Positions](), len(members)
        if not members:
            outcome.succeed(found)
            return outcome
        self._begin()

        def take(client: str, answer: Any) -> None:
            nonlocal left
            left -= 1
            if not isinstance(answer, Unanswered):
                found[client] = answer
            if not left:
                self._under_way -= 1
                outcome.succeed(found)

        for member in members:
            member.channel.ask(AskPositions(group, topic), POSITIONS_SECONDS, _for(member.client_id, take))
        return outcome

    def state(self, group: str, client_id: str, *, stacks: bool) -> PendingOutcome[Any]:
        """Ask a member for its state. Returns the pending answer, as the protocol server makes it of what came.

        Raises Refused: INVALID (the client is not online, or too old), BUSY. The pending answer is refused if none comes.
        """
        return self._relayed(AskState(group, client_id, stacks), group, client_id)

    def consume(self, question: AskToConsume) -> PendingOutcome[Any]:
        """Have a member consume a message. As `state`."""
        return self._relayed(question, question.group, question.client_id)

    def _relayed(self, question: object, group: str, client_id: str) -> PendingOutcome[Any]:
        online = self._members.consumers.get(group)
        found = [one for one in online.members.values() if one.client_id == client_id] if online is not None else []
        if not found:
            raise Refused(Reason.INVALID, f"The Consumer <{group}> <{client_id:.200}> not online")
        member = found[-1]  # the newest connection of the client
        _check_version(group, member, RELAY_VERSION)
        self._begin()
        outcome: PendingOutcome[Any] = PendingOutcome()

        def take(answer: Any) -> None:
            self._under_way -= 1
            if isinstance(answer, Unanswered):
                late = answer is Unanswered.TIMED_OUT
                text = f"consumer <{group}> <{client_id:.200}> gave no answer: {answer.value}"
                outcome.finish(Refused(Reason.UNANSWERED if late else Reason.INVALID, text))
            else:
                outcome.succeed(answer)

        member.channel.ask(question, ANSWER_SECONDS, take)
        return outcome

    def _online(self, group: str) -> list[Member]:
        online = self._members.consumers.get(group)
        if online is None:
            raise Refused(Reason.OFFLINE, f"No Any Consumer online in the consumer group: [{group:.255}]")
        return list(online.members.values())

    def _begin(self) -> None:
        if self._under_way >= UNDER_WAY_MAX:
            raise Refused(Reason.BUSY, f"{UNDER_WAY_MAX} questions to consumers wait for their answers, try again")
        self._under_way += 1


def _for(client: str, take: Callable[[str, Any], None]) -> Callable[[Any], None]:
    return lambda answer: take(client, answer)


def _check_version(group: str, member: Member, least: int) -> None:
    if member.version < least:
        raise Refused(
            Reason.INVALID, f"The Consumer <{group}> <{member.client_id:.200}> is too old to be asked: upgrade it"
        )
