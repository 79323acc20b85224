"""The process of the dashboard that `metaq up` has started. Loads no typer.

python -m metaq.cli.servers.dashboard_child JSON
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from metaq.app.runtime import EXIT_FAILED, EXIT_OK, set_up_logging
from metaq.cli.serving_dashboard import folders_of, run_dashboard
from metaq.errors import MetaqError

LEVEL: Final = "warning"
"""Of its log, which comes among that of `metaq up`."""


class Wanted(msgspec.Struct, frozen=True):
    """What it is started with, as `metaq.dashboard_options`."""

    namesrv: str
    port: int
    allow_changes: bool
    pipelines: str
    zookeeper: str


def main() -> int:
    """Run it until it is ended. Returns the exit code."""
    from metaq.client.identity.options import client_options
    from metaq.dashboard.settings import DashboardSettings

    wanted = msgspec.json.decode(sys.argv[1], type=Wanted)
    set_up_logging(LEVEL)
    try:
        settings = DashboardSettings(
            namesrv=wanted.namesrv, port=wanted.port, allow_changes=wanted.allow_changes, client=client_options(),
            pipelines=folders_of(wanted.pipelines), zookeeper=wanted.zookeeper,
        )  # fmt: skip
        run_dashboard(settings)
    except MetaqError as error:
        print(f"metaq dashboard: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
