"""`metaq pipeline`: the ready-made Spark jobs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import count
from metaq.amounts import size as size_text
from metaq.cli.groups import App
from metaq.cli.output import EXIT_FAILED, EXIT_NOT_FOUND, AsJson, print_json, print_table
from metaq.cli.pipeline.run import Runs, add_commands, command, earlier_line, last_line, status_line
from metaq.cli.pipeline.show import app as show_app
from metaq.errors import ConfigError
from metaq.pipelines.catalogue import PIPELINES, pipeline
from metaq.pipelines.configuration import configure, describe
from metaq.pipelines.uris import is_uri, plain_path, run_folder

if TYPE_CHECKING:
    from metaq.pipelines.run import RunStatus

app = App("Run the Spark pipelines that come with MetaQ.")
run_app = App("Run a pipeline.", group=Runs)
app.add_typer(run_app, name="run")
app.add_typer(show_app, name="show")
add_commands(run_app)
app.command("compact")(command(PIPELINES["compact"]))

_LOOK_SECONDS = 0.1

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file of the pipeline")]
Folder = Annotated[
    str | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="folder of the pipeline; of an archive: its output, or its runFolder if it has one",
    ),
]


@app.callback()
def pipelines() -> None:
    """Run the ready-made Spark pipelines."""


@run_app.callback()
def run_one() -> None:
    """Run a pipeline, or a Python file with a pipeline of your own. Options are flags, or keys of a TOML file."""


@app.command("list")
def list_pipelines(as_json: AsJson = False) -> None:
    """List the pipelines that come with MetaQ."""
    if as_json:
        print_json({one.name: one.summary for one in PIPELINES.values()})
    else:
        print_table(("name", "what it does"), [(one.name, one.summary) for one in PIPELINES.values()])


@app.command("describe")
def describe_pipeline(
    name: Annotated[str, typer.Argument(help="name of the pipeline, from `metaq pipeline list`")],
    as_json: AsJson = False,
) -> None:
    """Show the options of a pipeline: the keys of its TOML file, which are also its flags."""
    kind = pipeline(name)
    rows = describe(kind.options)
    if as_json:
        options = {key: {"default": default or None, "doc": doc} for key, default, doc in rows}
        print_json({"name": kind.name, "summary": kind.summary, "options": options})
        return
    print(f"{kind.name}: {kind.summary}\n")
    print_table(("key", "default", "meaning"), [(key, default, doc.replace("`", "")) for key, default, doc in rows])


@app.command("init")
def init_project(
    name: Annotated[str, typer.Argument(help="name of the pipeline: lower-case letters, digits and -")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="folder to write to (default: a new one of that name)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a working pipeline of your own: a Python file, its test with a broker of its own, and a configuration."""
    from metaq.cli.pipeline.project import write_project

    paths = write_project(name, folder if folder is not None else Path(name))
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        print(path)


@app.command("status")
def show_status(config: ConfigFile = None, folder: Folder = None, as_json: AsJson = False) -> None:
    """Show the progress of the pipeline of a folder, and whether it runs.

    Exit codes: 1 the last run failed or was killed, 3 no pipeline has run there.
    """
    from metaq.pipelines.run import FAILED, LOST, status_of

    place = _place(config, folder)
    found = status_of(place)
    if found is None:
        print(f"no pipeline has run in {place} yet")
        raise typer.Exit(EXIT_NOT_FOUND)
    _print(found, as_json=as_json)
    if found.state in {FAILED, LOST}:
        raise typer.Exit(EXIT_FAILED)


@app.command("stop")
def stop_run(
    config: ConfigFile = None,
    folder: Folder = None,
    seconds: Annotated[float, typer.Option(help="longest wait for its end", min=0)] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Stop the pipeline that runs in a folder, and wait for its end.

    The current batch is finished or abandoned, never half done.
    """
    from metaq.clock import SYSTEM
    from metaq.pipelines.run import RUNNING, ask_to_stop, status_of

    place = _place(config, folder)
    asked = ask_to_stop(place)
    if asked is None:
        print(f"no pipeline runs in {place}")
        raise typer.Exit(EXIT_NOT_FOUND)
    over, pause = SYSTEM.monotonic() + seconds, threading.Event()
    while (now := status_of(place)) is not None and now.run == asked.run and now.state == RUNNING:
        if SYSTEM.monotonic() >= over:
            print(
                f"{asked.pipeline} (process {asked.pid} on {asked.host}) still runs after {seconds:g} s; it was asked to end"
            )
            raise typer.Exit(EXIT_FAILED)
        pause.wait(_LOOK_SECONDS)
    if as_json:
        print_json(_fields(now or asked))
    else:
        print(f"{asked.pipeline} has stopped: {status_line(now or asked)}")


@app.command("check")
def check_files(config: ConfigFile = None, folder: Folder = None, as_json: AsJson = False) -> None:
    """Check every byte of the Parquet files in a pipeline's folder. Exit code 1: a file is damaged."""
    from metaq.pipelines.checking import check, is_archive

    options = None if config is None else configure(None, config).options
    output = folder if options is None else str(getattr(options, "output", "") or options.place)
    if (config is None) == (folder is None) or output is None:
        raise ConfigError("give either the TOML file of the pipeline (-c) or its folder (--folder)")
    if is_uri(output):
        raise ConfigError(f"{output} is on a Hadoop file system, which has its own checksums: `hdfs fsck` reads them")
    place = plain_path(output)
    if not place.is_dir():
        raise ConfigError(f"there is no folder {place}")
    files = size = unhashed = 0
    damaged = []
    for one in check(place, getattr(options, "staging", None)):
        files, size, unhashed = files + 1, size + one.size, unhashed + (not one.by_hash)
        if one.fault:
            damaged.append(one)
            if not as_json:
                print(f"{one.path}: {one.fault}", flush=True)
    if as_json:
        found = [{"path": one.path, "fault": one.fault} for one in damaged]
        print_json({"files": files, "bytes": size, "without_hash": unhashed, "damaged": found})
    else:
        how = f" ({unhashed:,} have no hash: their pages were verified)" if unhashed and is_archive(place) else ""
        print(f"{count(files, 'file')}, {size_text(size)} read{how}, {len(damaged):,} damaged")
    if damaged:
        raise typer.Exit(EXIT_FAILED)


def _place(config: Path | None, folder: str | None) -> Path:
    if (config is None) == (folder is None):
        raise ConfigError("give either the TOML file of the pipeline (-c) or its folder (--folder)")
    if config is not None:
        return configure(None, config).options.place
    assert folder is not None
    return run_folder(folder) if is_uri(folder) else plain_path(folder)


def _print(found: RunStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(_fields(found))
        return
    print(
        f"{found.pipeline}: {found.state} (process {found.pid} on {found.host}, since {found.since}, seen {found.seen})"
    )
    print(status_line(found))
    if before := earlier_line(found):
        print(before)
    if found.last:
        print(last_line(found))
    if found.fault:
        print(f"it failed: {found.fault}")


def _fields(found: RunStatus) -> dict[str, Any]:
    import msgspec

    return dict(msgspec.structs.asdict(found))
