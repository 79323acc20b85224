"""The fixed partitions of ordered topics: `topic.num.TOPIC=brokerId:count;brokerId:count`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from metaq.errors import ConfigError
from metaq.metaq1.model.partition import Partition
from metaq.named_file import read_named

log = logging.getLogger("metaq.client")

PREFIX: Final = "topic.num."
FILE_BYTES_MAX: Final = 1 << 20
COUNT_MAX: Final = 10_000

LayoutSource: TypeAlias = Callable[[str], str | None]
"""Returns the layout of a topic, `brokerId:count;brokerId:count`; None: it has none. May wait: called in a thread.

`broker-7` is the broker 7: so a name server calls our brokers that serve MetaQ 1.x.
"""


def parse_layout(topic: str, text: str) -> tuple[Partition, ...]:
    """Return the partitions of a layout. Raises ConfigError."""
    counts: dict[int, int] = {}
    for part in filter(None, (word.strip().removeprefix("broker-") for word in text.split(";"))):
        broker, _, count = (word.strip() for word in part.partition(":"))
        if not (broker.isascii() and broker.isdecimal() and count.isascii() and count.isdecimal()) or len(part) > 20:
            raise ConfigError(f"{PREFIX}{topic}={text!r:.200}: need brokerId:count, several separated by semicolons")
        if int(broker) in counts:
            raise ConfigError(f"{PREFIX}{topic}={text!r:.200}: broker {broker} stands there twice")
        if not 0 < int(count) <= COUNT_MAX:
            raise ConfigError(f"{PREFIX}{topic}={text!r:.200}: need 1 to {COUNT_MAX} partitions of a broker")
        counts[int(broker)] = int(count)
    if not counts:
        raise ConfigError(f"{PREFIX}{topic} is empty: need brokerId:count, several separated by semicolons")
    return tuple(Partition(broker, number) for broker in sorted(counts) for number in range(counts[broker]))


def from_mapping(info: Mapping[str, str]) -> LayoutSource:
    """Layouts of `MetaClientConfig.partitions_info`."""
    return lambda topic: info.get(PREFIX + topic)


def from_file(path: Path) -> LayoutSource:
    """Layouts of a properties or ini file, which is read anew at each call. Raises ConfigError when it cannot be read."""

    def layout(topic: str) -> str | None:
        try:
            text = read_named(path, FILE_BYTES_MAX, "partitions_file").decode()
        except UnicodeDecodeError:
            raise ConfigError(f"partitions_file {path} is not UTF-8") from None
        lines = (line.strip() for line in text.splitlines())
        pairs = (line.partition("=") for line in lines if line and line[0] not in "#;![")
        return {name.strip(): value.strip() for name, _, value in pairs}.get(PREFIX + topic)

    return layout
