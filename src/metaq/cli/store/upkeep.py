"""`metaq store check|scrub|repair|copy`: a store's folder, looked after by an operator."""

from __future__ import annotations

import enum
import pathlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import count, size
from metaq.cli.output import EXIT_FAILED, AsJson, print_json, print_table

if TYPE_CHECKING:
    from metaq.store.upkeep.findings import Findings, Progress

DelayLevels = Annotated[
    str | None,
    typer.Option("--delay-levels", metavar="TEXT", help="messageDelayLevel of the broker, if it is not the default"),
]
Folder = Annotated[
    pathlib.Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="root folder of the store")
]


class Opener(enum.StrEnum):
    """Whose broker is to open a folder."""

    METAQ = "metaq"
    ROCKETMQ = "rocketmq"


def check(
    folder: Folder,
    opener: Annotated[
        Opener,
        typer.Option(
            "--for",
            help="broker that is to open the folder; rocketmq: report also unfinished work that a RocketMQ broker would leave undone",
        ),
    ] = Opener.METAQ,
    delay_levels: DelayLevels = None,
    as_json: AsJson = False,
) -> None:
    """Check the records, consume queues, index and small files (tables, checkpoint) of a store folder. Changes nothing.

    A broker may be running on the folder: then only what is durable is checked. Exit code 1: something is damaged, or with --for rocketmq
    there is unfinished work that a RocketMQ broker would leave undone. Fields without a checksum (properties, hosts, born times) are checked
    by `metaq store scrub`.
    """
    from metaq.store.upkeep.check import check as look

    findings = look(folder, progress=progress_shown("checked"), delay_levels=delay_levels)
    owed = findings.owed if opener is Opener.ROCKETMQ else []
    if as_json:
        print_json(_json(findings, owed))
    else:
        _print(findings, owed)
    if findings.damaged or owed:
        raise typer.Exit(EXIT_FAILED)


def scrub(folder: Folder, as_json: AsJson = False) -> None:
    """Compare full log files with the checksums that are kept beside them, and create missing checksums.

    This finds flipped bits anywhere, also in properties and other fields that a record's own checksum does not cover. A broker may be
    running on the folder; it creates the checksum of each log file that is full. Exit code 1: something is damaged.
    """
    from metaq.store.upkeep.scrub import scrub as look

    findings = look(folder, progress=progress_shown("read"))
    if as_json:
        print_json(_json(findings, []))
    else:
        _print(findings, [])
    if findings.damaged:
        raise typer.Exit(EXIT_FAILED)


def copy(
    folder: Folder,
    target: Annotated[
        pathlib.Path, typer.Argument(metavar="TARGET", help="folder of the copy, which must not exist, or be empty")
    ],
    as_json: AsJson = False,
) -> None:
    """Copy a store folder, also of a running broker, with everything that was acknowledged before.

    The copy is consistent: delays, transactions, tables and byte positions of 1.x are as at one moment. Its folder is TARGET.copying until
    everything is durable; run the command again to continue an interrupted copy.
    """
    from metaq.store.upkeep.copy import copy as make

    made = make(folder, target, progress=progress_shown("copied"))
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(made))
        return
    print(f"{made.target}: the log from {made.log_begin} to {made.log_end}, {size(made.bytes)} copied")
    if made.left_out:
        print(f"left out: {', '.join(made.left_out)}")


def repair(
    folder: Folder,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be done, and change nothing")] = False,
    everything: Annotated[bool, typer.Option("--all", help="rebuild intact files, too")] = False,
    delay_levels: DelayLevels = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild damaged consume queues, index, checkpoint and tails from the log. No broker may be running on the folder.

    Damage in the log itself and in tables is not repaired, only reported. Exit code 1: something damaged is left.
    """
    from metaq.store.upkeep.repair import repair as rebuild

    done = rebuild(
        folder, dry_run=dry_run, everything=everything, progress=progress_shown("checked"), delay_levels=delay_levels
    )
    if as_json:
        left = [{"path": one.path, "byte": one.place, "size": one.size, "why": one.why} for one in done.left]
        print_json({"dry_run": dry_run, "done": done.done, "left": left})
    else:
        for line in done.done:
            print(f"would be done: {line}" if dry_run else line)
        if not done.done:
            print("nothing that is derived from the log is damaged")
        for one in done.left:
            print(f"left as it is: {one}")
    if done.left or (dry_run and done.done):
        raise typer.Exit(EXIT_FAILED)


def _json(findings: Findings, owed: list[str]) -> dict[str, Any]:
    return {
        "folder": findings.folder,
        "running": findings.running,
        "ended_in_order": findings.in_order,
        "log_begin": findings.log_begin,
        "log_end": findings.log_end,
        "durable_end": findings.durable_end,
        "damaged": findings.damaged,
        "kinds": [
            {
                "kind": kind.name,
                "unit": kind.unit,
                "checked": kind.checked,
                "damaged": kind.damaged,
                "damage": [
                    {"path": one.path, "byte": one.place, "size": one.size, "why": one.why} for one in kind.damage
                ],
            }
            for kind in findings.kinds.values()
        ],
        "notes": findings.notes,
        "owed": owed,
    }


def _print(findings: Findings, owed: list[str]) -> None:
    rows = []
    for kind in findings.kinds.values():
        first = kind.damage[0] if kind.damage else None
        shown = f"{first.path} at byte {first.place}: {first.why}" if first else ""
        rows.append((kind.name, count(kind.checked, kind.unit.removesuffix("s")), kind.damaged, shown))
    print_table(("kind", "checked", "damaged", "first damage"), rows)
    for note in findings.notes:
        print(note)
    for what in owed:
        print(f"not ready for RocketMQ: {what}")
    places = count(findings.damaged, "damaged place") if findings.damaged else "no damage"
    print(f"{places} from log offset {findings.log_begin} to {findings.log_end}")


def progress_shown(done_word: str) -> Progress:
    """Show progress on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        return lambda _done, _of: None
    shown = -1

    def show(done: int, of: int) -> None:
        nonlocal shown
        percent = 100 * done // of if of else 100
        if percent != shown:
            shown = percent
            end = "\n" if done >= of else ""
            print(f"\r{size(done)} of {size(of)} {done_word}, {percent} %", end=end, file=sys.stderr, flush=True)

    return show


def add_to(app: typer.Typer) -> None:
    """Make these commands `metaq store`'s."""
    for command in (check, scrub, repair, copy):
        app.command(command.__name__)(command)
