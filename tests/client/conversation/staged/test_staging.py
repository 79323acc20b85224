"""What a client says about staged transactions, and reads in the answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.call import FAULTS, Call
from metaq.client.conversation.staged.staging import (
    Apply,
    Decide,
    ForgetStaged,
    GetRow,
    GetTransaction,
    ListRows,
    ListStaged,
    SealPart,
    Settle,
    Stage,
)
from metaq.errors import BadRequest, BrokerError
from metaq.model.transactions.staging import (
    Chunk,
    Decided,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    Phase,
    Staged,
    TransactionDecision,
    TransactionRow,
    TransactionState,
)
from metaq.wire import staging
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command
from metaq.wire.staging import ApplyBody, DecideBody

T = "4711@broker-a"
SEAL = PartSeal(2, 30, 4096, 0xDEADBEEF)
CHUNKS = (Chunk("p0", 1, "orders", 3, b"batch", SEAL), Chunk("p1", 0, "stock", 0, b"other"))
PART = ManifestPart("broker-a", "p0", "orders", 3, SEAL)
DECISION = TransactionDecision(T, DecisionOutcome.COMMIT, (PART,), decided_ms=1700)
STATE = TransactionState(T, Phase.COMMITTING, DECISION, remaining=2)
STAGED_HEADER = {"transactionId": T, "lifetime": "a", "seconds": "0", "bornTimestamp": "1700"}

REQUESTS = [
    (Stage(transaction=T, chunks=CHUNKS, born_ms=1700), 30000, STAGED_HEADER),
    (
        Stage(transaction=T, chunks=CHUNKS, born_ms=1700, lifetime=PartLifetime.CONNECTION),
        30000, {**STAGED_HEADER, "lifetime": "c"},
    ),
    (
        Stage(transaction=T, chunks=CHUNKS, born_ms=1700, expire_after=60, decide=DecideBody(DecisionOutcome.COMMIT, (PART,))),
        30000, {**STAGED_HEADER, "seconds": "60"},
    ),
    (
        SealPart(T, "p0", SEAL), 30001,
        {"transactionId": T, "part": "p0", "chunks": "2", "rows": "30", "bytes": "4096", "crc": "3735928559"},
    ),
    (Decide(T, DecideBody(DecisionOutcome.ROLLBACK)), 30002, {"transactionId": T}),
    (Apply(T), 30003, {"transactionId": T}),
    (Apply(T, DECISION), 30003, {"transactionId": T}),
    (GetTransaction(T), 30004, {"transactionId": T}),
    (GetRow("sink-0"), 30004, {"row": "sink-0"}),
    (ForgetStaged(transaction=T), 30005, {"transactionId": T}),
    (ForgetStaged(row="sink-0"), 30005, {"row": "sink-0"}),
    (ListStaged("A", 7), 30006, {"after": "A", "count": "7"}),
]  # fmt: skip
CALLS = [call for call, _, _ in REQUESTS]


@pytest.mark.parametrize(("call", "code", "ext"), REQUESTS, ids=lambda value: type(value).__name__)
def test_request_is_what_the_page_says(call: Call, code: int, ext: dict[str, str]):
    """Code and fields of docs/formats/staging.md."""
    command = call.request()
    assert (command.code, command.ext) == (code, ext)


def test_bodies_of_requests():
    """Sections, with the decision as the last one; a decision as JSON; nothing for the broker that knows it."""
    whole = CALLS[2].request().body
    assert staging.sections_of(whole) == (CHUNKS, DecideBody(DecisionOutcome.COMMIT, (PART,)))
    assert staging.sections_of(CALLS[0].request().body) == (CHUNKS, None)
    decided = json.loads(Decide(T, DecideBody(DecisionOutcome.ROLLBACK)).request().body)
    assert decided == {"outcome": "rollback", "parts": None, "row": "", "sequence": -1}
    assert staging.apply_body_of(Apply(T, DECISION).request().body) == ApplyBody(DECISION)
    assert not Apply(T).request().body


@pytest.mark.parametrize(
    ("call", "body", "outcome"),
    [
        (CALLS[0], b"", Staged()),
        (CALLS[2], staging.staged(Staged(DECISION, False, 3)), Staged(DECISION, False, 3)),
        (CALLS[3], b"", None),
        (CALLS[4], staging.decided(Decided(DECISION, True, 2)), Decided(DECISION, True, 2)),
        (CALLS[5], staging.transaction_state(STATE), STATE),
        (CALLS[7], staging.transaction_state(STATE), STATE),
        (CALLS[8], staging.row_state(None), None),
        (
            CALLS[8],
            staging.row_state(TransactionRow("sink-0", 7, T, Phase.OPEN)),
            TransactionRow("sink-0", 7, T, Phase.OPEN),
        ),
        (CALLS[9], b"", None),
        (CALLS[11], staging.transaction_list([STATE]), [STATE]),
    ],
)
def test_answers_are_read(call: Call, body: bytes, outcome: object):
    """An answer of STAGE without a body says that the chunks are kept and nothing is decided."""
    assert call.outcome(Command(ResponseCode.SUCCESS, body=body)) == outcome


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_a_master_whose_slaves_are_away_answers_like_any_other(call: Call):
    """SLAVE_NOT_AVAILABLE comes with the answer's body: it is done, as a plain send is. A time-out may yet be undone, and is asked again."""
    body = {
        Stage: b"",
        SealPart: b"",
        ForgetStaged: b"",
        ListRows: staging.row_list([]),
        ListStaged: staging.transaction_list([STATE]),
    }
    text = body.get(type(call))
    if text is None:
        text = (
            staging.decided(Decided(DECISION, True, 2))
            if isinstance(call, Decide | Settle)
            else staging.transaction_state(STATE)
        )
    if isinstance(call, GetRow):
        text = staging.row_state(None)
    answer = call.outcome(Command(ResponseCode.SLAVE_NOT_AVAILABLE, body=text))
    assert answer == call.outcome(Command(ResponseCode.SUCCESS, body=text))
    with pytest.raises(BrokerError):
        call.outcome(Command(ResponseCode.FLUSH_SLAVE_TIMEOUT, body=text))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_refusal_names_the_transaction_and_what_was_asked(call: Call):
    with pytest.raises(BrokerError, match=r"code 13 from 10\.0\.0\.1:1 to \w+ .+: no such topic") as caught:
        call.outcome(Command(ResponseCode.MESSAGE_ILLEGAL, remark="no such topic"), "10.0.0.1:1")
    subject = getattr(call, "row", None) or getattr(call, "transaction", "")
    assert subject in str(caught.value)


@given(st.sampled_from(CALLS), st.binary(max_size=40) | st.sampled_from([b"{}", b"null", b"[]", b'{"phase":1}']))
def test_whatever_a_peer_answers_is_an_outcome_or_an_error_that_callers_know(call: Call, body: bytes):
    try:
        call.outcome(Command(ResponseCode.SUCCESS, body=body), "peer")
    except FAULTS as error:
        assert isinstance(error, BadRequest)
