"""Whether the filters that a configuration names for groups of MetaQ 1.x can be loaded: asked of a process that tries to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable

from metaq.app.partition_sections import FILTER_PREFIX, TopicSection
from metaq.app.predicate_process import program
from metaq.errors import ConfigError
from metaq.model.metaq1.settings import WILDCARD
from metaq.options import MIB

LOAD_SECONDS = 30.0
_MEMORY = 256 * MIB


def check_filters(sections: Iterable[TopicSection], path: str) -> None:
    """Load each filter once, in a process of its own. It may block. Raises ConfigError, with the place of the first that fails.

    Args: path: folders in which modules are looked for (appClassPath).
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
    asked = json.dumps({"predicates": {name: name for name in names}, "memory": _MEMORY, "filters": True})
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
