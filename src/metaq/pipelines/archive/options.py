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

    topics: str = option("", "Topics to archive, separated by `,`. Required.", aliases=("topic",))
    output: str = option(
        "", "Folder of the archive, which holds nothing else, or a URI of a file system of Hadoop. Required."
    )
    checkpoint: str | None = option(None, "Folder of Spark's checkpoint. Default: inside the output.")
    staging: str | None = option(
        None, "Folder of unfinished files, on the file system of the output. Default: beside the output."
    )
    dedupe: str = option(
        "unique_id",
        "How repeated messages are recognised, which are then left out: by the producer's unique id (`unique_id`), or by their "
        "keys (`key`). `off`: repeats are archived.",
        choices=("off", "unique_id", "key"),
    )
    # By default longer than any producer goes on trying to send.
    dedupe_seconds: float = option(
        600.0,
        "Longest time in seconds between a message and its repeat, by the times at which they were stored.",
        low=0,
    )
    messages_per_file: int = option(500_000, "Largest number of messages in one file.", low=1)
    partition_by: str = option(
        "date",
        "Folders below that of a topic: `date`, `date,tag`, or `date,key:N` for N folders by the hash of the first key.",
    )
    compact_files: int = option(
        0, "Merge the small files of a folder if there are more than this number; 0: never.", low=0
    )

    run_folder: str | None = option(
        None,
        "Folder for the run's status and its lock on this machine, if `output` is a URI. Default: a folder named after the "
        "output in `~/.local/state/metaq/runs`.",
    )
    lease_seconds: float = option(
        30.0, "Seconds without a sign of life after which another run is taken for dead, if `output` is a URI.", low=1
    )
    table_format: str | None = option(
        None,
        "Format of tables that are kept up to date with the archive, for programs that read such tables. Default: none.",
        choices=("iceberg",),
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
