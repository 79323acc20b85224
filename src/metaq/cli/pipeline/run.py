"""`metaq pipeline run NAME`: a command per pipeline, with its options as flags, and the output while it runs."""

from __future__ import annotations

import inspect
import logging
import signal
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main

from metaq.amounts import count
from metaq.cli.groups import App, MetaqGroup
from metaq.cli.output import print_json_line
from metaq.errors import MetaqError, NoRoute
from metaq.pipelines.catalogue import PIPELINES, Pipeline
from metaq.pipelines.configuration import Configuration, configure
from metaq.pipelines.options import ClusterOptions, StreamOptions, access_of

if TYPE_CHECKING:
    from metaq.spark.cluster.client import ClusterClient

ROUTE_SECONDS = 1.5
"""Time to wait for the route of an unknown topic."""
LEASE_SECONDS = 2.0
"""Time to wait for the end of an earlier run."""
JAVA_SECONDS = 5.0
"""Time to wait for the end of a Java process that refuses calls."""

_REPEATED = {"topics", "groups"}
"""List options: their flag may be repeated."""


def command(kind: Pipeline) -> Callable[..., None]:
    """Return the function of `metaq pipeline run NAME`, with the parameters that typer makes flags of."""

    def run(
        config: Path | None, as_json: bool, master: str | None = None, spark_log: str = "off", **flags: Any
    ) -> None:
        # A flag that was not given must not beat what the file says.
        more = {name: ",".join(value) if isinstance(value, list) else value for name, value in flags.items() if value}
        run_pipeline(configure(kind, config if config is not None else {}, **more), master, spark_log, as_json)

    shared = {
        "config": (Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file with options; flags take precedence")),
        "master": (str | None, typer.Option(help="Spark master (default: this machine)")),
        "spark_log": (
            str, typer.Option(metavar="LEVEL", help="what Spark itself logs: off, error, warn or info")
        ),
        "as_json": (bool, typer.Option("--json", help="one JSON line per batch")),
    }  # fmt: skip
    defaults = {"config": None, "master": None, "spark_log": "off", "as_json": False}
    if not kind.needs_spark:
        del shared["master"], shared["spark_log"]
    chosen: dict[str, Any] = {name: Annotated[kind_, flag] for name, (kind_, flag) in shared.items()}
    hints = typing.get_type_hints(kind.options)
    for item in fields(kind.options):
        facts = item.metadata
        texts = [f"--{_kebab(name)}" for name in (*facts["aliases"], item.name)]
        if item.name == "name_servers":
            texts.insert(0, "-n")
        say = _help(facts["doc"], item.default)
        if item.name in _REPEATED:
            chosen[item.name] = Annotated[list[str] | None, typer.Option(*texts, metavar="NAME", help=say)]
        elif hints[item.name] is bool:
            plain = texts[-1]
            chosen[item.name] = Annotated[bool, typer.Option(plain, help=say)]
        else:
            # As text: the option table reads it, and its errors name the option as the file does.
            kind_name = _metavar(hints[item.name])
            chosen[item.name] = Annotated[str | None, typer.Option(*texts, metavar=kind_name, help=say)]
        defaults[item.name] = False if hints[item.name] is bool else None
    signature = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
            for name, hint in chosen.items()
        ]
    )
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = chosen
    run.__doc__ = kind.summary if (end := _killed(kind)) is None else f"{kind.summary}\n\n{end}"
    return run


def _killed(kind: Pipeline) -> str | None:
    """Return a sentence on what a kill does to a pipeline; None: unknown, for a user's own."""
    if issubclass(kind.options, StreamOptions):
        return "A run that was killed continues where it stopped when it is started again."
    if kind.name in PIPELINES:
        return "It ends by itself. A run that was killed leaves nothing half done: start it again."
    return None


class Runs(MetaqGroup):
    """`metaq pipeline run`: beside the pipelines that there are, files with a user's own."""

    def get_command(self, ctx: Any, name: str) -> Any:
        if not name.endswith(".py"):
            return super().get_command(ctx, name)
        from metaq.pipelines.catalogue import load

        made = App("")
        made.command(name)(command(load(name)))
        return typer.main.get_command(made)


def add_commands(app: typer.Typer) -> None:
    """Add a command for each pipeline."""
    for kind in PIPELINES.values():
        app.command(kind.name)(command(kind))


def run_pipeline(chosen: Configuration, master: str | None, spark_log: str, as_json: bool) -> None:
    """Run it to its end, or to Ctrl-C or SIGTERM. Raises MetaqError, typer.Exit: a job's exit status."""
    from metaq.pipelines.run import Outcome, Run

    _find_topics(chosen)
    shown = Shown(chosen.pipeline.name, as_json)
    with Run(chosen.pipeline.name, chosen.options.place, on_batch=shown.batch).begin(LEASE_SECONDS) as run:
        if chosen.pipeline.prepare is not None:
            chosen.pipeline.prepare(chosen.options)
        try:
            if chosen.pipeline.needs_spark:
                shown.status("starting Spark")
                run.doing("starting Spark")
                work = _in_spark(chosen, run, shown, master, spark_log)
            else:
                _stop_by_signal(run)
                work = chosen.pipeline.start(None, chosen.options, run)
        except Exception as fault:
            if not chosen.pipeline.needs_spark:
                raise
            _after_spark(fault, run)
            work = None
        finally:
            shown.close()
    if isinstance(work, Outcome):
        shown.outcome(work)
        if work.exit_status:
            raise typer.Exit(work.exit_status)


def _in_spark(chosen: Configuration, run: Any, shown: Shown, master: str | None, spark_log: str) -> Any:
    from metaq.pipelines.driver import watch
    from metaq.pipelines.run import Outcome
    from metaq.spark import session
    from metaq.spark.engine.session import java_end
    from metaq.spark.engine.slow_start import run_through

    name = f"metaq {chosen.pipeline.name}"
    # Its own log is off: what it says of a failed query is 200 lines of traces around the one that we print.
    spark = session(name, master=master or chosen.master, conf=chosen.spark, log_level=spark_log)

    _quiet(spark)
    # Set after the session was made: Spark's own handler for Ctrl-C would raise in the middle of a call.
    _stop_by_signal(run)

    def look(work: Any) -> Any:
        if not isinstance(work, Outcome):
            watch(work, run)
        return work

    shown.follow(run)  # Before the start, because a job does all of its work in it.
    try:
        return run_through(lambda: chosen.pipeline.start(spark, chosen.options, run), look)
    finally:
        if java_end(0) is None:
            spark.stop()


def _after_spark(fault: Exception, run: Any) -> None:
    """Say what a failure in Spark means: nothing, if the run was to stop and Java stopped before it. Raises the failure, for people."""
    from metaq.pipelines.driver import root_text

    of_spark = type(fault).__module__.partition(".")[0] in {"pyspark", "py4j"}
    # Py4J raises what the socket raised, where it cannot connect any more.
    ended = None
    if of_spark or isinstance(fault, OSError):
        from metaq.spark.engine.session import java_end  # PySpark, which may be what is missing

        ended = java_end(JAVA_SECONDS)
    if ended is None:
        if of_spark:
            raise MetaqError(f"Spark failed: {root_text(str(fault))}") from fault
        raise fault
    # A signal for the whole process group, as `systemctl stop` sends it, stops Java too: that is a stop. What was not
    # published is done at the next start, as after any kill.
    if not run.stopping:
        how = f"by signal {-ended}" if ended < 0 else f"with exit status {ended}"
        raise MetaqError(
            f"Spark's Java process ended, {how} (9: the kernel may have killed it, for want of memory): start the pipeline again, "
            "it goes on where it stopped"
        ) from fault


def _quiet(spark: Any) -> None:
    """Keep libraries from printing stack traces of a Java that has gone: what it means is told in a line."""
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _stop_by_signal(run: Any) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        run.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _find_topics(chosen: Configuration) -> None:
    """Raise NoRoute for an unknown topic, ConfigError for a `progressGroup` with members. Before Spark, which takes seconds."""
    from metaq.spark.cluster.client import ClusterClient, refuse_members

    options = chosen.options
    group = options.progress_group if isinstance(options, StreamOptions) else None
    if not isinstance(options, ClusterOptions) or not (options.topics_read or group):
        return
    # Its warnings of every retry would surround the one line that we print in the end.
    log = logging.getLogger("metaq.spark.cluster.client")
    before = log.level
    log.setLevel(logging.ERROR)
    client = ClusterClient(options.servers, ROUTE_SECONDS, access=access_of(options))
    try:
        traced = getattr(options, "trace_topic", "")
        client.queues([topic for topic in options.topics_read if topic != traced])
        if traced in options.topics_read:
            _find_traces(client, traced)
        if group:
            refuse_members(group, client.members(group))
    finally:
        client.close()
        log.setLevel(before)


def _find_traces(client: ClusterClient, topic: str) -> None:
    """Raise NoRoute, with what is missing, if no client has written a trace: to create the topic would not help."""
    try:
        client.queues([topic], 0.0)
    except NoRoute:
        raise NoRoute(
            f"the trace topic {topic} does not exist: clients write traces only if tracing is switched on (trace=True; in Java "
            "enableMsgTrace). If they have a trace topic of their own, name it with --trace-topic; --consumed progress compares with the "
            "offsets of groups instead, and --consumed ledger with what applications write"
        ) from None


class Shown:
    """Output of a run: a line per batch, and on a terminal a status line below."""

    def __init__(self, name: str, as_json: bool) -> None:
        from rich.console import Console

        self._name, self._json = name, as_json
        self._status = None if as_json or not sys.stdout.isatty() else Console().status("")
        if self._status is not None:
            self._status.start()

    def status(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def follow(self, run: Any) -> None:
        """Show each new status of the run in the status line."""
        if self._status is not None:
            run.watch(lambda status: self.status(status_line(status)))

    def batch(self, line: str, figures: Mapping[str, Any]) -> None:
        if self._json:
            print_json_line(dict(figures))
        else:
            print(line, flush=True)

    def outcome(self, found: Any) -> None:
        if self._json:
            print_json_line(dict(found.figures))
        elif found.text:
            print(found.text, flush=True)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()


def status_line(status: Any) -> str:
    """Status of a run, in a line."""
    done = ", ".join(f"{value:,} {name}" for name, value in status.total.items())
    lag = "" if status.behind is None else f"; {count(status.behind, 'message')} behind"
    doing = f"; {status.doing}" if status.doing else ""
    return f"{_batches(status.batches)}{': ' if done else ''}{done}{lag}{doing}"


def earlier_line(status: Any) -> str:
    """What the earlier runs of the same pipeline did, in a line; empty: there was none."""
    before = dict(status.earlier.get(status.pipeline, {}))
    if not before:
        return ""
    batches = before.pop("batches", 0)
    done = ", ".join(f"{value:,} {name}" for name, value in before.items())
    return f"earlier runs: {_batches(batches)}{': ' if done else ''}{done}"


def last_line(status: Any) -> str:
    """Figures of the last batch, in a line: numbers, and what is so or is said; nothing that is not so, or empty."""
    words = []
    for name, value in status.last.items():
        shown = name.replace("_", " ")
        if value is True:
            words.append(shown)
        elif isinstance(value, float):
            words.append(f"{shown} {value:,.1f}")
        elif isinstance(value, int) and value is not False:
            words.append(f"{shown} {value:,}")
        elif value:
            words.append(f"{shown} {value}")
    return f"last batch: {', '.join(words)}"


def _batches(number: int) -> str:
    return count(number, "batch", "batches")


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _help(doc: str, default: Any) -> str:
    sentence = doc.rstrip(".")
    shown = "" if default in (None, "", False) else f" (default: {default})"
    return f"{sentence[0].lower()}{sentence[1:]}{shown}".replace("`", "")


def _metavar(hint: Any) -> str:
    kinds = (
        [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if isinstance(hint, types.UnionType)
        else [hint]
    )
    return {int: "NUMBER", float: "NUMBER"}.get(kinds[0], "TEXT")
