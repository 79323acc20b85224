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
        256 * MIB, "Size of a merged file, about. Files of less than half of it are small.", low=1
    )
    grace_seconds: float = option(
        3600.0, "A table goes on to work for so long after it was planned: replaced files are kept until then.", low=0
    )
    keep_days: int | None = option(
        None,
        "Remove dates that ended longer than so many days ago (UTC), by the clock and by the newest archived messages; by "
        "default everything is kept.",
        low=1,
    )
    trust_clock: bool = option(
        False, "Let dates go by this machine's clock alone: for an archive that gets no more messages."
    )


@dataclass(frozen=True, kw_only=True)
class CompactOptions(UpkeepOptions, PipelineOptions):
    """Options of the pipeline `compact`."""

    folder: str = option("", "The archive's folder. Required.", aliases=("output",))
    compact_files: int = option(1, "Merge where a folder has more small files than so many; 0: never.", low=0)
    wait: bool = option(
        False, "Wait for graceSeconds and finish in one run; otherwise a later run finishes what this one prepares."
    )
    staging: str | None = option(None, "The folder that `archive` was given as `staging`, if any.")

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
