"""`metaq store check|scrub|repair|copy`: a store's folder, looked after by an operator."""

from __future__ import annotations

import enum
import pathlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.cli.output import EXIT_FAILED, AsJson, count, print_json, print_table, size

if TYPE_CHECKING:
    from metaq.store.upkeep.findings import Findings, Progress

DelayLevels = Annotated[
    str | None,
    typer.Option("--delay-levels", metavar="TEXT", help="the broker's messageDelayLevel, if it is not RocketMQ's"),
]
Folder = Annotated[
    pathlib.Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="the store's root folder")
]


class Opener(enum.StrEnum):
    """Whose broker is to open a folder."""

    METAQ = "metaq"
    ROCKETMQ = "rocketmq"


def check(
    folder: Folder,
    opener: Annotated[
        Opener, typer.Option("--for", help="whose broker is to open it: rocketmq would leave some of what is owed")
    ] = Opener.METAQ,
    delay_levels: DelayLevels = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, consume-queue unit, index entry and small file of a folder. Changes nothing.

    A broker may be running on it: then what it has made durable is looked at. Exit code 1: something is damaged, or with
    --for rocketmq something is owed that a RocketMQ would not act on. What no checksum covers (properties, hosts, born times) is
    `metaq store scrub`'s.

    Example: metaq store check /data/broker-a/store --for rocketmq
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
    """Compare closed log files with checksums that are kept beside them, and make those that are missing.

    This finds flipped bits anywhere, also in properties and fields that no record's checksum covers. A broker may be running on the
    folder; it makes the checksums of the files that it closes. Exit code 1: something is damaged.

    Example: metaq store scrub /data/broker-a/store
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
        pathlib.Path, typer.Argument(metavar="TARGET", help="the copy's folder, which must not be there, or be empty")
    ],
    as_json: AsJson = False,
) -> None:
    """Copy a store's folder, also of a running broker, with all that was acknowledged before.

    A broker that opens the copy finds delays, transactions, tables and byte positions of 1.x as at one moment. Until all is durable the
    copy is called TARGET.copying; run the command again to go on with one that was interrupted.

    Example: metaq store copy /data/broker-a/store /backup/broker-a-0301
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done, and change nothing")] = False,
    everything: Annotated[bool, typer.Option("--all", help="make anew what is whole, too")] = False,
    delay_levels: DelayLevels = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild damaged consume queues, index, checkpoint and tails from the log. No broker may be running on the folder.

    The log, and tables that are damaged, stay as they are, and are named. Exit code 1: something damaged is left.

    Example: metaq store repair /data/broker-a/store --dry-run
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
