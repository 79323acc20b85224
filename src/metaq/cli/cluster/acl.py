"""`metaq acl`: accounts of brokers, or of another server with accounts: user list|create|delete, grant, revoke, check."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import msgspec
import typer

from metaq.cli.groups import App
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, NameServers, print_json, print_table
from metaq.clock import SYSTEM
from metaq.errors import ConfigError

app = App("Manage the accounts of brokers and their permissions (docs/security.md).")
user_app = App("List, create and delete accounts.")
app.add_typer(user_app, name="user")

Name = Annotated[str, typer.Argument(metavar="ACCOUNT", help="access key of the account")]
Resource = Annotated[str, typer.Argument(metavar="RESOURCE", help="topic:NAME or group:NAME")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="HOST:PORT", help="only this broker or name server (default: all brokers)"),
]
_RIGHTS = {"pub": "PUB", "sub": "SUB", "pub|sub": "PUB|SUB", "sub|pub": "PUB|SUB", "both": "PUB|SUB", "deny": "DENY"}


@user_app.command("list")
def list_users(at: At = None, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """List the accounts of each server, without their secrets."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.list_accounts(at=at)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    rows = [
        (
            server, one.access_key, "yes" if one.admin else "-", one.white or "-",
            f"{one.default_topic} {' '.join(one.topics)}".strip(), f"{one.default_group} {' '.join(one.groups)}".strip(),
        )
        for server, view in found.items()
        for one in view.accounts
    ]  # fmt: skip
    print_table(("server", "account", "admin", "from", "topics", "groups"), rows)
    for server, view in found.items():
        if view.white:
            print(f"{server} allows everything from {', '.join(view.white)}")


@user_app.command("create")
def create_user(
    name: Name,
    admin_rights: Annotated[bool, typer.Option("--admin", help="allow it to change settings and accounts")] = False,
    secret_file: Annotated[
        pathlib.Path | None,
        typer.Option(help="file with the secret, - for standard input (default: a secret is generated and printed)"),
    ] = None,
    white: Annotated[
        str | None, typer.Option("--address", help="client addresses from which it needs no signature")
    ] = None,
    default_topic: Annotated[
        str | None, typer.Option(help="permission for topics without an entry: PUB, SUB, PUB|SUB or DENY")
    ] = None,
    default_group: Annotated[str | None, typer.Option(help="permission for groups without an entry")] = None,
    at: At = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create an account, or give an existing one another secret.

    A secret is never an argument, because other users of the machine can see arguments (`ps`).
    """
    from metaq.admin import Admin

    secret = _secret(secret_file)
    with Admin(namesrv) as admin:
        servers = admin.set_account(
            name,
            secret,
            admin=admin_rights,
            white=white,
            default_topic=_right(default_topic),
            default_group=_right(default_group),
            at=at,
        )
    made = {} if secret_file is not None else {"secretKey": secret}
    if as_json:
        print_json({"account": name, "servers": servers, **made})
        return
    print(f"account {name} is saved at {', '.join(servers)}")
    if made:
        print(f"its secret, which is not shown again:\naccessKey: {name}\nsecretKey: {secret}")


@user_app.command("delete")
def delete_user(name: Name, at: At = None, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Delete an account: its requests are refused from then on."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        servers = admin.delete_account(name, at=at)
    _told(as_json, name, servers, f"account {name} is deleted")


@app.command("grant")
def grant(
    name: Name,
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="pub, sub, both or deny")],
    resource: Resource,
    at: At = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set the permission of an account for a topic or group, in place of an earlier one."""
    from metaq.admin import Admin

    text = _right(right)
    with Admin(namesrv) as admin:
        servers = admin.grant(name, resource, text, at=at)
    _told(as_json, name, servers, f"account {name} has {text} to {resource}")


@app.command("revoke")
def revoke(
    name: Name, resource: Resource, at: At = None, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False
) -> None:
    """Remove the permission of an account for a topic or group: its default permission applies then."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        servers = admin.grant(name, resource, None, at=at)
    _told(as_json, name, servers, f"account {name} has no entry for {resource}")


@app.command("check")
def check(
    name: Annotated[
        str, typer.Argument(metavar="ACCOUNT", help="access key of the account; '' for a request without one")
    ],
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="publish, subscribe, observe, administer or register")
    ],
    resource: Annotated[str, typer.Argument(metavar="[RESOURCE]", help="topic:NAME or group:NAME")] = "",
    address: Annotated[str, typer.Option(help="address that the request comes from")] = "192.0.2.1",
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="check a request whose signature is missing or wrong")
    ] = False,
    at: At = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show whether a request would be allowed, and by which file and entry. Exit code 1: a server refuses it."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.explain_access(name, action, resource, address=address, signed=not unsigned, at=at)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for server, one in found.items():
            where = f" ({one.file})" if one.file else ""
            print(f"{server}: {'allowed' if one.allowed else 'refused'}: {one.why}{where}")
    if not all(one.allowed for one in found.values()):
        raise typer.Exit(EXIT_FAILED)


def _told(as_json: bool, name: str, servers: list[str], text: str) -> None:
    if as_json:
        print_json({"account": name, "servers": servers})
    else:
        print(f"{text} at {', '.join(servers)}")


def _secret(file: pathlib.Path | None) -> str:
    """Read a secret, or make one. Raises ConfigError."""
    if file is None:
        return SYSTEM.token()
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the secret cannot be read from {file}: {error}") from None
    return text.strip()


def _right(text: str | None) -> str | None:
    if text is None:
        return None
    right = _RIGHTS.get(text.lower())
    if right is None:
        raise typer.BadParameter(f"{text!r} is none of pub, sub, both, deny")
    return right
