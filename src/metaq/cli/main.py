"""The command `metaq`: servers go to `serve`, everything else to the typer application in `commands`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line of this process and exit with its code."""
    arguments = sys.argv[1:]
    gc.disable()  # what imports make stays: walking it again and again takes a tenth of a server's start
    from metaq.cli import serve

    if arguments and arguments[0] in serve.SERVERS:
        sys.exit(serve.main(arguments))
    gc.enable()
    from metaq.cli.commands import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
