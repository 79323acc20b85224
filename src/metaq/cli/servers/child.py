"""The process of a server that `metaq start` has started. Loads no typer, as the servers in the foreground.

python -m metaq.cli.servers.child RUN_DIR NAME REPORT LOG BYTES_MAX OLDER SERVER FLAGS...

REPORT is the descriptor of a pipe to who started it, or -1.
"""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING

from metaq.cli.main import import_quickly

if TYPE_CHECKING:
    from metaq.app.background.life import BackgroundLife


def main() -> int:
    """Run the server until it ends. Returns the exit code."""
    import_quickly()
    from metaq.app.background.life import BackgroundLife
    from metaq.app.background.log_file import RotatedLog
    from metaq.app.background.places import Description, Places
    from metaq.clock import SYSTEM

    folder, name, report, log, bytes_max, older, server, *words = sys.argv[1:]

    def describe(pid: int) -> Description:
        return Description(
            name=name,
            server=server,
            pid=pid,
            since_ms=SYSTEM.now_ms(),
            folder=str(pathlib.Path.cwd()),
            arguments=words,
            log=log,
            log_bytes=int(bytes_max),
            log_files=int(older),
        )

    try:
        life = BackgroundLife.begin(
            Places(pathlib.Path(folder)),
            name,
            describe,
            lambda: RotatedLog(pathlib.Path(log), int(bytes_max), int(older)),
            int(report),
        )
    except OSError as fault:
        print(f"metaq: the files of {name} in {folder} cannot be written: {fault}", file=sys.stderr)
        return 1
    # A process that takes the place of this one reports to nobody: whoever has started this one knows that it is ready.
    before = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    anew = [sys.executable, *before[1:], folder, name, "-1", log, bytes_max, older, server, *words]
    return _serve(life, server, words, anew) if life is not None else 1


def _serve(life: BackgroundLife, server: str, words: list[str], anew: list[str]) -> int:
    from metaq.cli.servers import serve
    from metaq.cli.servers.flags import read_plain

    values = read_plain(server, words)
    assert values is not None, "words_of made them"
    code = 1
    try:
        code = serve.main(server, values, life, anew)
    finally:
        life.end(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
