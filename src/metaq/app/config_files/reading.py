"""Reading a configuration file, of whichever of the three kinds it is.

RocketMQ's `broker.conf` or `namesrv.properties`, Java properties without sections; a `server.ini` of MetaQ 1.x
(`metaq.app.config_files.server_ini`); and our own `metaq.toml` with the sections `[broker]`, `[store]`, `[metaq1]`,
`[namesrv]`, `[tls]` and `[dashboard]`. Keys and values are those of the file: `metaq.app.config_files.keys` knows which
options they mean.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from metaq.app.config_files.keys import GROUP_COMMIT, renamed
from metaq.app.config_files.properties import read_properties
from metaq.app.config_files.sections import SECTIONS, TLS
from metaq.app.foreign.refused import PROMISES
from metaq.errors import ConfigError
from metaq.options import nearest
from metaq.tls_options import TlsOptions

if TYPE_CHECKING:
    from metaq.app.config_files.server_ini import ServerIni

OF_WEBHOOKS: Final = "webhooks"
"""A section of a `metaq.toml` that `metaq webhook run` reads, and no server."""


class ParsedFile(Struct, frozen=True):
    """A parsed file. `rocketmq`: keys have no sections; each goes to all tables that know it."""

    path: str
    rocketmq: bool
    pairs: Mapping[str, Mapping[str, Any]]


def read_config_file(path: str) -> ParsedFile | ServerIni:
    """Raises ConfigError: the file cannot be read, or is of none of the three kinds."""
    try:
        raw = pathlib.Path(path).read_bytes()
        from metaq.app.config_files.server_ini import (  # here and not above: most starts have no file
            is_server_ini,
            read_server_ini,
        )

        if is_server_ini(path, raw.decode("utf-8", "replace")):
            return read_server_ini(path)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from None
    first = next((line.strip() for line in text.splitlines() if line.strip() and line.strip()[0] not in "#!"), "")
    # A file whose first line is no section is RocketMQ's: Java properties have none.
    if not first.startswith("[") and not path.endswith(".toml"):
        return ParsedFile(path, True, {"": renamed(_checked_properties(path, text), path)})
    import tomllib  # here and not above: the start without a file is measured in milliseconds

    try:
        sections = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    sections.pop(OF_WEBHOOKS, None)
    for name, section in sections.items():
        if name not in SECTIONS or not isinstance(section, dict):
            raise ConfigError(
                f"{path}: [{name}] is not a section; there are {', '.join(f'[{s}]' for s in SECTIONS)}, and in a server.ini of MetaQ 1.x "
                "[system], [zookeeper] and [topic=NAME]"
            )
    pairs_of = {name: renamed(pairs, f"[{name}] of {path}") for name, pairs in _with_tls(sections).items()}
    return ParsedFile(path, False, pairs_of)


def _checked_properties(path: str, text: str) -> dict[str, str]:
    """Return the pairs of a RocketMQ file. Raises ConfigError: not one key is known, so that it is something else."""
    from metaq.app.foreign.passed_over import REASONS  # here and not above: a start without such a file goes without

    pairs = read_properties(text, path)
    known = {GROUP_COMMIT, *REASONS, *PROMISES, *(key for table in SECTIONS.values() for key in table.spellings())}
    if pairs and not any(key in known or key.startswith("tls.") for key in pairs):
        first = next(iter(pairs))
        raise ConfigError(
            f"{path} is no configuration file: neither a RocketMQ broker.conf or namesrv.properties (key=value; not one of its keys is known, "
            f"the first is {first[:80]!r}{nearest(first, known)}), nor a MetaQ 1.x server.ini ([system], [zookeeper], [topic=NAME]), nor a "
            "metaq.toml ([broker], [store], ...)"
        )
    return pairs


def _with_tls(sections: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the sections with all keys of TLS in theirs: `tls.server.mode` at the top, or in a server's section, is a
    table in a table to TOML."""
    found = {name: dict(pairs) for name, pairs in sections.items()}
    gathered = dict(_dotted(found.pop(TLS, {}), ""))
    for section in ("broker", "namesrv"):
        inner = found.get(section, {}).pop(TLS, None)
        if isinstance(inner, dict):
            gathered |= _dotted(inner, "")
        for key in [key for key in found.get(section, {}) if key.startswith("tls.")]:
            gathered[key] = found[section].pop(key)
    return {**found, TLS: gathered} if gathered else found


def _dotted(pairs: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    known = TlsOptions.spellings()
    for key, value in pairs.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield key if key in known and not prefix else f"tls.{prefix}{key}", value
