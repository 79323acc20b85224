"""`metaq cluster move-leader`, `metaq cluster restart`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from metaq.cli.cluster.growth import print_json_line_to_stderr
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, print_json
from metaq.errors import ConfigError, MetaqError

if TYPE_CHECKING:
    from metaq.admin.rolling.moving import HandOverProgress
    from metaq.admin.rolling.plan import BrokerProcess
    from metaq.admin.rolling.restarting import RollingProgress

LINE_SECONDS = 5.0
"""A wait that goes on is told so often."""
OUTPUT_CHARS_MAX = 500
MOVE_TIMEOUT = 30.0
RESTART_TIMEOUT = 600.0


def move_leader(
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", help="brokerName of a replica group with automatic failover")
    ],
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            metavar="MEMBER",
            help="configured brokerId of the new leader (default: the member that is least behind)",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="longest wait until it leads and is registered")
    ] = MOVE_TIMEOUT,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make another member of a replica group with failover the leader. No send fails.

    The old leader forwards sends until clients know the new one. The command returns when the new leader is registered at all name
    servers. For a pair without failover, use `metaq broker promote`.
    """
    from metaq.admin import Admin

    last: list[str] = []

    def told(now: HandOverProgress) -> None:
        if as_json:
            print_json_line_to_stderr({**msgspec.to_builtins(now), "phase": now.phase.name.lower()})
        elif now.phase.value not in last:
            last.append(now.phase.value)
            member = f" (member {now.member})" if now.member else ""
            print(f"{now.broker}: {now.phase.value}{member}, {now.seconds:.2f} s", file=sys.stderr, flush=True)

    with Admin(namesrv) as admin:
        done = admin.move_leader(broker, to=to or 0, timeout=timeout, progress=told)
    if as_json:
        print_json(msgspec.to_builtins(done))
    elif done.before == done.after:
        print(f"member {done.after} leads {done.broker} already, at {done.address}, in epoch {done.epoch}")
    else:
        print(
            f"member {done.after} leads {done.broker}, at {done.address}, in epoch {done.epoch}; it was member {done.before}. That took "
            f"{done.seconds:.2f} s"
        )


def restart_cluster(
    brokers: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER]...", help="brokerNames (default: all of the cluster)")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="name of the cluster, if the name servers know several"),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="COMMAND",
            help="command that restarts one broker, instead of a request to the broker; {name}, {member} and {address} are filled in; no shell",
        ),
    ] = None,
    with_gaps: Annotated[
        bool,
        typer.Option(
            "--with-gaps",
            help="also restart a master without a slave, and where fewer than minInSyncReplicas are left: sends are refused meanwhile",
        ),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="restart even if brokers do not answer or are not in sync; those that do not answer are left out",
        ),
    ] = False,
    quiet: Annotated[
        float | None,
        typer.Option(
            "--quiet",
            min=0,
            metavar="SECONDS",
            help="restart an old leader after this time without requests from clients (default: 3, for a single master 40)",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="longest wait for a broker to be back and in sync")
    ] = RESTART_TIMEOUT,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Restart the brokers of a cluster one after the other. No send fails.

    They start with the release of MetaQ that is installed on their machines then. Of each broker, the slaves are restarted first;
    then the master hands over, and is restarted when its clients have moved. Each restarted broker is back and in sync before the
    next restart; if it does not come back, the command ends with exit code 1. It ends on Ctrl-C, too: then all brokers run but the
    one that is restarting.
    """
    from metaq.admin import Admin

    lines = _Lines(as_json=as_json)
    words = _words(by) if by is not None else None
    run = None if words is None else lambda process: _run(words, process, timeout)
    try:
        with Admin(namesrv) as admin:
            done = admin.restart_cluster(
                brokers or (),
                cluster=cluster,
                by=run,
                anyway=anyway,
                with_gaps=with_gaps,
                quiet=quiet,
                timeout=timeout,
                progress=lines.told,
            )
    except SystemExit:  # a signal
        print(f"metaq: interrupted: {lines.where()}", file=sys.stderr)
        raise
    except MetaqError:
        if lines.done:
            print(f"metaq: restarted so far: {', '.join(lines.done)}", file=sys.stderr)
        raise
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    for one in done.restarted:
        print(f"{one.broker}/{one.member} at {one.address} was restarted, and was in sync after {one.seconds:.1f} s")
    for name, address in done.leaders.items():
        print(f"the broker at {address} leads {name} now")
    print(f"that took {done.seconds:.1f} s")


class _Lines:
    """Tells what a rolling restart does: each step, and every few seconds that it goes on."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: RollingProgress | None = None
        self._next = 0.0
        self.done: list[str] = []
        """Brokers that were restarted and are in sync."""

    def told(self, now: RollingProgress) -> None:
        from metaq.admin.rolling.restarting import RollingPhase

        last, self._last = self._last, now
        if now.phase is RollingPhase.IN_SYNC:
            self.done.append(_name(now))
        step = (now.broker, now.address, now.phase)
        if last is not None and step == (last.broker, last.address, last.phase) and now.seconds < self._next:
            return
        self._next = now.seconds + LINE_SECONDS
        if self._as_json:
            print_json_line_to_stderr({**msgspec.to_builtins(now), "phase": now.phase.name.lower()})
            return
        detail = f" ({now.detail})" if now.detail else ""
        print(f"{now.seconds:6.1f} s  {_name(now)} {now.phase.value}{detail}", file=sys.stderr, flush=True)

    def where(self) -> str:
        """Return where it stands, for who has ended it."""
        now = self._last
        if now is None:
            return "nothing was restarted"
        restarted = f"restarted and in sync are {', '.join(self.done)}" if self.done else "no broker is restarted yet"
        return f"{_name(now)} {now.phase.value}, which goes on by itself; {restarted}; no other broker was touched"


def _name(now: RollingProgress) -> str:
    return f"{now.broker}/{now.member} at {now.address}" if now.address else now.broker


def _words(command: str) -> list[str]:
    """Return the words of `--by`. Raises ConfigError: it is no command, or the same for every broker."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--by {command!r}: {error}") from None
    if not words:
        raise ConfigError("--by: the command is empty")
    if not any("{member}" in one or "{address}" in one for one in words):
        raise ConfigError(
            f"--by {command!r} would be the same for all replicas of a broker: use {{member}} or {{address}} to say which one it restarts"
        )
    return words


def _run(words: Sequence[str], process: BrokerProcess, timeout: float) -> None:
    """Run the command that restarts one broker. Raises MetaqError: it failed."""
    told = {"{name}": process.broker, "{member}": str(process.member), "{address}": process.address}
    argv = [_filled(one, told) for one in words]
    try:
        # In a session of its own: Ctrl-C ends this command between two steps, and no restart half-way.
        done = subprocess.run(  # noqa: S603  the words that the operator gave
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False, start_new_session=True
        )  # fmt: skip
    except OSError as error:
        raise MetaqError(f"{shlex.join(argv)} cannot be run: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise MetaqError(f"{shlex.join(argv)} has not ended after {timeout:g} s, and was killed") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-OUTPUT_CHARS_MAX:]
        raise MetaqError(f"{shlex.join(argv)} has failed with {done.returncode}: {said or 'it said nothing'}")


def _filled(word: str, told: dict[str, str]) -> str:
    for name, value in told.items():
        word = word.replace(name, value)
    return word
