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
    from metaq.admin.monitoring.judging import CheckResult, Limits, SeenServer
    from metaq.admin.monitoring.reading import WatchedServer
    from metaq.admin.offsets.places import Place

COMMAND_SECONDS: Final = 30.0
"""Longest time that the command of an alarm may take."""
_HOURS: Final = 3600.0


def monitor(
    addresses: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST:PORT...", help="addresses of the servers' text protocol (serverPort in server.ini)"
        ),
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="topic to which probe messages are sent (default: no probe)")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="ZooKeeper with the offsets of groups (default: offsets are not checked)"
        ),
    ] = None,
    root: Annotated[str, typer.Option(metavar="PATH", help="path of MetaQ in ZooKeeper (zk.zkRoot)")] = "/meta",
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="database with the offsets of groups that are not in ZooKeeper"),
    ] = None,
    table: Table = TABLE,
    password_file: PasswordFile = None,
    broker: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="remoting server of the broker, if the one server is a broker of ours"),
    ] = None,
    data_dir: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="data folder of the one server, if on this machine: its disk is checked"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="check once; exit code 1 if there is an alarm")] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="S", help="seconds between two checks")] = 5.0,
    wait: Annotated[float, typer.Option(min=0.1, metavar="S", help="longest wait for a probe message")] = 15.0,
    offset_hours: Annotated[
        float, typer.Option("--offset-hours", min=0.0, metavar="H", help="hours between two checks of offsets")
    ] = 6.0,
    offset_gap: Annotated[
        int,
        typer.Option(
            "--offset-gap",
            min=0,
            metavar="BYTES",
            help="alarm if a group is more than this many bytes behind in a partition",
        ),
    ] = 0,
    offset_ahead: Annotated[
        int,
        typer.Option(
            "--offset-ahead",
            min=0,
            metavar="BYTES",
            help="alarm if a group is more than this many bytes ahead of a partition",
        ),
    ] = 0,
    put_failed: Annotated[
        int, typer.Option("--put-failed", min=1, metavar="N", help="alarm from this number of failed puts on")
    ] = 10,
    load: Annotated[float, typer.Option(min=0, metavar="N", help="alarm above this load of the machine")] = 8.0,
    disk: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="alarm above this use of the disk")
    ] = 85.0,
    memory: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="alarm above this use of memory")
    ] = 80.0,
    per_ip: Annotated[
        int, typer.Option("--per-ip", min=0, metavar="N", help="alarm above this number of connections of one address")
    ] = 5,
    connections: Annotated[int, typer.Option(min=0, metavar="N", help="alarm above this number of connections")] = 150,
    prepared: Annotated[
        int, typer.Option(min=1, metavar="N", help="alarm from this number of prepared transactions on")
    ] = 10,
    on_alarm: Annotated[
        str | None,
        typer.Option(
            "--on-alarm",
            metavar="CMD",
            help="when a check becomes an alarm or fine, run CMD STATE CHECK SERVER GROUP TEXT, without a shell, for 30 s at most",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch servers of MetaQ 1.x: probe messages, failed puts, offsets of groups, connections, disk.

    The servers may be ours or the original. The default limits are those of 1.x's monitor. It prints a line whenever a check becomes
    an alarm, unknown or fine, until Ctrl-C; with --once, it prints all checks and ends. What a server does not report, such as the
    load of another machine, is unknown. --json prints one document per line.
    """  # fmt: skip
    from metaq.admin import Admin
    from metaq.admin.monitoring.judging import Limits
    from metaq.admin.monitoring.reading import WatchedServer
    from metaq.admin.offsets.places import OffsetsInDatabase, OffsetsInZookeeper

    if len(addresses) > 1 and (broker is not None or data_dir is not None):
        raise typer.BadParameter("--broker and --data-dir belong to one server: give only its address")
    limits = Limits(
        put_failed=put_failed, offset_gap=offset_gap, offset_ahead=offset_ahead, load=load, disk=disk / 100,
        memory=memory / 100, connections_per_ip=per_ip, connections=connections, prepared=prepared,
    )  # fmt: skip
    places = [WatchedServer(address=address, topic=topic, broker=broker, wait=wait) for address in addresses]
    kept: dict[str, Place] = {} if zookeeper is None else {"zookeeper": OffsetsInZookeeper(zookeeper, root)}
    if database is not None:
        kept["database"] = OffsetsInDatabase(database, table, password_of(password_file))
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
            why = "offsets of groups are not checked: give --zookeeper or --database"
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


def _with_machine(seen: SeenServer, folder: pathlib.Path | None) -> SeenServer:
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
