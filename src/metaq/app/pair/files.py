"""The files of a synchronous pair: `samsa_master.properties` of the master, `gregor_slave.properties` of the slave.

    slave=localhost:8124
    recoverOffset=false
    sendToSlaveTimeoutInMills=2000
    slaveContinuousFailureThreshold=100
    checkSlaveIntervalInMills=100

They are MetaQ 1.x's, taken as they stand. `copyBacklog` is ours.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from metaq.app.config_files.properties import read_properties
from metaq.errors import ConfigError
from metaq.model.leadership import SLAVE, SYNC_MASTER
from metaq.model.metaq1.pair import GregorSettings, PairSettings, SamsaSettings
from metaq.net.address import split_address
from metaq.options import BrokerOptions, nearest

SAMSA: Final = "samsa"
GREGOR: Final = "gregor"
_THREADS: Final = "is passed over: this broker has no threads for it"
_MILLIS_MAX: Final = 24 * 3600 * 1000


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("need true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MILLIS_MAX):
        raise ValueError(f"need a number from 1 to {_MILLIS_MAX}")
    return int(text)


def _seconds(text: str) -> float:
    return _count(text) / 1000


def _address(text: str) -> str:
    split_address(text)
    return text


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "slave": ("slave", _address),
    "recoverOffset": ("recover_offset", _flag),
    "sendToSlaveTimeoutInMills": ("send_timeout", _seconds),
    "slaveContinuousFailureThreshold": ("failures_max", _count),
    "checkSlaveIntervalInMills": ("check_interval", _seconds),
    "copyBacklog": ("copy_backlog", _flag),
}
_TAKEN: Final[Mapping[str, Callable[[str], Any]]] = {
    "callbackThreadCount": _count,
    "recoverParallel": _flag,
    "recoverParallelHint": _count,
}
"""Keys of 1.x without effect here."""


def read_pair(name: str, path: str) -> tuple[PairSettings, list[str]]:
    """Read the file of a role, `SAMSA` or `GREGOR`. Returns the settings, and warnings. Raises ConfigError."""
    try:
        text = _decoded(pathlib.Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    pairs = read_properties(text, path)
    if name == GREGOR:
        return GregorSettings(), [f"{path}: {key} is passed over: the slave of a pair has no options" for key in pairs]
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in pairs.items():
        if key not in _KEYS and key not in _TAKEN:
            raise ConfigError(f"{path}: the master of a pair has no option {key!r}{nearest(key, [*_KEYS, *_TAKEN])}")
        if not value:
            continue
        field, read = _KEYS[key] if key in _KEYS else ("", _TAKEN[key])
        try:
            found = read(value)
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path}: {key}={value[:100]}: {error}") from None
        if field:
            values[field] = found
        else:
            warnings.append(f"{path}: {key} {_THREADS}")
    if "slave" not in values:
        raise ConfigError(f"{path}: there is no slave: name the text server of the slave, slave=host:port")
    return SamsaSettings(**values), warnings


def _decoded(raw: bytes) -> str:
    """Decode UTF-8, or GBK, in which old files have their comments."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("gbk", "replace")


def pair_of(files: Mapping[str, str]) -> tuple[PairSettings | None, list[str]]:
    """Return the settings of the role whose file is named (role → path; None: no role), and warnings. Raises ConfigError."""
    if len(files) > 1:
        raise ConfigError(
            "a broker is the master of a pair (samsa) or its slave (gregor), not both: name one of the files"
        )
    for name, path in files.items():
        return read_pair(name, path)
    return None, []


def check_pair(pair: PairSettings | None, options: BrokerOptions, *, metaq1: bool) -> None:
    """Check that a broker with these options can be one half of a pair. Raises ConfigError."""
    if pair is None:
        return
    role = (
        "master of a synchronous pair (samsa)"
        if isinstance(pair, SamsaSettings)
        else "slave of a synchronous pair (gregor)"
    )
    if not metaq1:
        raise ConfigError(
            f"the {role} serves clients of MetaQ 1.x: give it its server.ini by -f, or [metaq1] enable=true"
        )
    if options.broker_role in {SYNC_MASTER, SLAVE}:
        raise ConfigError(
            f"brokerRole={options.broker_role} and the {role} are two kinds of replication: leave brokerRole out, or start without the "
            "file of the pair"
        )
