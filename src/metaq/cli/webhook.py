"""`metaq webhook`: consumer groups whose messages are posted to URLs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.amounts import count
from metaq.cli.groups import App
from metaq.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_TERMINATED,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    iso_time,
    print_json,
    print_json_line,
    print_table,
    span,
)
from metaq.errors import ConfigError, MetaqError
from metaq.option_table import camel
from metaq.webhooks.options import Plan, WebhookOptions, of_file, of_mapping

if TYPE_CHECKING:
    from metaq.admin import Admin
    from metaq.webhooks.figures import WebhookFigures

app = App("Post the messages of consumer groups to URLs (docs/webhooks.md).")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="a TOML file with sections [webhooks.NAME]")
]
_REPEATED: Final = frozenset({"topics", "allow_networks", "secret_files"})


@app.callback()
def webhooks() -> None:
    """Post the messages of consumer groups to URLs (docs/webhooks.md)."""


def _run(names: list[str] | None, config: Path | None, namesrv: str, as_json: bool, **flags: Any) -> None:
    given = {name: ",".join(value) if isinstance(value, list) else value for name, value in flags.items() if value}
    plans = _plans(names or [], config, given)
    _set_up_logging()
    asyncio.run(_run_all(plans, namesrv, as_json=as_json))


_run.__doc__ = """Post the messages of consumer groups to URLs until Ctrl-C or SIGTERM.

    With --config, the named webhooks of the file run, or all of them; without it, one webhook runs, with a name and its options as flags.
    A signal lets requests in flight finish; a second one ends at once. After a kill, the next start continues where the webhook was: a
    message may be posted twice then, and none is left out. Exit code 1: a target answered 410.
    """


def _plans(names: Sequence[str], config: Path | None, given: Mapping[str, Any]) -> list[Plan]:
    """Return the webhooks that a command line names. Raises ConfigError."""
    if config is not None:
        if given:
            raise ConfigError(
                f"--config and --{min(given).replace('_', '-')}: give options either in the file or as flags"
            )
        return of_file(config, names)
    if len(names) > 1:
        raise ConfigError("to run several webhooks, give the file that has them with --config")
    name = names[0] if names else str(given.get("group", ""))
    if not name:
        raise ConfigError(
            "give a file of webhooks (-c), or a name and its options: metaq webhook run NAME --url URL --topics TOPIC"
        )
    return [of_mapping(name, given)]


def _with_flags(run: Callable[..., None]) -> Callable[..., None]:
    """Give a function the parameters that typer makes flags of: those of the option table behind its own."""
    chosen: dict[str, tuple[Any, Any]] = {
        "names": (
            Annotated[
                list[str] | None, typer.Argument(metavar="[NAME]...", help="webhooks of the file to run (default: all)")
            ],
            None,
        ),
        "config": (ConfigFile, None),
        "namesrv": (NameServers, NAMESRV_DEFAULT),
        "as_json": (
            Annotated[bool, typer.Option("--json", help="one JSON line per webhook that begins or ends")],
            False,
        ),
    }
    hints = typing.get_type_hints(WebhookOptions)
    for item in fields(WebhookOptions):
        text = item.metadata["doc"].rstrip(".").replace("`", "")
        shown = "" if item.default in {None, "", False} else f" (default: {item.default})"
        say = f"{text[0].lower()}{text[1:]}{shown}".replace(" (see below)", f": {', '.join(item.metadata['choices'])}")
        flag = f"--{item.name.replace('_', '-')}"
        if item.name in _REPEATED:
            chosen[item.name] = Annotated[list[str] | None, typer.Option(flag, metavar="TEXT", help=say)], None
        elif hints[item.name] is bool:
            chosen[item.name] = Annotated[bool, typer.Option(flag, help=say)], False
        else:
            # As text: the option table reads it, and its errors name the option as the file does.
            number = "NUMBER" if hints[item.name] is not str else "TEXT"
            chosen[item.name] = Annotated[str | None, typer.Option(flag, metavar=number, help=say)], None
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, keyword, default=default, annotation=hint) for name, (hint, default) in chosen.items()]
    )
    run.__annotations__ = {name: hint for name, (hint, _) in chosen.items()}
    return run


app.command("run")(_with_flags(_run))


def _set_up_logging() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)


async def _run_all(plans: Sequence[Plan], namesrv: str, *, as_json: bool) -> None:
    """Run webhooks until a signal comes or all have ended. Raises MetaqError: the first that failed."""
    try:
        from metaq.webhooks.webhook import Webhook
    except ModuleNotFoundError as error:
        raise ConfigError(f"webhooks need the package {error.name}: pip install 'pymetaq[webhooks]'") from None
    loop = asyncio.get_running_loop()
    opened: list[Webhook] = []
    tasks: list[asyncio.Task[None]] = []
    asked: list[int] = []

    def stop(number: int) -> None:
        asked.append(number)
        for one in opened:
            if len(asked) == 1:
                _say(one.plan, "ends, with what is under way", as_json=as_json)
            one.stop()
        for task in tasks if len(asked) > 1 else ():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        for plan in plans:
            opened.append(Webhook(plan, namesrv))
            _say(plan, "begins", as_json=as_json)
        tasks += [loop.create_task(one.run()) for one in opened]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await asyncio.gather(*(one.close() for one in opened))
    if any(isinstance(outcome, asyncio.CancelledError) for outcome in ended):
        raise SystemExit(EXIT_INTERRUPTED if asked[0] == signal.SIGINT else EXIT_TERMINATED)
    for plan, outcome in zip(plans, ended, strict=True):
        _say(plan, "has ended" if outcome is None else str(outcome), as_json=as_json)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome


def _say(plan: Plan, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json_line(
            {
                "webhook": plan.name,
                "group": plan.group,
                "topics": list(plan.topics),
                "url": str(plan.url),
                "event": what,
            }
        )
    else:
        print(f"webhook {plan.name}: group {plan.group}, {', '.join(plan.topics)} to {plan.url}: {what}", flush=True)


@app.command("show")
def show(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="consumer groups, or webhooks of the file")
    ] = None,
    config: ConfigFile = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the state of webhooks, as the running processes report it.

    It shows the last success, failures in a row, until when a webhook pauses and why, and how far its group is behind. Exit code 3: no
    process posts the messages of a group.
    """
    from metaq.admin import Admin

    chosen = [plan.group for plan in of_file(config, groups or ())] if config is not None else groups or []
    if not chosen:
        raise ConfigError("give the groups of the webhooks, or their file (-c)")
    with Admin(namesrv) as admin:
        found = {group: _shown(admin, group) for group in chosen}
    if as_json:
        print_json(list(found.values()))
    else:
        for one in found.values():
            _print(one)
    if any(not one["processes"] for one in found.values()):
        raise typer.Exit(EXIT_NOT_FOUND)


def _shown(admin: Admin, group: str) -> dict[str, Any]:
    """Return what there is to say of a group. Its processes that do not answer are told with the reason."""
    from metaq.admin.groups import GroupNotFound
    from metaq.webhooks.figures import of_properties

    try:
        progress = admin.group_progress(group)
    except GroupNotFound:
        return {"group": group, "lag": None, "lag_seconds": None, "processes": []}
    processes = []
    for client in dict.fromkeys(member.client_id for member in progress.members):
        try:
            figures = of_properties(admin.consumer_running_info(group, client).state.properties)
        except MetaqError as error:
            processes.append({"client_id": client, "error": str(error)})
            continue
        if figures is not None:
            processes.append({"client_id": client, **_json(figures)})
    return {"group": group, "lag": progress.lag, "lag_seconds": progress.lag_seconds, "processes": processes}


def _json(figures: WebhookFigures) -> dict[str, Any]:
    return {
        "webhook": figures.name,
        "url": figures.url,
        "state": figures.state,
        "messages": figures.messages,
        "attempts": figures.attempts,
        "failed": figures.failed,
        "busy": figures.busy,
        "unreachable": figures.unreachable,
        "retries": figures.retries,
        "in_flight": figures.in_flight,
        "failures_in_row": figures.failures_in_row,
        "pauses": figures.pauses,
        "paused_until": iso_time(figures.paused_until),
        "last_success": iso_time(figures.last_success),
        "last_failure": iso_time(figures.last_failure),
        "last_failure_text": figures.last_text or None,
        "milliseconds_per_attempt": round(figures.seconds * 1000 / figures.attempts, 1) if figures.attempts else None,
    }


def _print(found: Mapping[str, Any]) -> None:
    if found["lag"] is None:
        print(f"group {found['group']}: nobody has consumed as this group yet")
        return
    late = f" ({span(found['lag_seconds']) or '?'})" if found["lag"] else ""
    print(f"group {found['group']}: {count(found['lag'], 'message')} behind{late}")
    if not found["processes"]:
        print("  no process posts its messages: start one with `metaq webhook run`")
        return
    rows = [one for one in found["processes"] if "error" not in one]
    if rows:
        print_table(
            ("process", "url", "state", "posted", "failures in a row", "paused until", "last success", "last failure"),
            [
                (
                    one["client_id"], one["url"], one["state"], one["messages"], one["failures_in_row"], one["paused_until"],
                    one["last_success"], f"{one['last_failure']}: {one['last_failure_text']}" if one["last_failure"] else None,
                )
                for one in rows
            ],
        )  # fmt: skip
    for one in found["processes"]:
        if "error" in one:
            print(f"  {one['client_id']} does not answer: {one['error']}")


@app.command("check")
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="only these webhooks")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a file of webhooks, and the files that it names, without posting anything. Exit code 2: something is wrong."""
    if config is None:
        raise ConfigError("give the file of webhooks with --config")
    plans = of_file(config, names or ())
    if as_json:
        hidden = {"url": None}
        print_json(
            [
                {"webhook": one.name, "group": one.group, "options": {**_set(one), **hidden, "url": str(one.url)}}
                for one in plans
            ]
        )
        return
    print_table(
        ("webhook", "group", "topics", "url", "secrets"),
        [(one.name, one.group, ", ".join(one.topics), str(one.url), len(one.secrets)) for one in plans],
    )


def _set(plan: Plan) -> dict[str, Any]:
    return {camel(name): value for name, value in plan.options.values().items() if value not in {None, ""}}


@app.command("secret")
def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a new file, which only its owner can read")],
    as_json: AsJson = False,
) -> None:
    """Generate a secret for signatures in a new file.

    To replace a secret, give the webhook both files (--secret-files) until the receiver knows the new one.
    """
    import base64

    from metaq.clock import SYSTEM
    from metaq.webhooks.signing import PREFIX

    text = PREFIX + base64.b64encode(bytes.fromhex(SYSTEM.token() + SYSTEM.token())).decode()
    try:
        # For its owner from its first moment on, and never over a secret that is in use.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(f"{text}\n")
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise ConfigError(f"{file} cannot be made: {error.strerror}") from None
    if as_json:
        print_json({"file": str(file), "bytes": 32})
    else:
        print(f"{file}: a secret of 32 bytes is written; the receiver needs it, too")
