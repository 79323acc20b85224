"""Which requests an audit log has, and how many of those that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.audit import REFUSED_OF_ONE, SOURCES_MAX, Audit, AuditedRequest
from metaq.clock import FakeClock
from metaq.errors import Reason
from metaq.model.audit import HIDDEN, VALUE_CHARS_MAX, VALUES_MAX, AuditRecord, shown_values
from metaq.wire.audit import audit_line, audit_record_of
from tests.support import ROOT

GOLDEN = (
    b'{"time":"2023-11-14T22:13:20.000Z","server":"broker-a","outcome":"refused","protocol":"remoting",'
    b'"request":"UPDATE_AND_CREATE_TOPIC","code":17,"address":"10.0.0.7:50123","account":"alice","client":"10.0.0.7@311",'
    b'"topic":"orders","values":{"topic":"orders","perm":"6","secretKey":"(hidden)"},"reason":"DENIED",'
    b'"text":"alice may not"}\n'
)


class Lines:
    def __init__(self) -> None:
        self.done: list[AuditRecord] = []
        self.refused: list[AuditRecord] = []

    def __call__(self, record: AuditRecord, *, refused: bool) -> bool:
        (self.refused if refused else self.done).append(record)
        return True


def opened() -> tuple[FakeClock, Lines, Audit]:
    clock, lines = FakeClock(), Lines()
    return clock, lines, Audit(clock, "broker-a", lines)


REQUEST = AuditedRequest(
    "remoting",
    "UPDATE_AND_CREATE_TOPIC",
    "10.0.0.7:50123",
    17,
    "alice",
    "10.0.0.7@311",
    "orders",
    values={"topic": "orders", "perm": "6", "secretKey": "s3cr3t", "Signature": "c2ln", "AccessKey": "alice"},
)


def test_a_line_has_the_form_that_is_documented() -> None:
    _, lines, _ = opened()
    clock = FakeClock()
    clock.advance((1_700_000_000_000 - clock.now_ms()) / 1000)
    Audit(clock, "broker-a", lines).refused("10.0.0.7", Reason.DENIED, "alice may not", lambda: REQUEST)
    (record,) = lines.refused
    assert audit_line(record) == GOLDEN
    assert audit_record_of(GOLDEN) == record
    page = (ROOT / "docs" / "formats" / "audit-log.md").read_bytes()
    assert GOLDEN in page


@pytest.mark.parametrize(
    "name",
    ["secretKey", "secret", "password", "passwd", "SecurityToken", "token", "signature", "credentials", "apiKey"],
)
def test_no_secret_gets_in(name: str) -> None:
    shown = shown_values({name: "s3cr3t", "perm": "6"})
    assert "s3cr3t" not in str(shown)
    assert shown.get(name, HIDDEN) == HIDDEN
    assert shown["perm"] == "6"


@given(st.dictionaries(st.text(max_size=300), st.text(max_size=400), max_size=60))
def test_values_are_bounded(fields: dict[str, str]) -> None:
    shown = shown_values(fields)
    assert len(shown) <= VALUES_MAX
    assert all(len(value) <= VALUE_CHARS_MAX + 1 for value in shown.values())


def test_a_flood_of_one_source_is_counted_and_pushes_out_no_other() -> None:
    clock, lines, audit = opened()
    for _ in range(10_000):
        audit.refused("10.0.0.7", Reason.DENIED, "no", lambda: REQUEST)
    assert len(lines.refused) == REFUSED_OF_ONE.burst
    audit.refused("10.0.0.8", Reason.DENIED, "no", lambda: REQUEST)
    assert len(lines.refused) == REFUSED_OF_ONE.burst + 1
    audit.tick()
    left = lines.refused[-1]
    assert (left.outcome, left.address, left.count) == ("left-out", "10.0.0.7", 10_000 - REFUSED_OF_ONE.burst)
    assert not lines.done
    clock.advance(60)
    audit.tick()
    assert lines.refused[-1] is left, "told once"


def test_sources_without_end_are_counted_together() -> None:
    _, lines, audit = opened()
    for number in range(5000):
        audit.refused(f"10.0.{number // 256}.{number % 256}", Reason.DENIED, "no", lambda: REQUEST)
    written = len(lines.refused)
    audit.tick()
    left = lines.refused[written:]
    assert len(left) <= SOURCES_MAX + 1
    assert written + sum(record.count for record in left) == 5000


def test_what_clients_meet_that_do_nothing_wrong_is_no_refusal() -> None:
    _, lines, audit = opened()
    for reason in (Reason.NOT_FOUND, Reason.BUSY, Reason.SUBSCRIPTION_OLD):
        audit.refused("10.0.0.7", reason, "no", lambda: REQUEST)
    assert not lines.refused


def test_administrative_requests_are_never_left_out() -> None:
    _, lines, audit = opened()
    for _ in range(2000):
        audit.done(REQUEST)
    assert len(lines.done) == 2000
