"""Staged transactions read offline: what a folder says of them, and what of it cannot be."""

from __future__ import annotations

import json

import msgspec
import pytest

from metaq.model.transactions.staging import (
    DecisionOutcome,
    ManifestPart,
    PartSeal,
    TransactionDecision,
    chunk_crc,
    part_crc,
)
from metaq.store.log.writer import PutRecord
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import DECISIONS_TOPIC, STAGE_TOPIC, StagedSurvey, staged_record
from metaq.wire.record import copy_mark, encode_batch
from tests.store.support import message, open_store
from tests.support import run_metaq

T = "u1@broker-a"


class Folder:
    """Writes what a broker would, record by record."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    def chunk(self, number: int, *bodies: bytes, part: str = "p", older: int | None = None, **more: str) -> int:
        batch = encode_batch((0, body, b"") for body in bodies)
        pairs = {"METAQ_CHUNK": str(number), "METAQ_LIFE": "a86400"} | more
        return self._stage("chunk", part, batch, pairs, 0 if older is None else copy_mark(older))

    def seal(self, seal: PartSeal, part: str = "p") -> int:
        text = f"{seal.chunks} {seal.rows} {seal.bytes} {seal.crc}"
        return self._stage("seal", part, b"{}", {"METAQ_SEAL": text, "METAQ_LIFE": "a86400"}, 0)

    def _stage(self, tag: str, part: str, body: bytes, more: dict[str, str], mark: int) -> int:
        pairs = {"TAGS": tag, "METAQ_TX": T, "METAQ_PART": part, "REAL_TOPIC": "orders", "REAL_QID": "1"} | more
        return self._put(STAGE_TOPIC, 0, body, pairs, mark)

    def decide(self, outcome: DecisionOutcome, *parts: ManifestPart) -> int:
        body = msgspec.json.encode(TransactionDecision(T, outcome, parts, decided_ms=5))
        return self._put(DECISIONS_TOPIC, 0, body, {"TAGS": "decide", "KEYS": T})

    def done(self) -> int:
        return self._put(DECISIONS_TOPIC, 0, json.dumps([T]).encode(), {"TAGS": "done"})

    def copy(self, of: int, *bodies: bytes, queue_id: int = 1) -> None:
        for body in bodies:
            self._put("orders", queue_id, body, {}, copy_mark(of))

    def _put(self, topic: str, queue_id: int, body: bytes, pairs: dict[str, str], mark: int = 0) -> int:
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items()).encode()
        record: PutRecord = message(topic, queue_id, body)
        record.properties, record.prepared_offset = text, mark
        return self.store.writer.put([record]).log_offset


def seal_of(*batches: tuple[bytes, ...]) -> PartSeal:
    crc = size = 0
    for batch in batches:
        body = encode_batch((0, row, b"") for row in batch)
        crc, size = part_crc(crc, chunk_crc(body)), size + len(body)
    return PartSeal(len(batches), sum(map(len, batches)), size, crc)


ROWS = (b"a", b"b", b"c"), (b"d",)
SEAL = seal_of(*ROWS)
PART = ManifestPart("broker-a", "p", "orders", 1, SEAL)


@pytest.fixture
def folder(tmp_path):
    with open_store(tmp_path / "store") as store:
        yield Folder(store)


def look(folder: Folder) -> StagedSurvey:
    return StagedSurvey(StoreReader(folder.store.folder.root))


def test_a_transaction_is_followed_from_its_chunks_to_its_copies(folder):
    """Open, committing, committed; nothing is wrong on the way, nor with a chunk that was written anew."""
    first = folder.chunk(0, *ROWS[0])
    second = folder.chunk(1, *ROWS[1])
    folder.seal(SEAL)
    assert look(folder).transactions[T].phase == "open"
    folder.decide(DecisionOutcome.PREPARED, PART)
    assert look(folder).transactions[T].phase == "prepared"
    folder.decide(DecisionOutcome.COMMIT, PART)
    folder.copy(first, b"a", b"b")
    assert look(folder).transactions[T].phase == "committing"
    newer = folder.chunk(0, *ROWS[0], older=first)
    folder.copy(newer, b"c")
    folder.copy(second, b"d")
    folder.done()
    found = look(folder)
    transaction = found.transactions[T]
    part = transaction.parts["p"]
    assert (transaction.phase, part.rows, part.copies, part.seal) == ("committed", 4, 4, SEAL)
    assert transaction.problems == found.problems == []


def test_a_part_that_the_decision_does_not_name_is_dropped(folder):
    """What a lost task had staged, and its second attempt staged anew under another name."""
    folder.chunk(0, *ROWS[0], part="p.0")
    first, second = commit(folder)
    folder.copy(first, *ROWS[0])
    folder.copy(second, *ROWS[1])
    folder.done()
    transaction = look(folder).transactions[T]
    assert (transaction.phase, transaction.problems) == ("committed", [])
    assert (transaction.drops("p.0"), transaction.drops("p")) == (True, False)


def test_a_rollback_leaves_no_copy(folder):
    """And a second one changes nothing."""
    folder.chunk(0, *ROWS[0])
    folder.decide(DecisionOutcome.ROLLBACK)
    folder.decide(DecisionOutcome.ROLLBACK)
    folder.done()
    transaction = look(folder).transactions[T]
    assert (transaction.phase, transaction.problems) == ("rolled back", [])


def test_what_an_operator_dropped_is_nobodys_any_more(folder):
    """Until its writer begins anew, with other content."""
    chunk = folder.chunk(0, *ROWS[0])
    folder._put(DECISIONS_TOPIC, 0, json.dumps({"transaction": T, "row": ""}).encode(), {"TAGS": "forget"})
    assert look(folder).transactions[T].phase == "forgotten"
    folder.chunk(0, *ROWS[1])
    folder.copy(chunk, b"a", b"b", queue_id=0)
    transaction = look(folder).transactions[T]
    assert (transaction.phase, transaction.parts["p"].rows, transaction.problems) == ("open", 1, [])


def commit(folder):
    first, second = folder.chunk(0, *ROWS[0]), folder.chunk(1, *ROWS[1])
    folder.seal(SEAL)
    folder.decide(DecisionOutcome.COMMIT, PART)
    return first, second


def undecided(folder):
    folder.copy(folder.chunk(0, *ROWS[0]), b"a")


def rolled_back(folder):
    chunk = folder.chunk(0, *ROWS[0])
    folder.decide(DecisionOutcome.ROLLBACK)
    folder.copy(chunk, b"a")


def twice(folder):
    first, _ = commit(folder)
    folder.copy(first, b"a", b"b", b"b", b"c")


def out_of_order(folder):
    first, _ = commit(folder)
    folder.copy(first, b"b", b"a")


def one_too_few(folder):
    first, _ = commit(folder)
    folder.copy(first, b"a", b"b", b"c")
    folder.done()


def elsewhere(folder):
    first, _ = commit(folder)
    folder.copy(first, b"a", queue_id=0)


def unnamed(folder):
    lost = folder.chunk(0, *ROWS[0], part="p.0")
    commit(folder)
    folder.copy(lost, *ROWS[0])


def between(folder):
    first, second = commit(folder)
    folder.copy(first, b"a", b"b", b"c")
    folder.store.writer.put([message("orders", 1, b"of somebody else")])
    folder.copy(second, b"d")


def gap(folder):
    folder.chunk(0, *ROWS[0])
    folder.chunk(2, *ROWS[1])


def wrong_seal(folder):
    folder.chunk(0, *ROWS[0])
    folder.seal(SEAL)


def other_content(folder):
    folder.chunk(0, *ROWS[0])
    folder.chunk(0, *ROWS[1])


def two_ends(folder):
    folder.decide(DecisionOutcome.COMMIT)
    folder.decide(DecisionOutcome.ROLLBACK)


def other_manifest(folder):
    folder.chunk(0, *ROWS[0], METAQ_SEAL=" ".join(str(word) for word in msgspec.structs.astuple(seal_of(ROWS[0]))))
    folder.decide(DecisionOutcome.COMMIT, PART)


WRONG = {
    undecided: "that is open",
    rolled_back: "that is rolled back",
    twice: "are not its 3 messages",
    out_of_order: "are not its 3 messages",
    one_too_few: "chunk 1 of part p has 0 copies of 1, and counts as applied",
    elsewhere: "belongs into orders:1",
    unnamed: "part p.0 has 3 copies, and the decision does not name it",
    between: "something lies between the copies of part p in orders:1",
    gap: "part p has the chunks [0, 2]",
    wrong_seal: "and is sealed with",
    other_content: "with two contents",
    two_ends: "decided commit first, and rollback later",
    other_manifest: "part p is not what the decision says of it",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_what_cannot_be_is_named(folder, wrong):
    """One sentence for each, with part and queue; nothing else is found."""
    wrong(folder)
    (problem,) = look(folder).transactions[T].problems
    assert WRONG[wrong] in problem


def test_a_record_that_cannot_be_read_is_named_by_its_place(folder):
    """The others are read."""
    folder._put(STAGE_TOPIC, 0, b"no batch", {"TAGS": "chunk", "METAQ_TX": T, "METAQ_PART": "p", "REAL_TOPIC": "t"})
    place = folder._put(DECISIONS_TOPIC, 0, b"no JSON", {"TAGS": "decide"})
    folder.decide(DecisionOutcome.ROLLBACK)
    found = look(folder)
    assert found.problems[1].startswith(f"the record at log offset {place} cannot be read")
    assert "no property 'REAL_QID'" in found.problems[0]
    assert found.transactions[T].phase == "rolled back"
    assert [record and record.problem != "" for record in map(staged_record, StoreReader(folder.store.folder.root).records())] == [
        True, True, False,
    ]  # fmt: skip


def test_commands_show_them_with_all_that_a_record_says(folder):
    """`metaq store dump` decodes both topics, `metaq store transactions` judges; exit code 1 names what is wrong."""
    root = str(folder.store.folder.root)
    first, second = commit(folder)
    folder.copy(first, *ROWS[0])
    folder.copy(second, *ROWS[1])
    folder.done()
    dumped = [json.loads(line).get("staged") for line in run_metaq("store", "dump", root).stdout.splitlines()]
    assert [staged and staged["kind"] for staged in dumped] == [
        "chunk", "chunk", "seal", "decide", None, None, None, None, "done",
    ]  # fmt: skip
    assert dumped[0] == {
        "kind": "chunk", "transaction": T, "part": "p", "topic": "orders", "queue_id": 1, "chunk": 0,
        "messages": [{"flag": 0, "properties": {}, "body": body} for body in "abc"],
    }  # fmt: skip
    assert dumped[2]["seal"] == msgspec.to_builtins(SEAL)
    assert dumped[3]["outcome"] == "commit"
    assert dumped[3]["parts"][0]["part"] == "p"
    assert dumped[-1]["value"] == [T]

    shown = run_metaq("store", "transactions", root)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split()[7:] == [T, "committed", "1", "4", "4", str(SEAL.bytes), "0"]
    folder.copy(first, b"d")
    judged = run_metaq("store", "transactions", root, "--json")
    assert judged.returncode == 1
    assert "are not its 3 messages" in judged.stderr
    (transaction,) = json.loads(judged.stdout)["transactions"]
    assert transaction["parts"] == [
        {"part": "p", "topic": "orders", "queue_id": 1, "chunks": 2, "messages": 4, "bytes": SEAL.bytes, "sealed": True,
         "copies": 5},
    ]  # fmt: skip
