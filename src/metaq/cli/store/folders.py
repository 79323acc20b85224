"""`metaq store`: look into store folders, without a broker; make one ready for RocketMQ."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import count
from metaq.cli.groups import App
from metaq.cli.output import EXIT_FAILED, AsJson, body_json, message_json, print_json, print_json_lines, print_table
from metaq.cli.store import upkeep
from metaq.cli.store.import_meta import import_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from metaq.store.offline.segments import Segment, SegmentReader
    from metaq.store.offline.staged import StagedRecord

app = App("Check, repair, copy and print store folders, and import those of MetaQ 1.x, without a broker.")


app.command("import-meta")(import_files)
upkeep.add_to(app)


@app.callback()
def stores() -> None:
    """Check, repair, copy and print store folders, and import those of MetaQ 1.x, without a broker."""


@app.command("dump")
def dump(
    folder: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="PATH",
            exists=True,
            help="root folder of a store; or a data folder of MetaQ 1.x, or one file of it or of an archive of it",
        ),
    ],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="only this topic; may be repeated")
    ] = None,
    start: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="first log offset, or first position of 1.x")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="accepted as in every command: the output is always JSON")
    ] = True,
) -> None:
    """Print every record of a store folder as one line of JSON, in the order of the log.

    A broker may be running on the folder. Standard error says where the log ends and why, and which places of it cannot be read. A log
    tail that a start has cut off is kept in DIR/cut/OFFSET, and can be printed, too. Of MetaQ 1.x it reads .meta, .meta.arc, .arc,
    .meta.zip and .zip. Exit code 1: something is damaged.
    """
    from metaq.store.offline.reader import StoreReader, holds_log
    from metaq.store.offline.segments import find_segments
    from metaq.store.offline.staged import staged_record

    del as_json
    if not holds_log(folder) and (segments := find_segments(folder)):
        _dump_segments(segments, topics or (), start or 0)
        return
    reader = StoreReader(folder)

    def lines() -> Iterator[dict[str, Any]]:
        for message in reader.records(start=start, topics=topics or ()):
            shown = message_json(message)
            shown["log_offset"] = message.log_offset
            if record := staged_record(message):
                shown["staged"] = _staged_json(record)
            yield shown

    print_json_lines(lines())
    # On standard error: standard output is for programs.
    for damage in reader.damage:
        print(damage, file=sys.stderr)
    print(f"end of the log at offset {reader.end}: {reader.why}", file=sys.stderr)
    if reader.damage:
        raise typer.Exit(EXIT_FAILED)


@app.command("transactions")
def transactions(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="root folder of the store")
    ],
    as_json: AsJson = False,
) -> None:
    """Show the staged transactions of a store folder, and check deliveries against decisions.

    A broker may be running on the folder. Exit code 1: they do not agree; standard error names each problem.
    """
    from metaq.store.offline.reader import StoreReader
    from metaq.store.offline.staged import StagedSurvey

    survey = StagedSurvey(StoreReader(folder))
    found = sorted(survey.transactions.values(), key=lambda transaction: transaction.transaction)
    if as_json:
        shown = [
            {
                "transaction": one.transaction,
                "phase": one.phase,
                "parts": [
                    {
                        "part": part.part, "topic": part.topic, "queue_id": part.queue_id, "chunks": len(part.chunks),
                        "messages": part.rows, "bytes": part.bytes, "sealed": part.seal is not None, "copies": part.copies,
                    }
                    for part in one.parts.values()
                ],
                "problems": one.problems,
            }
            for one in found
        ]  # fmt: skip
        print_json({"transactions": shown, "problems": survey.problems})
    else:
        print_table(
            ("transaction", "phase", "parts", "messages", "delivered", "bytes", "problems"),
            [
                (
                    one.transaction, one.phase, len(one.parts), sum(part.rows for part in one.parts.values()),
                    sum(part.copies for part in one.parts.values()), sum(part.bytes for part in one.parts.values()),
                    len(one.problems),
                )
                for one in found
            ],
        )  # fmt: skip
    problems = survey.problems + [f"{one.transaction}: {problem}" for one in found for problem in one.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(count(len(problems), "problem"), file=sys.stderr)
        raise typer.Exit(EXIT_FAILED)


@app.command("fold")
def fold(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="root folder of the store")
    ],
    as_json: AsJson = False,
) -> None:
    """Write the journals of topics and groups into topics.json and subscriptionGroup.json.

    Do this before a RocketMQ broker opens the folder. It is needed only after a MetaQ broker was killed: a clean stop does the same,
    and so does its next start. No broker may be running on the folder.
    """
    from metaq.app.files import fold_tables

    tables = fold_tables(folder)
    if as_json:
        print_json({name: {"written": changed} for name, changed in tables.items()})
        return
    for name, changed in tables.items():
        print(f"{name}: {'written, with the changes of its journals' if changed else 'unchanged, it has no journal'}")


def _dump_segments(segments: Sequence[Segment], topics: Collection[str], start: int) -> None:
    """Print the frames of data files of MetaQ 1.x, of all topics if none is named."""
    from metaq.store.offline.segments import SegmentReader, frame_parts

    def lines(segment: Segment, reader: SegmentReader) -> Iterator[dict[str, Any]]:
        for position, frame in reader:
            if position >= start:
                attribute, payload = frame_parts(frame)
                yield {
                    "topic": segment.topic,
                    "partition": segment.partition,
                    "position": position,
                    "message_id": frame.message_id,
                    "flag": frame.flag,
                    "attribute": None if attribute is None else attribute.decode("utf-8", "replace"),
                    **body_json(payload),
                }

    damaged = 0
    for segment in segments:
        if topics and segment.topic not in topics:
            continue
        reader = SegmentReader(segment)
        print_json_lines(lines(segment, reader))
        damaged += bool(reader.why)
        print(f"{segment.path} ends at position {reader.end}{': ' * bool(reader.why)}{reader.why}", file=sys.stderr)
    if damaged:
        raise typer.Exit(EXIT_FAILED)


def _staged_json(record: StagedRecord) -> dict[str, Any]:
    """Return a record of staged transactions for JSON output."""
    import msgspec

    from metaq.model.properties import parse

    if record.problem:
        return {"kind": record.kind, "problem": record.problem}
    if record.decision is not None:
        return {"kind": record.kind, **msgspec.to_builtins(record.decision)}
    if not record.transaction:
        return {"kind": record.kind, "value": record.value}
    shown: dict[str, Any] = {
        "kind": record.kind,
        "transaction": record.transaction,
        "part": record.part,
        "topic": record.topic,
        "queue_id": record.queue_id,
    }
    if record.number >= 0:
        shown["chunk"] = record.number
    if record.seal is not None:
        shown["seal"] = msgspec.to_builtins(record.seal)
    if record.rows:
        shown["messages"] = [
            {"flag": flag, "properties": parse(pairs.decode("utf-8", "replace")), **body_json(body)}
            for flag, body, pairs in record.rows
        ]
    return shown
