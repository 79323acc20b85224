"""Makes the spans of a client that wants some: OpenTelemetry is loaded then, and only then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from metaq.client.observing.observing import Observing
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError
from metaq.model.clients import MessageModel
from metaq.model.trace_context import SpanProvider

if TYPE_CHECKING:
    from metaq.client.observing.spans import DeliverySpans, SendSpans


def send_spans(observing: Observing, core: ClientCore, group: str) -> SendSpans | None:
    """Return the spans of a producer; None if none are wanted. Raises ConfigError: OpenTelemetry is not installed."""
    if observing.opentelemetry is False:
        return None
    with _needed():
        from metaq.client.observing.spans import SendSpans
    return SendSpans(core, group, _provider(observing))


def delivery_spans(
    observing: Observing, core: ClientCore, group: str, model: MessageModel | None = None
) -> DeliverySpans | None:
    """Return the spans of a consumer, or of who reads; otherwise as `send_spans`."""
    if observing.opentelemetry is False:
        return None
    with _needed():
        from metaq.client.observing.spans import DeliverySpans
    return DeliverySpans(core, group, _provider(observing), model)


def _provider(observing: Observing) -> SpanProvider | None:
    given = observing.opentelemetry
    return None if isinstance(given, bool) else given


@contextlib.contextmanager
def _needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"opentelemetry=True needs the package {error.name}: pip install 'pymetaq[otel]'") from None
