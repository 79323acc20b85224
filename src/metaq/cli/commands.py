"""All commands except the servers, as a typer application, and the output of their failures."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import metaq
from metaq.cli import acl, group, message, messages, meta1, quota, store, topic, transaction
from metaq.cli import broker as replicas
from metaq.cli.access import add_acl_file
from metaq.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_TERMINATED,
    EXIT_USAGE,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    iso_time,
    print_json,
    print_table,
)
from metaq.cli.serve import SERVERS
from metaq.errors import BadRequest, ConfigError, LocalProtocolError, MetaqError, NoRoute, Refused

_EPILOG = (
    "Name servers: -n, else NAMESRV_ADDR, else what the page at METAQ_ADDRESS_SERVER says, else 127.0.0.1:9876. Account: --acl-file, else METAQ_ACL_FILE. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage, "
    "3 not found (topic, group, route, trace, transaction), 130 Ctrl-C."
)


class _Pipelines(typer.core.TyperGroup):
    """`metaq pipeline`, loaded on demand: the option tables of all pipelines take longer than most commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        names: list[str] = self._loaded().list_commands(ctx)
        return names

    def get_command(self, ctx: Any, name: str) -> Any:
        return self._loaded().get_command(ctx, name)

    @staticmethod
    def _loaded() -> Any:
        from metaq.cli import pipeline

        return typer.main.get_command(pipeline.app)


app = typer.Typer(
    name="metaq",
    help="MetaQ: durable messages on RocketMQ's wire, with Spark as the data pipeline.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(acl.app, name="acl")
app.add_typer(replicas.app, name="broker")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(message.app, name="message")
app.add_typer(transaction.app, name="transaction")
app.add_typer(meta1.app, name="meta1")
app.add_typer(store.app, name="store")
app.add_typer(quota.app, name="quota")
app.add_typer(
    typer.Typer(cls=_Pipelines, help="Run the ready-made Spark pipelines.", no_args_is_help=True), name="pipeline"
)
app.command("send")(messages.send)
app.command("consume")(messages.consume)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"metaq {metaq.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="connect with TLS (METAQ_TLS=1)")] = None,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="certificates that are trusted (METAQ_TLS_CA)")] = None,
    cert: Annotated[str | None, typer.Option(metavar="FILE", help="certificate to show (METAQ_TLS_CERT)")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="its key (METAQ_TLS_KEY); its password only by METAQ_TLS_KEY_PASSWORD"),
    ] = None,
    tls_verify: Annotated[
        str | None, typer.Option(metavar="full|ca|none", help="what is checked (METAQ_TLS_VERIFY; default full)")
    ] = None,
    crl: Annotated[
        str | None, typer.Option(metavar="FILE", help="lists of revoked certificates of servers (METAQ_TLS_CRL)")
    ] = None,
) -> None:
    """MetaQ: durable messages on RocketMQ's wire, with Spark as the data pipeline."""
    del version
    # By the environment, which also the processes have that a command starts, such as Spark's.
    switch = None if tls is None else "1" if tls else "0"
    given = {"": switch, "_CA": ca, "_CERT": cert, "_KEY": key, "_VERIFY": tls_verify, "_CRL": crl}
    os.environ.update({f"METAQ_TLS{name}": value for name, value in given.items() if value is not None})


@app.command("cluster")
def show_cluster(namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Show the brokers of all clusters and how they are."""
    from metaq.admin import Admin
    from metaq.admin.brokers import behind

    with Admin(namesrv) as admin:
        brokers = admin.list_brokers()
    if as_json:
        print_json(
            [
                {
                    "cluster": broker.cluster,
                    "broker": broker.broker,
                    "broker_id": broker.broker_id,
                    "address": broker.address,
                    "version": broker.version,
                    "stored_per_second": broker.put_rate,
                    "delivered_per_second": broker.get_rate,
                    "disk_used": broker.disk_used,
                    "behind_bytes": behind(brokers, broker),
                    "started": iso_time(broker.started_ms),
                    "error": broker.error or None,
                    "runtime": broker.runtime,
                }
                for broker in brokers
            ]
        )
        return
    print_table(
        ("cluster", "broker", "id", "address", "version", "stored/s", "delivered/s", "disk", "behind", "since"),
        (
            (
                broker.cluster,
                broker.broker,
                broker.broker_id,
                broker.address,
                broker.error or broker.version,
                round(broker.put_rate, 1),
                round(broker.get_rate, 1),
                "" if broker.disk_used is None else f"{broker.disk_used:.0%}",
                "" if (lag := behind(brokers, broker)) is None else f"{lag:,} B",
                iso_time(broker.started_ms),
            )
            for broker in brokers
        ),
    )
    for broker in brokers:
        for key in ("metaqTrouble", "unsavedFiles"):
            if trouble := broker.runtime.get(key):
                print(f"{broker.broker}: {trouble}")


@app.command("doctor")
def show_doctor(
    data: Annotated[str, typer.Option(metavar="DIR", help="the folder whose disk is judged")] = ".",
    broker: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="look at this broker, from here")] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n", "--namesrv", metavar="NAMESRV", help="look at these name servers; with --broker, whether they know it"
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="as a client that wants TLS")] = False,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="certificates of authorities to believe")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="of each step")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Say what this machine and environment offer: compiled extension, event loop, Java, Spark, disk, limits.

    With --broker or --namesrv: what is wrong with these, seen from here, and how to mend it (docs/addresses.md). Exits with 1 if
    something will not work.
    """
    from metaq.cli import doctor

    if broker is None and namesrv is None:
        findings = doctor.examine(data)
    else:
        findings = doctor.examine_servers(broker, namesrv, tls=tls, ca=ca, timeout=timeout)
    if as_json:
        print_json(doctor.as_json(findings))
    else:
        marks = {doctor.OK: "  ok  ", doctor.NOTICE: "notice", doctor.WRONG: "WRONG "}
        for finding in findings:
            print(f"{marks[finding.state]}  {finding.what + ':':14} {finding.text}")
    if any(finding.state == doctor.WRONG for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _add_server(name: str, text: str) -> None:
    # Only for `metaq --help`: main() gives these to `serve` before this module is even imported.
    @app.command(
        name, help=text, add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )  # fmt: skip
    def server(context: typer.Context) -> None:
        from metaq.cli import serve

        raise typer.Exit(serve.main([name, *context.args]))


for _name, _text in SERVERS.items():
    _add_server(_name, _text)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; a failure is told in one line on standard error. Returns the exit code."""
    # As exceptions, so that producers and consumers are closed on the way out; and because typer's own answer to
    # Ctrl-C would be 1.
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        command = add_acl_file(typer.main.get_command(app))
        code = command(list(arguments), prog_name="metaq", standalone_mode=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_FAILED
    except BrokenPipeError:
        # `metaq consume | head`: the reader has what it wanted.
        sys.stdout = None
        return 0
    except MetaqError as error:
        print(f"metaq: {error}", file=sys.stderr)
        return exit_code(error)
    return code if isinstance(code, int) else 0


def exit_code(error: MetaqError) -> int:
    """Return the exit code of a failed command."""
    from metaq.admin.brokers import BrokerNotFound
    from metaq.admin.groups import GroupNotFound
    from metaq.admin.replicas import NoSuchReplica
    from metaq.admin.topics import TopicNotFound
    from metaq.admin.traces import TraceNotFound
    from metaq.admin.transactions import TransactionNotFound
    from metaq.client.conversation.call import unknown_topic

    if isinstance(error, ConfigError | BadRequest | Refused | LocalProtocolError):  # a value that the user gave
        return EXIT_USAGE
    not_found = (
        NoRoute | TopicNotFound | GroupNotFound | BrokerNotFound | NoSuchReplica | TraceNotFound | TransactionNotFound
    )
    if isinstance(error, not_found):
        return EXIT_NOT_FOUND
    return EXIT_NOT_FOUND if unknown_topic(error) else EXIT_FAILED


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
