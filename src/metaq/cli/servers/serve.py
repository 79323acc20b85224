"""`metaq namesrv`, `metaq broker`, `metaq up`: the commands that become servers. Loads no typer (`metaq.cli.servers.flags`)."""

from __future__ import annotations

import logging
import pathlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from metaq.app.configuration import Configuration, load
from metaq.app.log_levels import set_log_levels
from metaq.app.reload import Reload
from metaq.app.runtime import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    Running,
    loop_name,
    own_words,
    print_ready,
    run,
    set_up_logging,
    with_origins,
)
from metaq.app.supervision.service_manager import ServiceManager, Told, nobody
from metaq.cli.servers.flags import DEFAULT_FOLDER, PAIR_PLUGINS
from metaq.errors import ConfigError
from metaq.options import Settings
from metaq.store.offline.sizes import SMALL, first_use

if TYPE_CHECKING:
    from metaq.app.background.life import BackgroundLife

_SECTIONS: Final = {
    "namesrv": ("namesrv", "tls"),
    "broker": ("broker", "store", "tls", "metaq1"),
    "up": ("broker", "store", "namesrv", "tls", "metaq1", "dashboard"),
}

log = logging.getLogger("metaq")


def main(
    command: str,
    values: Mapping[str, Any],
    life: BackgroundLife | None = None,
    words: Sequence[str] | None = None,
) -> int:
    """Run a server, with the values of its flags (`flags_of`). Returns the exit code.

    Args: life: of a process in the background. words: the command line that starts it anew; None: that of this process.
    """
    try:
        configuration = configure(command, values)
    except ConfigError as error:
        print(f"metaq {command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if values["print_config"]:
        try:
            from metaq.app.config_files.template import template  # here and not above: a start goes without
        except ModuleNotFoundError as missing:
            print(
                f"metaq {command}: --print-config needs the package {missing.name}: pip install tomli-w",
                file=sys.stderr,
            )
            return EXIT_FAILED

        tables = {section: getattr(configuration, section) for section in _SECTIONS[command]}
        print(template(tables, configuration.sections), end="")
        return EXIT_OK
    leading = "namesrv" if command == "namesrv" else "broker"
    set_up_logging(getattr(configuration, leading).log_level, life.handler if life is not None else None)
    set_log_levels(getattr(configuration, leading).log_levels)
    for warning in configuration.warnings:
        log.warning("%s", warning)
    # Without a file there is nothing that could have changed, and no reload.
    file = values["file"]
    reload = Reload(file, lambda: configure(command, values), configuration) if file else None
    words = own_words() if words is None else words
    if life is None:
        return _run(command, configuration, reload, words)
    life.know_data(_data(command, configuration))
    return _run(command, configuration, reload, words, life.tell_ready)


def _data(command: str, configuration: Configuration) -> str:
    """Return the folder of a server's data."""
    if command == "namesrv":
        from metaq.app.namesrv import KV_FILE_DEFAULT

        return str(pathlib.Path(configuration.namesrv.kv_config_path or KV_FILE_DEFAULT).parent)
    return configuration.store.store_path_root_dir


def _run(
    command: str,
    configuration: Configuration,
    reload: Reload | None,
    words: Sequence[str],
    tell_ready: Callable[[Running], None] = print_ready,
) -> int:
    import metaq
    from metaq.wire import hot

    manager = ServiceManager.of()
    told = manager.starting if manager is not None else nobody

    def serve(start: Callable[[], Awaitable[Running]]) -> int:
        return run(with_origins(start, configuration.origins), reload, tell_ready, manager, words)

    log.info("metaq %s %s; compiled extension: %s; event loop: %s", metaq.__version__, command, hot.WHY, loop_name())
    if command == "namesrv":
        from metaq.app.namesrv import start_namesrv

        return serve(lambda: start_namesrv(configuration.namesrv, tls=configuration.tls))
    from metaq.app.addressing.taken_ports import TakenPorts  # a name server never starts again in its process

    # Before the start: it tells how much disk the log files will take.
    log.info("%s", first_use(configuration.store))
    if command == "broker":
        from metaq.app.broker import start_broker

        if not (configuration.broker.namesrv_addr or configuration.broker.fetch_namesrv_addr_by_address_server):
            log.warning(
                "no name server is set: no client%s will find this broker; set one with -n, namesrvAddr, NAMESRV_ADDR or addressServer",
                " of RocketMQ's" if configuration.metaq1.enable else "",
            )

        def start_one(wanted: Configuration) -> Awaitable[Running]:
            return start_broker(wanted.broker, wanted.store, metaq1=wanted.metaq1_settings, tls=wanted.tls, told=told)

        return serve(TakenPorts(configuration, start_one).start)
    from metaq.cli.servers.dashboard_beside import DashboardBeside

    with DashboardBeside(configuration.dashboard).told(tell_ready) as tell:
        ports = TakenPorts(configuration, lambda wanted: _start_up(wanted, told))
        return run(with_origins(ports.start, configuration.origins), reload, tell, manager)


async def _start_up(configuration: Configuration, told: Told) -> Running:
    from metaq.app.up import start_up

    running = await start_up(
        configuration.broker,
        configuration.store,
        configuration.namesrv,
        metaq1=configuration.metaq1_settings,
        tls=configuration.tls,
        told=told,
    )
    # A reload says that a change of these needs a restart.
    running.settings["dashboard"] = Settings(configuration.dashboard)
    return running


def configure(command: str, values: Mapping[str, Any]) -> Configuration:
    """Return the configuration that the values of a server's flags mean. Raises ConfigError."""
    flags: dict[str, dict[str, Any]] = {"broker": {}, "store": {}, "namesrv": {}}
    defaults: dict[str, dict[str, Any]] = {"store": {}} if command == "broker" else {}
    if command == "up":
        defaults = _folders(command, DEFAULT_FOLDER)
        defaults["store"] |= SMALL
    if command == "namesrv":
        flags["namesrv"] = {"bind_address": values["host"], "listen_port": values["port"]}
    else:
        flags["broker"] = {"bind_address": values["host"], "listen_port": values["port"], "broker_name": values["name"]}
    if command == "broker":
        flags["broker"]["namesrv_addr"] = values["namesrv"]
    if command == "up":
        flags["namesrv"] = {"bind_address": values["host"], "listen_port": values["namesrv_port"]}
    flags["namesrv" if command == "namesrv" else "broker"]["log_level"] = values["log_level"]
    for section, folders in _folders(command, values["data"]).items() if values["data"] else ():
        flags[section] |= folders
    configuration = load(
        values["file"],
        flags=flags,
        settings=values["settings"],
        serving=_SECTIONS[command],
        defaults=defaults,
        environment={} if command == "up" else None,  # its broker belongs to its own name server
        insecure=values["insecure"],
        metaslave=values.get("metaslave"),
    )
    if plugins := {role: values[role] for role in PAIR_PLUGINS if values.get(role)}:
        from metaq.app.pair.files import check_pair, pair_of  # only where a file is named

        pair, warnings = pair_of(plugins)
        check_pair(pair, configuration.broker, metaq1=configuration.metaq1.enable)
        configuration = structs.replace(configuration, pair=pair, warnings=(*configuration.warnings, *warnings))
    if configuration.metaq1.enable and configuration.sections:
        from metaq.app.partition_sections import check_filters

        check_filters(configuration.sections, configuration.metaq1.app_class_path or "")
    return configuration


def _folders(command: str, data: str) -> dict[str, dict[str, Any]]:
    folder = pathlib.Path(data).expanduser()
    kv = {"kv_config_path": str((folder / "namesrv" if command == "up" else folder) / "kvConfig.json")}
    store = {"store_path_root_dir": str(folder)}
    return {"namesrv": {"namesrv": kv}, "broker": {"store": store}, "up": {"store": store, "namesrv": kv}}[command]
