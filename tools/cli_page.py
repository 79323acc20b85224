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

`metaq` is the command of MetaQ for Python. It runs brokers and name servers, sends and reads messages, and administers clusters; most of its commands
work with clusters of RocketMQ 4.x, too. It is installed with the package ([getting-started.md](getting-started.md)); `metaq --version` prints its release.

This page is for operators. It has the rules that hold for every command, a session that shows what the commands print, and a
[table of all commands](#all-commands). `metaq COMMAND --help` prints the options of a command, with examples. To try the session, start a broker
and a name server in one terminal with `metaq up`, and type the commands in another one, in the same folder (`export STORE=metaq-data`). Some of the
commands show a mistake and its exit code.

## Rules for every command

- **Cluster.** A command asks the name servers of the first of these that is given: the option `-n HOST:PORT`; the context named by `--context` or
  `METAQ_CONTEXT`; the variable `NAMESRV_ADDR`; the context in use (`metaq context use`); the list of name servers at the URL in
  `METAQ_ADDRESS_SERVER`; `127.0.0.1:9876`. Pipelines (`metaq pipeline run`) know no contexts: they take `nameServers` of their TOML file or flags, else
  `NAMESRV_ADDR`.
- **Contexts.** A context is a cluster with a name: its name servers, and the paths of the files for its account and certificates. `metaq context add`
  saves it in `$XDG_CONFIG_HOME/metaq/contexts` (by default `~/.config/metaq/contexts`). It has no secrets.
- **Accounts and TLS.** Requests are signed with the keys in `--acl-file FILE`, an option of each command; TLS is set by options in front of the
  command, as in `metaq --tls --ca ca.pem topic list`. Environment variables (`METAQ_ACL_FILE`, `METAQ_TLS` and others, see `metaq --help`) come next, then
  the context. The account and the certificates of the context in use are not used with `-n`. No option takes a secret itself, because other users of
  the machine can see command lines.
- **Exit codes.** 0: done. 1: the command failed, or a check found a problem. 2: wrong usage or a wrong value. 3: not found (topic, group, route, broker,
  message, trace, transaction, account, quota, context). 130: Ctrl-C. 143: SIGTERM. A failure is reported in one sentence on standard error.
- **Output for programs.** Every command has `--json`, except those that run a server or a dashboard; times are then ISO 8601 in UTC, and sizes are
  bytes. Tables are for people: sizes have units (KiB, MiB, GiB). Colours and lines that are written again and again appear on terminals only; `NO_COLOR`
  turns colours off. Commands that wait long (`metaq broker drain`, `metaq cluster restart`, `metaq start` and others) tell on standard error, line by line,
  what for.
- **Completion.** `metaq completion bash|zsh|fish` prints a script with which the shell completes commands, options, topics and groups.
"""


class Part(NamedTuple):
    """A section of the session."""

    heading: str
    text: str
    lines: tuple[str, ...]


SESSION = (
    Part("Topics", "A new topic is created at every broker, unless `--broker` or `--cluster` selects some. `topic order` fixes the queues of a topic, which strict order needs while a broker is down ([order.md](order.md)).", (
        "metaq topic create orders --queues 2",
        "metaq topic list",
        "metaq topic show orders",
        "metaq topic update orders --queues 4",
        "metaq topic stats orders",
        "metaq topic order set orders",
        "metaq topic order show orders",
        "metaq topic order delete orders",
    )),
    Part("Sending", "The body is an argument, a file (`--file`) or standard input; with `--lines`, each line is a message. `--count` sends a message many times, `--rate` limits messages per second.", (
        "metaq send orders hello --tag paid --key 42 --property region=eu",
        "printf '7:tea\\n8:coffee\\n9:milk\\n' | metaq send orders --lines -K : --tag open",
        "metaq send orders again --count 100 --rate 1000",
        "metaq send orders hello --json",
        "metaq send orders hello --delay-level 19",
    )),
    Part("Reading", "Without `--group`, `metaq consume` only reads: the offsets of no group change. With `--group` it is a member of the group, and its offsets are saved. The letters of `--format` are those of kcat.", (
        "metaq consume orders --tag 'paid || open' --headers --keys",
        "metaq consume orders -p 0 -o -2 --format '%D %b:%p:%o [%k] %s\\n'",
        "metaq consume orders --from 0 --to 2",
        "metaq consume orders --filter \"region = 'eu'\" --json",
        "metaq consume orders --group mailer --count 3",
    )),
    Part("Finding", "`message query` finds messages by key, id or store time. `message track` shows which groups have consumed a message, with the states of RocketMQ's mqadmin. `topic units` shows the entries of a consume queue.", (
        "metaq message query orders --key 42",
        "metaq message query orders -c 3",
        "metaq consume orders --tag paid --format %i | xargs metaq message get --topic orders",
        "metaq consume orders --tag paid --format %i | xargs metaq message track --topic orders",
        "metaq topic units orders -p 1 -c 2 --group mailer",
    )),
    Part("Groups", "The lag of a group is the number of messages that it has not consumed yet. `reset` and `skip` move its offsets, `clone` copies them to another group, `move` renames a group ([groups.md](groups.md)).", (
        "metaq group list",
        "metaq group show mailer",
        "metaq group reset mailer orders --to earliest --dry-run",
        "metaq group reset mailer orders --to earliest",
        "metaq group skip mailer orders",
        "metaq group producers payments",
        "metaq group create auditor --retries 3",
        "metaq group clone mailer auditor",
        "metaq group move auditor examiner",
        "metaq group show auditor",
        "metaq group delete auditor --yes",
    )),
    Part("Rates", "`metaq bench` measures how many messages per second a cluster takes and delivers, from this machine. These figures are from two cores that had other work, too.", (
        "metaq bench send load --count 20000",
        "metaq bench send load --count 500 --sync --size 1024",
        "metaq bench consume load",
        "metaq topic delete load --yes",
    )),
    Part("The cluster", "`metaq cluster` lists the brokers, `broker status` the replicas of one broker. Quotas limit what clients may use ([limits.md](limits.md)).", (
        "metaq cluster",
        "metaq broker status broker-a",
        "metaq quota set client '*' requestsPerSecond=1K",
        "metaq quota show",
        "metaq quota remove client '*'",
        "metaq transaction list --json",
        "metaq meta1 tx list --json",
        "metaq message trace 7F0000010A2B18B4AAC2000000000001",
    )),
    Part("Options of running servers", "Options that change `at once` are hot: `config set` changes them in the running server, also over restarts. The others are changed in the configuration file, and need a restart. `wire` in the column `from` means that a request has set the option; it is saved in the file behind it ([configuration.md](configuration.md)).", (
        "metaq broker config show broker-a fileReservedTime deleteWhen brokerIP1",
        "metaq broker config set broker-a fileReservedTime=48 deleteWhen='04;16'",
        "metaq broker config set broker-a fileReservedTim=48",
        "metaq broker config set broker-a listenPort=10921",
        "metaq broker config show broker-a",
        "metaq broker config set broker-a logLevels=metaq.broker=debug",
        "metaq namesrv config show orderMessageEnable",
    )),
    Part("Contexts", "The star marks the context in use. Here `NAMESRV_ADDR` is set, which takes precedence over it.", (
        "metaq context add here -n $NAMESRV_ADDR --description 'this machine'",
        "metaq context add prod -n 'mq1:9876;mq2:9876' --acl-file tools.yml --tls",
        "metaq context list",
        "metaq context use here",
        "metaq context show",
        "metaq topic list --context here",
        "metaq context delete prod",
        "metaq context use --none",
    )),
    Part("Store folders", "These commands read the store folder of a broker, which may be stopped or running.", (
        "metaq store dump $STORE --topic orders | head -n 1",
        "metaq store transactions $STORE",
    )),
    Part("Pipelines", "Pipelines are Spark jobs that come with MetaQ; `pymetaq[spark]` is needed to run them. [pipelines.md](pipelines.md) and the page of each show what a run prints.", (
        "metaq pipeline list",
        "metaq pipeline describe archive",
        "metaq pipeline status --folder nowhere",
    )),
    Part("Servers in the background", "`metaq start` starts a server that keeps running without a terminal, with a pid file and a log file ([running.md](running.md)). `--port 0` takes a free port; `--as` names the server.", (
        "metaq start up --as demo --port 0 --namesrv-port 0",
        "metaq start up --as demo",
        "metaq status",
        "metaq stop demo",
        "metaq status demo --json | head -n 6",
    )),
    Part("This machine", "`metaq doctor` checks what is installed and how much disk and how many files are available. `--print-config` prints all options of a server.", ("metaq doctor", "metaq broker --print-config | head -n 6")),
)  # fmt: skip

WITH_ACCOUNTS = Part("Accounts", "This broker has `aclEnable=true`: it only takes signed requests, and `tools.yml` has the keys of an administrator ([security.md](security.md)).", (
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
    return "\n".join(["## All commands", "", "| command | what it does |", "|---|---|", *rows, ""])


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
