"""What a server of ours says of each of its options."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

AT_ONCE: Final = "at once"
RELOAD: Final = "reload"
RESTART: Final = "restart"


class OptionState(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Entry of the answer to OPTIONS (30022)."""

    key: str
    """RocketMQ's name of the option, or ours."""
    section: str
    """Its section in a `metaq.toml`."""
    value: str | None
    """In force; None: none."""
    default: str | None
    """None: none, the server then finds one itself."""
    origin: str
    """`default`, `environment`, `file`, `command line`, `wire`, or `derived`: it follows from something else."""
    changes: str
    """How it is changed: `at once` over the wire, by `reload` of the file (SIGHUP), by a `restart`."""
    place: str = ""
    """Of the origin: file, flag or variable, or what the value follows from."""
    waiting: str | None = None
    """Value that the configuration file has now, in force after a restart; None: none that is different."""
