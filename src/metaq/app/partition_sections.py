"""Sections of single topics of MetaQ 1.x, in a `server.ini` or a `metaq.toml`: checked, and made rules of."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from metaq.errors import ConfigError, Refused
from metaq.model.cron import parse_cron
from metaq.model.metaq1.settings import WILDCARD, DeletePolicy, PartitionRules, PartitionSettings
from metaq.model.topics.topic import check_partition_topic
from metaq.options import MIB, Metaq1Options, camel, nearest

TOPIC_FIELDS: Final = (
    "num_partitions",
    "unflush_threshold",
    "unflush_interval",
    "data_path",
    "delete_policy",
    "delete_when",
    "accept_publish",
    "accept_subscribe",
    "stat",
)
TOPICS: Final = "topics"
"""Key of the tables [metaq1.topics.NAME] in a `metaq.toml`."""
FILTER_PREFIX: Final = "group."
FILTER_CHARS_MAX: Final = 200
LOAD_SECONDS: Final = 30.0
"""Longest wait for the process that loads the filters."""
_LOAD_MEMORY: Final = 256 * MIB
_ZOOKEEPER: Final = re.compile(r"\s*(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]{1,5})?\s*", re.ASCII)
_ZOOKEEPER_PATH: Final = re.compile(r"/?([^/\s\x00-\x1f]+(/[^/\s\x00-\x1f]+)*)?/?")
_FILTER: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Said(Struct, frozen=True):
    """A value of a section, and its place for errors."""

    value: Any
    where: str


class TopicSection(Struct, frozen=True):
    """Section of a topic or a wildcard. Keys are field names, or `group.` and a group."""

    name: str
    where: str
    said: Mapping[str, Said]


def topic_spellings() -> dict[str, str]:
    """Return key of a topic's section → field."""
    return {key: name for key, name in Metaq1Options.spellings().items() if name in TOPIC_FIELDS}


def check_value(name: str, value: Any) -> Any:
    """Return a value of [system], [zookeeper] or a topic's section with its type. Raises ConfigError."""
    typed = getattr(Metaq1Options.read({camel(name): value})[0], name)
    if name == "delete_policy":
        DeletePolicy.parse(typed)
    if name == "delete_when":
        parse_cron(typed)
    if name == "zk_connect" and typed is not None and not all(_ZOOKEEPER.fullmatch(one) for one in typed.split(",")):
        raise ConfigError(f"zk.zkConnect={typed}: need host:port, `,`-separated")
    if name == "zk_root" and not _ZOOKEEPER_PATH.fullmatch(typed):
        raise ConfigError(f"zk.zkRoot={typed}: need a path like /meta, of names without blanks")
    return typed


def check_section(section: TopicSection) -> TopicSection:
    """Return the section with typed values. Raises ConfigError, which names the place."""
    if WILDCARD not in section.name:
        try:
            check_partition_topic(section.name)
        except Refused as error:
            raise ConfigError(f"{section.where}: {error}") from None
    said = {}
    for key, (value, where) in ((key, (item.value, item.where)) for key, item in section.said.items()):
        try:
            said[key] = Said(_filter(value) if key.startswith(FILTER_PREFIX) else check_value(key, value), where)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return TopicSection(section.name, section.where, said)


def _filter(value: Any) -> str:
    if not isinstance(value, str) or not _FILTER.fullmatch(value.strip()) or len(value) > FILTER_CHARS_MAX:
        raise ConfigError(
            f"{value!r} is no filter: need package.module:Name, a Python class with accept(group, message); "
            "a Java class cannot be loaded"
        )
    return value.strip()


def rules_of(options: Metaq1Options, sections: Sequence[TopicSection]) -> PartitionRules:
    """Return the rules of checked sections, with the defaults of [system]."""
    topics, wildcards = dict[str, PartitionSettings](), list[str]()
    for section in sections:
        if WILDCARD in section.name:
            wildcards.append(section.name)
            continue
        own = {name: item.value for name, item in section.said.items() if name in TOPIC_FIELDS}
        filters = {
            name.removeprefix(FILTER_PREFIX): item.value
            for name, item in section.said.items()
            if name.startswith(FILTER_PREFIX)
        }
        settings = PartitionSettings.of(options.replace(**{key: own[key] for key in own if own[key] is not None}))
        topics[section.name] = replace(settings, filters=filters)
    return PartitionRules(PartitionSettings.of(options), topics, tuple(wildcards), sections=True)


def notices(options: Metaq1Options, sections: Sequence[TopicSection], file: str) -> list[str]:
    """Return warnings about what sections say without effect here."""
    said = []
    if not sections:
        said.append(
            f"{file}: no section of a topic: 1.x clients may use no topic until one is added and the file is read again"
        )
    for section in sections:
        if WILDCARD in section.name and section.said:
            keys = ", ".join(key if key.startswith(FILTER_PREFIX) else camel(key) for key in section.said)
            said.append(
                f"{section.where}: {keys} of [topic={section.name}] is passed over: topics that a wildcard admits get "
                "what [system] says"
            )
        path = section.said.get("data_path")
        if path is not None and path.value not in {None, options.data_path}:
            said.append(
                f"{path.where}: dataPath of the topic {section.name} is passed over: all topics are in one log, under "
                f"{options.data_path}"
            )
    return said


def rules(options: Metaq1Options, sections: tuple[TopicSection, ...] | None) -> PartitionRules:
    """Return the rules; without sections (None) all topics have the defaults."""
    return PartitionRules(PartitionSettings.of(options)) if sections is None else rules_of(options, sections)


def split_topics(pairs: Mapping[str, Any], file: str) -> tuple[dict[str, Any], tuple[TopicSection, ...] | None]:
    """Split [metaq1] into its options and its tables [metaq1.topics.NAME]; None if there are none."""
    tables = pairs.get(TOPICS)
    if tables is None:
        return dict(pairs), None
    spellings, sections = topic_spellings(), list[TopicSection]()
    for name, table in tables.items() if isinstance(tables, dict) else [("", tables)]:
        where = f"[metaq1.{TOPICS}.{name}] of {file}"
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: need a table")
        filters = table.get("group", {})  # group.G = "module:Name" is a table in a table
        if not isinstance(filters, dict):
            raise ConfigError(f"{where}: need group.GROUP = a filter")
        said = {f"{FILTER_PREFIX}{group}": Said(value, where) for group, value in filters.items()}
        for key, value in table.items():
            if key in spellings:
                said[spellings[key]] = Said(value, where)
            elif key != "group":
                raise ConfigError(f"{where}: a topic has no option {key!r}{nearest(key, [*spellings, 'group.GROUP'])}")
        sections.append(check_section(TopicSection(name, where, said)))
    return {key: value for key, value in pairs.items() if key != TOPICS}, tuple(sections)


def check_filters(sections: Iterable[TopicSection], path: str) -> None:
    """Load each filter once, in a process of its own: importing runs the operator's code. Blocks.

    Raises ConfigError, with the place of the first filter that cannot be loaded.

    Args:
        sections: of topics.
        path: folders in which modules are looked for (appClassPath).
    """
    named = {
        said.value: said.where
        for section in sections
        if WILDCARD not in section.name
        for key, said in section.said.items()
        if key.startswith(FILTER_PREFIX)
    }
    if not named:
        return
    first = next(iter(named.values()))
    errors = _errors_of(list(named), path, first)
    for name, where in named.items():
        if name in errors:
            looked = f"; it is looked for in {path} (appClassPath) first" if path else "; appClassPath names no folder"
            raise ConfigError(f"{where}: the filter {name} cannot be loaded: {errors[name]}{looked}")


def _errors_of(names: list[str], path: str, where: str) -> dict[str, str]:
    asked = json.dumps({"predicates": {name: name for name in names}, "memory": _LOAD_MEMORY, "filters": True})
    from metaq.app.predicate_process import program  # here and not above: it loads parts of the broker

    command, environment = program(path, asked)
    try:
        done = subprocess.run(  # noqa: S603  our own program
            command, input=b"", stdout=subprocess.PIPE, env=environment, timeout=LOAD_SECONDS, check=False,
            start_new_session=True,
        )  # fmt: skip
        found: dict[str, str] = json.loads(done.stdout[4:])["errors"]
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{where}: the filters were not loaded within {LOAD_SECONDS:g} s") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: the filters cannot be loaded: {error}") from None
    return found
