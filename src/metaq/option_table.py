"""Option tables: typed fields, each with a sentence, bounds and spellings; read from text, changed while running.

Apart from the servers' tables (`metaq.options`), whose classes take longer to make than all that a client or a Spark
worker imports.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Final, NamedTuple, Self

from metaq.errors import ConfigError

KIB = 1024
"""Bytes of a kibibyte."""
MIB = 1024 * KIB
"""Bytes of a mebibyte."""
GIB = 1024 * MIB
"""Bytes of a gibibyte."""


def option(
    default: Any,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    hot: bool = False,
    secret: bool = False,
    form: tuple[str, str] | None = None,
) -> Any:
    """Make a field of an option table.

    Args:
        default: its value unless somebody sets it; None: unset, for an annotation that allows it.
        doc: a sentence about it, with the unit, for users.
        aliases: spellings that are read beside the field's name and `camel` of it.
        low, high: bounds of a number, inclusive.
        choices: the only values of a text.
        hot: it may be changed while running (`apply`).
        secret: it is never shown. Not with `hot`, as changes are shown.
        form: regular expression of a text that is not empty, and what it asks for, in words.
    """
    assert not (hot and secret), "changes of hot options are shown"
    facts = {
        "doc": doc,
        "aliases": aliases,
        "low": low,
        "high": high,
        "choices": choices,
        "hot": hot,
        "secret": secret,
        "form": form,
    }
    return field(default=default, metadata=facts, repr=not secret)


def camel(name: str) -> str:
    """Return the spelling in RocketMQ's files: `brokerIP1` for `broker_ip1`, `storePathRootDir` for
    `store_path_root_dir`."""
    head, *tail = name.split("_")
    return head + "".join("IP" + word[2:] if re.fullmatch(r"ip\d?", word) else word.capitalize() for word in tail)


def nearest(key: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: `; the nearest is ...`, or "" where none of `names` is like it."""
    import difflib  # here and not above: a start that meets no wrong key goes without

    lowered = {name.lower(): name for name in names if "_" not in name}
    near = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.6)
    return f"; the nearest is {lowered[near[0]]}" if near else ""


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """Base of the tables: checks bounds when made, reads all accepted spellings. Raises ConfigError: a value is out of bounds."""

    section: ClassVar[str] = ""
    """Section of a `metaq.toml` in which these options stand, such as `broker`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, facts = getattr(self, item.name), item.metadata
            if value is None:
                continue
            if facts.get("low") is not None and value < facts["low"]:
                raise ConfigError(f"{camel(item.name)}={value}: the smallest allowed value is {facts['low']}")
            if facts.get("high") is not None and value > facts["high"]:
                raise ConfigError(f"{camel(item.name)}={value}: the largest allowed value is {facts['high']}")
            if facts.get("choices") and value not in facts["choices"]:
                raise ConfigError(f"{camel(item.name)}={value}: allowed are {', '.join(facts['choices'])}")
            if value and facts.get("form") and not re.fullmatch(facts["form"][0], value):
                raise ConfigError(f"{camel(item.name)}={value!r}: need {facts['form'][1]}")

    @classmethod
    def spellings(cls) -> dict[str, str]:
        """Return every accepted key → field name."""
        table: dict[str, str] = {}
        for item in fields(cls):
            for key in (item.name, camel(item.name), *item.metadata.get("aliases", ())):
                table[key] = item.name
        return table

    @classmethod
    def read(cls, pairs: Mapping[str, Any], where: str = "") -> tuple[Self, set[str]]:
        """Make a table of `pairs` (text or typed values, any spelling). Return it with the keys that it took.

        The caller decides what other keys mean. Raises ConfigError: a value of the wrong type or out of bounds; `where`
        names the file or flag.
        """
        table, hints = cls.spellings(), typing.get_type_hints(cls)
        values: dict[str, Any] = {}
        for key, value in pairs.items():
            if key in table:
                values[table[key]] = _typed(key, value, hints[table[key]], where)
        return cls(**values), {key for key in pairs if key in table}

    @classmethod
    def listed(cls) -> list[Field[Any]]:
        """Return the fields as readers want them: the table's own first, then those that it has in common with others."""
        common = {item.name for base in cls.__mro__[1:] if dataclasses.is_dataclass(base) for item in fields(base)}
        return sorted(fields(cls), key=lambda item: item.name in common)

    def values(self) -> dict[str, Any]:
        """Return field name → value."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def properties(self) -> dict[str, str]:
        """Return all values that are set, as texts under RocketMQ's names, without secrets."""
        hidden = self.secrets()
        return {
            camel(name): text_of(value)
            for name, value in self.values().items()
            if value is not None and name not in hidden
        }

    def replace(self, **changes: Any) -> Self:
        """Return options of which these fields have other values. Raises TypeError: there is no such field; ConfigError: a
        value is out of bounds."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def secrets(cls) -> frozenset[str]:
        """Return the fields whose values are never shown."""
        return frozenset(item.name for item in fields(cls) if item.metadata.get("secret"))

    @classmethod
    def hot_names(cls) -> frozenset[str]:
        """Return the fields that may be changed while running."""
        return frozenset(item.name for item in fields(cls) if item.metadata["hot"])


def text_of(value: Any) -> str:
    """Return a value as files and requests have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


def _typed(key: str, value: Any, hint: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if value is None or (isinstance(value, str) and value.strip() == ""):
            return None
        hint = kinds[0]
    place = f" in {where}" if where else ""
    if hint is bool:
        text = str(value).strip().lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise ConfigError(f"{key}={value!r}{place}: need true or false")
    if hint in (int, float):
        try:
            if isinstance(value, bool) or (hint is int and isinstance(value, float)):
                raise ValueError  # noqa: TRY301  Python would take both, silently changed
            return hint(value.strip() if isinstance(value, str) else value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{key}={value!r}{place}: need {'a whole number' if hint is int else 'a number'}"
            ) from None
    if not isinstance(value, str):
        raise ConfigError(f"{key}={'…' if 'assword' in key else repr(value)}{place}: need a text in quotes")
    return value.strip()


@dataclass(frozen=True, slots=True)
class Change:
    """Change of an option, under RocketMQ's key."""

    key: str
    """Name of the option, in RocketMQ's spelling."""
    old: Any
    """Value before; `…` if it is a secret."""
    new: Any
    """Value after; `…` if it is a secret."""

    def __str__(self) -> str:
        return f"{self.key}={text_of(self.new)} (it was {text_of(self.old)})"


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of changes, by field name: those in force, and those that need a restart. Unchanged options are in
    neither."""

    changed: Mapping[str, Change]
    """Field name → change, of options that have the new value now."""
    refused: Mapping[str, Change]
    """Field name → change, of options that have it only after a restart."""


def judge(options: OptionTable, changes: Mapping[str, Any], where: str = "") -> Applied:
    """Return what `apply` would do, without doing it. Raises ConfigError: as `apply`, which says what the arguments are."""
    wanted, taken = type(options).read({**options.values(), **changes}, where)
    if unknown := changes.keys() - taken:
        raise ConfigError(f"there is no option {', '.join(sorted(unknown))}{f' in {where}' if where else ''}")
    hidden = options.secrets()
    found = {
        name: Change(camel(name), *(("…", "…") if name in hidden else (old, getattr(wanted, name))))
        for name, old in options.values().items()
        if getattr(wanted, name) != old
    }
    hot = options.hot_names()
    return Applied(
        {name: change for name, change in found.items() if name in hot},
        {name: change for name, change in found.items() if name not in hot},
    )


def apply(options: OptionTable, changes: Mapping[str, Any], where: str = "") -> Applied:
    """Change the hot options of a table that a server runs with; other options stay as they are.

    All holders of the table see the new values; `Settings` notifies those that keep something derived from them.
    Nothing else changes a table but `decide`.

    Args:
        options: the table.
        changes: any spelling → text or typed value.
        where: names the file or request in errors.

    Returns: what has changed, and what would need a restart and has not.
    Raises:
        ConfigError: an unknown key, a wrong type, a value out of bounds; nothing was changed.
    """
    applied = judge(options, changes, where)
    for name, change in applied.changed.items():
        object.__setattr__(options, name, change.new)
    return applied


def decide(options: OptionTable, **values: Any) -> None:
    """Set options of a running server that it has decided itself, such as its role, hot or not.

    Raises ConfigError: a value out of bounds; nothing was changed.
    """
    options.replace(**values)
    for name, value in values.items():
        object.__setattr__(options, name, value)


FROM_DEFAULT: Final = "default"
FROM_ENVIRONMENT: Final = "environment"
FROM_FILE: Final = "file"
FROM_COMMAND_LINE: Final = "command line"
FROM_THE_WIRE: Final = "wire"
DERIVED: Final = "derived"


class OptionOrigin(NamedTuple):
    """Where the value of an option comes from."""

    kind: str
    """One of the words above; `wire`: it was changed while the server ran, `derived`: it follows from something else."""
    place: str = ""
    """File, flag or variable; or what it follows from."""


DEFAULT: Final = OptionOrigin(FROM_DEFAULT)
Origins = Mapping[str, OptionOrigin]
"""Field name of an option → where its value comes from; of those that are not there, by default."""


class Settings:
    """The option tables of one server (`tables`), and the watchers of changes."""

    def __init__(self, *tables: OptionTable) -> None:
        self.tables = tables
        """The tables, in the order in which they were given."""
        self.pinned = frozenset[str]()
        """Options whose values stand until somebody changes them over the wire: a configuration that is read again does not."""
        self.kept_in = ""
        """File with the values of those."""
        self.waiting: Mapping[str, str] = {}
        """Field name of an option → value that the configuration has for it now, in force after a restart."""
        self.without_effect: Mapping[str, str] = {}
        """Keys that others have options of, and why there are none here; for those who try to change them."""
        self.origins: Origins = {}
        """As the configuration was read last; `origin` knows the rest, too."""
        self._watchers: list[Callable[[frozenset[str]], None]] = []

    def origin(self, name: str) -> OptionOrigin:
        """Return where the value of an option comes from, by its field name."""
        if name in self.pinned:
            return OptionOrigin(FROM_THE_WIRE, self.kept_in)
        if name in self.origins:
            return self.origins[name]
        table = next(table for table in self.tables if hasattr(table, name))
        default = getattr(type(table), name)  # where dataclasses keep it
        return DEFAULT if getattr(table, name) == default else OptionOrigin(DERIVED)

    def watch(self, changed: Callable[[frozenset[str]], None]) -> None:
        """Call `changed` with the field names of options that have changed, from now on, in the thread that changes them."""
        self._watchers.append(changed)

    def change(self, changes: Mapping[str, Any], where: str = "") -> Applied:
        """Apply changes to the tables, each key to the one that knows it, and call the watchers.

        Raises ConfigError: nothing was changed. What a watcher raises is raised after all others were called: the
        options have changed, and they would not be called again.
        """
        known = [{key: value for key, value in changes.items() if key in table.spellings()} for table in self.tables]
        if unknown := changes.keys() - set().union(*known):
            raise ConfigError(f"there is no option {', '.join(sorted(unknown))}{f' in {where}' if where else ''}")
        for table, own in zip(self.tables, known, strict=True):
            judge(table, own, where)
        results = [apply(table, own, where) for table, own in zip(self.tables, known, strict=True)]
        changed = {name: change for applied in results for name, change in applied.changed.items()}
        refused = {name: change for applied in results for name, change in applied.refused.items()}
        failures = []
        for watcher in self._watchers if changed else ():
            try:
                watcher(frozenset(changed))
            except Exception as error:  # noqa: BLE001  raised below
                failures.append(error)
        if failures:
            raise failures[0]
        return Applied(changed, refused)
