"""The blocking connection under a peer that misbehaves."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from metaq.client.conversation.call import Call
from metaq.client.conversation.routes import ListTopics
from metaq.errors import BadRequest, BrokerError, ConnectionFailed, RemoteProtocolError, RequestTimeout
from metaq.spark.cluster.link import LOST_ANSWERS_MAX, Link
from metaq.wire import bodies
from metaq.wire.command import Command, encode, reply, request
from tests.support import PATIENCE

CODE = 31


class Look(Call[bytes | memoryview]):
    """A call whose outcome is the answer's body."""

    action = "look"

    def request(self) -> Command:
        return request(CODE)

    def read(self, answer: Command) -> bytes | memoryview:
        return answer.body


class Read(Look):
    """A call whose answer cannot be read."""

    def read(self, answer: Command) -> bytes:
        raise BadRequest("no number")


@pytest.fixture
def peer():
    """A listening socket; `peer(script)` runs script(connection) in a thread and returns a Link to it."""
    links, listener = [], socket.create_server(("127.0.0.1", 0))

    def start(script, timeout=PATIENCE):
        def run():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                script(connection)
                # Closing with requests unread would reset the connection, and answers under way with it.
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(PATIENCE)
                while connection.recv(65536):
                    pass

        threading.Thread(target=run, daemon=True).start()
        links.append(Link(f"127.0.0.1:{listener.getsockname()[1]}", timeout))
        return links[-1]

    yield start
    for link in links:
        link.close()
    listener.close()


def asked(connection: socket.socket) -> bytes:
    return connection.recv(65536)


def test_answers_are_paired_by_opaque_whatever_their_order(peer):
    """The second request may be answered first; a frame may come in any pieces."""

    def backwards(connection):
        got = asked(connection)
        while len(got) < 2 * (4 + int.from_bytes(got[:4], "big")):  # both: a peer that leaves any unread resets
            got += asked(connection)
        frames = b"".join(encode(reply(Command(CODE, opaque), body=b"%d" % opaque)) for opaque in (2, 1))
        for place in range(0, len(frames), 7):
            connection.sendall(frames[place : place + 7])

    link = peer(backwards)
    first, second = link.post(Look()), link.post(Look())
    assert link.outcome(first, Look()) == b"1"
    assert link.outcome(second, Look()) == b"2"


def test_a_body_larger_than_the_scratch_buffer_arrives_whole(peer):
    """Large bodies are received straight into a buffer of their own, also with another frame behind."""
    body = bytes(range(256)) * 4000

    def large(connection):
        asked(connection)
        connection.sendall(encode(reply(Command(CODE, 1), body=body)) + encode(reply(Command(CODE, 2), body=b"next")))

    link = peer(large)
    link.post(Look())
    assert link.outcome(1, Look()) == body
    assert link.outcome(2, Look()) == b"next"


def test_a_large_list_is_read_like_a_small_one(peer):
    """Its bytes are a view: whoever reads JSON must not mind."""
    names = [f"topic-{number:05d}" for number in range(10_000)]

    def listing(connection):
        asked(connection)
        connection.sendall(encode(reply(Command(CODE, 1), body=bodies.topic_list(names))))

    assert peer(listing).ask([ListTopics()]) == [names]


def test_an_error_answer_names_the_peer_and_what_was_asked(peer):
    """`ask` raises unless all succeeded."""

    def refusing(connection):
        asked(connection)
        connection.sendall(encode(reply(Command(CODE, 1), 17, remark="no such topic")))

    link = peer(refusing)
    with pytest.raises(BrokerError, match=f"code 17 from {link.address} to look: no such topic"):
        link.ask([Look()])


def test_an_answer_that_cannot_be_read_is_the_peers_fault(peer):
    """It says what was asked, and that the connection is not to be trusted."""

    def odd(connection):
        asked(connection)
        connection.sendall(encode(reply(Command(CODE, 1))))

    link = peer(odd)
    text = f"the answer of {link.address} to a request to look cannot be read: no number"
    with pytest.raises(RemoteProtocolError, match=text):
        link.ask([Read()])


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteProtocolError, "a frame of"),
        (b"\x7f\xff\xff\xff\x00\x00\x00\x10", RemoteProtocolError, "the limit is"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x04{bad", RemoteProtocolError, "not JSON"),
        (b"\x00\x00\x00\x08\x07\x00\x00\x04abcd", RemoteProtocolError, "serialize type 7"),
        (b"\x00\x00\x01\x00\x00\x00\x00\x10{", ConnectionFailed, "closed the connection"),
        (b"", ConnectionFailed, "closed the connection"),
    ],
)
def test_garbage_is_an_error_not_a_hang(peer, answer, error, text):
    """Foreign protocols, lying lengths, broken headers and a peer that leaves in the middle."""

    def garbage(connection):
        asked(connection)
        connection.sendall(answer)

    link = peer(garbage)
    number = link.post(Look())
    with pytest.raises(error, match=text):
        link.outcome(number, Look())


def test_a_silent_peer_is_given_up(peer):
    """No answer within the time-out is an error that may be tried again."""
    done = threading.Event()
    link = peer(lambda connection: done.wait(PATIENCE), timeout=0.2)
    number = link.post(Look())
    with pytest.raises(RequestTimeout):
        link.outcome(number, Look())
    done.set()


def test_answers_that_nobody_asked_for_do_not_fill_the_memory(peer):
    """A peer may not make us keep an endless number of them."""

    def flooding(connection):
        asked(connection)
        frames = b"".join(encode(reply(Command(CODE, opaque))) for opaque in range(10, LOST_ANSWERS_MAX + 20))
        connection.sendall(frames)
        asked(connection)

    link = peer(flooding)
    number = link.post(Look())
    with pytest.raises(ConnectionFailed, match="answers to requests that were not made"):
        link.outcome(number, Look())
