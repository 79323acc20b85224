"""Moves a RocketMQ 4.x broker to MetaQ while its producers and consumers go on (docs/migration.md), and draws what they got meanwhile.

    copy the log ──► start MetaQ as a slave ──► it has all ──► no sends to the old one ──► stop that ──► promote MetaQ

The commands of each step are yours, in a file (move.toml): this program has the order, the waits and the checks. Up to the moment when the
old broker is stopped it gives up by itself if a check fails or takes too long, and lets producers send to the old one as before. Run again
it goes on where things stand.

pip install 'pymetaq[plots]'
python examples/gallery/move_from_rocketmq.py move.toml --plan      # what it would do
python examples/gallery/move_from_rocketmq.py move.toml --picture moved.svg
"""

import argparse
import itertools
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import metaq
from metaq.admin import Admin, BrokerStatus

STEPS = ("copy", "start", "stop_sends", "stop_old")
COMMANDS, OPTIONAL = (*STEPS, "allow_sends"), ("copy",)
NEAR_BYTES = 4 << 20
"""So little behind, the slave has the rest within a moment of the last send."""
SAMPLE_SECONDS = 1.0


Found = TypeVar("Found")


class MoveError(Exception):
    """The move cannot go on. The text says what to do."""


class Moment(NamedTuple):
    """What a broker has stored and delivered since it started, in messages, so many seconds after the start."""

    at: float
    new: bool
    stored: int
    delivered: int


class Move:
    """One move. `events` has what was done when, `moments` what was measured, `ended` where both logs ended before the old broker stopped.

    Args:
        plan: the file's content.
        patience: seconds for each wait.
        shell: runs a command; returns its exit status.

    Raises MoveError: the plan lacks something.
    """

    def __init__(
        self, plan: dict[str, Any], admin: Admin, patience: float = 3600.0, shell: Callable[[str], int] | None = None
    ) -> None:
        self.broker, self.commands = str(plan.get("broker", "")), dict(plan.get("commands", {}))
        self.role, self.quiet_seconds = str(plan.get("role", "ASYNC_MASTER")), float(plan.get("quiet_seconds", 40))
        self.events: list[tuple[float, str]] = []
        self.moments: list[Moment] = []
        self.ended = 0
        self._admin, self._patience, self._begun = admin, patience, time.monotonic()
        self._shell = shell or (lambda command: subprocess.run(command, shell=True, check=False).returncode)
        missing = [name for name in COMMANDS if name not in OPTIONAL and not self.commands.get(name)]
        if missing or not self.broker:
            raise MoveError(f"the plan lacks {', '.join(missing) or 'the name of the broker'}")

    # -------------------------------------------------------------- the steps

    def run(self) -> None:
        """All of them. Raises MoveError."""
        old, new = self.pair()
        if new is not None and new.broker_id == 0:
            raise MoveError(f"{self.broker} is led by MetaQ at {new.address} already")
        if old is None:
            raise MoveError(
                f"the old {self.broker} does not answer, so nobody knows what its log has. Start it; or, if it was stopped by an earlier run, "
                f"`metaq broker promote {self.broker} --force --role {self.role}`"
            )
        if new is None:
            self.command("copy")
            self.command("start")
        self.wait("the new broker is there and has the log", lambda: self.behind() <= NEAR_BYTES)
        self.say("MetaQ has the log")
        self.hand_over()
        led = self._admin.promote(self.broker, role=self.role, force=True)
        self.say("MetaQ is promoted")
        print(f"the broker at {led.address} leads {self.broker}; waiting for the first send")
        stored = self.stored()
        self.wait("a send arrives", lambda: self.stored() > stored)
        self.say("sends go on")

    def hand_over(self) -> None:
        """No more sends at the old broker, until the new one has every byte; then the old one stops. Given up, it gets sends again."""
        try:
            self.command("stop_sends")
            self.ended = self.wait("no send is under way, and the new broker has every byte", self.quiet)
            # From here the way back is the old broker's own folder: start it again.
            self.command("stop_old")
        except BaseException:
            self.command("allow_sends")
            raise
        self.wait("the old broker has stopped", lambda: self.pair()[0] is None)
        new = self.pair()[1]
        if new is None or new.log_end is None or new.log_end < self.ended:
            raise MoveError(
                f"the new broker's log ends at {new and new.log_end}, and both ended at {self.ended} before the old one was stopped: "
                "start the old one again, and this program"
            )

    def command(self, name: str) -> None:
        """Run one of the plan's commands; one that may be missing is left out. Raises MoveError."""
        if text := self.commands.get(name):
            self.say(name)
            if status := self._shell(text):
                raise MoveError(f"{name} ended with {status}: {text}")

    # -------------------------------------------------------------- what brokers say

    def pair(self) -> tuple[BrokerStatus | None, BrokerStatus | None]:
        """The old and the new broker of the name, where they answer. Raises MoveError: there is a slave that is no MetaQ."""
        found = [one for one in self._admin.list_brokers() if one.broker == self.broker and not one.error]
        new = next((one for one in found if "METAQ" in one.runtime), None)
        others = sorted((one for one in found if one is not new), key=lambda one: one.broker_id)
        if others and others[-1].broker_id != 0:
            raise MoveError(
                f"{self.broker} has a slave at {others[-1].address}: stop it first, for it could not follow MetaQ"
            )
        return (others[0] if others else None), new

    def behind(self) -> float:
        """Bytes that the new broker lacks of the old one's log; endless while one of them does not answer."""
        old, new = self.pair()
        if old is None or old.log_end is None or new is None or new.log_end is None:
            return float("inf")
        return old.log_end - new.log_end

    def quiet(self) -> int | None:
        """Where both logs end, if they end alike and do so all the time; else None."""
        end, first = time.monotonic() + self.quiet_seconds, None
        while True:
            old, new = self.pair()
            if old is None or new is None or old.log_end != new.log_end or first not in {None, new.log_end}:
                return None
            first = new.log_end
            if time.monotonic() > end:
                return first
            time.sleep(0.2)

    def stored(self) -> int:
        """Messages that producers have sent to the new broker."""
        new = self.pair()[1]
        return int(new.runtime["msgPutTotalTodayNow"]) if new is not None else 0

    # -------------------------------------------------------------- waiting, telling, measuring

    def wait(self, what: str, holds: Callable[[], Found | None]) -> Found:
        """Return what holds. Raises MoveError: nothing does within our patience."""
        end = time.monotonic() + self._patience
        while True:
            try:
                if found := holds():
                    return found
            except metaq.MetaqError as error:
                print(f"  {error}", file=sys.stderr)
            if time.monotonic() > end:
                raise MoveError(f"waited {self._patience:g} s: {what}")
            time.sleep(0.2)

    def say(self, what: str) -> None:
        self.events.append((time.monotonic() - self._begun, what))
        print(f"{self.events[-1][0]:7.1f} s  {what}", flush=True)

    def measure(self, stop: threading.Event) -> None:
        """Note what both brokers have stored and delivered, until `stop` is set; then once more."""
        over = False
        while not over:
            over = stop.wait(SAMPLE_SECONDS)
            try:
                for broker, new in zip(self.pair(), (False, True), strict=True):
                    if broker is not None:
                        stored, delivered = (int(broker.runtime[f"msg{what}TotalTodayNow"]) for what in ("Put", "Get"))
                        self.moments.append(Moment(time.monotonic() - self._begun, new, stored, delivered))
            except (metaq.MetaqError, MoveError):
                continue  # the next look tells; steps say what is wrong


def rates(moments: list[Moment], *, new: bool) -> tuple[list[float], list[float], list[float]]:
    """Times, and messages stored and delivered per second, of one of the brokers."""
    mine = [one for one in moments if one.new == new]
    steps = [(one, other) for one, other in itertools.pairwise(mine) if other.at > one.at]
    return (
        [other.at for _, other in steps],
        [max(0, other.stored - one.stored) / (other.at - one.at) for one, other in steps],
        [max(0, other.delivered - one.delivered) / (other.at - one.at) for one, other in steps],
    )


def draw(path: Path, moments: list[Moment], events: list[tuple[float, str]]) -> None:
    """Messages per second at both brokers, and the steps."""
    from picture import BLUE, COLOURS, mark, picture

    names = "messages per second from producers", "messages per second to consumers"
    with picture(path, "A RocketMQ broker becomes a MetaQ broker", *names) as panels:
        for new, label, colour in ((False, "RocketMQ", BLUE), (True, "MetaQ", COLOURS[1])):
            at, *both = rates(moments, new=new)
            for axes, values in zip(panels, both, strict=True):
                axes.fill_between(at, values, color=colour, alpha=0.25, linewidth=0)
                axes.plot(at, values, color=colour, label=label)
        for axes in panels:
            axes.set_ylim(bottom=0)
            mark(axes, [(at, name.replace("_", " ")) for at, name in events])
        panels[0].legend(ncols=2, loc="upper right", bbox_to_anchor=(1, 1.25))
        panels[1].set_xlabel("seconds")


def main() -> int:
    arguments = argparse.ArgumentParser(description="Move a RocketMQ broker to MetaQ while its clients go on.")
    arguments.add_argument("plan", type=Path, help="such as move.toml")
    arguments.add_argument("--plan", action="store_true", dest="only_plan", help="say what would be done, and end")
    arguments.add_argument("--patience", type=float, default=3600.0, help="longest time for a wait, in seconds")
    arguments.add_argument(
        "--before", type=float, default=10.0, help="seconds that are measured before the first step, and after the last"
    )
    arguments.add_argument("--picture", type=Path, help="draw what brokers stored and delivered into this SVG file")
    given = arguments.parse_args()
    try:
        plan = tomllib.loads(given.plan.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        arguments.error(f"{given.plan} cannot be read: {getattr(error, 'strerror', None) or error}")
    stop = threading.Event()
    with Admin(plan["name_servers"]) as admin:
        try:
            move = Move(plan, admin, given.patience)
            if given.only_plan:
                for step in STEPS:
                    print(f"{step:10}  {move.commands.get(step) or '(left out)'}")
                print(
                    f"{'promote':10}  metaq broker promote {move.broker} --force --role {move.role} -n {plan['name_servers']}"
                )
                return 0
            watcher = threading.Thread(target=move.measure, args=(stop,))
            watcher.start()
            try:
                if given.picture:
                    time.sleep(given.before)
                move.run()
                if given.picture:
                    time.sleep(given.before)
            finally:
                stop.set()
                watcher.join()
        except (MoveError, metaq.MetaqError) as error:
            print(f"given up: {error}", file=sys.stderr)
            return 1
    if given.picture:
        draw(given.picture, move.moments, move.events)
    return 0


if __name__ == "__main__":
    sys.exit(main())
