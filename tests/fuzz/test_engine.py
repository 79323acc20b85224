"""What the fuzzers take for a fault, and what they leave of it."""

from __future__ import annotations

import itertools
import logging
import random

import pytest
from fuzz.judged import Fault
from fuzz.mutation import mutated, stretched
from fuzz.target import parser

from fuzz import corpus, engine, judged
from metaq.errors import BadRequest


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Neither the committed corpora nor what searches have left."""
    monkeypatch.setattr(engine, "WORK", tmp_path / "work")
    monkeypatch.setattr(corpus, "FOLDER", tmp_path / "corpus")
    (tmp_path / "corpus").mkdir()


def refuse(data: bytes) -> None:
    raise BadRequest("no")


def fail(data: bytes) -> None:
    if data != b"seed":
        raise KeyError(data)


def differ(data: bytes) -> None:
    assert len(data) < 5, "two readers differ"


def logged(data: bytes) -> None:
    try:
        raise KeyError(data)  # noqa: TRY301
    except KeyError:
        logging.getLogger("metaq.somewhere").exception("a request failed")


def quadratic(data: bytes) -> None:
    """Half a second for some 20 KiB, several for 64; nothing for what changes make of a seed."""
    found = sum(1 for one, other in itertools.product(data[:8000], data[:8000]) if one == other)
    assert found >= 0


kept: list[bytes] = []


def keep(data: bytes) -> None:
    """Takes far more than its input."""
    kept.append(b"x" * (60 << 20) if len(data) > 5000 else b"")


def test_what_is_documented_is_no_fault():
    """A parser may refuse anything."""
    assert engine.run(parser("refusing", refuse, lambda: [b"seed"], BadRequest), 0.05, seed=0) > 5


@pytest.mark.parametrize(
    ("feed", "said"),
    [(refuse, "BadRequest: no"), (fail, "KeyError"), (differ, "two readers differ"), (logged, "a request failed"), (quadratic, " s for "), (keep, "MiB of memory")],
)  # fmt: skip
def test_what_is_not_is_a_fault_and_its_input_is_left(feed, said, tmp_path, monkeypatch):
    """An error of another kind, a difference, a logged exception, time, memory."""
    # The sanitizers slow down compiled code, of which these have none.
    monkeypatch.setattr(judged, "SANITIZED", False)
    before = bytearray(200 << 20)
    del before  # a peak of earlier tests hides nothing
    with pytest.raises(Fault, match=said):
        engine.run(parser("faulty", feed, lambda: [b"seed"]), 5, seed=0)
    kept.clear()
    (left,) = (tmp_path / "work" / "faulty").iterdir()
    assert corpus.name_of(left.read_bytes()) in left.name


def test_a_corpus_keeps_its_seeds_what_was_found_and_its_size():
    """Texts stay readable, and what is added stops at the limit, shortest first."""
    target = parser("some", refuse, lambda: [b"a > 5", b"\xff\x00"])
    assert corpus.save(target, [b"found"]) > 0
    assert corpus.load(target) == [b"a > 5", b"\xff\x00", b"found"]
    assert corpus.save(target, [bytes([number]) * 20_000 for number in range(65, 70)] + [b"short"]) <= corpus.BYTES_MAX
    assert corpus.load(target)[:4] == [b"a > 5", b"\xff\x00", b"found", b"short"]
    assert len(corpus.load(target)) == 6


def test_changes_of_an_input_are_those_of_its_seed():
    """A fault of the blind search can be repeated; no change is longer than it may be."""
    made = [
        mutated(random.Random(number), b"put test 0 5 0 1\r\nhello", [b"get"], [b"word"], 64) for number in range(500)
    ]
    assert made == [
        mutated(random.Random(number), b"put test 0 5 0 1\r\nhello", [b"get"], [b"word"], 64) for number in range(500)
    ]
    assert len(set(made)) > 300
    assert max(map(len, made)) <= 64
    assert all(60_000 < len(one) <= 70_000 for one in stretched(b"abc" * 10, 65_536))
