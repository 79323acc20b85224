"""The configuration file of a MetaQ 1.x broker: `server.ini` or `server.properties`, and a `topic.ini` beside it.

```
; a comment, ;; another
[system]
brokerId=0
maxSegmentSize=1024*1024*1024
dataPath=
[zookeeper]
zk.zkConnect=localhost:2181
[topic=orders]
numPartitions=4
group.billing=filters.orders:Paid
```

A value that is empty says nothing, numbers may be sums and products, and a wrong key stops the start. What a `topic.ini`
has is `[topic=NAME]` sections, which join those of the `server.ini` in its folder.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from metaq.app.partition_sections import (
    FILTER_PREFIX,
    Said,
    TopicSection,
    check_section,
    check_value,
    topic_spellings,
)
from metaq.errors import ConfigError
from metaq.options import BrokerOptions, Metaq1Options, StoreOptions, camel, nearest

TOPIC_FILE: Final = "topic.ini"
PROVIDED: Final = "provided"
"""Folder beside that of the file, in which classes of filters are looked for by default, as in 1.x."""
NAMES: Final = ("server.ini", "server.properties", TOPIC_FILE)
SYSTEM: Final = "system"
ZOOKEEPER: Final = "zookeeper"
TOPIC_PREFIX: Final = "topic="
NOT_IN_IT: Final = frozenset(
    {"enable", "slave_id", "slave_group", "slave_max_delay_in_mills", "auto_sync_master_config"}
)
"""Options of [metaq1] that no server.ini has: those of a slave have a file of their own (`metaq.app.metaq1_slave.properties`)."""
_TOML_SECTIONS: Final = frozenset({"broker", "store", "metaq1", "namesrv", "tls"})
"""Of a `metaq.toml`, whatever it is called."""

_INTERNAL: Final = {"lastModified", "path", "configFileChecksum", "topics"}
_DIAMOND: Final = {"diamondZKDataId", "diamondZKGroup"}
TAKEN: Final = {
    "get_process_thread_count": "is passed over: this broker answers in its event loop and has no such threads",
    "put_process_thread_count": "is passed over: this broker answers in its event loop and has no such threads",
    "max_checkpoints": "is passed over: checkpoints of transactions are records of the log and last as long as it",
}
"""Options of 1.x without effect here, and why."""
_NUMBER: Final = re.compile(r"[-+*/%()\s0-9]{1,200}")


class ServerIni(Struct, frozen=True):
    """Checked content of a `server.ini`."""

    path: str
    values: Mapping[str, Any]
    """[system] and [zookeeper]: field of `Metaq1Options` → value. Empty values of the file are left out."""
    sections: tuple[TopicSection, ...]
    text: bytes
    """Bytes of the file and of a `topic.ini` beside it, for `stats config` and the checksum in ZooKeeper."""
    warnings: tuple[str, ...]


class Entry(NamedTuple):
    """A key of a section, unparsed."""

    section: str
    key: str
    value: str
    where: str


class _Parsed(Struct):
    """Content of the files read so far."""

    values: dict[str, Said] = {}
    sections: dict[str, TopicSection] = {}
    warnings: list[str] = []


def is_server_ini(path: str, text: str) -> bool:
    """Return whether a file is a server.ini of MetaQ 1.x: by its first section, else by its name and its keys."""
    named = pathlib.PurePath(path).name in NAMES
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] not in "#;!"]
    section = next((line[1:-1].replace(" ", "") for line in lines if line[0] == "[" and line[-1] == "]"), None)
    if section is not None:
        known = section in {SYSTEM, ZOOKEEPER} or section.startswith(TOPIC_PREFIX)
        return known or (named and section not in _TOML_SECTIONS)
    keys = {re.split(r"[=:\s]", line, maxsplit=1)[0] for line in lines}
    ours = Metaq1Options.spellings().keys()
    theirs = BrokerOptions.spellings().keys() | StoreOptions.spellings().keys()
    return named and (not keys or len(keys & ours) >= max(len(keys & theirs), 1))


def read_server_ini(path: str) -> ServerIni:
    """Read the file and a `topic.ini` beside it. Raises ConfigError, with the number of the wrong line."""
    file = pathlib.Path(path)
    parsed, texts = _Parsed(), list[bytes]()
    beside = file.with_name(TOPIC_FILE)
    for one in (file, beside) if beside != file and beside.is_file() else (file,):
        raw = _raw(one)
        texts.append(raw)
        for entry in entries(_decoded(one, raw), str(one)):
            _take(parsed, entry, topics_only=one.name == TOPIC_FILE)
    values = {name: said.value for name, said in parsed.values.items()}
    # 1.x's own default for appClassPath.
    provided = file.resolve().parent.parent / PROVIDED
    if "app_class_path" not in values and provided.is_dir():
        values["app_class_path"] = str(provided)
    if "broker_id" not in values:
        raise ConfigError(f"{path}: [system] has no brokerId: give the broker a number from 0 to 1023 of its own")
    options = Metaq1Options.read(values)[0]
    if options.zk_enable and options.zk_connect is None:
        raise ConfigError(
            f"{path}: [zookeeper] has no zk.zkConnect: name its servers, or set zk.zkEnable=false to go without"
        )
    sections = tuple(check_section(section) for section in parsed.sections.values())
    usual = Metaq1Options().values()
    for name in sorted(name for name in TAKEN.keys() & values.keys() if values[name] != usual[name]):
        parsed.warnings.append(f"{parsed.values[name].where}: {camel(name)} {TAKEN[name]}")
    return ServerIni(path, values, sections, b"\n".join(texts), tuple(parsed.warnings))


def _raw(file: pathlib.Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error}") from None


def _decoded(file: pathlib.Path, raw: bytes) -> str:
    """Decode UTF-8, or GBK, in which old files have their comments."""
    # UTF-8 first: hardly any text in GBK happens to be valid UTF-8, while the other way round is common.
    for encoding in ("utf-8-sig", "gbk"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ConfigError(f"cannot read the configuration file {file}: it is neither UTF-8 nor GBK")


def entries(text: str, path: str) -> Iterator[Entry]:
    """Yield each key of a file with its section; first, for each section, an entry with an empty key.

    Keys before the first section belong to the section "". Raises ConfigError: a line that is neither section nor key.
    """
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line, where = raw.strip(), f"{path}, line {number}"
        if not line or line[0] in ";#":
            continue
        if line[0] == "[":
            if line[-1] != "]":
                raise ConfigError(f"{where}: {line!r} begins a section and has no ] at its end")
            section = re.sub(r"\s*=\s*", "=", line[1:-1].strip(), count=1)
            yield Entry(section, "", "", where)
            continue
        found = re.search("[=:]", line)
        if found is None or not line[: found.start()].strip():
            raise ConfigError(f"{where}: {line!r} is no key=value")
        yield Entry(section, line[: found.start()].strip(), line[found.end() :].strip(), where)


def _take(parsed: _Parsed, entry: Entry, *, topics_only: bool) -> None:
    if entry.section.startswith(TOPIC_PREFIX):
        _take_topic(parsed, entry)
    elif topics_only:
        raise ConfigError(f"{entry.where}: a {TOPIC_FILE} has sections [topic=NAME] and nothing else")
    elif entry.section in {"", SYSTEM, ZOOKEEPER}:
        if entry.key:
            _take_option(parsed, entry)
    else:
        names = (SYSTEM, ZOOKEEPER, "topic=NAME")
        near = nearest(entry.section, names)
        raise ConfigError(
            f"{entry.where}: [{entry.section}] is no section{near}; there are {', '.join(f'[{name}]' for name in names)}"
        )


def _take_option(parsed: _Parsed, entry: Entry) -> None:
    if entry.key in _DIAMOND:
        parsed.warnings.append(f"{entry.where}: {entry.key} is passed over: clients find ZooKeeper without Diamond")
        return
    if entry.key in _INTERNAL:
        parsed.warnings.append(f"{entry.where}: {entry.key} is passed over: the broker finds it out by itself")
        return
    spellings = {key: name for key, name in Metaq1Options.spellings().items() if name not in NOT_IN_IT}
    name = spellings.get(entry.key)
    if name is None:
        raise ConfigError(f"{entry.where}: there is no option {entry.key!r}{nearest(entry.key, _shown(spellings))}")
    home = ZOOKEEPER if name.startswith("zk_") else SYSTEM
    if entry.section not in {"", home}:
        raise ConfigError(f"{entry.where}: {entry.key} belongs in [{home}]")
    if entry.value:
        try:
            said = Said(check_value(name, _evaluated(name, entry.value)), entry.where)
        except ConfigError as error:
            raise ConfigError(f"{entry.where}: {error}") from None
        if name in parsed.values:
            parsed.warnings.append(
                f"{entry.where}: {entry.key} stands twice, also in {parsed.values[name].where}; this one holds"
            )
        parsed.values[name] = said


def _take_topic(parsed: _Parsed, entry: Entry) -> None:
    topic = entry.section.removeprefix(TOPIC_PREFIX)
    section = parsed.sections.setdefault(topic, TopicSection(topic, entry.where, {}))
    if not entry.key:
        if section.where != entry.where:
            parsed.warnings.append(
                f"{entry.where}: [topic={topic}] stands twice, also in {section.where}; they count as one"
            )
        return
    spellings = topic_spellings()
    name = entry.key if entry.key.startswith(FILTER_PREFIX) and entry.key != FILTER_PREFIX else spellings.get(entry.key)
    if name is None:
        known = [*_shown(spellings), f"{FILTER_PREFIX}GROUP"]
        raise ConfigError(f"{entry.where}: a topic has no option {entry.key!r}{nearest(entry.key, known)}")
    if not entry.value:
        return
    if name in section.said:
        parsed.warnings.append(
            f"{entry.where}: {entry.key} stands twice, also in {section.said[name].where}; this one holds"
        )
    value = entry.value if name.startswith(FILTER_PREFIX) else _evaluated(name, entry.value, entry.where)
    parsed.sections[topic] = TopicSection(topic, section.where, {**section.said, name: Said(value, entry.where)})


def _shown(spellings: Mapping[str, str]) -> list[str]:
    """Return the spellings of an original file: `zk.zkRoot`, not `zkRoot`."""
    return [key for key, name in spellings.items() if name.startswith("zk_") == key.startswith("zk.")]


_NUMBERS: Final = {name for name, hint in Metaq1Options.__annotations__.items() if hint in {"int", "int | None"}}


def _evaluated(name: str, value: str, where: str = "") -> Any:
    """Return the value of an expression such as `1024 * 1024`; other values as they are."""
    if name not in _NUMBERS or not _NUMBER.fullmatch(value):
        return value
    from metaq.app.config_files.arithmetic import calculate  # here and not above: plain numbers go without its parser

    try:
        return calculate(value)
    except ConfigError as error:
        raise ConfigError(
            f"{where}: {camel(name)}={value}: {error}" if where else f"{camel(name)}={value}: {error}"
        ) from None


def written(options: Metaq1Options, sections: Sequence[TopicSection]) -> bytes:
    """Return an equivalent server.ini, which a broker without one answers to `stats config`."""
    lines = {SYSTEM: list[str](), ZOOKEEPER: list[str]()}
    for name, value in options.values().items():
        if name not in NOT_IN_IT:
            home = ZOOKEEPER if name.startswith("zk_") else SYSTEM
            lines[home].append(f"{'zk.' if home == ZOOKEEPER else ''}{camel(name)}={_shown_value(value)}")
    text = [f"[{SYSTEM}]", *lines[SYSTEM], f"[{ZOOKEEPER}]", *lines[ZOOKEEPER]]
    for section in sections:
        text.append(f"[{TOPIC_PREFIX}{section.name}]")
        for key, said in section.said.items():
            text.append(f"{key if key.startswith(FILTER_PREFIX) else camel(key)}={_shown_value(said.value)}")
    return "\n".join([*text, ""]).encode()


def _shown_value(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
