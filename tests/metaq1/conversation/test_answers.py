"""What answers mean: the recorded transcripts of the original, and every code."""

from __future__ import annotations

import itertools

import pytest

from metaq.errors import BrokerError, RemoteProtocolError
from metaq.metaq1 import Partition, SendResult
from metaq.metaq1.conversation import answers
from metaq.metaq1.conversation.answers import Found, Moved, Nothing
from metaq.metaq1.conversation.pipeline import FIRST_OPAQUE, Pipeline
from metaq.model.transactions.metaq1 import LocalKey
from metaq.wire.metaq1.commands import (
    GetLine,
    OffsetLine,
    PutLine,
    ResultLine,
    Step,
    TooLong,
    TransactionLine,
    ValueLine,
    VersionLine,
)
from metaq.wire.metaq1.frame import checksum, frame, frames, with_attribute

WHERE = ("10.0.0.5:8123", "do it")
FRAMES = frame(7, 0, b"hello") * 2
KEY = LocalKey("10.0.0.5-1373971200000-1", 1)


def put(topic: str, partition: int, flag: int, body: bytes, **more: object):
    return lambda opaque: PutLine(topic, partition, flag, body, opaque, checksum(body), **more)


def step(word: Step, timeout: int | None = None):
    return lambda opaque: TransactionLine(KEY, KEY.session_id, word, opaque, timeout)


TX = f"{KEY} {KEY.session_id}"
TRANSCRIPT = [  # command, its line, the answer as it was recorded, what it means
    (
        put("test", 0, 0, b"hello"), b"put test 0 5 0 907060870 2\r\nhello",
        b"result 200 25 2\r\n-5468927205637619712 0 25",
        lambda answer: answers.stored(answer, *WHERE, 3), SendResult(-5468927205637619712, Partition(3, 0), 25),
    ),
    (
        put("test", -1, 1, with_attribute("attr1", b"hi")),
        b"put test -1 11 1 1871851234 -2147483647\r\n\0\0\0\5attr1hi",
        b"result 200 25 -2147483647\r\n-5468927205637619711 0 50",
        lambda answer: answers.stored(answer, *WHERE, -1), SendResult(-5468927205637619711, Partition(-1, 0), 50),
    ),
    (
        lambda opaque: GetLine("test", "g", 0, 0, 1024, opaque), b"get test g 0 0 1024 8\r\n",
        b"value 50 8\r\n" + FRAMES, lambda answer: answers.fetched(answer, *WHERE), Found(FRAMES),
    ),
    (
        lambda opaque: GetLine("test", "g", 0, 50, 1024, opaque), b"get test g 0 50 1024 10\r\n",
        b"result 404 37 10\r\nCould not find message at position 50",
        lambda answer: answers.fetched(answer, *WHERE), Nothing("Could not find message at position 50"),
    ),
    (
        lambda opaque: GetLine("test", "g", 0, 2**63 - 1, 1024, opaque),
        b"get test g 0 9223372036854775807 1024 12\r\n", b"result 301 2 12\r\n50",
        lambda answer: answers.fetched(answer, *WHERE), Moved(50),
    ),
    (
        lambda opaque: OffsetLine("test", "g", 0, 5000, opaque), b"offset test g 0 5000 17\r\n",
        b"result 200 2 17\r\n50", lambda answer: answers.offset_of(answer, *WHERE), 50,
    ),
    (
        VersionLine, b"version 5\r\n", b"result 200 7 5\r\n1.4.6.2",
        lambda answer: answers.result_of(answer, *WHERE), b"1.4.6.2",
    ),
    (
        step(Step.BEGIN, 20), f"transaction {TX} BEGIN 20 -2147483645\r\n".encode(), b"result 200 0 -2147483645\r\n",
        lambda answer: answers.result_of(answer, *WHERE), b"",
    ),
    (
        put("test", 0, 0, b"t1", transactional=True, key=KEY),
        f"put test 0 2 0 1532276279 {KEY} -2147483644\r\nt1".encode(),
        b"result 200 25 -2147483644\r\n-5468927205637619710 0 -1",
        lambda answer: answers.stored(answer, *WHERE, 0), SendResult(-5468927205637619710, Partition(0, 0), -1),
    ),
    (
        step(Step.COMMIT_ONE_PHASE), f"transaction {TX} COMMIT_ONE_PHASE -2147483642\r\n".encode(),
        b"result 200 0 -2147483642\r\n", lambda answer: answers.result_of(answer, *WHERE), b"",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line", "answer", "read", "meaning"), TRANSCRIPT)
def test_the_recorded_transcript(make, line, answer, read, meaning):
    """The command byte for byte, and the answer's meaning."""
    pipeline: Pipeline[str] = Pipeline()
    pipeline._numbers = itertools.count(int(line.partition(b"\r\n")[0].rpartition(b" ")[2]) - FIRST_OPAQUE)
    assert pipeline.send(make, "me")[1] == line
    ((waiter, found),), used = pipeline.receive(answer)
    assert (waiter, used) == ("me", len(answer))
    assert read(found) == meaning


def test_frames_of_the_recorded_value_are_messages():
    assert [one.body for one in frames(FRAMES)] == [b"hello", b"hello"]


@pytest.mark.parametrize(("code", "retriable"), [(400, False), (403, False), (500, True), (503, True), (999, False)])
def test_a_refused_put_says_code_text_and_place(code, retriable):
    with pytest.raises(BrokerError) as refused:
        answers.stored(ResultLine(code, "grün".encode(), 1), "a:1", "send to topic t", 0)
    assert (refused.value.code, refused.value.remark, refused.value.retriable) == (code, "grün", retriable)
    assert str(refused.value) == f"code {code} from a:1 to send to topic t: grün"


def test_a_closed_partition_is_named_where_the_server_has_no_words():
    with pytest.raises(BrokerError, match="closed by an operator"):
        answers.stored(ResultLine(403, b"", 1), *WHERE, 0)


def test_a_get_of_a_closed_partition_finds_nothing():
    """A consumer asks again later."""
    assert answers.fetched(ResultLine(403, b"Partition[0-1] has been closed", 1), *WHERE) == Nothing(
        "Partition[0-1] has been closed"
    )


@pytest.mark.parametrize("code", [400, 500, 503])
def test_other_codes_of_a_get_are_errors(code):
    with pytest.raises(BrokerError, match="no"):
        answers.fetched(ResultLine(code, b"no", 1), *WHERE)


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (lambda answer: answers.stored(answer, *WHERE, 0), ValueLine(b"x", 1)),
        (lambda answer: answers.stored(answer, *WHERE, 0), ResultLine(200, b"1 2", 1)),
        (lambda answer: answers.stored(answer, *WHERE, 0), ResultLine(200, b"1 2 x", 1)),
        (lambda answer: answers.offset_of(answer, *WHERE), ResultLine(200, b"", 1)),
        (lambda answer: answers.offset_of(answer, *WHERE), ResultLine(200, b"1_0", 1)),
        (lambda answer: answers.offset_of(answer, *WHERE), ResultLine(200, b"1" * 10_000, 1)),
        (lambda answer: answers.fetched(answer, *WHERE), ResultLine(301, b"x", 1)),
        (lambda answer: answers.fetched(answer, *WHERE), TooLong(ValueLine(b"", 1), 1 << 30)),
        (lambda answer: answers.figures_of(answer, *WHERE), ResultLine(200, b"nothing", 1)),
    ],
)
def test_an_answer_that_the_command_cannot_have_is_the_server_s_fault(read, answer):
    with pytest.raises(RemoteProtocolError):
        read(answer)


def test_figures_are_the_lines_between_the_frame():
    body = b"STATS\r\npid 7\r\nversion 0.1\r\nalone\r\nEND\r\n"
    assert answers.figures_of(ResultLine(200, body, 1), *WHERE) == {"pid": "7", "version": "0.1", "alone": ""}
