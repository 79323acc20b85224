"""`metaq namesrv`, `metaq broker`, `metaq up`: the commands that become servers.

Parsed by argparse, unlike the other commands: importing typer and rich would double both the time to the first answer and the
memory at rest.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from metaq.app.configuration import Configuration, load, template
from metaq.app.reload import Reload
from metaq.app.runtime import EXIT_OK, EXIT_USAGE, loop_name, run, set_up_logging
from metaq.errors import ConfigError
from metaq.options import LOG_LEVELS
from metaq.store.offline.sizes import SMALL, first_use

SERVERS = {
    "namesrv": "Run a name server.",
    "broker": "Run a broker.",
    "up": "Run a name server and a broker in one process.",
}

ON_REPLICAS = frozenset(("status", "promote", "demote", "scrub"))
"""What follows `broker` in commands that run none (`metaq.cli.broker`)."""

DEFAULT_FOLDER = "metaq-data"

_EPILOG = """\
Every option of docs/configuration.md can be set by -o key=value. Prints one line that begins with `ready` when it
accepts connections. SIGTERM and Ctrl-C stop it cleanly (exit 0); SIGHUP reads FILE again and changes the options that
docs/configuration.md calls hot. Other exit codes: 1 failed, 2 wrong usage or configuration.
"""

_SECTIONS = {
    "namesrv": ("namesrv", "tls"),
    "broker": ("broker", "store", "tls", "metaq1"),
    "up": ("broker", "store", "namesrv", "tls", "metaq1"),
}

log = logging.getLogger("metaq")


def is_for_replicas(argv: Sequence[str]) -> bool:
    """Return whether a command line that begins with a server's name asks about running brokers, or for help on that."""
    return argv[0] == "broker" and len(argv) > 1 and argv[1] in ON_REPLICAS


def main(argv: Sequence[str]) -> int:
    """Run `argv` (command name first). Returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        configuration = _configure(arguments)
    except ConfigError as error:
        print(f"metaq {arguments.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if arguments.print_config:
        tables = {section: getattr(configuration, section) for section in _SECTIONS[arguments.command]}
        print(template(tables, configuration.sections), end="")
        return EXIT_OK
    leading = "namesrv" if arguments.command == "namesrv" else "broker"
    set_up_logging(getattr(configuration, leading).log_level)
    for warning in configuration.warnings:
        log.warning("%s", warning)
    # Without a file there is nothing that could have changed, and no reload.
    file = arguments.file
    return _run(
        arguments.command, configuration, Reload(file, lambda: _configure(arguments), configuration) if file else None
    )


def _run(command: str, configuration: Configuration, reload: Reload | None) -> int:
    import metaq
    from metaq.wire import hot

    log.info("metaq %s %s; compiled extension: %s; event loop: %s", metaq.__version__, command, hot.WHY, loop_name())
    if command == "namesrv":
        from metaq.app.namesrv import start_namesrv

        return run(lambda: start_namesrv(configuration.namesrv, tls=configuration.tls), reload)
    # Before the start: it tells how much disk the log files will take.
    log.info("%s", first_use(configuration.store))
    if command == "broker":
        from metaq.app.broker import start_broker

        if not (configuration.broker.namesrv_addr or configuration.broker.fetch_namesrv_addr_by_address_server):
            log.warning(
                "no name server is set: no client%s will find this broker; name one by -n, namesrvAddr, NAMESRV_ADDR or addressServer",
                " of RocketMQ's" if configuration.metaq1.enable else "",
            )

        return run(
            lambda: start_broker(
                configuration.broker, configuration.store, metaq1=configuration.metaq1_settings, tls=configuration.tls
            ),
            reload,
        )
    from metaq.app.up import start_up

    return run(
        lambda: start_up(
            configuration.broker,
            configuration.store,
            configuration.namesrv,
            metaq1=configuration.metaq1_settings,
            tls=configuration.tls,
        ),
        reload,
    )


def _configure(arguments: argparse.Namespace) -> Configuration:
    command = arguments.command
    flags: dict[str, dict[str, Any]] = {"broker": {}, "store": {}, "namesrv": {}}
    defaults: dict[str, dict[str, Any]] = {"store": {}} if command == "broker" else {}
    if command == "up":
        defaults = _folders(command, DEFAULT_FOLDER)
        defaults["store"] |= SMALL
    if command == "namesrv":
        flags["namesrv"] = {"bind_address": arguments.host, "listen_port": arguments.port}
    else:
        flags["broker"] = {"bind_address": arguments.host, "listen_port": arguments.port, "broker_name": arguments.name}
    if command == "broker":
        flags["broker"]["namesrv_addr"] = arguments.namesrv
    if command == "up":
        flags["namesrv"] = {"bind_address": arguments.host, "listen_port": arguments.namesrv_port}
    flags["namesrv" if command == "namesrv" else "broker"]["log_level"] = arguments.log_level
    for section, folders in _folders(command, arguments.data).items() if arguments.data else ():
        flags[section] |= folders
    configuration = load(
        arguments.file,
        flags=flags,
        settings=arguments.settings,
        serving=_SECTIONS[command],
        defaults=defaults,
        environment={} if command == "up" else None,  # its broker belongs to its own name server
        insecure=arguments.insecure,
    )
    if configuration.metaq1.enable and configuration.sections:
        from metaq.app.partition_sections import check_filters

        check_filters(configuration.sections, configuration.metaq1.app_class_path or "")
    return configuration


def _folders(command: str, data: str) -> dict[str, dict[str, Any]]:
    folder = pathlib.Path(data).expanduser()
    kv = {"kv_config_path": str((folder / "namesrv" if command == "up" else folder) / "kvConfig.json")}
    store = {"store_path_root_dir": str(folder)}
    return {"namesrv": {"namesrv": kv}, "broker": {"store": store}, "up": {"store": store, "namesrv": kv}}[command]


class _Formatter(argparse.HelpFormatter):
    """argparse's formatter without `shutil`: it imports that, and with it all compression modules, even in a run without help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    """Return the terminal's columns, as `shutil.get_terminal_size` does."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    try:
        return (sys.__stdout__ and os.get_terminal_size(sys.__stdout__.fileno()).columns) or 80
    except (ValueError, OSError):  # Standard output is closed, or not a terminal.
        return 80


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metaq", epilog=_EPILOG, formatter_class=_Formatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in SERVERS.items():
        command = commands.add_parser(name, description=text, epilog=_EPILOG, formatter_class=_Formatter)
        _add_flags(command, name)
    return parser


def _add_flags(command: argparse.ArgumentParser, name: str) -> None:
    port = 9876 if name == "namesrv" else 10911
    file = {
        "namesrv": "a RocketMQ namesrv.properties",
        "broker": "a RocketMQ broker.conf or a MetaQ 1.x server.ini as it stands",
        "up": "a RocketMQ broker.conf as it stands",
    }[name]
    command.add_argument("-c", "--config", dest="file", metavar="FILE", help=f"{file}, or a metaq.toml; flags beat it")
    if name == "broker":
        command.add_argument(
            "-n", "--namesrv", metavar="NAMESRV", help="name servers to register at, host:port;host:port"
        )
    command.add_argument("--host", metavar="H", help="address to listen on (default 127.0.0.1)")
    command.add_argument("--port", type=int, metavar="P", help=f"port (default {port}; 0 takes a free one)")
    if name == "up":
        command.add_argument("--namesrv-port", type=int, metavar="P", help="port of the name server (default 9876)")
    if name != "namesrv":
        command.add_argument("--name", help="name of the broker (default: the host's name)")
    what = {
        "namesrv": "folder of the KV configuration (default ~/namesrv)",
        "broker": "folder of the store (default ~/store)",
        "up": f"folder of everything (default ./{DEFAULT_FOLDER})",
    }[name]
    command.add_argument("--data", metavar="DIR", help=what)
    command.add_argument(
        "-o", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="set any option; may be repeated"
    )
    command.add_argument(
        "-p", "-m", "--print-config", action="store_true", help="print a complete metaq.toml with these values and exit"
    )
    command.add_argument(
        "--insecure",
        action="store_true",
        help="allow --host other than this machine, and administration from others, without access control",
    )
    command.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        help="on standard error (default info); a logLevel in FILE can be changed while it runs",
    )
