"""The options of the pipeline `archive`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metaq.errors import ConfigError
from metaq.option_table import option
from metaq.spark.pipelines.compacting_options import UpkeepOptions
from metaq.spark.pipelines.options import StreamOptions, names
from metaq.spark.pipelines.parting import Parting


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(UpkeepOptions, StreamOptions):
    """Topics → Parquet, every message once."""

    topics: str = option("", "Topics to archive, `,`-separated. Required.", aliases=("topic",))
    output: str = option("", "The archive's folder, its own. Required.")
    checkpoint: str | None = option(None, "Spark's checkpoint; by default inside the output.")
    staging: str | None = option(
        None, "Where unfinished files lie: on the output's file system; by default beside the output."
    )
    dedupe: str = option(
        "unique_id",
        "What a repeated message is known by and left out for: the producer's id, or its keys.",
        choices=("off", "unique_id", "key"),
    )
    dedupe_seconds: float = option(600.0, "Repeats are stored at most this long after each other.", low=0)
    messages_per_file: int = option(500_000, "Most messages of one file.", low=1)
    partition_by: str = option(
        "date", "Folders below the topic's: `date`, `date,tag`, or `date,key:N` for N by the hash of the first key."
    )
    compact_files: int = option(
        0, "Merge the small files of a folder when they are more than so many; 0: never.", low=0
    )

    @property
    def keeps_up(self) -> bool:
        """Whether anything is to become of files once they are published."""
        return bool(self.compact_files) or self.keep_days is not None

    @property
    def place(self) -> Path:
        if not self.output:
            raise ConfigError("output is missing: the folder to archive to (--output, or output = ... in the file)")
        return Path(self.output).absolute()

    @property
    def topics_read(self) -> list[str]:
        return names(self.topics)

    def check(self) -> None:
        super().check()
        if not self.topics_read:
            raise ConfigError("topics is missing: name at least one topic (--topic, or topics = [...] in the file)")
        Parting.of(self.partition_by)
