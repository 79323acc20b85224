"""A query whose Python starts too slowly is started again."""

from __future__ import annotations

import pytest

from metaq.errors import MetaqError
from metaq.pipelines.driver import watch
from metaq.spark.engine.slow_start import STARTS_MAX, TOO_SLOW, run_through

SLOW = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {TOO_SLOW}. SQLSTATE: XXKST"


class Query:
    """Fails as told, at once."""

    lastProgress = None  # noqa: N815
    isActive = False  # noqa: N815

    def __init__(self, fault: str | None) -> None:
        self.fault = fault

    def stop(self) -> None:
        pass

    def exception(self) -> str | None:
        return self.fault


class Looked:
    """A run of which only matters whether it is asked to end."""

    def __init__(self, *, stopping: bool = False) -> None:
        self.stopping = stopping

    def wait(self, _seconds: float) -> bool:
        return self.stopping

    def behind(self, messages: int | None) -> None:
        pass

    def wake(self) -> None:
        pass


def run(*faults: str | None) -> int:
    """How often it was started; each start fails as told, the last of `faults` stands for all that follow."""
    told, starts = list(faults), 0

    def start() -> Query:
        nonlocal starts
        starts += 1
        return Query(told.pop(0) if len(told) > 1 else told[0])

    try:
        run_through(start, lambda query: watch(query, Looked()))
    except MetaqError as fault:
        raise AssertionError(starts, str(fault)) from fault
    return starts


@pytest.mark.parametrize("times", [0, 1, STARTS_MAX - 1])
def test_it_goes_on_as_often_as_a_python_was_too_slow(times):
    """The user sees a warning and no failure."""
    assert run(*[SLOW] * times, None) == times + 1


def test_it_does_not_try_for_ever():
    """A Python that never comes is told in the end."""
    with pytest.raises(AssertionError) as caught:
        run(SLOW)
    starts, text = caught.value.args
    assert starts == STARTS_MAX
    assert TOO_SLOW in text


def test_every_other_failure_ends_it_at_once():
    """Lost messages do not come back."""
    with pytest.raises(AssertionError) as caught:
        run("metaq.errors.MessagesLost: 5 messages are gone")
    assert caught.value.args[0] == 1


def test_who_was_stopped_while_it_started_stays_stopped():
    """SIGTERM between two tries counts."""
    query = Query(SLOW)
    query.isActive = True
    run_through(lambda: query, lambda query: watch(query, Looked(stopping=True)))
