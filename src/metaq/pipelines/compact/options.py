"""The options of the pipeline `compact`, and those that the archive shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metaq.archive.records import MANIFESTS
from metaq.errors import ConfigError
from metaq.option_table import MIB, OptionTable, option
from metaq.pipelines.options import PipelineOptions
from metaq.pipelines.uris import is_uri, plain_path


@dataclass(frozen=True, kw_only=True)
class UpkeepOptions(OptionTable):
    """Options of merging and retention, for `compact` and `archive`."""

    compact_bytes: int = option(
        256 * MIB, "Approximate size of a merged file in bytes; files of less than half of it count as small.", low=1
    )
    grace_seconds: float = option(
        3600.0,
        "Seconds for which replaced files are kept, so that queries which were planned before still work.",
        low=0,
    )
    keep_days: int | None = option(
        None,
        "Remove dates (UTC) that ended more than this number of days ago, both by the clock and by the newest archived "
        "messages. Default: everything is kept.",
        low=1,
    )
    trust_clock: bool = option(
        False, "Let keepDays go by this machine's clock alone, for an archive that gets no more messages."
    )


@dataclass(frozen=True, kw_only=True)
class CompactOptions(UpkeepOptions, PipelineOptions):
    """Options of the pipeline `compact`."""

    folder: str = option("", "Folder of the archive. Required.", aliases=("output",))
    compact_files: int = option(
        1, "Merge the small files of a folder if there are more than this number; 0: never.", low=0
    )
    wait: bool = option(
        False, "Wait for graceSeconds and finish in one run; otherwise a later run finishes what this one has prepared."
    )
    staging: str | None = option(None, "Folder that `archive` was given as `staging`, if any.")

    @property
    def place(self) -> Path:
        if not self.folder:
            raise ConfigError("folder is missing: the archive whose files are to be merged")
        return plain_path(self.folder)

    def check(self) -> None:
        super().check()
        if is_uri(self.folder):
            raise ConfigError(
                f"folder={self.folder}: files are merged by exchanging folders of a local file system, which "
                f"{self.folder.partition(':')[0]}: cannot do. keepDays of `archive` lets old dates go there too"
            )
        if not (self.place / MANIFESTS).is_dir():
            raise ConfigError(f"folder={self.folder}: there is no archive (no {MANIFESTS} in it)")
