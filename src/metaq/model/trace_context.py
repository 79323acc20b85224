"""The context of a trace as a message carries it: W3C Trace Context, level 1, in the properties `traceparent` and `tracestate`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
PARENT_CHARS: Final = 55
"""Length of a `traceparent` of version 00; later versions may add to it."""
PARENT_CHARS_MAX: Final = 128
STATE_CHARS_MAX: Final = 512
"""Longest `tracestate` that is taken over: what every vendor has to pass on, and no more."""
SAMPLED: Final = 1
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class SpanProvider(Protocol):
    """A tracer provider of OpenTelemetry, for those who only hand it on."""

    def get_tracer(self, instrumenting_module_name: str, /, *args: Any, **more: Any) -> Any:
        """Return a tracer."""
        ...


class TraceParent(Struct, frozen=True):
    """Where a message was created in a trace."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether whoever created the message records the trace."""
        return bool(self.flags & SAMPLED)

    @property
    def text(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def trace_parent_of(properties: Mapping[str, str]) -> TraceParent | None:
    """Return the context that properties carry; None: there is none, or what is there is none. Never raises."""
    text = properties.get(TRACEPARENT)
    if text is None or not PARENT_CHARS <= len(text) <= PARENT_CHARS_MAX:
        return None
    found = _PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = properties.get(TRACESTATE, "")
    return TraceParent(
        int(trace_id, 16), int(span_id, 16), int(flags, 16), state if len(state) <= STATE_CHARS_MAX else ""
    )
