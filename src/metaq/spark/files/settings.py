"""The options of `format("metaq").option("path", ...)`: their names, meanings and bounds."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.model.topics.topic import users_topics
from metaq.option_table import MIB, OptionTable, option
from metaq.spark.source.settings import SourceOptions, spelled


class Topics(Struct, frozen=True):
    """Selection of topics."""

    patterns: tuple[str, ...] = ()
    """Names and globs; empty: all topics but the system's, retry and dead-letter topics."""

    def has(self, topic: str) -> bool:
        """Return whether a topic is selected. System, retry and dead-letter topics must be named whole."""
        if topic in self.patterns:
            return True
        is_users = bool(users_topics([topic], ()))
        return is_users and (not self.patterns or any(fnmatch.fnmatchcase(topic, text) for text in self.patterns))


@dataclass(frozen=True, kw_only=True)
class FilesOptions(OptionTable):
    """Options of reading files. Spelled in camelCase, in upper or lower case."""

    path: str = option(
        "",
        "Folders or files to read, separated by `,`; globs are allowed. They may be of brokers, of MetaQ 1.x, or of the "
        "archive, which is recognised by their content.",
    )
    paths: str | None = option(None, "JSON list of paths, as Spark makes it of `.load([...])`.")
    topics: str | None = option(
        None,
        "Read only these topics, separated by `,`; globs are allowed. System, retry and dead-letter topics are read only if "
        "they are named in full. Default: all other topics.",
    )
    starting_timestamp: int | None = option(
        None,
        "Read only messages that were stored at this time or later, in ms since 1970. Not for files of MetaQ 1.x, which hold "
        "no times.",
        low=0,
    )
    ending_timestamp: int | None = option(
        None,
        "Read only messages that were stored before this time, in ms since 1970. Not for files of MetaQ 1.x.",
        low=0,
    )
    fail_on_corrupt: bool = option(
        True,
        "Fail the query if bytes cannot be read; the error names the file and the place in it. `false`: log a warning, count, "
        "and go on behind them.",
    )
    columns: str | None = option(None, "Columns of a row, separated by `,`, or `*` for all. Default: the lean ones.")
    rows: str = option(
        "messages",
        "`messages`: one row for each message. `damage`: one row for each place that cannot be read, `path, place, size, why`.",
        choices=("messages", "damage"),
    )
    min_partitions: int | None = option(
        None,
        "Smallest number of Spark partitions: files are cut until there are so many. Default: the number of cores of the "
        "driver's machine.",
        low=1,
    )
    max_bytes_per_partition: int = option(
        128 * MIB, "Approximate largest size of one Spark partition, in bytes of files.", low=1
    )

    @classmethod
    def of(cls, pairs: Mapping[str, str]) -> Self:
        """Parse a query's options. Raises ConfigError: an unknown name, a wrong value, or values that contradict each other."""
        live = {name.lower() for name in SourceOptions.spellings()} - {name.lower() for name in cls.spellings()}
        strange = [name for name in pairs if name.lower() in live]
        if strange:
            raise ConfigError(
                f"give path or {strange[0]}, not both: with path, files are read without a broker, and {strange[0]} is an "
                "option of reading topics from one"
            )
        options, _ = cls.read(spelled(cls, pairs), "the query's options")
        options.check()
        return options

    def check(self) -> None:
        """Validate the values against each other. Raises ConfigError."""
        if not self.all_paths:
            raise ConfigError("the option path is empty: name a folder or a file")
        start, end = self.starting_timestamp, self.ending_timestamp
        if start is not None and end is not None and start >= end:
            raise ConfigError("endingTimestamp is not behind startingTimestamp: nothing can lie between them")

    @property
    def all_paths(self) -> list[str]:
        """Paths that `path` and `paths` name. Raises ConfigError: `paths` is no list."""
        found = [text for part in self.path.split(",") if (text := part.strip())]
        if self.paths is not None:
            try:
                more = json.loads(self.paths)
            except ValueError:
                more = None
            if not isinstance(more, list) or not all(isinstance(text, str) and text for text in more):
                raise ConfigError(f"paths={self.paths[:200]!r}: need a JSON list of paths")
            found += more
        return found

    @property
    def wanted(self) -> Topics:
        return Topics(tuple(text for part in (self.topics or "").split(",") if (text := part.strip())))

    @property
    def has_times(self) -> bool:
        return self.starting_timestamp is not None or self.ending_timestamp is not None
