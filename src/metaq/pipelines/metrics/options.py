"""The options of the pipeline `metrics`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.errors import ConfigError
from metaq.model.topics.system import TRACE_TOPIC
from metaq.option_table import option
from metaq.pipelines.options import FolderOptions, StreamOptions, names

if TYPE_CHECKING:
    from metaq.pipelines.metrics.rules import Rule

OFF = "off"
_GLOB = frozenset("*?[")


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(FolderOptions, StreamOptions):
    """Options of the pipeline `metrics`."""

    topics: str = option(
        "",
        "Topics to measure, separated by `,`; a glob such as `orders-*` means all topics that match at the start. Required.",
        aliases=("topic",),
    )
    groups: str = option(
        "", "Consumer groups whose lag is sampled, separated by `,`. Default: all groups of these topics."
    )
    window_seconds: float = option(
        60.0, "Length of a window in seconds; it cannot be changed for an existing folder.", low=1, high=86400
    )
    grace_seconds: float = option(
        10.0, "Seconds after its end for which a window waits for late data before its row is written.", low=0
    )
    sample_seconds: float = option(10.0, "Seconds between two requests to the brokers for lag and counters.", low=0.1)
    trigger_seconds: float = option(10.0, "Seconds between two looks for new messages.", low=0, aliases=("trigger",))
    trace_topic: str = option(
        TRACE_TOPIC,
        "Topic to which clients send their message traces; `off`: the latency of consumers is not measured.",
    )
    trace_seconds: float = option(
        600.0, "Seconds after it was stored for which a message is recognised in traces.", low=1
    )
    trace_every: int = option(1, "Follow one of this number of messages through the traces, chosen by its id.", low=1)
    rules: str = option("", "Conditions for alerts, separated by `;`: `lag_seconds{group=billing} > 60 for 3`.")
    alert_topic: str | None = option(None, "Topic to which alerts are sent, as JSON. Default: none.")
    alert_command: str | None = option(
        None,
        "Command that is run for each alert, without a shell, with the alert as JSON on its standard input. Default: none.",
    )
    alert_command_seconds: float = option(30.0, "Seconds that alertCommand may take; then it is ended.", low=0.1)

    @property
    def topics_read(self) -> list[str]:
        return [name for name in names(self.topics) if not _GLOB & {*name}]

    @property
    def patterns(self) -> list[str]:
        """Globs among the topics."""
        return [name for name in names(self.topics) if _GLOB & {*name}]

    @property
    def traced(self) -> str:
        """The trace topic; empty: none."""
        return "" if self.trace_topic == OFF else self.trace_topic

    @property
    def window_ms(self) -> int:
        return round(self.window_seconds * 1000)

    @property
    def parsed_rules(self) -> tuple[Rule, ...]:
        """Alert rules. Raises ConfigError: malformed; the text has the position."""
        if not self.rules:
            return ()
        from metaq.pipelines.metrics.rules import parse_rules

        return parse_rules(self.rules)

    @property
    def command_words(self) -> list[str]:
        """Words of the command; empty: there is none. Raises ConfigError: unbalanced quotes."""
        try:
            return shlex.split(self.alert_command or "")
        except ValueError as fault:
            raise ConfigError(
                f"alertCommand={self.alert_command!r}: {fault}; quote as in a shell, or give a list"
            ) from None

    @classmethod
    def joined(cls, name: str, values: list[str]) -> str:
        if name == "alert_command":
            return shlex.join(values)
        return "; ".join(values) if name == "rules" else super().joined(name, values)

    def check(self) -> None:
        super().check()
        if not names(self.topics):
            raise ConfigError("topics is missing: name at least one topic (--topic, or topics = [...] in the file)")
        if self.traced in self.topics_read:
            raise ConfigError(f"topics names the trace topic {self.traced}: leave it out, or set traceTopic to off")
        if self.alert_topic is not None and self.alert_topic in self.topics_read:
            raise ConfigError(f"alertTopic={self.alert_topic} is one of the topics that are measured: give it another")
        if (self.command_words and not self.rules) or (self.alert_topic and not self.rules):
            raise ConfigError("alertTopic and alertCommand need rules: without them there is no alert")
        _ = self.parsed_rules
