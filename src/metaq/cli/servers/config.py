"""`metaq broker config` and `metaq namesrv config`: options of servers that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import count
from metaq.cli.groups import App
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, NameServers, print_json, print_table

if TYPE_CHECKING:
    from metaq.admin.configuring.changing import ChangedOption
    from metaq.admin.configuring.reading import OptionDifferences, ServerOptions
    from metaq.model.servers.option_state import OptionState

broker_app = App("Show, set and compare options of running brokers.")
namesrv_app = App("Show, set and compare options of running name servers.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="brokerName (its master), or host:port of one broker")]
Keys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY]...", help="options to show (default: those that do not have their default value)"),
]
Pairs = Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="options and values: all are set, or none")]
ShowAll = Annotated[
    bool, typer.Option("--all", help="also show options with their default value, as --json always does")
]
At = Annotated[str | None, typer.Option("--at", metavar="HOST:PORT", help="only this name server (default: all of -n)")]
ShowOwn = Annotated[
    bool, typer.Option("--all", help="also show options that differ in any case, such as ports, as --json always does")
]


@broker_app.command("show")
def show_broker(
    name: Name,
    keys: Keys = None,
    everything: ShowAll = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show options of a broker: value, default, where the value comes from, and how it can be changed.

    Options marked `at once` are hot: `metaq broker config set` changes them. Those marked `restart` are changed in the configuration file,
    and need a restart. A RocketMQ broker reports values only.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.broker_options(name)
    _show([found], keys or [], everything=everything, as_json=as_json)


@broker_app.command("set")
def set_broker(name: Name, pairs: Pairs, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Change hot options, which need no restart, of a running broker. They stay set after a restart, whatever its configuration file says."""
    from metaq.admin import Admin

    wanted = _pairs(pairs)
    with Admin(namesrv) as admin:
        done = admin.change_broker_options(name, wanted)
    _print_changes(done, as_json=as_json)


@broker_app.command("diff")
def diff_brokers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="brokerNames, or host:port (default: all brokers)")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="the brokers of one cluster, slaves too")] = None,
    everything: ShowOwn = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the options in which brokers differ."""
    from metaq.admin import Admin

    if names and cluster is not None:
        raise typer.BadParameter("give brokers or a cluster, not both")
    if names is not None and len(names) == 1:
        raise typer.BadParameter("give at least two brokers, or none for all")
    with Admin(namesrv) as admin:
        found = admin.compare_brokers(names or (), cluster=cluster)
    _print_differences(found, everything=everything, as_json=as_json)


@namesrv_app.command("show")
def show_namesrv(
    keys: Keys = None,
    everything: ShowAll = False,
    at: At = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show options of name servers, as `metaq broker config show` does."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.name_server_options(at)
    _show(found, keys or [], everything=everything, as_json=as_json)


@namesrv_app.command("set")
def set_namesrv(pairs: Pairs, at: At = None, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Change hot options, which need no restart, of running name servers: of all, or of one.

    They stay set after a restart, whatever the configuration file says.
    """
    from metaq.admin import Admin

    wanted = _pairs(pairs)
    with Admin(namesrv) as admin:
        done = admin.change_name_server_options(wanted, at=at)
    _print_changes(done, as_json=as_json)


@namesrv_app.command("diff")
def diff_namesrv(everything: ShowOwn = False, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Show the options in which the name servers differ."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.compare_name_servers()
    _print_differences(found, everything=everything, as_json=as_json)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, is_pair, value = text.partition("=")
        key = key.strip()
        if not is_pair or not key:
            raise typer.BadParameter(f"{text[:60]!r} is not KEY=VALUE")
        if key in found:
            raise typer.BadParameter(f"{key} is given twice")
        found[key] = value
    return found


def _show(servers: Sequence[ServerOptions], keys: Sequence[str], *, everything: bool, as_json: bool) -> None:
    chosen = [(server, _chosen(server, keys, everything=everything or as_json)) for server in servers]
    if as_json:
        print_json([_json(server, states) for server, states in chosen])
        return
    for server, states in chosen:
        if len(servers) > 1:
            print(f"{server.server}:")
        _print_states(server, states)
        left = len(server.options) - len(states)
        if left and not keys:
            print(f"{count(left, 'option')} with the default value: --all shows them")


def _chosen(server: ServerOptions, keys: Sequence[str], *, everything: bool) -> list[OptionState]:
    """Raises ConfigError: a key that the server does not have."""
    known = server.by_key()
    if keys:
        from metaq.errors import ConfigError
        from metaq.option_table import camel, nearest

        names = [key if key in known else camel(key) for key in keys]
        wrong = [
            f"{server.server} has no option {key[:60]!r}{nearest(key[:100], known)}"
            for key, name in zip(keys, names, strict=True)
            if name not in known
        ]
        if wrong:
            raise ConfigError("; ".join(wrong))
        return [known[name] for name in names]
    if everything or not server.is_ours:
        return list(known.values())
    return [state for state in known.values() if state.origin != "default" or state.waiting is not None]


def _json(server: ServerOptions, states: Sequence[OptionState]) -> dict[str, Any]:
    from metaq.admin.configuring.reading import key_of

    options = [
        {
            "key": key_of(state), "value": state.value, "default": state.default,
            "origin": state.origin or None, "place": state.place or None, "changes": state.changes or None,
            "waiting": state.waiting,
        }
        for state in states
    ]  # fmt: skip
    return {"server": server.server, "address": server.address, "is_ours": server.is_ours, "options": options}


def _print_states(server: ServerOptions, states: Sequence[OptionState]) -> None:
    from metaq.admin.configuring.reading import key_of

    if not server.is_ours:
        print_table(("option", "value"), ((key_of(state), state.value) for state in states))
        print(
            f"{server.server} does not report defaults and what needs a restart: it is a RocketMQ broker, or an older release of MetaQ"
        )
        return
    rows = [
        (key_of(state), _cell(state.value), _cell(state.default), _from(state), _changes(state)) for state in states
    ]
    if rows:
        print_table(("option", "value", "default", "from", "changes"), rows)


def _cell(value: str | None) -> str:
    return "-" if value is None else f'"{value}"' if value != value.strip() or not value else value


def _changes(state: OptionState) -> str:
    return state.changes if state.waiting is None else f"{state.changes}, then {_cell(state.waiting)}"


def _from(state: OptionState) -> str:
    if state.origin == "derived":
        return state.place or "the server itself"
    return f"{state.origin} ({state.place})" if state.place else state.origin


def _print_changes(done: Sequence[ChangedOption], *, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    for change in done:
        if change.before == change.after:
            print(f"{change.server}: {change.key} is {_cell(change.after)} already")
        else:
            print(f"{change.server}: {change.key}={_cell(change.after)} (it was {_cell(change.before)})")
    if not all(change.at_once for change in done):
        print("a RocketMQ server has accepted it; it does not say whether the change needs a restart")


def _print_differences(found: OptionDifferences, *, everything: bool, as_json: bool) -> None:
    import sys

    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        shown = {**found.different, **(found.own if everything else {})}
        if shown:
            print_table(
                ("option", *found.servers),
                (
                    (key, *(_cell(values[one]) if one in values else "" for one in found.servers))
                    for key, values in shown.items()
                ),
            )
        what = "all their options" if everything else "their options"
        if not shown and found.servers:
            print(f"{' and '.join(found.servers)}: no difference in {what}" if len(found.servers) > 1 else
                  f"{found.servers[0]}: there is no other server to compare it with")  # fmt: skip
        if found.own and not everything:
            differ = "differs, as it is meant to" if len(found.own) == 1 else "differ, as they are meant to"
            print(f"{count(len(found.own), 'option')} more {differ} (names, addresses, folders): --all shows them")
        for server, why in found.failed.items():
            print(f"{server}: {why}", file=sys.stderr)
    if found.failed:
        raise typer.Exit(EXIT_FAILED)
