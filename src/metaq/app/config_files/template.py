"""A commented `metaq.toml` with a value for each option. tomli-w writes the values, and the tables of topics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tomli_w

from metaq.app.config_files.sections import METAQ1
from metaq.app.partition_sections import FILTER_PREFIX
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
            key = camel(item.name)
            lines.append(f"# {key} =" if value is None else tomli_w.dumps({key: value}).rstrip("\n"))
        if section == METAQ1 and topics is not None:
            lines += ["", "# Only topics that have a table here, or that a name with * admits, are for 1.x clients."]
            lines.append(f"[{METAQ1}.topics]")
            for topic in topics:
                said = {METAQ1: {"topics": {topic.name: _section(topic)}}}
                lines += ["", tomli_w.dumps(said).rstrip("\n")]
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


def _section(topic: TopicSection) -> dict[str, Any]:
    """Return what is said of a topic by the keys of the file; the filters of groups are a table in it."""
    found: dict[str, Any] = {}
    for key, said in topic.said.items():
        if key.startswith(FILTER_PREFIX):
            found.setdefault(FILTER_PREFIX.rstrip("."), {})[key.removeprefix(FILTER_PREFIX)] = said.value
        else:
            found[camel(key)] = said.value
    return found
