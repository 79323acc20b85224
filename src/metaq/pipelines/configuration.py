"""A pipeline's configuration: a TOML file, or a mapping, validated before anything starts.

    pipeline = "archive"
    nameServers = "127.0.0.1:9876"
    topics = ["orders", "payments"]
    output = "archive/orders"

    [spark]
    master = "local[*]"
    "spark.executor.memory" = "2g"

Keys are the pipeline's options in camelCase or snake_case; a list is the same as its texts joined by commas.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from metaq.errors import ConfigError
from metaq.option_table import OptionTable, nearest
from metaq.pipelines.catalogue import Pipeline, pipeline
from metaq.pipelines.options import PipelineOptions

ConfigLike: TypeAlias = Mapping[str, Any] | str | Path | PipelineOptions
"""Source of a configuration: a mapping of options, the path of a TOML file, or the pipeline's option table."""
_NAME, _SPARK = "pipeline", "spark"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A pipeline and its whole configuration."""

    pipeline: Pipeline
    options: PipelineOptions
    master: str | None = None
    """Spark's master; None: `local[*]`, or the one of `spark-submit`."""
    spark: dict[str, str] = field(default_factory=dict)
    """Settings of the Spark session, `spark.…`."""


def configure(name: str | Pipeline | None, given: ConfigLike, **more: Any) -> Configuration:
    """Read a configuration.

    Args:
        name: the pipeline, or its name; None: the file must name it.
        given: the configuration. An option table is taken as it is.
        more: options that override those of `given`, in any spelling.

    Raises: ConfigError: the file cannot be read, a key is wrong (the nearest is named), or values do not fit each other.
    """
    own, name = (name, name.name) if isinstance(name, Pipeline) else (None, name)
    if isinstance(given, PipelineOptions):
        if name is None:
            raise ConfigError("options alone do not say which pipeline they are for")
        options = given.replace(**more)
        options.check()
        return Configuration(own or pipeline(name), options)
    where, pairs = ("", dict(given)) if isinstance(given, Mapping) else (str(given), _load(Path(given)))
    said = pairs.pop(_NAME, name)
    place = f" in {where}" if where else ""
    if not isinstance(said, str):
        raise ConfigError(
            f'which pipeline? Say it{place}, such as pipeline = "archive"; of a pipeline of your own, give the folder (--folder)'
        )
    if name is not None and said != name:
        raise ConfigError(f"{where or 'the configuration'} is of the pipeline {said}, not of {name}")
    kind = own or pipeline(said)
    master, spark = _spark(pairs.pop(_SPARK, {}), place)
    options = options_of(kind.options, pairs, where, more)
    options.check()
    return Configuration(kind, options, master, spark)


def options_of(
    table: type[PipelineOptions], pairs: Mapping[str, Any], where: str = "", more: Mapping[str, Any] | None = None
) -> PipelineOptions:
    """Parse options from keys and values in any spelling; those of `more` win. Raises ConfigError."""
    spellings = table.spellings()
    for key in [*pairs, *(more or {})]:
        if key not in spellings:
            raise ConfigError(f"there is no option {key}{f' in {where}' if where else ''}{nearest(key, spellings)}")
    merged = {spellings[key]: _flat(table, key, value, where) for key, value in pairs.items()}
    merged |= {spellings[key]: _flat(table, key, value, "") for key, value in (more or {}).items()}
    return table.read(merged, where)[0]


def describe(table: type[OptionTable]) -> list[tuple[str, str, str]]:
    """Return (key, default as text, description) of each option; an empty default is none."""
    from dataclasses import fields

    from metaq.option_table import camel

    rows = []
    for item in fields(table):
        default = (
            ""
            if item.default in (None, "")
            else str(item.default).lower()
            if isinstance(item.default, bool)
            else str(item.default)
        )
        rows.append((camel(item.name), default, item.metadata["doc"]))
    return rows


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(f"the configuration {path} cannot be read: {fault.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ConfigError(f"the configuration {path} is no TOML: {fault}") from None


def _flat(table: type[PipelineOptions], key: str, value: Any, where: str) -> Any:
    """Return a value as a text could give it: a list joined, a path as text."""
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, list | tuple):
        return value
    if not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{key}{f' in {where}' if where else ''}: need texts in the list")
    try:
        return table.joined(table.spellings()[key], list(value))
    except ConfigError as fault:
        raise ConfigError(f"{key}{f' in {where}' if where else ''}: {fault}") from None


def _spark(section: Any, place: str) -> tuple[str | None, dict[str, str]]:
    if not isinstance(section, Mapping):
        raise ConfigError(f"[spark]{place}: need a section of settings")
    settings = dict(section)
    master = settings.pop("master", None)
    if master is not None and not isinstance(master, str):
        raise ConfigError(f"master={master!r}{place}: need a text in quotes")
    for key, value in settings.items():
        if not key.startswith("spark.") or isinstance(value, Mapping | list):
            raise ConfigError(f'[spark]{place} has no {key}: need master, and settings such as "spark.executor.memory"')
    # Spark's settings are texts, and its Booleans are lower case.
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}
    return master, texts
