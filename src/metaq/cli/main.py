"""The command `metaq`: a typer application (`commands`), in front of which servers with plain flags start without typer."""

from __future__ import annotations

import gc
import sys
from typing import Final

_OBJECTS_BETWEEN: Final = 20_000
"""New objects between two collections of a command's garbage: at Python's 700, imports are collected over 40 times."""

_OF_COMMANDS: Final = ("rich", "typer")
"""What is left out where only a client is installed."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    arguments = sys.argv[1:]
    import_quickly()
    from metaq.cli.servers.flags import SERVERS, read_plain, without_plugins

    arguments = without_plugins(arguments)
    if arguments and arguments[0] in SERVERS and (values := read_plain(arguments[0], arguments[1:])) is not None:
        from metaq.cli.servers import serve

        sys.exit(serve.main(arguments[0], values))
    gc.enable()
    gc.set_threshold(_OBJECTS_BETWEEN)
    try:
        from metaq.cli.commands import run
    except ModuleNotFoundError as missing:
        if missing.name not in _OF_COMMANDS:
            raise
        sys.exit(
            f"metaq: {missing.name} is not installed, which the command line needs (clients and servers do not): "
            f"pip install {' '.join(_OF_COMMANDS)}"
        )
    sys.exit(run(arguments))


def import_quickly() -> None:
    """Turn the collector off, until a server or a command turns it on again, and import msgspec without what it does not need."""
    gc.disable()  # Objects that imports make stay: collecting over them again and again takes a tenth of a server's start.
    _import_msgspec()


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions, which it imports if installed but needs on old Pythons only.

    This saves a server 0.4 MB at rest and 4 ms of its start. A later import of typing_extensions works.
    """
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]  # how the import system is told that there is no such module
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[name]


if __name__ == "__main__":
    main()
