"""The options of the pipeline `archive`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metaq.errors import ConfigError
from metaq.option_table import option
from metaq.pipelines.archive.decoding_options import DecodeOptions
from metaq.pipelines.archive.parting import Parting
from metaq.pipelines.compact.options import UpkeepOptions
from metaq.pipelines.options import StreamOptions, names
from metaq.pipelines.uris import is_uri, plain_path, run_folder


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(UpkeepOptions, DecodeOptions, StreamOptions):
    """Options of the pipeline `archive`."""

    topics: str = option("", "Topics to archive, `,`-separated. Required.", aliases=("topic",))
    output: str = option("", "The archive's folder, its own; a URI for a file system of Hadoop's. Required.")
    checkpoint: str | None = option(None, "Spark's checkpoint; by default inside the output.")
    staging: str | None = option(
        None, "Where unfinished files lie: on the output's file system; by default beside the output."
    )
    dedupe: str = option(
        "unique_id",
        "What a repeated message is known by and left out for: the producer's id, or its keys.",
        choices=("off", "unique_id", "key"),
    )
    # By default longer than any producer goes on trying to send.
    dedupe_seconds: float = option(600.0, "Repeats are stored at most this long after each other.", low=0)
    messages_per_file: int = option(500_000, "Most messages of one file.", low=1)
    partition_by: str = option(
        "date", "Folders below the topic's: `date`, `date,tag`, or `date,key:N` for N by the hash of the first key."
    )
    compact_files: int = option(
        0, "Merge the small files of a folder when they are more than so many; 0: never.", low=0
    )

    run_folder: str | None = option(
        None,
        "Where the run's status and its lock on this machine lie if `output` is a URI; by default a folder named after that in "
        "`~/.local/state/metaq/runs`.",
    )
    lease_seconds: float = option(
        30.0, "If `output` is a URI: a run that nobody has heard of for so long is taken for dead.", low=1
    )
    table_format: str | None = option(
        None, "Tables of this format follow the archive, for readers of such; by default none do.", choices=("iceberg",)
    )

    @property
    def keeps_up(self) -> bool:
        """Whether published files are merged or removed later."""
        return bool(self.compact_files) or self.keep_days is not None

    @property
    def place(self) -> Path:
        if not self.output:
            raise ConfigError("output is missing: the folder to archive to (--output, or output = ... in the file)")
        return run_folder(self.output, self.run_folder) if is_uri(self.output) else plain_path(self.output)

    @property
    def topics_read(self) -> list[str]:
        return names(self.topics)

    def check(self) -> None:
        super().check()
        if not self.topics_read:
            raise ConfigError("topics is missing: name at least one topic (--topic, or topics = [...] in the file)")
        Parting.of(self.partition_by)
        if not is_uri(self.output):
            if self.run_folder is not None:
                raise ConfigError("runFolder is for an output that is a URI; the run of a local one lies in the output")
        elif self.compact_files:
            raise ConfigError(
                f"compactFiles={self.compact_files}: merged files take the place of small ones by exchanging folders, which "
                f"{self.output.partition(':')[0]}: cannot do. Leave it away, and look less often (trigger) for larger files"
            )
        if is_uri(self.output):
            for name, given in (("decode", self.decode), ("tableFormat", self.table_format)):
                if given is not None:
                    raise ConfigError(
                        f"{name}={given} is for an archive in a local folder, and output is {self.output}"
                    )
        self.check_decoding()
