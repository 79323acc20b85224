"""Which failed tries of a send count, and when the next one is made."""

from __future__ import annotations

from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.sending.tries import Tries
from metaq.errors import BrokerError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.wire.codes import ResponseCode


def unsent() -> ConnectionFailed:
    error = ConnectionFailed("connection refused")
    error.sent = False
    return error


def leaderless() -> NoRoute:
    error = NoRoute("no master is up")
    error.away = True
    return error


NOT_LEADING = BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "[NOT_LEADING]this broker is a slave")
BUSY = BrokerError(ResponseCode.SYSTEM_BUSY, "busy")


def tries(retries: int = 2) -> Tries:
    return Tries("orders", retries, 0.0, 10.0, strict=False)


def fail(one: Tries, error: MetaqError, broker: str | None = "a", others: tuple[str, ...] = ()) -> float:
    return one.failure(error, judge(error, Purpose.SEND, one.waits + 1), broker, others)


def test_what_was_surely_not_stored_costs_time_and_no_tries():
    """Refused connections, refusals of a slave, a route without a leader: for as long as the time-out lasts."""
    for error, broker in ((unsent(), "a"), (NOT_LEADING, "a"), (leaderless(), None)):
        one = tries(retries=0)
        pauses = [fail(one, error, broker) for _ in range(20)]
        assert pauses == [0.05, 0.1] + [0.2] * 18
        assert one.count == 0
        assert one.needs_route
        assert not one.over(9.9)
        assert one.over(10.0)
        assert "nothing was stored" in str(one.error(10.0, 0.2))


def test_what_may_be_stored_counts_each_time():
    """At most 1 + retries of them, whatever else happens between."""
    for error in (ConnectionFailed("cut"), RequestTimeout("late")):
        one = tries(retries=2)
        for left in (2, 1, 0):
            assert not one.over(1.0)
            fail(one, unsent())
            fail(one, error)
            assert one.count == 3 - left
        assert one.over(1.0)
        assert "unknown" in str(one.error(1.0, 0.0))


def test_a_refusal_that_waiting_does_not_mend_counts():
    one = tries(retries=1)
    fail(one, BrokerError(ResponseCode.SYSTEM_ERROR, "no"))
    fail(one, BrokerError(ResponseCode.NO_PERMISSION, "read-only"))
    assert one.over(0.1)


def test_other_brokers_are_tried_at_once_and_then_there_is_a_pause():
    """Two brokers that are both away are not asked in a circle without a pause."""
    one = tries()
    both = ("a", "b")
    assert fail(one, unsent(), "a", both) == 0.0
    assert fail(one, unsent(), "b", both) == 0.05
    assert list(one.failed) == ["a", "b"]
    assert fail(one, NOT_LEADING, "a", both) == 0.0
    assert fail(one, unsent(), "b", both) == 0.1
    assert one.count == 0


def test_a_busy_broker_is_asked_again_and_its_route_is_not():
    one = tries()
    assert fail(one, BUSY, "a", ("a", "b")) == 0.02
    assert not one.needs_route
    assert one.count == 0
