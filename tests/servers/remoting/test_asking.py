"""Questions to clients: each ends once, by its answer, its time, or the end of its connection."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from metaq.broker.channel import Unanswered
from metaq.clock import FakeClock
from metaq.errors import BrokerError
from metaq.log import RateLimitedLog
from metaq.servers.remoting.asking import Questions, Spelling
from metaq.servers.remoting.dispatch import Handling, RemotingSession
from metaq.servers.remoting.server import RemotingServer
from metaq.servers.slices import SlowWork
from metaq.servers.waiting import Parking
from metaq.wire.command import Command, SerializeType, encode, reply
from tests.broker.support import open_broker
from tests.servers.support import Client, FakePeer, tick


@dataclass(frozen=True)
class Status:
    """A question to a client, as 221 is: how far is it in this topic?"""

    topic: str


def status_of(answer: Command) -> int:
    if answer.code:
        raise BrokerError(answer.code, answer.remark or "")
    return int(answer.ext["offset"])


ASKING = {Status: Spelling(lambda question: Command(221, ext={"topic": question.topic}), status_of)}


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def session(peer: FakePeer, clock: FakeClock) -> RemotingSession:
    questions = Questions(clock, ASKING, all_max=5, peer_max=3)
    faults = RateLimitedLog(logging.getLogger(__name__))
    return RemotingSession(peer, Handling({}, Parking(clock), questions, faults, slow_work=SlowWork(clock.monotonic)))


def feed(session: RemotingSession, *commands: Command) -> int:
    return session.data_received(memoryview(b"".join(map(encode, commands))))


def test_a_client_is_asked_and_its_answer_is_taken(session, peer) -> None:
    """Two questions at a time are told apart by their numbers; a second answer to one is passed over."""
    answers = []
    session.ask(Status("orders"), 5, lambda answer: answers.append(("orders", answer)))
    session.ask(Status("bills"), 5, lambda answer: answers.append(("bills", answer)))
    first, second = peer.received()
    assert [(question.code, question.ext) for question in (first, second)] == [
        (221, {"topic": "orders"}), (221, {"topic": "bills"}),
    ]  # fmt: skip
    assert not first.is_oneway
    feed(
        session, reply(second, 0, {"offset": "7"}), reply(first, 0, {"offset": "9"}), reply(first, 0, {"offset": "10"})
    )
    assert answers == [("bills", 7), ("orders", 9)]
    assert len(session.handling.questions) == 0


def test_a_client_that_refuses_has_not_answered(session, peer) -> None:
    """What cannot be understood is told as that."""
    answers = []
    session.ask(Status("orders"), 5, answers.append)
    feed(session, reply(peer.received()[0], 1, remark="never heard of it"))
    assert answers == [Unanswered.UNREADABLE]


def test_a_client_that_does_not_answer_in_time_is_given_up(session, peer, clock) -> None:
    """Its answer may come later and does no harm."""
    answers = []
    session.ask(Status("orders"), 5, answers.append)
    session.ask(Status("bills"), 60, answers.append)
    clock.advance(4.9)
    session.handling.tick()
    assert answers == []
    clock.advance(0.1)
    session.handling.tick()
    assert answers == [Unanswered.TIMED_OUT]
    feed(session, reply(peer.received()[0], 0, {"offset": "9"}))
    assert answers == [Unanswered.TIMED_OUT]


def test_questions_end_with_their_connection(session, peer) -> None:
    """Also one that is asked after that."""
    answers = []
    session.ask(Status("orders"), 5, answers.append)
    peer.closed = True
    session.connection_lost("")
    session.ask(Status("orders"), 5, answers.append)
    assert answers == [Unanswered.GONE] * 2
    assert len(session.handling.questions) == 0


def test_questions_are_bounded_per_client_and_over_all(session, peer) -> None:
    """Three for each here, five over all; more are not asked."""
    answers, other = [], RemotingSession(FakePeer(), session.handling)
    for asker in (session, other):
        for _ in range(4):
            asker.ask(Status("orders"), 5, answers.append)
    assert answers == [Unanswered.TOO_MANY] * 3
    assert (len(peer.received()), len(other.peer.received())) == (3, 2)


def test_whoever_fails_over_an_answer_harms_nobody_else(session, peer, clock) -> None:
    """Neither the connection, nor what else ends with it or waits with it; a reader that fails has read nothing."""
    answers = []

    def fail(_answer: object) -> None:
        raise ZeroDivisionError

    session.ask(Status("orders"), 5, fail)
    session.ask(Status("orders"), 5, answers.append)
    first, second = peer.received()
    sent = encode(reply(first, 0, {"offset": "9"})), encode(reply(second, 0, {"offset": "many"}))
    assert session.data_received(memoryview(b"".join(sent))) == sum(map(len, sent))
    assert answers == [Unanswered.UNREADABLE]
    for _ in range(2):
        session.ask(Status("orders"), 5, fail)
        session.ask(Status("orders"), 5, answers.append)
        clock.advance(5)
        session.handling.tick()
    session.ask(Status("orders"), 5, fail)
    session.connection_lost("")
    assert answers[1:] == [Unanswered.TIMED_OUT] * 2
    assert len(session.handling.questions) == 0


def test_what_the_protocol_has_no_words_for_is_not_asked(session, peer) -> None:
    """Whoever asks is told at once."""
    answers = []
    session.ask("how are you?", 5, answers.append)
    assert answers == [Unanswered.UNKNOWN]
    assert peer.received() == []


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_broker_asks_a_member_of_a_group_and_the_member_answers(tmp_path, clock, serialize) -> None:
    """By the channel that its heartbeat came on, beside its own requests; silence ends by the server's tick."""
    with open_broker(tmp_path, clock) as broker:
        protocol_server = RemotingServer(broker, lambda act: act(), asking=ASKING)
        client, answers = Client(protocol_server, serialize), []
        client.send("orders")
        client.beat("G", {"orders": "*"})
        (channel,) = broker.members.consumers["G"].members
        client.received()
        channel.ask(Status("orders"), 5, answers.append)
        (question,) = client.received()
        assert (question.code, question.ext, question.is_response) == (221, {"topic": "orders"}, False)
        question.serialize = serialize
        client.feed(encode(reply(question, 0, {"offset": "3"})) + client.frame(30, {"topic": "orders", "queueId": "0"}))
        assert answers == [3]
        assert [answer.ext["offset"] for answer in client.received()] == ["1"]
        channel.ask(Status("orders"), 5, answers.append)
        clock.advance(5)
        tick(protocol_server)
        channel.ask(Status("orders"), 5, answers.append)
        client.leave()
        assert answers == [3, Unanswered.TIMED_OUT, Unanswered.GONE]
        protocol_server.close()
