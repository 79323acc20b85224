"""The command `metaq`: servers go to `serve`, everything else to the typer application in `commands`."""

from __future__ import annotations

import sys

from metaq.cli.serve import SERVERS


def main() -> None:
    """Run the command line of this process and exit with its code."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in SERVERS:
        from metaq.cli import serve

        sys.exit(serve.main(arguments))
    from metaq.cli.commands import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
