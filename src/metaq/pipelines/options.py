"""Options of every pipeline, and of those that are streams. Loads no Spark."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from metaq.client.identity.access import ENVIRONMENT, Access
from metaq.errors import ConfigError
from metaq.option_table import OptionTable, camel, option

NAME_SERVERS_DEFAULT = "127.0.0.1:9876"


def names(text: str) -> list[str]:
    """Return the names of a `,`-separated list."""
    return [name for part in text.split(",") if (name := part.strip())]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(OptionTable):
    """Base of the pipelines' tables. One sentence per option: `metaq pipeline describe` and the docs print them."""

    @property
    def place(self) -> Path:
        """The pipeline's own folder, absolute. Raises ConfigError: none was given."""
        raise NotImplementedError

    @property
    def topics_read(self) -> list[str]:
        """Topics that must exist before Spark is started."""
        return []

    @classmethod
    def joined(cls, name: str, values: list[str]) -> str:  # noqa: ARG003  for subclasses that join an option otherwise
        """Return the text of an option that a file gives as a list. Raises ConfigError: a value has a comma in it."""
        if broken := [one for one in values if "," in one]:
            raise ConfigError(f"{broken[0]!r} has a comma in it")
        return ",".join(values)

    def check(self) -> None:
        """Validate the values against each other. Raises ConfigError: names the option, and what to do."""
        _ = self.place


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(PipelineOptions):
    """Options of a pipeline that works on a cluster."""

    name_servers: str | None = option(
        None,
        "Name servers of the cluster, `host:port`, separated by `;`. Default: NAMESRV_ADDR, otherwise 127.0.0.1:9876.",
        aliases=("namesrv",),
    )
    acl_file: str | None = option(
        None,
        "Path of a file with the keys of the account by which requests are signed, in the form of RocketMQ's `tools.yml`; "
        "driver and executors read it. Default: METAQ_ACL_FILE, or METAQ_ACCESS_KEY and METAQ_SECRET_KEY.",
    )

    @property
    def reach(self) -> dict[str, str]:
        """Options of `format("metaq")` that say which cluster, and as whom."""
        return {"nameServers": self.servers} | ({"aclFile": self.acl_file} if self.acl_file is not None else {})

    def check(self) -> None:
        """Validate the values against each other. Raises ConfigError: as `PipelineOptions.check`, or a key to sign with is missing."""
        super().check()
        access_of(self).credentials(names={name: camel(name) for name in ENVIRONMENT})

    @property
    def servers(self) -> str:
        """Name servers: the option's, the environment's, or the default."""
        return self.name_servers or os.environ.get("NAMESRV_ADDR") or NAME_SERVERS_DEFAULT


def access_of(options: ClusterOptions) -> Access:
    """Return what requests to a pipeline's cluster are signed with."""
    return Access(acl_file=options.acl_file)


@dataclass(frozen=True, kw_only=True)
class FolderOptions(ClusterOptions):
    """Options of a pipeline whose output is not a folder: it has one for its state."""

    folder: str = option("", "Folder of this pipeline alone, for its checkpoint, its lease and its status. Required.")

    @property
    def place(self) -> Path:
        """The pipeline's own folder, absolute. Raises ConfigError: none was given."""
        if not self.folder:
            raise ConfigError("folder is missing: a pipeline needs one of its own for its checkpoint and its status")
        return Path(self.folder).absolute()


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ClusterOptions):
    """Options of a stream: it goes on until it is stopped."""

    once: bool = option(False, "Process what is there now, then end; otherwise go on until stopped.")
    # A minute by default: the archive, for one, writes a file per queue with each batch.
    trigger_seconds: float = option(60.0, "Seconds between two looks for new messages.", low=0, aliases=("trigger",))
    # Without the alias `group`: whoever gives a group elsewhere (`metaq consume --group`) means the one that consumes.
    progress_group: str | None = option(
        None,
        "Consumer group as which progress is reported. It must be new: no consumer may be in it, nor another query.",
    )
    metrics_url: str | None = option(
        None,
        "Where metrics are pushed with each batch (docs/monitoring.md): URL of a Pushgateway, or path of a `.prom` file for "
        "node_exporter. Needs the extra `http`.",
    )
    starting_offsets: str = option("earliest", "Where a new pipeline begins: `earliest`, `latest` or the offsets JSON.")
    read_from: str = option(
        "auto",
        "Which messages are read from slaves: those that masters have on disk only (`auto`), all (`slave`), or none (`master`).",
        choices=("auto", "master", "slave"),
    )
    max_offsets_per_trigger: int = option(2_000_000, "Largest number of messages in one micro-batch.", low=1)

    def source(self) -> dict[str, str]:
        """Return options of `format("metaq")`, without the topics, which the pipeline adds."""
        chosen = {
            **self.reach,
            "startingOffsets": self.starting_offsets,
            "readFrom": self.read_from,
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
        }
        return chosen | ({"progressGroup": self.progress_group} if self.progress_group else {})

    def trigger(self) -> dict[str, object]:
        """Return the arguments of `DataStreamWriter.trigger`."""
        return {"availableNow": True} if self.once else {"processingTime": f"{self.trigger_seconds:g} seconds"}
