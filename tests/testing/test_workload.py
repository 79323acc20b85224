"""A workload against a broker without faults: everything is in the ledger, and nothing is found."""

from __future__ import annotations

import pytest

import metaq
from metaq.errors import (
    BrokerError,
    ConfigError,
    ConnectionFailed,
    NoRoute,
    RequestTimeout,
    SendFailed,
    TransactionFailed,
)
from metaq.testing.checking import (
    Committed,
    Ledger,
    Observed,
    Promises,
    SendBegun,
    SendEnded,
    judge,
    read_history,
    report,
)
from metaq.testing.workload import Load, Workload
from metaq.testing.workload.outcomes import body_of, key_of, outcome_of
from metaq.testing.workload.producers import PRODUCERS
from tests.support import PATIENCE, eventually


def unsent(error):
    error.sent = False
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NoRoute("no"), "refused"),
        (BrokerError(2, "busy"), "refused"),
        (ConnectionFailed("broke"), "ambiguous"),
        (unsent(ConnectionFailed("refused")), "refused"),
        (RequestTimeout("late"), "ambiguous"),
        (unsent(RequestTimeout("late")), "refused"),
        (SendFailed("All tries failed before a broker took it, so nothing was stored"), "refused"),
        (SendFailed("Whether a try without an answer was stored is unknown"), "ambiguous"),
        (TransactionFailed("no", "t", "rolled back"), "refused"),
        (TransactionFailed("no", "t", "open"), "refused"),
        (TransactionFailed("no", "t", "prepared"), "ambiguous"),
        (TransactionFailed("no", "t", "unknown"), "ambiguous"),
    ],
)
def test_what_a_producer_knows_of_a_send_that_failed(error, outcome):
    assert outcome_of(error) == outcome


@pytest.mark.parametrize("size", [0, 3, 100, 8000])
def test_a_body_names_its_message(size):
    assert key_of(body_of("sync0-17", size)) == "sync0-17"
    assert len(body_of("sync0-17", size)) == max(size, len("sync0-17 "))


def test_all_kinds_of_clients_leave_a_history_that_passes(metaq_broker, tmp_path):
    """Sends of every producer, a group, an orderly group, a reader, and their progress."""
    load = Load(rate=200.0)
    with Ledger(tmp_path) as ledger, metaq.admin.Admin(metaq_broker.namesrv) as admin:
        (broker,) = {status.broker for status in admin.list_brokers()}
        workload = Workload(metaq_broker.namesrv, [broker], ledger, load, topic="all-kinds")
        workload.start()

        def enough():
            events = read_history(tmp_path)
            done = {event.process for event in events if isinstance(event, SendEnded) and event.outcome == "acked"}
            groups = {event.group for event in events if isinstance(event, Observed)}
            return len(done) == len(PRODUCERS) and groups == {"", *load.groups("all-kinds")}

        try:
            eventually(enough)
            eventually(lambda: any(isinstance(event, Committed) for event in read_history(tmp_path)))
            workload.finish(PATIENCE)
        finally:
            workload.stop()
        workload.note_replica(f"{broker}/embedded", metaq_broker.data)
    history = read_history(tmp_path)
    verdict = judge(history, Promises(groups=tuple(load.groups("all-kinds"))))
    assert verdict.ok, report(verdict, history)
    assert verdict.counts["acked"] > 20
    assert verdict.counts["atomic"] > 0
    assert {event.process for event in history if isinstance(event, SendBegun)} == {
        "sync0", "aio1", "submit2", "batch3", "atomic4",
    }  # fmt: skip


def test_an_unknown_producer_is_refused(tmp_path):
    with Ledger(tmp_path) as ledger, pytest.raises(ConfigError, match="producers pigeon: need some of sync"):
        Workload("127.0.0.1:1", ["b"], ledger, Load(producers=("pigeon",)))
