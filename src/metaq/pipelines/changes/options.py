"""The options of the pipeline `changes`."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.errors import ConfigError
from metaq.option_table import option
from metaq.pipelines.options import FolderOptions, StreamOptions, names
from metaq.sql.address import address_of

REPORT, STOP = "report", "stop"
_WAYS = (STOP, REPORT)


@dataclass(frozen=True, kw_only=True)
class ChangesOptions(FolderOptions, StreamOptions):
    """Options of the pipeline `changes`."""

    topics: str = option(
        "",
        "Topics with changes, separated by `,`; all changes of a key must be in one queue. Required.",
        aliases=("topic",),
    )
    format: str = option(
        "auto",
        "Format of the bodies: `canal`, Canal's flat messages; `debezium`, Debezium's events; `plain`, op, key, seq and row. "
        "`auto`: each body is recognised by itself.",
        choices=("auto", "canal", "debezium", "plain"),
    )
    tables: str = option("", "Apply only changes of these tables, separated by `,`. Default: all.")
    key_columns: str = option(
        "", "Columns of the key, `column` or `table:column`, separated by `,`. Default: those that the messages name."
    )
    sequence: str = option(
        "",
        "Path of a change's sequence number in its body, such as source.lsn. Default: the place that the format has for it.",
    )
    sequence_scope: str = option(
        "key",
        "Changes among which sequence numbers grow: those of a `key`, of a `table` in one queue, or of a `queue`. `none`: they "
        "are not looked at.",
        choices=("key", "table", "queue", "none"),
    )
    dense: bool = option(False, "Each sequence number must be one more than the one before; anything else is a gap.")
    on_gap: str = option(
        STOP, "What happens if a sequence number is missing: `stop`, or `report` it and go on.", choices=_WAYS
    )
    on_step_back: str = option(
        REPORT,
        "What happens if a lower sequence number follows a higher one: `stop`, or `report` it and leave the change out.",
        choices=_WAYS,
    )
    on_corrupt: str = option(
        STOP, "What happens with a body that cannot be read: `stop`, or `report` it and leave it out.", choices=_WAYS
    )
    on_statement: str = option(
        REPORT,
        "What happens with a body that is DDL, TRUNCATE or the like: `stop`, or `report` it and leave it out.",
        choices=_WAYS,
    )
    target: str = option(
        "",
        "Database to which changes are applied, mysql://user@host:port/database or postgresql://... Default: Parquet files in "
        "the folder.",
    )
    password_env: str = option("", "Name of the environment variable that holds the database's password.")
    retry_seconds: float = option(60.0, "Seconds for which a batch is tried again while the database is away.", low=0)
    target_table: str = option(
        "", "Name of a table in the database, with {schema} and {table} of the source in it. Default: {table}."
    )
    target_name: str = option(
        "", "Name of this pipeline in the database's table metaq_changes_progress. Default: that of its folder."
    )
    create_table: bool = option(False, "Create tables and columns that the database does not have.")
    buckets: int = option(
        16,
        "Number of files of a table in the Parquet snapshot; it cannot be changed for an existing one.",
        low=1,
        high=999,
    )
    keep_generations: int = option(3, "Number of generations of the snapshot that stay readable.", low=1)
    keep_seconds: float = option(3600.0, "Seconds for which older generations of the snapshot stay readable.", low=0)
    forget_deleted_seconds: float = option(
        604_800.0,
        "Seconds for which the sequence number of a deleted key is remembered, so that no older change brings it back.",
        low=0,
    )
    # Fewer than other streams take: a database's micro-batch is gathered in the driver's memory.
    max_offsets_per_trigger: int = option(200_000, "Largest number of messages in one micro-batch.", low=1)

    @property
    def topics_read(self) -> list[str]:
        return names(self.topics)

    @property
    def policies(self) -> dict[str, str]:
        """Problem → stop or report."""
        return {
            "gap": self.on_gap,
            "step_back": self.on_step_back,
            "corrupt": self.on_corrupt,
            "statement": self.on_statement,
        }

    def check(self) -> None:
        super().check()
        if not self.topics_read:
            raise ConfigError("topics is missing: name at least one topic (--topic, or topics = [...] in the file)")
        if self.dense and self.sequence_scope == "none":
            raise ConfigError(
                "dense says something about sequences, and sequenceScope = none that they are not looked at"
            )
        if self.sequence and self.sequence_scope == "none":
            raise ConfigError(f"sequence = {self.sequence} has no use with sequenceScope = none")
        if self.dense and self.format == "canal" and not self.sequence:
            raise ConfigError(
                "Canal's messages have no sequence of their own that could be dense: name one with sequence"
            )
        if self.target:
            address_of(self.target)
