"""The options of the pipeline `mirror`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from metaq.client.identity.access import Access
from metaq.errors import ConfigError, Refused
from metaq.model.topics.topic import check_group, check_topic
from metaq.option_table import option
from metaq.pipelines.options import FolderOptions, StreamOptions, names

FAIL: Final = "fail"
LEAVE_OUT: Final = "leave-out"

_NAME: Final = re.compile(r"[^\x00-\x20/,]{1,200}\Z")

EFFECTIVELY_ONCE, AT_LEAST_ONCE = "effectively-once", "at-least-once"
"""The same as in `metaq.spark.sink.settings`, which loads pyarrow."""


@dataclass(frozen=True, kw_only=True)
class MirrorOptions(FolderOptions, StreamOptions):
    """Options of the pipeline `mirror`."""

    to: str = option(
        "", "Name servers of the cluster to which messages are written, `host:port`, separated by `;`. Required."
    )
    to_acl_file: str | None = option(
        None,
        "Path of a file with the keys by which requests to that cluster are signed. Default: as the environment says.",
    )
    topics: str = option(
        "", "Topics to mirror, separated by `,`. Either this or topicPattern is required.", aliases=("topic",)
    )
    topic_pattern: str | None = option(
        None,
        "Topics to mirror, as a glob such as `orders-*`; topics that are created later are mirrored as well.",
        aliases=("pattern",),
    )
    rename: str = option("", "Topics that have another name in the target, `old:new`, separated by `,`.")
    groups: str = option("", "Consumer groups whose offsets are carried over to the target, separated by `,`.")
    group_seconds: float = option(
        5.0, "Seconds between two times that the offsets of groups are carried over.", low=0.1
    )
    merge_queues: bool = option(
        False,
        "Let several queues of the source share one of the target if that has fewer; otherwise this is refused.",
    )
    delivery: str = option(
        EFFECTIVELY_ONCE,
        "`effectively-once`: each message is written once; the target must be MetaQ. `at-least-once`: the target may be a "
        "RocketMQ.",
        choices=(EFFECTIVELY_ONCE, AT_LEAST_ONCE),
    )
    unfit: str = option(
        FAIL,
        "What happens with a message that the target does not accept, because it is larger than maxMessageSize for instance: "
        "`fail`, or `leave-out`, which is logged and counted.",
        choices=(FAIL, LEAVE_OUT),
    )
    source_name: str | None = option(
        None,
        "Name of the source in mirrored messages, by which messages that come back are recognised. Default: its name servers.",
    )
    target_name: str | None = option(
        None, "Name of the target in messages that are mirrored from there. Default: its name servers."
    )
    fail_on_data_loss: bool = option(
        True, "Fail if messages of the source were deleted before they were mirrored. `false`: log a warning and go on."
    )
    again: bool = option(
        False,
        "Allow a target that has messages of an earlier mirror with another folder; these messages are then written twice.",
    )
    adopt_batch: bool = option(
        False,
        "Set it for one start, to continue although no broker of the target remembers the earlier batches of this mirror.",
    )
    retry_seconds: float = option(
        120.0, "Seconds for which a batch is tried again while a broker of the target is away.", low=0
    )
    trigger_seconds: float = option(1.0, "Seconds between two looks for new messages.", low=0, aliases=("trigger",))
    max_offsets_per_trigger: int = option(200_000, "Largest number of messages in one micro-batch.", low=1)

    @property
    def topics_read(self) -> list[str]:
        return names(self.topics)

    @property
    def group_names(self) -> list[str]:
        """Groups whose progress is carried over."""
        return names(self.groups)

    @property
    def renamed(self) -> dict[str, str]:
        """Topic of the source → topic of the target, where they differ. Raises ConfigError."""
        pairs: dict[str, str] = {}
        for text in names(self.rename):
            old, colon, new = text.partition(":")
            if not colon or not old.strip() or not new.strip():
                raise ConfigError(f"rename={text!r}: need pairs like orders:orders-of-berlin")
            if old.strip() in pairs:
                raise ConfigError(f"rename names {old.strip()} twice")
            pairs[old.strip()] = new.strip()
        return pairs

    @property
    def source_mark(self) -> str:
        """The source's name in marks."""
        return self.source_name or _spelled(self.servers)

    @property
    def target_mark(self) -> str:
        """The target's name in marks."""
        return self.target_name or _spelled(self.to)

    @property
    def target_access(self) -> Access:
        """What requests to the target are signed with."""
        return Access(acl_file=self.to_acl_file)

    @property
    def exact(self) -> bool:
        return self.delivery == EFFECTIVELY_ONCE

    def target_topic(self, topic: str) -> str:
        """Return the target's topic for a source topic. Raises ConfigError: not a legal name there."""
        chosen = self.renamed.get(topic, topic)
        try:
            return check_topic(chosen)
        except Refused as fault:
            ways = f"; give it another name there: rename = '{topic}:NEW'" if chosen == topic else ""
            raise ConfigError(f"rename: {fault}{ways}") from None

    def check(self) -> None:
        super().check()
        if not self.to:
            raise ConfigError(
                "to is missing: the name servers of the cluster to write to (--to, or to = ... in the file)"
            )
        self.target_access.credentials(names={"acl_file": "toAclFile"})
        if bool(self.topics_read) == bool(self.topic_pattern):
            raise ConfigError("give topics or topicPattern: which topics are to be mirrored")
        unread = sorted(self.renamed.keys() - set(self.topics_read)) if self.topics_read else []
        if unread:
            raise ConfigError(f"rename has {unread[0]}, which is not among the topics")
        for topic in self.topics_read or self.renamed:
            if topic.startswith("%") and topic not in self.renamed:
                raise ConfigError(
                    f"topics: {topic} is a topic of brokers, which others may not write to. Give it a name of its own in the "
                    f"target: rename = '{topic}:NEW'"
                )
            self.target_topic(topic)
        for group in self.group_names:
            try:
                check_group(group)
            except Refused as fault:
                raise ConfigError(f"groups: {fault}") from None
        for key, mark in (("sourceName", self.source_mark), ("targetName", self.target_mark)):
            if not _NAME.match(mark):
                raise ConfigError(f"{key}={mark!r}: 1 to 200 characters, no blank, comma or slash among them")
        if _spelled(self.servers) == _spelled(self.to):
            same = [topic for topic in self.topics_read if self.target_topic(topic) == topic]
            if same or self.topic_pattern:
                raise ConfigError(
                    f"to names the source itself, so {same[0] if same else 'a topic'} would be copied into itself for ever: name "
                    "another cluster, or rename every topic"
                )


def _spelled(servers: str) -> str:
    """Return a list of name servers in sorted order: the name of a cluster in marks."""
    return ";".join(sorted({one.strip() for one in servers.replace(",", ";").split(";") if one.strip()}))
