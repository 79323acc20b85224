"""All commands, as one typer application whose parts are imported when they are called, and the output of their failures."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any, ClassVar, Final

import typer
import typer.main

from metaq.cli import origins
from metaq.cli.completing import complete_contexts
from metaq.cli.groups import App, Lazy, LazyGroup, UsageError
from metaq.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_TERMINATED, EXIT_USAGE
from metaq.cli.servers.flags import SERVERS
from metaq.errors import MetaqError

_EPILOG = (
    "Name servers, the first that is given: -n, --context or METAQ_CONTEXT, NAMESRV_ADDR, the context in use, the list at the URL "
    "METAQ_ADDRESS_SERVER, 127.0.0.1:9876. Account: --acl-file, else METAQ_ACL_FILE, else the context's. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage or value, "
    "3 not found (topic, group, route, broker, message, trace, transaction, account, quota, context), 130 Ctrl-C, 143 SIGTERM."
)

_HELP_COLUMNS_MAX: Final = 120
"""Columns of help on a wide terminal: at the 80 of click, most summaries of commands are cut off."""


class _Commands(LazyGroup):
    """`metaq`. A command that is not called is not imported."""

    table: ClassVar = {
        "send": Lazy("metaq.cli.messages.send", "send", "Send one message or many."),
        "consume": Lazy("metaq.cli.messages.consume", "consume", "Print the messages of a topic."),
        "bench": Lazy("metaq.cli.messages.bench", "app", "Measure how fast a cluster takes and delivers messages."),
        "message": Lazy("metaq.cli.messages.message", "app", "Find messages, and show who has consumed them."),
        "topic": Lazy("metaq.cli.topics.topic", "app", "Create, list, show, change and delete topics."),
        "group": Lazy(
            "metaq.cli.topics.group",
            "app",
            "List, show, move, change and delete consumer groups.",
        ),
        "cluster": Lazy(
            "metaq.cli.cluster.cluster",
            "app",
            "List the brokers; add, remove and restart brokers.",
        ),
        "top": Lazy(
            "metaq.cli.cluster.top",
            "show_top",
            "Show live rates and lags of brokers, topics and groups.",
        ),
        "dashboard": Lazy("metaq.cli.dashboard", "run_dashboard", "Serve a web dashboard of a cluster."),
        "context": Lazy(
            "metaq.cli.contexts.commands", "app", "Save clusters under names: add, list, show, use, delete."
        ),
        "quota": Lazy("metaq.cli.cluster.quota", "app", "Limit what clients, accounts and addresses may use."),
        "acl": Lazy("metaq.cli.cluster.acl", "app", "Manage accounts of brokers and their permissions."),
        "transaction": Lazy(
            "metaq.cli.transactions.transaction",
            "app",
            "List staged transactions; end them by hand.",
        ),
        "meta1": Lazy("metaq.cli.meta1.commands", "app", "Operate brokers that serve clients of MetaQ 1.x."),
        "outbox": Lazy(
            "metaq.cli.transactions.outbox",
            "app",
            "List, resend and delete messages of an outbox table.",
        ),
        "webhook": Lazy("metaq.cli.webhook", "app", "Post the messages of consumer groups to URLs."),
        "xa": Lazy(
            "metaq.cli.transactions.xa",
            "app",
            "List and finish transactions of an XA coordinator.",
        ),
        "store": Lazy(
            "metaq.cli.store.folders",
            "app",
            "Check, repair, copy, print and import store folders.",
        ),
        "pipeline": Lazy("metaq.cli.pipeline.commands", "app", "Run the Spark pipelines that come with MetaQ."),
        "doctor": Lazy(
            "metaq.cli.cluster.doctor", "show_doctor", "Check this machine, a broker or name servers for problems."
        ),
        "test-cluster": Lazy(
            "metaq.cli.trial",
            "try_cluster",
            "Test clusters on this machine under load and faults.",
        ),
        "completion": Lazy(
            "metaq.cli.completion",
            "completion",
            "Print the completion script of a shell.",
        ),
        "namesrv": Lazy("metaq.cli.servers.namesrv", "app", SERVERS["namesrv"]),
        "broker": Lazy("metaq.cli.cluster.replicas", "app", SERVERS["broker"]),
        "up": Lazy("metaq.cli.servers.commands", "up", SERVERS["up"]),
        "start": Lazy("metaq.cli.servers.start", "app", "Start a server in the background (docs/running.md)."),
        "stop": Lazy("metaq.cli.servers.stop", "stop", "Stop servers in the background."),
        "status": Lazy("metaq.cli.servers.status", "status", "Show the servers in the background."),
    }


app = App(
    "MetaQ: a message broker that speaks RocketMQ's protocol, with clients, tools and Spark pipelines.",
    group=_Commands,
    epilog=_EPILOG,
    context_settings={"max_content_width": _HELP_COLUMNS_MAX},
)


def _version(wanted: bool) -> None:
    if wanted:
        import metaq

        print(f"metaq {metaq.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="use the cluster of this context (METAQ_CONTEXT)",
            autocompletion=complete_contexts,
        ),
    ] = None,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="connect with TLS (METAQ_TLS=1)")] = None,
    ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="file with trusted CA certificates (METAQ_TLS_CA)")
    ] = None,
    cert: Annotated[str | None, typer.Option(metavar="FILE", help="client certificate (METAQ_TLS_CERT)")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="private key of --cert (METAQ_TLS_KEY); its password is read from METAQ_TLS_KEY_PASSWORD",
        ),
    ] = None,
    tls_verify: Annotated[
        str | None,
        typer.Option(
            metavar="full|ca|none",
            help="verify the server's certificate and its host name, the certificate only, or nothing (METAQ_TLS_VERIFY; default full)",
        ),
    ] = None,
    crl: Annotated[
        str | None, typer.Option(metavar="FILE", help="revocation lists for server certificates (METAQ_TLS_CRL)")
    ] = None,
) -> None:
    """MetaQ: a message broker that speaks RocketMQ's protocol, with clients, tools and Spark pipelines."""
    del version
    if context_name is not None:
        origins.put(os.environ, "METAQ_CONTEXT", context_name, "--context")
    # By the environment, which also the processes have that a command starts, such as Spark's.
    if tls is not None:
        os.environ["METAQ_TLS"] = "1" if tls else "0"
    given = {"ca": ca, "cert": cert, "key": key, "tls-verify": tls_verify, "crl": crl}
    for name, value in given.items():
        if value is not None:
            variable = f"METAQ_TLS_{name.removeprefix('tls-').upper()}"
            origins.put(os.environ, variable, value, f"--{name}")
    if key is not None and "METAQ_TLS_CERT" not in os.environ:
        origins.note("METAQ_TLS_CERT", "--cert")  # what is missing is named as what is given


def all_commands() -> Any:
    """Return the application with all its commands loaded, for pages and tests that look at them."""
    group: LazyGroup = typer.main.get_command(app)  # type: ignore[assignment]
    return group.load_all()


_EXTRAS = {
    "matplotlib": "plots",
    "numpy": "arrow",
    "pandas": "spark",
    "py4j": "spark",
    "pyarrow": "arrow",
    "pyspark": "spark",
}
"""Package that commands of pipelines and archives load → the extra that brings it. Other commands say themselves what they lack."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; a failure is told in one line on standard error. Returns the exit code."""
    # As exceptions, so that producers and consumers are closed on the way out; and because typer's own answer to
    # Ctrl-C would be 1.
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    if "_METAQ_COMPLETE" in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    origins.forget()
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="metaq", standalone_mode=False)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_FAILED
    except UsageError as error:
        return _wrong_usage(error)
    except typer.Abort:
        print("metaq: not done: the answer was not yes (--yes does it without a question)", file=sys.stderr)
        return EXIT_FAILED
    except MetaqError as error:
        print(f"metaq: {origins.in_words(error)}", file=sys.stderr)
        return exit_code(error)
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get((missing.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"metaq: this command needs {missing.name}: pip install 'pymetaq[{extra}]'", file=sys.stderr)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _wrong_usage(error: Any) -> int:
    """Say in a sentence what is wrong with a command line. Returns the exit code."""
    if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # a group without a command: its help
        return EXIT_USAGE
    path = error.ctx.command_path if error.ctx is not None else "metaq"
    text = " ".join(error.format_message().split())
    print(f"{path}: {text.rstrip('.')}; see `{path} --help`", file=sys.stderr)
    return EXIT_USAGE


def exit_code(error: MetaqError) -> int:
    """Return the exit code of a failed command."""
    from metaq.client.conversation.call import unknown_topic
    from metaq.errors import BadRequest, ConfigError, LocalProtocolError, NoRoute, NotFound, Refused

    if isinstance(error, ConfigError | BadRequest | Refused | LocalProtocolError):  # a value that the user gave
        return EXIT_USAGE
    return EXIT_NOT_FOUND if isinstance(error, NoRoute | NotFound) or unknown_topic(error) else EXIT_FAILED


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
