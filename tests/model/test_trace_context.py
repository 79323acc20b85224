"""`traceparent` as others write it, and as nobody should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from metaq.model.trace_context import TraceParent, trace_parent_of

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_is_read_is_what_was_written():
    found = trace_parent_of({"traceparent": GOOD, "tracestate": "a=1,b=2"})
    assert found == TraceParent(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 1, "a=1,b=2")
    assert found.text == GOOD and found.sampled
    assert not trace_parent_of({"traceparent": GOOD[:-1] + "0"}).sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        GOOD.upper(),
        GOOD + "\n",
        " " + GOOD,
        "ff" + GOOD[2:],
        GOOD + "-more",
        "00-" + "0" * 32 + GOOD[35:],
        GOOD[:36] + "0" * 16 + "-01",
        GOOD.replace("a", "а"),
        "0" * 1_000_000,
        "-" * 1_000_000,
        GOOD * 20_000,
        "01" + GOOD[2:] + "-" + "x" * 1000,
    ],
)
def test_what_is_none_is_passed_over(text):
    assert trace_parent_of({"traceparent": text}) is None


def test_later_versions_may_add_to_it_and_long_states_are_left_out():
    assert trace_parent_of({"traceparent": "01" + GOOD[2:] + "-what-is-new"}) is not None
    assert trace_parent_of({"traceparent": GOOD, "tracestate": "a=" + "x" * 1_000_000}).state == ""
    assert trace_parent_of({"tracestate": "a=1"}) is None


@given(st.text(alphabet="0123456789abcdef-f", min_size=50, max_size=60) | st.just(GOOD) | st.text())
def test_as_the_propagator_of_opentelemetry(text):
    """Where that reads a context of version 00, it is the same."""
    context = trace.get_current_span(TraceContextTextMapPropagator().extract({"traceparent": text})).get_span_context()
    found = trace_parent_of({"traceparent": text})
    if text.strip() == text:
        assert (found is not None) == context.is_valid
    if found is not None:
        assert (found.trace_id, found.span_id) == (context.trace_id, context.span_id)
