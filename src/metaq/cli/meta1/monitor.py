"""`metaq meta1 monitor`: whether servers of MetaQ 1.x, ours and the original, are as they should be."""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.cli.databases import PasswordFile, password_of
from metaq.cli.meta1.offsets import TABLE, Table
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, iso_time, print_json_line, print_table
from metaq.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from metaq.admin import Admin
    from metaq.admin.monitoring.judging import CheckResult, Limits, Seen
    from metaq.admin.monitoring.reading import WatchedServer
    from metaq.admin.offsets.places import Place

COMMAND_SECONDS: Final = 30.0
"""Longest time that the command of an alarm may take."""
_HOURS: Final = 3600.0


def monitor(
    addresses: Annotated[
        list[str],
        typer.Argument(metavar="HOST:PORT...", help="of the servers' text protocol (serverPort in server.ini)"),
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="gets the messages of the probe; none: no probe")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="where groups have their offsets; none: no gaps are looked for"),
    ] = None,
    root: Annotated[str, typer.Option(metavar="PATH", help="of MetaQ in ZooKeeper (zk.zkRoot)")] = "/meta",
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="where groups have theirs that are not in ZooKeeper"),
    ] = None,
    table: Table = TABLE,
    password_file: PasswordFile = None,
    broker: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="remoting server of our broker, if the one server is ours")
    ] = None,
    data_dir: Annotated[
        pathlib.Path | None,
        typer.Option("--data-dir", metavar="DIR", help="of the one server, on this machine: is its disk full?"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="look once; exit code 1 if there is an alarm")] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="S", help="from one look to the next")] = 5.0,
    wait: Annotated[float, typer.Option(min=0.1, metavar="S", help="longest wait for the probe's message")] = 15.0,
    offset_hours: Annotated[
        float, typer.Option("--offset-hours", min=0.0, metavar="H", help="from one look at offsets to the next")
    ] = 6.0,
    offset_gap: Annotated[
        int, typer.Option("--offset-gap", min=0, metavar="BYTES", help="that a group may be behind in a partition")
    ] = 0,
    offset_ahead: Annotated[
        int, typer.Option("--offset-ahead", min=0, metavar="BYTES", help="that it may be ahead")
    ] = 0,
    put_failed: Annotated[
        int, typer.Option("--put-failed", min=1, metavar="N", help="failed puts that are an alarm")
    ] = 10,
    load: Annotated[float, typer.Option(min=0, metavar="N", help="load of the machine that is none yet")] = 8.0,
    disk: Annotated[float, typer.Option(min=0, max=100, metavar="PERCENT", help="of the disk that may be used")] = 85.0,
    memory: Annotated[float, typer.Option(min=0, max=100, metavar="PERCENT", help="of memory that may be used")] = 80.0,
    per_ip: Annotated[
        int, typer.Option("--per-ip", min=0, metavar="N", help="connections that an address may have")
    ] = 5,
    connections: Annotated[int, typer.Option(min=0, metavar="N", help="connections that there may be")] = 150,
    prepared: Annotated[int, typer.Option(min=1, metavar="N", help="prepared transactions that are an alarm")] = 10,
    on_alarm: Annotated[
        str | None,
        typer.Option(
            "--on-alarm", metavar="CMD", help="run CMD STATE CHECK SERVER GROUP TEXT, without a shell, at most 30 s"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch servers of MetaQ 1.x, ours and the original: a message there and back, failed puts, offsets of groups, connections, disk.

    The limits are those of 1.x's monitor. Until Ctrl-C, a line whenever something becomes an alarm, unknown or fine; with --once all that
    was looked at. What a server does not tell, such as the load of another machine, is unknown, not fine. --json: a document on each line.
    """  # fmt: skip
    from metaq.admin import Admin
    from metaq.admin.monitoring.judging import Limits
    from metaq.admin.monitoring.reading import WatchedServer
    from metaq.admin.offsets.places import InDatabase, InZookeeper

    if len(addresses) > 1 and (broker is not None or data_dir is not None):
        raise typer.BadParameter("--broker and --data-dir are of one server: watch it alone")
    limits = Limits(
        put_failed=put_failed, offset_gap=offset_gap, offset_ahead=offset_ahead, load=load, disk=disk / 100,
        memory=memory / 100, connections_per_ip=per_ip, connections=connections, prepared=prepared,
    )  # fmt: skip
    places = [WatchedServer(address=address, topic=topic, broker=broker, wait=wait) for address in addresses]
    kept: dict[str, Place] = {} if zookeeper is None else {"zookeeper": InZookeeper(zookeeper, root)}
    if database is not None:
        kept["database"] = InDatabase(database, table, password_of(password_file))
    with Admin(NAMESRV_DEFAULT) as admin:  # The name servers are not asked: such a server may have none.
        look = Look(admin, places, limits, kept, data_dir, offset_hours * _HOURS)
        if once:
            found = look()
            tell_all(found, as_json=as_json)
            alarms = [one for one in found if one.state == "alarm"]
            for one in alarms:
                run_command(on_alarm, one)
            raise typer.Exit(EXIT_FAILED if alarms else 0)
        watch(look, lambda one: _tell(one, on_alarm, as_json=as_json), interval)


class Look:
    """Looks at all servers, and at offsets as often as their turn comes. `kept`: name of the check → where groups have their offsets."""

    def __init__(
        self,
        admin: Admin,
        places: Sequence[WatchedServer],
        limits: Limits,
        kept: Mapping[str, Place],
        folder: pathlib.Path | None,
        offset_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self._admin, self._places, self._limits, self._clock = admin, places, limits, clock
        self._kept, self._folder, self._offset_seconds = kept, folder, offset_seconds
        self._offsets_at: float | None = None

    def __call__(self) -> list[CheckResult]:
        """Return all findings of this look."""
        from metaq.admin.monitoring.judging import judge

        found: list[CheckResult] = []
        for place in self._places:
            found += judge(_with_machine(self._admin.metaq1_seen(place), self._folder), self._limits)
        now = self._clock.monotonic()
        if self._offsets_at is None or now - self._offsets_at >= self._offset_seconds:
            self._offsets_at = now
            found += self._offsets()
        return found

    def _offsets(self) -> list[CheckResult]:
        from metaq.admin.monitoring.judging import CheckResult, State, judge_gaps
        from metaq.errors import MetaqError

        if not self._kept:
            why = "nobody says where groups have their offsets (--zookeeper, --database)"
            return [CheckResult("", "zookeeper", State.UNKNOWN, why)]
        found, rows, whole = [], [], True
        for check, kept in self._kept.items():
            try:
                rows += self._admin.metaq1_offsets(kept)[0]
                state, text = State.OK, f"{kept} answers"
            except MetaqError as error:
                state, text, whole = State.ALARM, str(error), False
            found += [CheckResult(place.address, check, state, text) for place in self._places]
        for place in self._places if whole else ():
            try:
                gaps = self._admin.metaq1_gaps(rows, [place.address])
            except MetaqError as error:
                found.append(CheckResult(place.address, "offset-gap", State.UNKNOWN, str(error)))
                whole = False
            else:
                found += judge_gaps(place.address, gaps.get(place.address, []), self._limits)
        if not whole:
            self._offsets_at = None  # Again at the next look.
        return found


def _with_machine(seen: Seen, folder: pathlib.Path | None) -> Seen:
    """Return it with the figures of this machine, if the server is here."""
    from msgspec import structs

    from metaq.address import split_address
    from metaq.cli.meta1 import machine

    host, port = split_address(seen.server)
    if folder is not None:
        seen = structs.replace(seen, disk=machine.disk_used(folder))
    if not machine.is_here(host):
        return seen
    return structs.replace(
        seen, load=machine.load(), memory=machine.memory_used(), per_ip=machine.connections_per_ip(port)
    )


def watch(
    look: Callable[[], list[CheckResult]],
    tell: Callable[[CheckResult], None],
    seconds: float,
    wait: Callable[[float], object] = lambda seconds: threading.Event().wait(seconds),
) -> None:
    """Look again and again, and tell what has changed. `wait`: a test's ends it with an exception."""
    from metaq.admin.monitoring.judging import Changes

    changes = Changes()
    while True:
        for one in changes.news(look()):
            tell(one)
        wait(seconds)


def _tell(one: CheckResult, command: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json_line(finding_json(one))
    else:
        print(f"{iso_time(SYSTEM.now_ms())} {one.state.upper()} {one.check} {one.server}: {one.text}", flush=True)
    if one.state != "unknown":
        run_command(command, one)


def tell_all(found: Sequence[CheckResult], *, as_json: bool) -> None:
    """Print all findings of one look."""
    if as_json:
        for one in found:
            print_json_line(finding_json(one))
        return
    print_table(
        ("server", "check", "state", "what"), [(one.server, one.check, one.state.value, one.text) for one in found]
    )


def finding_json(one: CheckResult) -> dict[str, Any]:
    """Return a finding for JSON output."""
    return {
        "time": iso_time(SYSTEM.now_ms()), "server": one.server, "check": one.check, "state": one.state.value,
        "group": one.group, "text": one.text,
    }  # fmt: skip


def run_command(command: str | None, one: CheckResult) -> None:
    """Run the command of an alarm, and say on standard error if it fails or takes too long. Its words are no shell's."""
    import shlex
    import subprocess

    if command is None:
        return
    words = [*shlex.split(command), one.state.value, one.check, one.server, one.group or "", one.text]
    try:
        # Its output would stand between JSON lines.
        done = subprocess.run(  # noqa: S603  the user's own command
            words, stdin=subprocess.DEVNULL, stdout=2, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"metaq: {words[0]} was ended: it took more than {COMMAND_SECONDS:g} s", file=sys.stderr)
    except OSError as fault:
        print(f"metaq: {words[0]} cannot be run: {fault.strerror}", file=sys.stderr)
    else:
        if done.returncode:
            print(f"metaq: {words[0]} has failed (exit code {done.returncode})", file=sys.stderr)
