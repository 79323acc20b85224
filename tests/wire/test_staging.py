"""Bodies of staged transactions: golden vectors, round trips, hostile bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metaq.errors import BadRequest, LocalProtocolError
from metaq.model.transactions.staging import (
    Chunk,
    Decided,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    PartState,
    Phase,
    Staged,
    TransactionDecision,
    TransactionRow,
    TransactionState,
)
from metaq.wire import staging
from metaq.wire.staging import ApplyBody, DecideBody

GOLDEN = bytes.fromhex(
    "0000001b 01 02 06 00 00000003 00000000"  # 27 bytes, a chunk, names of 2 and 6 bytes, queue 3, chunk 0
    "7031 6f7264657273 000102"
    "0000002d 02 02 05 00 00000000 00000007"  # 45 bytes, a last chunk, names of 2 and 5 bytes, queue 0, chunk 7
    "00000008 00000064 0000000000001000 deadbeef"  # 8 chunks, 100 rows, 4096 bytes, their CRC
    "7032 73746f636b 6262"
)
DECISION_HEAD = "0000004a 03 00 00 00 00000000 00000000"  # 74 bytes, a decision: 58 of JSON
SEAL = PartSeal(8, 100, 4096, 0xDEADBEEF)
CHUNKS = (
    Chunk("p1", 0, "orders", 3, b"\x00\x01\x02"),
    Chunk("p2", 7, "stock", 0, b"bb", SEAL),
)

NAMES = st.text("abcXYZ019_.:%-", min_size=1, max_size=20)
INTS, LONGS = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
SEALS = st.builds(PartSeal, INTS, INTS, LONGS, st.integers(0, 2**32 - 1))
PARTS = st.lists(st.builds(ManifestPart, NAMES, NAMES, NAMES, INTS, SEALS), max_size=3).map(tuple)
SEQUENCES = st.integers(-1, 2**63 - 1)
DECIDES = st.builds(DecideBody, st.sampled_from(DecisionOutcome), st.none() | PARTS, st.just("") | NAMES, SEQUENCES)
DECISIONS = st.builds(
    TransactionDecision, NAMES, st.sampled_from(DecisionOutcome), PARTS, st.just("") | NAMES, SEQUENCES, LONGS
)
PART_STATES = st.builds(
    PartState, NAMES, NAMES, INTS, INTS, INTS, LONGS, st.booleans(), st.sampled_from(PartLifetime), LONGS, INTS
)
STATES = st.builds(
    TransactionState,
    NAMES,
    st.sampled_from(Phase),
    st.none() | DECISIONS,
    st.lists(PART_STATES, max_size=3).map(tuple),
    INTS,
    st.lists(NAMES, max_size=3).map(tuple),
    st.lists(NAMES, max_size=3).map(tuple),
)


def test_sections_are_these_bytes() -> None:
    """A chunk, a last chunk with its seal, and a decision."""
    decide = DecideBody(DecisionOutcome.ROLLBACK)
    body = staging.sections(CHUNKS, decide)
    text = b'{"outcome":"rollback","parts":null,"row":"","sequence":-1}'
    assert body.hex() == (GOLDEN + bytes.fromhex(DECISION_HEAD) + text).hex()
    assert staging.sections_of(body) == (CHUNKS, decide)
    assert staging.sections_of(memoryview(GOLDEN)) == (CHUNKS, None)


def test_json_bodies_are_these_bytes() -> None:
    """A decision as clients send it, and as it is told."""
    part = ManifestPart("broker-a", "p1", "orders", 3, PartSeal(1, 2, 3, 4))
    assert staging.decide_body(DecideBody(DecisionOutcome.COMMIT, (part,), "query-1", 7)) == (
        b'{"outcome":"commit","parts":[{"broker":"broker-a","part":"p1","topic":"orders","queue_id":3,'
        b'"seal":{"chunks":1,"rows":2,"bytes":3,"crc":4}}],"row":"query-1","sequence":7}'
    )
    made = TransactionDecision("t@broker-a", DecisionOutcome.PREPARED, (), decided_ms=1795226546496)
    assert staging.decided(Decided(made, first=True, remaining=2)) == (
        b'{"decision":{"transaction":"t@broker-a","outcome":"prepared","parts":[],"row":"","sequence":-1,'
        b'"decided_ms":1795226546496},"first":true,"remaining":2}'
    )
    state = TransactionState(
        "t@b", Phase.OPEN, parts=(PartState("p", "T", 1, 2, 3, 4, True, PartLifetime.CONNECTION, 5),)
    )
    assert staging.transaction_state(state) == (
        b'{"transaction":"t@b","phase":"open","decision":null,"parts":[{"part":"p","topic":"T","queue_id":1,"chunks":2,'
        b'"rows":3,"bytes":4,"sealed":true,"lifetime":"c","staged_ms":5,"applied_chunks":0}],"remaining":0,'
        b'"missing":[],"unconfirmed":[]}'
    )
    row = TransactionRow("query-1", 7, "t@b", Phase.COMMITTED)
    assert staging.row_state(row) == b'{"key":"query-1","sequence":7,"transaction":"t@b","phase":"committed"}'
    assert staging.row_state(None) == b"null"


@given(
    st.lists(
        st.builds(
            Chunk,
            NAMES,
            st.integers(0, 2**32 - 1),
            NAMES,
            st.integers(-(2**31), 2**31 - 1),
            st.binary(max_size=30),
            st.none() | SEALS,
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    st.none() | DECIDES,
)
def test_sections_come_back_as_they_were(chunks: tuple[Chunk, ...], decide: DecideBody | None) -> None:
    """Encoding and reading are inverse."""
    assert staging.sections_of(staging.sections(chunks, decide)) == (chunks, decide)


def test_large_chunks_come_back_as_they_were() -> None:
    """Of a view, too, which the server gives."""
    chunks = tuple(Chunk("p", n, "orders", 0, bytes([n]) * (1 << 20), SEAL if n == 2 else None) for n in range(3))
    decide = DecideBody(DecisionOutcome.COMMIT)
    body = staging.sections(chunks, decide)
    assert staging.sections_of(body) == staging.sections_of(memoryview(body)) == (chunks, decide)
    with pytest.raises(BadRequest, match="says that it has"):
        staging.sections_of(memoryview(body)[: 2 << 20])


@given(DECIDES, DECISIONS, STATES, INTS, st.booleans())
def test_json_bodies_come_back_as_they_were(
    decide: DecideBody, made: TransactionDecision, state: TransactionState, remaining: int, first: bool
) -> None:
    """Encoding and reading are inverse, for every body."""
    assert staging.decide_body_of(staging.decide_body(decide)) == decide
    for body in (ApplyBody(), ApplyBody(made), ApplyBody(None, ("broker-b", "a,b")), ApplyBody(made, ("b",))):
        assert staging.apply_body_of(staging.apply_body(body)) == body
    assert staging.staged_of(staging.staged(Staged(made, first, remaining))) == Staged(made, first, remaining)
    assert staging.staged_of(staging.staged(Staged())) == Staged()
    assert staging.decided_of(staging.decided(Decided(made, first, remaining))) == Decided(made, first, remaining)
    assert staging.transaction_state_of(staging.transaction_state(state)) == state
    assert staging.transaction_list_of(staging.transaction_list([state, state], 1 << 30)) == [state, state]
    assert staging.transaction_list_of(staging.transaction_list([state, state], 1)) == [state]
    assert staging.transaction_list_of(staging.transaction_list([], 1)) == []
    row = TransactionRow("k", 1, made.transaction, state.phase)
    assert staging.row_state_of(staging.row_state(row)) == row
    assert staging.row_state_of(staging.row_state(None)) is None
    assert staging.row_list_of(staging.row_list([row, row])) == [row, row]


def hostile(at: int, value: int, size: int = 1) -> bytes:
    """The golden sections with one field changed."""
    return GOLDEN[:at] + value.to_bytes(size, "big") + GOLDEN[at + size :]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no chunk"),
        (GOLDEN[:10], "within the head of a section at byte 0"),
        (GOLDEN[:30], "within the head of a section at byte 27"),
        (GOLDEN[:71], "section at byte 27 says that it has 45 bytes"),
        (hostile(0, 0, 4), "section at byte 0 says that it has 0 bytes"),
        (hostile(0, 0xFFFFFFFF, 4), "4294967295 bytes"),
        (hostile(5, 255), "section at byte 0 says that it has 27 bytes"),
        (hostile(4, 2), "27 bytes"),
        (hostile(4, 9), "of kind 9"),
        (hostile(16, 0xFF), "not UTF-8"),
        (staging.sections((), DecideBody(DecisionOutcome.COMMIT)), "no chunk"),
        (staging.sections(CHUNKS, DecideBody(DecisionOutcome.COMMIT)) + GOLDEN[:27], "follows the decision"),
        (staging.sections(CHUNKS[:1] * (staging.SECTIONS_MAX + 1)), "more than 1024 chunks"),
        (GOLDEN + bytes.fromhex("0000001203000000 0000000000000000") + b"{}", "outcome"),
    ],
)
def test_hostile_sections_are_a_bad_request(body: bytes, why: str) -> None:
    """Sizes that do not fit, kinds that there are not, names that are no text."""
    with pytest.raises(BadRequest, match=why):
        staging.sections_of(body)


@given(st.binary(max_size=200), st.integers(0, 71), st.integers(0, 255))
def test_any_bytes_are_sections_or_a_bad_request(data: bytes, at: int, value: int) -> None:
    """Nothing else is raised, whatever comes."""
    for body in (data, GOLDEN + data, hostile(at, value)):
        try:
            chunks, _ = staging.sections_of(body)
        except BadRequest:
            continue
        assert sum(len(chunk.body) for chunk in chunks) < len(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"outcome":"perhaps"}', "perhaps"),
        (b'{"outcome":"commit","parts":[{}]}', "broker"),
        (b'{"outcome":"commit","sequence":9223372036854775808}', "sequence"),
        (b'{"outcome":"commit","sequence":' + b"9" * 1000 + b"}", "sequence"),
        (b'{"outcome":"commit","sequence":-2}', "sequence=-2"),
    ],
)
def test_hostile_decision_is_a_bad_request(body: bytes, why: str) -> None:
    """The text names what is wrong, and is short."""
    with pytest.raises(BadRequest, match=why) as caught:
        staging.decide_body_of(body)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("field", "value"),
    [("queue_id", -1), ("queue_id", 2**31), ("chunks", 2**31), ("rows", -1), ("bytes", 2**63), ("crc", 2**32)],
)
def test_number_of_a_manifest_out_of_range_is_named(field: str, value: int) -> None:
    """In a decision of a client, and in one of a coordinator."""
    part = ManifestPart("b", "p", "T", 0, PartSeal(1, 1, 1, 1))
    seal = part.seal if field == "queue_id" else structs.replace(part.seal, **{field: value})
    wrong = structs.replace(part, seal=seal, queue_id=value if field == "queue_id" else 0)
    with pytest.raises(BadRequest, match=f"{field}={value}"):
        staging.decide_body_of(staging.decide_body(DecideBody(DecisionOutcome.COMMIT, (wrong,))))
    with pytest.raises(BadRequest, match=f"{field}={value}"):
        staging.apply_body_of(
            staging.apply_body(ApplyBody(TransactionDecision("t@b", DecisionOutcome.COMMIT, (wrong,))))
        )


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk("p" * 256, 0, "T", 0, b""),
        Chunk("p", -1, "T", 0, b""),
        Chunk("p", 0, "T", 2**31, b""),
        Chunk("p", 0, "T", 0, b"", PartSeal(1, 1, 1, -1)),
    ],
)
def test_chunk_that_fits_no_section_is_not_sent(chunk: Chunk) -> None:
    """The error names part and topic."""
    with pytest.raises(LocalProtocolError, match=f"of part {chunk.part[:9]}.* for T:"):
        staging.sections([chunk])
