"""`metaq namesrv` as typer has it: it runs a name server, unless a command is behind it."""

from __future__ import annotations

from metaq.cli.groups import App
from metaq.cli.servers import config
from metaq.cli.servers.commands import server_function
from metaq.cli.servers.flags import SERVERS

app = App("", invoke_without_command=True, no_args_is_help=False)
app.callback()(server_function("namesrv", SERVERS["namesrv"]))
app.add_typer(config.namesrv_app, name="config")
