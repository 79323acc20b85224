"""The file of an asynchronous slave of MetaQ 1.x, `async_slave.properties`, which `-Fmetaslave=FILE` names.

```
slaveId=0
slaveGroup=meta-slave-group
slaveMaxDelayInMills=500
autoSyncMasterConfig=true
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from metaq.errors import ConfigError
from metaq.options import Metaq1Options, nearest

_OPTIONS: Final = {
    "slaveId": "slave_id",
    "slaveGroup": "slave_group",
    "slaveMaxDelayInMills": "slave_max_delay_in_mills",
    "autoSyncMasterConfig": "auto_sync_master_config",
}
_ALWAYS: Final = "autoOffsetFromMaster"
"""Older files have it: a partition that the slave does not have begins where the master's begins. Else positions would differ."""


def read_slave_properties(path: str, pairs: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return options of [metaq1], field → value, and warnings. Values that are empty say nothing, as in the original.

    Raises ConfigError: there is no slaveId, or a value is wrong.
    """
    found, warnings = dict[str, Any](), list[str]()
    for key, value in pairs.items():
        if key == _ALWAYS:
            if value.lower() not in {"", "true"}:
                raise ConfigError(
                    f"{path}: {key}={value}: a partition begins where the master's begins, or consumers would find other messages at "
                    "their offsets; leave it out"
                )
        elif key not in _OPTIONS:
            warnings.append(
                f"{path}: {key} is passed over: there is no such option{nearest(key, [*_OPTIONS, _ALWAYS])}"
            )
        elif value:
            try:
                found[_OPTIONS[key]] = getattr(Metaq1Options.read({key: value})[0], _OPTIONS[key])
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
    if "slave_id" not in found:
        raise ConfigError(f"{path}: there is no slaveId: give each slave of a master a number of its own, from 0 on")
    return found, warnings


def slave_properties_text(path: str) -> str:
    """Return the file's text: UTF-8, or GBK, in which the original's file has its comments. Raises ConfigError."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the slave's file {path}: {error}") from None
    for encoding in ("utf-8-sig", "gbk"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ConfigError(f"cannot read the slave's file {path}: it is neither UTF-8 nor GBK")
