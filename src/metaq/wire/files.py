"""Formats of the configuration files, as RocketMQ writes them: text to tables and back (docs/formats/store-folder.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from metaq.errors import BadRequest, ConfigError
from metaq.model import DataVersion, DelayProgress, GroupConfig, TopicConfig
from metaq.model.filters.subscription import GroupFilter
from metaq.model.leadership import Leadership
from metaq.model.quota import CAMEL, VALUE_MAX, QuotaKind, QuotaLimits, Subject, check_subject
from metaq.wire import beans, fastjson
from metaq.wire.bodies.parts import Tree, data_version_tree
from metaq.wire.bodies.queues import (
    delay_offsets_of_tree,
    delay_offsets_tree,
    group_offsets_of_tree,
    group_offsets_tree,
    topics_and_groups,
)
from metaq.wire.bodies.tables import group_table_of_tree, group_tree, topic_table_of_tree, topic_tree

BACKUP: Final = "restore it from its .bak"

_REMOVED: Final = "removed"
_JOURNAL: Final = "journalVersion"
JOURNAL_VERSION: Final = 1
"""Of the lines of journals; the first line of each tells it. One that tells none is of the same."""
_ON_ONE_LINE: Final = str.maketrans("", "", "\n\t")

Config = TypeVar("Config", TopicConfig, GroupConfig)


class NamedConfigs(Struct, Generic[Config], frozen=True):
    """Format of a file with a version and one table of settings by name: `topics.json`, `subscriptionGroup.json`."""

    name: str
    what: str
    table: str
    """Key of the table in the file."""
    tree: Callable[[Config], Tree]
    """Makes the tree of one entry."""
    of_tree: Callable[[beans.Value], tuple[DataVersion, dict[str, Config]]]
    remedy: str = BACKUP

    def parse(self, text: str) -> tuple[DataVersion, dict[str, Config]]:
        return self.of_tree(beans.parse(text, "file"))

    def entry(self, key: str, value: Config) -> str:
        return fastjson.file_entry(key, self.tree(value), 2)

    def whole(self, entries: Mapping[str, str], version: DataVersion) -> str:
        first = fastjson.file_entry("dataVersion", data_version_tree(version), 1)
        return fastjson.file_map([first, f'"{self.table}":{fastjson.file_map(entries.values(), 1)}'], 0)

    def change(self, entries: Mapping[str, str | None], version: DataVersion) -> str:
        """Return a journal's line: a file with the changed entries only, and the names of those that are gone."""
        # In the form of the file itself: one parser reads both.
        text = self.whole({key: entry for key, entry in entries.items() if entry is not None}, version)
        text = text.translate(_ON_ONE_LINE)  # those within names are escaped, and stay
        if not entries:
            return f'{text[:-1]},"{_JOURNAL}":{JOURNAL_VERSION}}}'
        gone = [key for key, entry in entries.items() if entry is None]
        return f'{text[:-1]},"{_REMOVED}":{fastjson.dumps(gone).decode()}}}' if gone else text

    def parse_change(self, text: str) -> tuple[DataVersion, dict[str, Config | None]]:
        """Return version and changes of a journal's line; None for an entry that is gone. Raises BadRequest."""
        tree = beans.parse(text, "line")
        if (found := tree[_JOURNAL].whole(JOURNAL_VERSION)) > JOURNAL_VERSION:
            raise BadRequest(
                f"a journal of version {found}, and this release reads version {JOURNAL_VERSION}: use the newer release"
            )
        version, table = self.of_tree(tree)
        # A line never changes and removes the same entry, so the order of the two does not matter.
        return version, {**table, **dict.fromkeys(tree[_REMOVED].texts())}


TOPICS: Final = NamedConfigs("topics.json", "the topic table", "topicConfigTable", topic_tree, topic_table_of_tree)
GROUPS: Final = NamedConfigs(
    "subscriptionGroup.json", "the table of consumer groups", "subscriptionGroupTable", group_tree, group_table_of_tree
)


class DeletedTopics:
    """Format of `metaqDeleted.json`: topic → LogOffset below which its records are dead; and of `metaqGenerations.json`: topic →
    LogOffset of its last deletion (docs/formats/extensions.md)."""

    def __init__(self, name: str, table: str, what: str, loss: str) -> None:
        self.name, self._table, self.what, self.remedy = name, table, what, f"{BACKUP}, or delete it: {loss}"

    def parse(self, text: str) -> tuple[DataVersion, dict[str, int]]:
        table = beans.parse(text, "file")[self._table]
        # An empty file would mean that no topic was deleted, and bring old messages back.
        if table.tree is None:
            raise table.wrong("a table of log offsets")
        return DataVersion(), {topic.key(): place.given_whole() for topic, place in table.entries()}

    def entry(self, key: str, value: int) -> str:
        return fastjson.file_entry(key, value, 2)

    def whole(self, entries: Mapping[str, str], version: DataVersion) -> str:  # noqa: ARG002  the file has none
        return fastjson.file_map([f'"{self._table}":{fastjson.file_map(entries.values(), 1)}'], 0)


def namespaces_of_tree(tree: beans.Value) -> dict[str, dict[str, str]]:
    """Return namespace → key → text. Raises BadRequest, also without the table: then it is some other file."""
    spaces = tree["configTable"]
    if spaces.tree is None:
        raise spaces.wrong("a table of namespaces")
    return {
        namespace.key(): {key.key(): value.text() for key, value in table.entries(nulls=True)}
        for namespace, table in spaces.entries(nulls=True)
    }


class KvConfig:
    """Format of a name server's `kvConfig.json`: text by namespace and key."""

    name: Final = "kvConfig.json"
    what: Final = "the KV configuration"
    remedy: Final = BACKUP

    def parse(self, text: str) -> tuple[DataVersion, dict[tuple[str, str], str]]:
        namespaces = namespaces_of_tree(beans.parse(text, "file"))
        values = {(space, key): value for space, table in namespaces.items() for key, value in table.items()}
        return DataVersion(), values

    def entry(self, key: tuple[str, str], value: str) -> str:
        return fastjson.file_entry(key[1], value, 3)

    def whole(self, entries: Mapping[tuple[str, str], str], version: DataVersion) -> str:  # noqa: ARG002  the file has none
        namespaces: dict[str, list[str]] = {}
        for (namespace, _), entry in entries.items():
            namespaces.setdefault(namespace, []).append(entry)
        maps = (f"{fastjson.dumps(name).decode()}:{fastjson.file_map(table, 2)}" for name, table in namespaces.items())
        return fastjson.file_map([f'"configTable":{fastjson.file_map(maps, 1)}'], 0)


class QuotaTable:
    """Format of `metaqQuotas.json`: quota by kind and name (docs/formats/extensions.md)."""

    name: Final = "metaqQuotas.json"
    what: Final = "the quotas"
    remedy: Final = f"{BACKUP}, or delete it: then there are none but those of the options"

    def parse(self, text: str) -> tuple[DataVersion, dict[Subject, QuotaLimits]]:
        kinds = beans.parse(text, "file")["quotas"]
        if kinds.tree is None:
            raise kinds.wrong("a table of quotas")
        found = dict[Subject, QuotaLimits]()
        for kind, table in kinds.entries():
            for name, tree in table.entries():
                try:
                    subject = check_subject(kind.key(), name.key())
                except ConfigError as error:
                    raise BadRequest(str(error)) from None
                limits = {field: tree[camel].whole(-1) for field, camel in CAMEL.items()}
                if wrong := [field for field, value in limits.items() if value > VALUE_MAX]:
                    raise tree[CAMEL[wrong[0]]].wrong(f"a number up to {VALUE_MAX}")
                found[subject] = QuotaLimits(**{field: value for field, value in limits.items() if value >= 0})
        return DataVersion(), found

    def entry(self, key: Subject, value: QuotaLimits) -> str:
        return fastjson.file_entry(key[1], msgspec.to_builtins(value), 3)

    def whole(self, entries: Mapping[Subject, str], version: DataVersion) -> str:  # noqa: ARG002  the file has none
        kinds: dict[QuotaKind, list[str]] = {}
        for (kind, _), entry in entries.items():
            kinds.setdefault(kind, []).append(entry)
        maps = (f"{fastjson.dumps(kind.value).decode()}:{fastjson.file_map(table, 2)}" for kind, table in kinds.items())
        return fastjson.file_map([f'"quotas":{fastjson.file_map(maps, 1)}'], 0)


class ChangedOptionsFile:
    """Format of `metaqOptions.json`: options that were changed over the wire (docs/formats/extensions.md)."""

    name: Final = "metaqOptions.json"
    remedy: Final = f"{BACKUP}, or delete it: then the options are as the configuration has them"

    def parse(self, text: str) -> dict[str, str]:
        options = beans.parse(text, "file")["options"]
        if options.tree is None:
            raise options.wrong("a table of options")
        return {key.key(): value.text() for key, value in options.entries()}

    def text(self, content: Mapping[str, str]) -> str:
        return fastjson.dumps_file({"options": dict(content)})


class ConsumerOffsets:
    """Format of `consumerOffset.json`: (topic, group) → queue id → the next QueueOffset to consume."""

    name: Final = "consumerOffset.json"
    remedy: Final = BACKUP

    def parse(self, text: str) -> dict[tuple[str, str], dict[int, int]]:
        return topics_and_groups(group_offsets_of_tree(beans.parse(text, "file")))

    def text(self, content: Mapping[tuple[str, str], Mapping[int, int]]) -> str:
        return fastjson.dumps_file(group_offsets_tree(content))


class DelayOffsets:
    """Format of `delayOffset.json`. `metaqLogOffset` is ours: RocketMQ ignores it, and drops it when it saves."""

    name: Final = "delayOffset.json"
    remedy: Final = BACKUP
    _log_offset: Final = "metaqLogOffset"

    def parse(self, text: str) -> DelayProgress:
        tree = beans.parse(text, "file")
        log_offset = tree[self._log_offset].whole(-1)
        # Missing in a RocketMQ's file: then the positions are taken as they are.
        return DelayProgress(delay_offsets_of_tree(tree), log_offset if log_offset >= 0 else None)

    def text(self, content: DelayProgress) -> str:
        tree = delay_offsets_tree(content.offsets)
        if content.log_offset is not None:
            tree[self._log_offset] = content.log_offset
        return fastjson.dumps_file(tree)


class ConsumerFilters:
    """Format of `consumerFilter.json`: (topic, group) → the filter, if it is not by tags."""

    name: Final = "consumerFilter.json"
    remedy: Final = f"{BACKUP}, or delete it: groups that are online say again what they want"

    def parse(self, text: str) -> dict[tuple[str, str], GroupFilter]:
        found = dict[tuple[str, str], GroupFilter]()
        for topic, table in beans.parse(text, "file")["filterDataByTopic"].entries():
            for group, tree in table["groupFilterData"].entries():
                key = topic.key(), group.key()
                found[key] = GroupFilter(
                    *key, tree.text_in("expression"), tree.text_in("expressionType"), tree.whole_in("clientVersion"),
                    tree.whole_in("bornTime"), tree.whole_in("deadTime"),
                )  # fmt: skip
        return found

    def text(self, content: Mapping[tuple[str, str], GroupFilter]) -> str:
        by_topic: dict[str, dict[str, Tree]] = {}
        for (topic, group), one in content.items():
            by_topic.setdefault(topic, {})[group] = {
                # For RocketMQ, should it take the folder over: it computes with these bits, we do not.
                "bloomFilterData": {"bitNum": BLOOM_BITS, "bitPos": bit_positions(group, topic)},
                "bornTime": one.born_ms,
                "clientVersion": one.version,
                "consumerGroup": group,
                "dead": one.dead,
                "deadTime": one.dead_ms,
                "expression": one.expression,
                "expressionType": one.expression_type,
                "topic": topic,
            }
        topics = {topic: {"groupFilterData": groups, "topic": topic} for topic, groups in by_topic.items()}
        return fastjson.dumps_file({"filterDataByTopic": topics})


class LeadershipFile:
    """Format of `metaqLeadership.json`: the role of a broker, and the epochs of its log (docs/formats/extensions.md)."""

    name: Final = "metaqLeadership.json"
    remedy: Final = f"{BACKUP}; without it a broker that was promoted or has stepped down has its configured role again"

    def parse(self, text: str) -> Leadership:
        try:
            return msgspec.json.decode(text, type=Leadership)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise BadRequest(f"file: {error}") from None

    def text(self, content: Leadership) -> str:
        return msgspec.json.format(msgspec.json.encode(content)).decode() + "\n"


DELETED_TOPICS: Final = DeletedTopics(
    "metaqDeleted.json", "deletedTopics", "the memory of deleted topics",
    "messages of a deleted topic may then be found again when a topic of its name is made",
)  # fmt: skip
GENERATIONS: Final = DeletedTopics(
    "metaqGenerations.json", "generations", "the memory of topics that were made anew",
    "who holds a position in a topic made anew then begins at its first message once more",
)  # fmt: skip
CONSUMER_FILTERS: Final = ConsumerFilters()
KV_CONFIG: Final = KvConfig()
CONSUMER_OFFSETS: Final = ConsumerOffsets()
DELAY_OFFSETS: Final = DelayOffsets()
LEADERSHIP: Final = LeadershipFile()
QUOTAS: Final = QuotaTable()
MEMBERSHIP_NAME: Final = "metaqFailover.json"
"""Its format is `metaq.wire.failover.membership`."""
OPTIONS: Final = ChangedOptionsFile()


BLOOM_BITS: Final = 112
"""Size of RocketMQ's Bloom filter with its defaults, 32 groups with filters and an error rate of 20 %."""
_BLOOM_POSITIONS: Final = 3
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def bit_positions(group: str, topic: str) -> list[int]:
    """Return the bits of RocketMQ's Bloom filter that stand for a group and a topic."""
    digest = murmur3_first(f"{group}#{topic}".encode())
    low, high = _signed(digest & 0xFFFFFFFF), _signed(digest >> 32)
    sums = (_signed((low + number * high) & 0xFFFFFFFF) for number in range(1, _BLOOM_POSITIONS + 1))
    # The complement and not the absolute value: RocketMQ flips the bits, and abs(-2^31) is none.
    return [(~value if value < 0 else value) % BLOOM_BITS for value in sums]


def murmur3_first(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0, unsigned."""
    one = two = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        one ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        one = (_rotated(one, 27) + two) * 5 + 0x52DCE729 & _MASK
        two ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        two = (_rotated(two, 31) + one) * 5 + 0x38495AB5 & _MASK
    rest = data[whole:]
    one ^= _mixed(int.from_bytes(rest[:8], "little"), _C1, 31, _C2)
    two ^= _mixed(int.from_bytes(rest[8:], "little"), _C2, 33, _C1)
    one, two = one ^ len(data), two ^ len(data)
    one = one + two & _MASK
    two = two + one & _MASK
    return _final(one) + _final(two) & _MASK


def _mixed(word: int, first: int, turn: int, second: int) -> int:
    return _rotated(word * first & _MASK, turn) * second & _MASK


def _rotated(word: int, turn: int) -> int:
    return (word << turn | word >> (64 - turn)) & _MASK


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
