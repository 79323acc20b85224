"""What a webhook does, in numbers: for `metaq webhook show`, and for whoever exports metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from metaq.webhooks.answers import Answer, Verdict, plain
from metaq.webhooks.outage import Fate

PREFIX: Final = "webhook."
"""Of the names under which a group's member tells its figures to administrators."""


class WebhookFigures(Struct, kw_only=True):
    """Counts since the process began, and what happened last. Times are ms since 1970; 0: never."""

    name: str
    url: str
    """Without what is behind `?`."""
    attempts: int = 0
    delivered: int = 0
    """Attempts that the target acknowledged."""
    messages: int = 0
    """Messages that it acknowledged."""
    failed: int = 0
    busy: int = 0
    unreachable: int = 0
    gone: int = 0
    retries: int = 0
    """Messages that went the group's way of retries and dead letters."""
    seconds: float = 0.0
    """Of all attempts together."""
    pauses: int = 0
    in_flight: int = 0
    failures_in_row: int = 0
    paused_until: int = 0
    """0: nothing is paused. In the past: a probe is under way, or waits for a message."""
    last_success: int = 0
    last_failure: int = 0
    last_text: str = ""
    """What the last failure was."""
    state: str = "runs"
    """`runs`, `paused` or `gone`."""

    def count(self, answer: Answer, fate: Fate, messages: int, seconds: float, now_ms: int) -> None:
        """Count an attempt. Args: messages: of its request. seconds: that it took."""
        self.attempts += 1
        self.seconds += seconds
        name = answer.verdict.value
        setattr(self, name, getattr(self, name) + 1)
        if fate is Fate.RETRY:
            self.retries += messages
        if answer.verdict is Verdict.DELIVERED:
            self.messages += messages
            self.last_success = now_ms
        else:
            self.last_failure, self.last_text = now_ms, answer.text

    def told(self) -> Mapping[str, str]:
        """Return them as the properties of a group's member."""
        return {f"{PREFIX}{name}": str(value) for name, value in structs.asdict(self).items()}


_NUMBER_MAX: Final = 253_402_300_799_000
"""The last moment that a time can be, ms."""


def _number(kind: Any, text: str) -> object:
    """Raises ValueError: it is no number that can be one of ours."""
    number = kind(text)
    if not 0 <= number <= _NUMBER_MAX:  # also of what is no number ("nan")
        raise ValueError(text)
    return number


def of_properties(properties: Mapping[str, str]) -> WebhookFigures | None:
    """Return the figures that a member tells; None: it is no webhook, or one of another version. Anything may stand there."""
    found: dict[str, object] = {}
    try:
        for field in structs.fields(WebhookFigures):
            text = properties[PREFIX + field.name]
            found[field.name] = _number(field.type, text) if field.type in {int, float} else plain(text.encode())
        return WebhookFigures(**found)  # type: ignore[arg-type]
    except (KeyError, ValueError):
        return None
