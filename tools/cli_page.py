"""docs/cli.md: every command in a table, and a session on the command line with what it really prints.

    python -m tools.cli_page > docs/cli.md

Starts brokers of its own in a temporary folder. `tests/docs/test_cli.py` holds commands, flags and the table against the code;
ids, times and addresses are those of the last run.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from metaq.cli.commands import all_commands
from metaq.testing import EmbeddedBroker

LINES_MAX = 14
"""Lines of an output that are shown."""
SECONDS = 120.0

ACCOUNTS = """\
accounts:
- accessKey: operator
  secretKey: only-an-example
  admin: true
"""
TOOLS = "accessKey: operator\nsecretKey: only-an-example\n"

INTRODUCTION = """\
# The command line

`metaq` is one command for servers, messages and administration. What follows is a session, made by running it
(`python -m tools.cli_page > docs/cli.md`); the table at the end has every command. `metaq COMMAND --help` has the options and
examples of each.

## What holds everywhere

- **Which cluster**: `-n`, else the context that `--context` or `METAQ_CONTEXT` names, else `NAMESRV_ADDR`, else the context in use, else
  the page at `METAQ_ADDRESS_SERVER`, else 127.0.0.1:9876. Pipelines, which run for long, have it in their own files and flags.
- **Account and TLS**: `--acl-file` behind a command, `--tls`, `--ca`, `--cert`, `--key` before it, else the environment, else the
  context's. The account of the context in use never goes to a server that `-n` names. A secret is never an argument.
- **Exit codes**: 0 done, 1 failed or something is wrong, 2 wrong usage or value, 3 not found (topic, group, route, broker, message,
  trace, transaction), 130 Ctrl-C, 143 SIGTERM. A failure is one sentence on standard error.
- **For programs**: `--json` at every command that is no server. Times there are ISO 8601 in UTC, sizes bytes. Tables are for people:
  sizes are KiB, MiB, GiB; colours, progress and status lines are for terminals only (and not with `NO_COLOR`).
- **Completion** of commands, options, topics and groups: `metaq completion bash|zsh|fish`.
- **Contexts** (`metaq context add`) are files in `$XDG_CONFIG_HOME/metaq/contexts`, by default `~/.config/metaq/contexts`. They have paths of files with
  secrets, and no secrets.
"""


class Part(NamedTuple):
    """A section of the session."""

    heading: str
    text: str
    lines: tuple[str, ...]


SESSION = (
    Part("Topics", "", (
        "metaq topic create orders --queues 2",
        "metaq topic list",
        "metaq topic show orders",
        "metaq topic update orders --queues 4",
        "metaq topic stats orders",
        "metaq topic order set orders",
        "metaq topic order show orders",
        "metaq topic order delete orders",
    )),
    Part("Sending", "From an argument, a file, standard input, or a line of these each; with `--count` and `--rate` in the wanted number.", (
        "metaq send orders hello --tag paid --key 42 --property region=eu",
        "printf '7:tea\\n8:coffee\\n9:milk\\n' | metaq send orders --lines -K : --tag open",
        "metaq send orders again --count 100 --rate 1000",
        "metaq send orders hello --json",
        "metaq send orders hello --delay-level 19",
    )),
    Part("Reading", "Without `--group` it only looks: nobody's progress is touched. The letters of `--format` are kcat's.", (
        "metaq consume orders --tag 'paid || open' --headers --keys",
        "metaq consume orders -p 0 -o -2 --format '%D %b:%p:%o [%k] %s\\n'",
        "metaq consume orders --from 0 --to 2",
        "metaq consume orders --filter \"region = 'eu'\" --json",
        "metaq consume orders --group mailer --count 3",
    )),
    Part("Finding", "By key, id or time, exactly; and who has consumed a message, in the words of RocketMQ's mqadmin.", (
        "metaq message query orders --key 42",
        "metaq message query orders -c 3",
        "metaq consume orders --tag paid --format %i | xargs metaq message get --topic orders",
        "metaq consume orders --tag paid --format %i | xargs metaq message track --topic orders",
        "metaq topic units orders -p 1 -c 2 --group mailer",
    )),
    Part("Groups", "", (
        "metaq group list",
        "metaq group show mailer",
        "metaq group reset mailer orders --to earliest --dry-run",
        "metaq group reset mailer orders --to earliest",
        "metaq group skip mailer orders",
        "metaq group producers payments",
        "metaq group create auditor --retries 3",
        "metaq group clone mailer auditor",
        "metaq group move auditor examiner",
        "metaq group delete auditor --yes",
    )),
    Part("Rates", "What a cluster takes and gives, seen from here. This was measured beside other work on two cores.", (
        "metaq bench send load --count 20000",
        "metaq bench send load --count 500 --sync --size 1024",
        "metaq bench consume load",
        "metaq topic delete load --yes",
    )),
    Part("The cluster", "", (
        "metaq cluster",
        "metaq broker status broker-a",
        "metaq quota set client '*' requestsPerSecond=1K",
        "metaq quota show",
        "metaq quota remove client '*'",
        "metaq transaction list --json",
        "metaq meta1 tx list --json",
        "metaq message trace 7F0000010A2B18B4AAC2000000000001",
    )),
    Part("Options of running servers", "", (
        "metaq broker config show broker-a fileReservedTime deleteWhen brokerIP1",
        "metaq broker config set broker-a fileReservedTime=48 deleteWhen='04;16'",
        "metaq broker config set broker-a fileReservedTim=48",
        "metaq broker config set broker-a listenPort=10921",
        "metaq broker config show broker-a",
        "metaq broker config set broker-a logLevels=metaq.broker=debug",
        "metaq namesrv config show orderMessageEnable",
    )),
    Part("Contexts", "", (
        "metaq context add here -n $NAMESRV_ADDR --description 'this machine'",
        "metaq context add prod -n 'mq1:9876;mq2:9876' --acl-file tools.yml --tls",
        "metaq context list",
        "metaq context use here",
        "metaq context show",
        "metaq topic list --context here",
        "metaq context delete prod",
        "metaq context use --none",
    )),
    Part("Store folders", "Without a broker, or beside one that runs.", (
        "metaq store dump $STORE --topic orders | head -n 1",
        "metaq store transactions $STORE",
    )),
    Part("Pipelines", "[pipelines.md](pipelines.md) and the pages of each have what a run prints.", (
        "metaq pipeline list",
        "metaq pipeline describe archive",
        "metaq pipeline status --folder nowhere",
    )),
    Part("Servers in the background", "With a pid file and a log file ([running.md](running.md)); `--port 0` takes a free port.", (
        "metaq start up --as demo --port 0 --namesrv-port 0",
        "metaq start up --as demo",
        "metaq status",
        "metaq stop demo",
        "metaq status demo --json | head -n 6",
    )),
    Part("This machine", "", ("metaq doctor", "metaq broker --print-config | head -n 6")),
)  # fmt: skip

WITH_ACCOUNTS = Part("Accounts", "At a broker with `aclEnable=true` ([security.md](security.md)).", (
    "metaq acl user list --acl-file tools.yml",
    "metaq acl user create reporting --secret-file secret.txt --acl-file tools.yml",
    "metaq acl grant reporting sub topic:orders --acl-file tools.yml",
    "metaq acl check reporting subscribe topic:orders --acl-file tools.yml",
    "metaq acl check reporting publish topic:orders --acl-file tools.yml",
))  # fmt: skip


def shown(line: str, folder: pathlib.Path, environ: Mapping[str, str]) -> str:
    """Run a line of the session. Returns it with what it prints."""
    done = subprocess.run(  # noqa: S603  the lines above
        ["/bin/sh", "-c", line],
        cwd=folder, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    printed = (
        re.sub(r"/\S*/metaq-test-\w+", "~/server", done.stdout).replace(str(folder), "~").replace(sys.prefix, "/venv")
    )
    printed = printed.replace(str(pathlib.Path(__file__).resolve().parents[1]), "/metaq")
    lines = [text.rstrip() for text in printed.splitlines()]
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], "…"]
    code = [f"(exit code {done.returncode})"] if done.returncode else []
    return "\n".join([f"$ {line}", *lines, *code])


def section(part: Part, folder: pathlib.Path, environ: Mapping[str, str]) -> str:
    text = f"{part.text}\n\n" if part.text else ""
    block = "\n".join(shown(line, folder, environ) for line in part.lines)
    return f"## {part.heading}\n\n{text}```console\n{block}\n```\n"


def table() -> str:
    """Return all commands and the first sentence of the help of each."""
    rows = [f"| `metaq {path}` | {summary(command)} |" for path, command in leaves(all_commands())]
    return "\n".join(["## All commands", "", "| command | |", "|---|---|", *rows, ""])


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield what can be called, with its path."""
    if path and (not hasattr(command, "commands") or command.invoke_without_command):
        yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name))


def summary(command: Any) -> str:
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


def main() -> None:
    """Print the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "bin").mkdir()
        command = folder / "bin" / "metaq"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m metaq "$@"\n')
        command.chmod(0o755)
        (folder / "tools.yml").write_text(TOOLS)
        (folder / "secret.txt").write_text("another-example")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("METAQ_", "NAMESRV_"))}
        environ |= {"PATH": f"{folder}/bin:{environ['PATH']}", "HOME": name, "XDG_CONFIG_HOME": f"{name}/.config"}
        environ["XDG_STATE_HOME"] = f"{name}/.local/state"
        parts = [INTRODUCTION]
        with EmbeddedBroker(folder / "store", options={"brokerName": "broker-a"}) as broker:
            own = environ | {"NAMESRV_ADDR": broker.namesrv, "STORE": str(folder / "store")}
            parts += [section(part, folder, own) for part in SESSION]
        with EmbeddedBroker(accounts=ACCOUNTS, options={"brokerName": "broker-a"}) as broker:
            parts.append(section(WITH_ACCOUNTS, folder, environ | {"NAMESRV_ADDR": broker.namesrv}))
        print("\n".join([*parts, table()]), end="")


if __name__ == "__main__":
    main()
