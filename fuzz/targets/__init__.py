"""All targets by name. A new parser or server: a `Target` in the module that fits, and its name here.

Those whose name begins with `process-` start servers as processes; the others run here, and coverage can guide them.
"""

from __future__ import annotations

import importlib

from fuzz.target import Target

MODULES: dict[str, tuple[str, ...]] = {
    "frames": ("frames", "header", "ext", "signature", "batch", "properties", "records", "compression", "ha-stream", "offset-id"),
    "bodies": ("fastjson", "heartbeat", "bodies", "trees", "registration", "extensions", "trace"),
    "filters": ("sql", "tags", "predicates", "cron"),
    "metaq1": ("metaq1-lines", "metaq1-frames", "metaq1-keys"),
    "files": ("acl", "broker-conf", "server-ini", "metaq-toml", "tables", "journal", "journalled"),
    "store": ("store",),
    "messages": ("row-changes", "segments"),
    "servers": ("broker", "name-server", "text", "ha-master", "ha-slave"),
    "processes": ("process-broker", "process-name-server", "process-text", "process-ha"),
}  # fmt: skip
"""Module → its targets. Names, so that a search imports, and instruments, no more than it needs."""
NAMES = tuple(name for names in MODULES.values() for name in names)


def find(name: str) -> Target:
    """Import a target. Raises KeyError: there is none of this name."""
    for module, names in MODULES.items():
        if name in names:
            found: tuple[Target, ...] = tuple(importlib.import_module(f"{__name__}.{module}").TARGETS)
            return next(target for target in found if target.name == name)
    raise KeyError(f"there is no target {name}: python -m fuzz --list")
