"""Ranks: who comes first, what the others get, and that nothing is lost on the way."""

from __future__ import annotations

import threading

import pytest

from metaq.client.consumer.delivery.ranks import PIECE_MESSAGES, RankedHandover, Ranking
from metaq.client.consumer.delivery.window import Chunk, Window
from metaq.errors import ConfigError
from metaq.model import MessageQueue
from tests.support import PATIENCE, eventually


def chunk(topic: str, count: int, queue_id: int = 0) -> Chunk:
    window = Window(MessageQueue(topic, "b", queue_id), 0)
    return Chunk(window, 0, bytearray(count), [f"{topic}{number}" for number in range(count)])


def drained(handover: RankedHandover, pieces: int) -> list[str]:
    """Topic of each message of the next so many pieces."""
    return [message[0] for _ in range(pieces) for message in handover.take(PATIENCE).messages]


def test_higher_ranks_come_first():
    """Whatever came earlier; without a rank it is 0."""
    handover = RankedHandover(Ranking({"u": 5, "l": -1}), 0.01)
    for topic in ("l", "n", "u"):
        handover.put(chunk(topic, 3))
    assert "".join(drained(handover, 3)) == "uuunnnlll"


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_lower_ranks_get_their_share_while_higher_ones_have_messages(share):
    """Over many messages the share is exact; several lower ranks take turns."""
    handover = RankedHandover(Ranking({"u": 2, "m": 1}), share)
    handover.put(chunk("u", 64 * PIECE_MESSAGES))
    handover.put(chunk("m", 64 * PIECE_MESSAGES))
    handover.put(chunk("l", 64 * PIECE_MESSAGES))
    first = drained(handover, 64)
    assert abs(first.count("m") + first.count("l") - share * len(first)) <= PIECE_MESSAGES
    assert abs(first.count("m") - first.count("l")) <= PIECE_MESSAGES


def test_share_is_not_saved_up():
    """Lower ranks that had nothing for a while get no more than their share afterwards."""
    handover = RankedHandover(Ranking({"u": 1}), 0.5)
    handover.put(chunk("u", 100 * PIECE_MESSAGES))
    drained(handover, 50)
    handover.put(chunk("l", 10 * PIECE_MESSAGES))
    assert drained(handover, 10).count("l") <= 5 * PIECE_MESSAGES


def test_pieces_are_small_so_that_higher_ranks_wait_briefly():
    """A chunk of 500 of low rank is not one answer."""
    handover = RankedHandover(Ranking({"u": 1}), 0.1)
    handover.put(chunk("l", 500))
    handover.take(PATIENCE)
    handover.put(chunk("u", 1))
    assert drained(handover, 1) == ["u"]


def test_range_of_queues_beats_its_topic():
    """(topic, range of queue ids)."""
    ranking = Ranking({"t": 1, ("t", range(4, 6)): 7})
    assert [ranking.of(MessageQueue("t", "b", number)) for number in (3, 4, 5, 6)] == [1, 7, 7, 1]
    assert ranking.of(MessageQueue("other", "b", 4)) == 0


@pytest.mark.parametrize("ranks", [{"t": "high"}, {"t": True}, {("t", 3): 1}, {("t", range(0)): 1}, {3: 1}])
def test_wrong_ranks_are_told(ranks):
    """A rank is a whole number, of a topic or of (topic, range)."""
    with pytest.raises(ConfigError, match="ranks"):
        Ranking(ranks)


def test_what_is_given_back_comes_again_first_of_its_rank():
    """The rest of a piece whose taker left."""
    handover = RankedHandover(Ranking({"u": 1}), 0.1)
    handover.put(chunk("l", 40))
    piece = handover.take(PATIENCE)
    handover.give_back(piece.rest(30))
    assert handover.take(PATIENCE).messages == ["l30", "l31"]
    assert len(handover.take(PATIENCE).messages) == 8


def test_many_takers_get_every_message_once():
    """As many tokens as pieces, whoever takes which."""
    handover, got = RankedHandover(Ranking({"u": 1}), 0.3), []

    def work() -> None:
        while (piece := handover.take(PATIENCE)) is not None:
            got.extend(piece.messages)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for number in range(50):
        handover.put(chunk("u" if number % 2 else "l", 100, number))
    eventually(lambda: len(got) >= 5000)
    handover.close()
    for worker in workers:
        worker.join(PATIENCE)
    assert len(got) == 5000
    assert got.count("u99") == got.count("l0") == 25
