"""`metaq meta1 show-offset`, `copy-offsets` and `offset-table`: where groups of MetaQ 1.x keep how far they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from metaq.cli.databases import PASSWORD_VARIABLE, PasswordFile, password_of
from metaq.cli.output import EXIT_NOT_FOUND, NAMESRV_DEFAULT, AsJson, print_json, print_table

if TYPE_CHECKING:
    from metaq.admin.offsets.copying import CopiedOffset
    from metaq.admin.offsets.places import OffsetsInDatabase, OffsetsInZookeeper, Place

TABLE: Final = "meta_topic_partition_group_offset"
_URL: Final = (
    f"mysql://user@host:port/database or postgresql://...; its password by {PASSWORD_VARIABLE} or --password-file"
)

Zookeeper = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="ZooKeeper servers, separated by ,")]
Root = Annotated[str, typer.Option(metavar="PATH", help="path of MetaQ in ZooKeeper (zk.zkRoot)")]
Database = Annotated[str | None, typer.Option(metavar="URL", help=_URL)]
Table = Annotated[str, typer.Option(metavar="NAME", help="table with the offsets, NAME or SCHEMA.NAME")]
Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="only offsets of this topic")]


def show_offset(
    group: Annotated[str | None, typer.Argument(metavar="[GROUP]", help="only offsets of this group")] = None,
    topic: Topic = None,
    partition: Annotated[str | None, typer.Option(metavar="B-N", help="only offsets of this partition")] = None,
    zookeeper: Zookeeper = None,
    root: Root = "/meta",
    database: Database = None,
    table: Table = TABLE,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets, in bytes, of groups of MetaQ 1.x: from ZooKeeper or from a database table.

    `metaq group show` and `metaq group list` show the progress in messages.
    """
    from metaq.admin import Admin

    place = _place(zookeeper, root, database, table, password_file, None)
    with Admin(NAMESRV_DEFAULT) as admin:  # The name servers are not asked.
        rows, odd = admin.metaq1_offsets(place, () if group is None else (group,), topic)
    rows = sorted(
        (row for row in rows if partition in (None, row.partition)),
        key=lambda row: (row.group, row.topic, len(row.partition), row.partition),
    )
    odd = {key: text for key, text in odd.items() if partition in (None, key[2])}
    if as_json:
        print_json(
            {
                "offsets": [
                    {
                        "group": row.group,
                        "topic": row.topic,
                        "partition": row.partition,
                        "offset": row.offset,
                        "message_id": None if row.message_id == -1 else row.message_id,
                    }
                    for row in rows
                ],
                "unreadable": [
                    {"group": key[0], "topic": key[1], "partition": key[2], "text": text}
                    for key, text in sorted(odd.items())
                ],
            }
        )
    elif rows or odd:
        print_table(
            ("group", "topic", "partition", "offset", "message id"),
            [
                *(
                    (row.group, row.topic, row.partition, row.offset, None if row.message_id == -1 else row.message_id)
                    for row in rows
                ),
                *((*key, f"no offset: {text[:80]!r}", None) for key, text in sorted(odd.items())),
            ],
        )
    if not rows and not odd:
        typer.echo(f"metaq meta1 show-offset: {place} has no such offset", err=True)
        raise typer.Exit(EXIT_NOT_FOUND)


def copy_offsets(
    topic: Topic = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="only offsets of this group; may be repeated")
    ] = None,
    source: Annotated[
        int | None, typer.Option("--source", min=0, metavar="ID", help="only offsets of partitions of this broker id")
    ] = None,
    target: Annotated[
        int | None, typer.Option("--target", min=0, metavar="ID", help="broker id of the copied offsets")
    ] = None,
    start: Annotated[int | None, typer.Option("--start", min=0, metavar="N", help="first partition")] = None,
    end: Annotated[int | None, typer.Option("--end", min=0, metavar="N", help="last partition")] = None,
    target_start: Annotated[
        int | None,
        typer.Option("--target-start", min=0, metavar="N", help="number that partition --start gets in the copy"),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="zookeeper|database", help="with both --zookeeper and --database: the one that gets the offsets"
        ),
    ] = None,
    zookeeper: Zookeeper = None,
    root: Root = "/meta",
    database: Database = None,
    table: Table = TABLE,
    password_file: PasswordFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be copied, and copy nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy offsets of groups of MetaQ 1.x to another broker id, or between ZooKeeper and a database table.

    An existing offset is never overwritten. Stop the consumers first: offsets that they save during the copy or after it are not copied.
    Run the command again to copy new ones.
    """
    from metaq.admin import Admin
    from metaq.admin.offsets.copying import OffsetSelection

    selection = OffsetSelection(
        topic=topic, groups=tuple(group or ()), broker=source, first=start, last=end, to_broker=target,
        to_first=target_start,
    )  # fmt: skip
    there = _place(zookeeper, root, database, table, password_file, to)
    back = {"zookeeper": "database", "database": "zookeeper"}
    here = there if to is None else _place(zookeeper, root, database, table, password_file, back[to])
    with Admin(NAMESRV_DEFAULT) as admin:
        found = admin.copy_metaq1_offsets(here, there, selection, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "offsets": [_json(one) for one in found]})
        return
    print_table(
        ("group", "topic", "from", "to", "id-offset", "what"),
        [(one.group, one.topic, one.partition, one.to_partition, one.text, _what(one, dry_run)) for one in found],
    )
    counts = Counter(one.outcome.value for one in found)
    print(
        f"{counts['copied']} {'would be ' if dry_run else ''}copied from {here} to {there}, {counts['there']} existed there, "
        f"{counts['unreadable']} are not offsets"
    )


def _what(one: CopiedOffset, dry_run: bool) -> str:
    if one.there is not None:
        return (
            "unchanged: the same offset exists"
            if one.there == one.text
            else f"unchanged: the offset {one.there} exists"
        )
    if one.outcome == "unreadable":
        return "left out: this is not an offset"
    return "would be copied" if dry_run else "copied"


def _json(one: CopiedOffset) -> dict[str, str | None]:
    return {
        "group": one.group, "topic": one.topic, "partition": one.partition, "to_partition": one.to_partition,
        "text": one.text, "outcome": one.outcome.value, "there": one.there,
    }  # fmt: skip


def offset_table(
    database: Annotated[str, typer.Option(metavar="URL", help=_URL)],
    table: Table = TABLE,
    create: Annotated[bool, typer.Option("--create", help="create the table, unless it exists")] = False,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Create the table for offsets of MetaQ 1.x consumers in a database; without --create, print its SQL.

    The database is MySQL, MariaDB or PostgreSQL. Offsets and message ids are BIGINT. The narrower table that was published with MetaQ
    1.x works, too, until an offset does not fit.
    """
    place = _in_database(database, table, password_file)
    statements = place.statements
    narrow: dict[str, int] = {}
    if create:
        from metaq.admin import Admin

        with Admin(NAMESRV_DEFAULT) as admin:
            narrow = admin.create_metaq1_offset_table(place)
    if as_json:
        print_json({"table": table, "created": create, "statements": statements, "narrow_columns": narrow})
        return
    if not create:
        print("\n".join(f"{statement};" for statement in statements))
        return
    print(f"table {table} exists")
    for column, highest in narrow.items():
        print(f"  note: its column {column} takes {highest} at most: change it to BIGINT")


def _in_database(database: str, table: str, password_file: Path | None) -> OffsetsInDatabase:
    from metaq.admin.offsets.places import OffsetsInDatabase

    return OffsetsInDatabase(database, table, password_of(password_file))


def _place(
    zookeeper: str | None, root: str, database: str | None, table: str, password_file: Path | None, to: str | None
) -> Place:
    """Return the place of `--zookeeper` or `--database`; of both, the one that `to` names."""
    from metaq.admin.offsets.places import OffsetsInZookeeper

    if to not in (None, "zookeeper", "database"):
        raise typer.BadParameter(f"--to {to}: need zookeeper or database")
    if (to is None and (zookeeper is None) == (database is None)) or (
        to is not None and (zookeeper is None or database is None)
    ):
        raise typer.BadParameter(
            "--to needs both --zookeeper and --database" if to is not None else "give one of --zookeeper and --database"
        )
    if zookeeper is not None and to != "database":
        found: OffsetsInZookeeper = OffsetsInZookeeper(zookeeper, root)
        return found
    assert database is not None
    return _in_database(database, table, password_file)
