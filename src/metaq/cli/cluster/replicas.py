"""`metaq broker status|promote|demote|restart|scrub`: the replicas of a broker; `drain` (`growth`). Without one of these, `metaq broker` runs a broker (`serve`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from metaq.cli.cluster import growth
from metaq.cli.cluster.cleaning import clean_broker
from metaq.cli.cluster.groups_of_replicas import in_words
from metaq.cli.groups import App
from metaq.cli.output import (
    EXIT_FAILED,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    disk_text,
    iso_time,
    print_json,
    print_table,
)
from metaq.cli.servers import config, log
from metaq.cli.servers.commands import server_function
from metaq.cli.servers.flags import SERVERS
from metaq.model.leadership import CutTail
from metaq.model.scrub import DamagedSide, LogDifference

if TYPE_CHECKING:
    from metaq.admin import Admin
    from metaq.admin.replicas import Replica
    from metaq.admin.upkeep.restarting import RestartProgress
    from metaq.admin.upkeep.scrubbing import PairScrub, ScrubProgress

WAIT_SECONDS = 1.0
RESTART_LINE_SECONDS = 5.0
MIB = 1024 * 1024

app = App("", invoke_without_command=True, no_args_is_help=False)
app.command("clean")(clean_broker)
app.callback()(server_function("broker", SERVERS["broker"]))
app.add_typer(config.broker_app, name="config")
app.command("log")(log.show_log)

Name = Annotated[str, typer.Argument(metavar="NAME", help="brokerName, or host:port of one broker")]


app.command("drain")(growth.drain_broker)


@app.command("status")
def show_status(
    name: Name,
    wait: Annotated[
        bool, typer.Option("--wait", help="wait until every slave has the whole log, and print how far they are behind")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the replicas of a broker: roles, epoch, lag of slaves, and log tails that were cut off."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if wait:
            _wait(admin, name)
        found = admin.list_replicas(name)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)
    if any(one.error for one in found):
        raise typer.Exit(EXIT_FAILED)


def _wait(admin: Admin, name: str) -> None:
    told, never = -1, threading.Event()
    while (lag := _behind(admin.list_replicas(name))) != 0:
        if lag != told:
            print(
                f"{lag:,} B behind" if lag is not None else "there is no master and slave that answer", file=sys.stderr
            )
            told = lag if lag is not None else told
        never.wait(WAIT_SECONDS)


def _behind(found: Sequence[Replica]) -> int | None:
    """Return how far the last of the slaves is behind; None: there are no two that answer, or nobody leads."""
    leader = next((one for one in found if one.leads and one.log_end is not None), None)
    others = [one.log_end for one in found if one is not leader and one.log_end is not None]
    if leader is None or leader.log_end is None or not others:
        return None
    return max(0, leader.log_end - min(others))


def _print(found: Sequence[Replica]) -> None:
    from metaq.admin.rolling.standing import standing_of

    leader, group = next((one for one in found if one.leads and not one.error), None), standing_of(found)
    print_table(
        ("broker", "id", "address", "role", "epoch", "log from", "to", "behind", "disk"),
        (_row(one, leader) for one in found),
    )
    if leader is not None and leader.state is not None:
        for slave in leader.state.slaves:
            lag = leader.state.log_end - slave.copied
            print(f"{slave.address} has the log up to {slave.copied}: {lag:,} B and {slave.behind_ms:,} ms behind")
    elif leader is None and group is None:
        print(
            f"there is no master: `metaq broker promote {found[0].broker if found else 'NAME'}` makes a slave the master"
        )
    if group is not None:
        for line in (in_words(group), *group.troubles()):
            print(f"group: {line}")
    for one in found:
        for cut in one.state.cuts if one.state is not None else ():
            print(f"{one.address}: {_cut(cut)}")


def _row(one: Replica, leader: Replica | None) -> tuple[Any, ...]:
    if one.error:
        return one.broker, one.broker_id, one.address, one.error, "", "", "", "", ""
    lag, disk = "", disk_text(one.disk_used, one.disk_step)
    if one is not leader and leader is not None and leader.log_end is not None and one.log_end is not None:
        lag = f"{max(0, leader.log_end - one.log_end):,} B"  # they are not asked in the same moment
    state = one.state
    if state is None:
        return one.broker, one.broker_id, one.address, "a RocketMQ", "", "", one.log_end, lag, disk
    # A master that has stepped down starts again in a moment.
    role = state.role if state.leads or state.role == "SLAVE" else f"{state.role}, stepping down"
    return one.broker, one.broker_id, one.address, role, state.epoch, state.log_min, state.log_end, lag, disk


def _cut(cut: CutTail) -> str:
    queues = "; ".join(
        f"{count} of queue {queue_id} of {topic}"
        for topic, counts in cut.queues.items()
        for queue_id, count in counts.items()
    )
    return (
        f"{cut.records} records from log offset {cut.log_offset} to {cut.log_end} were cut off {iso_time(cut.at_ms)}, kept in "
        f"{cut.folder}{f' ({queues})' if queues else ''}"
    )


@app.command("promote")
def promote(
    name: Name,
    broker_id: Annotated[
        int | None, typer.Option("--id", help="brokerId of the slave (default: the slave with most of the log)")
    ] = None,
    role: Annotated[
        str, typer.Option(help="its new brokerRole: ASYNC_MASTER or SYNC_MASTER (default: that of the old master)")
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="promote it even if the master does not answer, and may have messages that the slave lacks"
        ),
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make a slave the master.

    A running master stops accepting messages first, the slave copies the rest of its log, and the old master becomes its slave: no
    message is lost.
    """
    from metaq.admin import Admin

    if not as_json:
        print(f"promoting a slave of {name}: its master steps down first, if it answers ...", file=sys.stderr)
    with Admin(namesrv) as admin:
        led = admin.promote(name, broker_id=broker_id, role=role, force=force)
    if as_json:
        print_json(msgspec.to_builtins(led))
    elif led.state is not None:
        state = led.state
        start = state.epochs[-1].start
        print(
            f"the broker at {led.address} leads {state.broker} as {state.role} in epoch {state.epoch}, from log offset {start} on"
        )


@app.command("demote")
def demote(
    name: Name,
    broker_id: Annotated[
        int | None, typer.Option("--id", help="brokerId that it gets as a slave (default: the first free one)")
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make the master a slave. There is no master then, until a slave is promoted.

    `metaq broker promote` alone does both.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        left = admin.demote(name, broker_id=broker_id)
    if as_json:
        print_json(msgspec.to_builtins(left))
    else:
        print(
            f"the broker at {left.address} has stepped down at log offset {left.log_end}; {left.broker} has no master until a slave is "
            f"promoted: `metaq broker promote {left.broker}`"
        )


@app.command("restart")
def restart(
    name: Name,
    broker_id: Annotated[
        int | None, typer.Option("--id", help="brokerId of the replica, if there are several of the name")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="wait until it serves clients again, and print its progress")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="longest wait (default: as long as it recovers its log)"),
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Restart the process of a broker, with the release of MetaQ that is installed on its machine.

    It stops cleanly and starts again with the same arguments and process id. Sends to a master fail while it restarts: promote a slave
    first. A broker of `metaq up` refuses.
    """
    from metaq.admin import Admin

    shown = _RestartLines(told=not as_json and wait)
    with Admin(namesrv) as admin:
        done = admin.restart_broker(name, broker_id=broker_id, wait=wait, timeout=timeout, progress=shown.show)
    if as_json:
        print_json(msgspec.to_builtins(done))
    elif wait:
        print(f"the broker at {done.address} serves clients again, after {done.seconds:.1f} s")
    else:
        print(f"the broker at {done.address} restarts")


class _RestartLines:
    """Tells what a broker that restarts does: each change, and every few seconds that it goes on."""

    def __init__(self, *, told: bool) -> None:
        self._told, self._last = told, ""
        self._next = 0.0

    def show(self, now: RestartProgress) -> None:
        if self._told and (now.phase.value != self._last or now.seconds >= self._next):
            self._last, self._next = now.phase.value, now.seconds + RESTART_LINE_SECONDS
            print(f"{now.address}: {now.phase.value} ({now.seconds:.1f} s)", file=sys.stderr)


@app.command("scrub")
def scrub(
    name: Name,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="replace damaged records with those of the other replica; the damaged bytes are kept"
        ),
    ] = False,
    rate: Annotated[int | None, typer.Option(min=1, help="compare at most this many MiB of the log per second")] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Compare the logs of a master and its slaves, as far as both have them on disk.

    Prints the file of each difference, and which side is damaged. Exit code 1: differences are left.
    """
    from metaq.admin import Admin

    shown = _ScrubLines(told=not as_json)
    try:
        with Admin(namesrv) as admin:
            done = admin.scrub(name, repair=repair, bytes_per_second=rate * MIB if rate else None, progress=shown.show)
    except SystemExit:  # a signal
        if (last := shown.last) is not None:
            print(f"interrupted, compared up to log offset {last.place} of {last.stop}", file=sys.stderr)
            _print_differences(last.differences)
        raise
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        for one in done:
            _print_scrub(one, name, repair=repair)
    if any(one.left or one.unread for one in done):
        raise typer.Exit(EXIT_FAILED)


class _ScrubLines:
    """Tells how far the comparison is, a line for each tenth."""

    def __init__(self, *, told: bool) -> None:
        self._told = told
        self._tenth = (("", ""), -1)
        self.last: ScrubProgress | None = None

    def show(self, now: ScrubProgress) -> None:
        self.last = now
        tenth = 10 * (now.place - now.start) // max(1, now.stop - now.start)
        if self._told and self._tenth != (reached := ((now.master, now.slave), tenth)):
            self._tenth = reached
            print(
                f"{now.master} and {now.slave}: {now.place - now.start:,} of {now.stop - now.start:,} B compared, {now.found} places differ",
                file=sys.stderr,
            )


def _print_scrub(done: PairScrub, name: str, *, repair: bool) -> None:
    _print_differences(done.differences)
    if done.found > len(done.differences):
        print(f"and {done.found - len(done.differences)} more: scrub again when these are repaired")
    for failed in done.failed:
        print(f"log offset {failed.difference.log_offset} could not be repaired: {failed.why}")
    if done.unread:
        print(
            f"{done.unread} ranges of 1 MiB could not be read wholly from a disk; the system logs of the brokers' machines say which one"
        )
    print(
        f"{done.master} and {done.slave}: the same from log offset {done.start} to {done.stop}"
        if not done.found
        else f"{done.master} and {done.slave}: {done.found} places differ from log offset {done.start} to {done.stop}, "
        f"{len(done.repaired)} were repaired"
    )
    if not repair and any(one.damaged in {DamagedSide.MASTER, DamagedSide.SLAVE} for one in done.differences):
        print(f"`metaq broker scrub {name} --repair` repairs what is intact at the other side")


def _print_differences(differences: Sequence[LogDifference]) -> None:
    if differences:
        print_table(
            ("damaged", "file", "at byte", "log offset", "bytes"),
            ((str(one.damaged), one.file, one.at, one.log_offset, one.size) for one in differences),
        )
