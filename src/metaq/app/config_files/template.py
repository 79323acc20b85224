"""A commented `metaq.toml` with a value for each option."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metaq.app.config_files.sections import METAQ1
from metaq.options import OptionTable, camel

if TYPE_CHECKING:
    from metaq.app.partition_sections import TopicSection


def template(tables: Mapping[str, OptionTable], topics: Sequence[TopicSection] | None = None) -> str:
    """Return a complete `metaq.toml` with these values, a sentence above each. `metaq.app.configuration.load`
    reads the same tables and topics from it."""
    lines = ["# A complete metaq.toml. Every option stands here with its value; those commented out have none."]
    for section, table in tables.items():
        lines += ["", f"[{section}]"]
        for item in table.listed():
            facts, value = item.metadata, getattr(table, item.name)
            if facts.get("secret"):
                value = None
            lines += ["", f"# {facts['doc']}{_limits(item)}"]
            lines.append(f"# {camel(item.name)} =" if value is None else f"{camel(item.name)} = {_toml(value)}")
        if section == METAQ1 and topics is not None:
            lines += ["", "# Only topics that have a table here, or that a name with * admits, are for 1.x clients."]
            lines.append(f"[{METAQ1}.topics]")
            for topic in topics:
                lines += ["", f"[{METAQ1}.topics.{_toml(topic.name)}]"]
                lines += [f"{_topic_key(key)} = {_toml(said.value)}" for key, said in topic.said.items()]
    return "\n".join(lines) + "\n"


def _limits(item: dataclasses.Field[Any]) -> str:
    facts = item.metadata
    said = []
    if facts.get("choices"):
        said.append("one of " + ", ".join(facts["choices"]))
    if facts.get("low") is not None:
        said.append(f"at least {facts['low']:,}".replace(",", " "))
    if facts.get("high") is not None:
        said.append(f"at most {facts['high']:,}".replace(",", " "))
    return f" ({', '.join(said)})" if said else ""


def _topic_key(key: str) -> str:
    """Return a TOML key: `numPartitions` for `num_partitions`, `group."G"` for the filter of a group."""
    head, dot, group = key.partition(".")
    return f"{head}.{_toml(group)}" if dot else camel(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return str(value)
