"""`metaq context`: clusters by name, so that commands need no addresses, accounts and certificates."""

from __future__ import annotations

import os
import pathlib
from typing import Annotated, Any

import msgspec
import typer

from metaq.cli.completing import complete_contexts
from metaq.cli.contexts.files import CHOSEN_VARIABLE, Context, Contexts
from metaq.cli.groups import App
from metaq.cli.output import AsJson, print_json, print_table
from metaq.errors import ConfigError

app = App("Save clusters under names: add, list, show, use, delete.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the context", autocompletion=complete_contexts)]


@app.command("add")
def add_context(
    name: Name,
    servers: Annotated[
        str, typer.Option("-n", "--namesrv", metavar="HOST:PORT", help="name servers, separated by ;")
    ] = "",
    address_server: Annotated[
        str, typer.Option(metavar="URL", help="URL of a page that lists the name servers, instead of -n")
    ] = "",
    acl_file: Annotated[
        pathlib.Path | None, typer.Option(metavar="FILE", help="file with the account's keys, a RocketMQ tools.yml")
    ] = None,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="connect with TLS")] = None,
    ca: Annotated[pathlib.Path | None, typer.Option(metavar="FILE", help="file with trusted CA certificates")] = None,
    cert: Annotated[pathlib.Path | None, typer.Option(metavar="FILE", help="client certificate")] = None,
    key: Annotated[pathlib.Path | None, typer.Option(metavar="FILE", help="private key of --cert")] = None,
    tls_verify: Annotated[
        str,
        typer.Option(
            metavar="full|ca|none",
            help="verify the server's certificate and its host name, the certificate only, or nothing",
        ),
    ] = "",
    description: Annotated[str, typer.Option(metavar="TEXT", help="description, shown by `metaq context list`")] = "",
    use: Annotated[bool, typer.Option("--use", help="make it the context in use")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="replace an existing context of this name")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a context: a name for a cluster's name servers, account and certificates.

    A context stores the paths of files with secrets, never the secrets.
    """
    from metaq.client.conversation.name_servers import parse_addresses

    if bool(servers) == bool(address_server):
        raise ConfigError(
            "give either the name servers of the cluster (-n) or the URL of a page that lists them (--address-server)"
        )
    if servers:
        parse_addresses(servers)
    if tls_verify not in {"", "full", "ca", "none"}:
        raise typer.BadParameter(f"{tls_verify!r} is not one of full, ca, none", param_hint="--tls-verify")
    made = Context(
        namesrv=servers, address_server=address_server, tls=tls, ca=_file(ca), cert=_file(cert), key=_file(key),
        tls_verify=tls_verify, acl_file=_file(acl_file), description=description,
    )  # fmt: skip
    contexts = Contexts(os.environ)
    contexts.write(name, made, replace=replace)
    if use:
        contexts.use(name)
    if as_json:
        print_json(_shown(contexts, name))
    else:
        print(f"context {name} is {'in use' if use else f'added; `metaq context use {name}` makes it the one in use'}")


@app.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; a star marks the context in use."""
    contexts = Contexts(os.environ)
    shown = [_shown(contexts, name) for name in contexts.names()]
    if as_json:
        print_json(shown)
        return
    print_table(
        ("", "name", "name servers", "tls", "account", "description"),
        (
            (
                "*" if one["in_use"] else "", one["name"], one.get("namesrv") or one.get("addressServer", ""),
                "yes" if one.get("tls") else "", one.get("aclFile", ""), one.get("description", ""),
            )
            for one in shown
        ),
    )  # fmt: skip


@app.command("show")
def show_context(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="default: the context that commands use now", autocompletion=complete_contexts
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show a context; without a name, the one that commands use now, and why."""
    contexts = Contexts(os.environ)
    why = ""
    if not name:
        asked, used = contexts.asked_for(), contexts.used()
        name = asked or used
        if not name:
            raise ConfigError("no context is in use; `metaq context use NAME` selects one")
        why = f"{CHOSEN_VARIABLE} names it" if asked else f"it is in use{_beaten()}"
    shown = _shown(contexts, name)
    if as_json:
        print_json(shown)
        return
    print(f"context {name}{f': {why}' if why else ''}")
    for key, value in shown.items():
        if key not in {"name", "in_use"}:
            print(f"  {key} = {value}")


@app.command("use")
def use_context(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="name of the context", autocompletion=complete_contexts)
    ] = "",
    none: Annotated[bool, typer.Option("--none", help="use no context")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a context the default of all commands of this user.

    -n, --context, METAQ_CONTEXT and NAMESRV_ADDR take precedence over it.
    """
    if bool(name) == none:
        raise ConfigError("give the name of a context, or --none")
    Contexts(os.environ).use(name or None)
    if as_json:
        print_json({"in_use": name or None})
    else:
        print(f"context {name} is in use{_beaten()}" if name else "no context is in use")


@app.command("delete")
def delete_context(name: Name, as_json: AsJson = False) -> None:
    """Delete a context; the files that it refers to stay."""
    Contexts(os.environ).delete(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"context {name} is deleted")


def _beaten() -> str:
    return ", but NAMESRV_ADDR is set and takes precedence" if os.environ.get("NAMESRV_ADDR") else ""


def _shown(contexts: Contexts, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(contexts.read(name))
    return {"name": name, "in_use": contexts.used() == name, **fields}


def _file(path: pathlib.Path | None) -> str:
    if path is None:
        return ""
    whole = path.expanduser().absolute()
    if not whole.is_file():
        raise ConfigError(f"there is no file {whole}")
    return str(whole)
