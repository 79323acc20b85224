"""The course of a schedule: troubles drawn from a seed, one after the other, while producers send; then the looks at everything."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from metaq.clock import SYSTEM, seeded
from metaq.errors import MetaqError
from metaq.model import SendStatus
from metaq.model.leadership import ASYNC_MASTER, SYNC_MASTER
from metaq.testing import FlakyNetwork
from tests.crash.pair_ledger.checks import Checks
from tests.crash.pair_ledger.ledger import Broken, Live, LiveConsumer, Load, Outcome
from tests.crash.pair_ledger.pair import FILE_BYTES, Pair, Side
from tests.crash.simulation import scratch
from tests.support import PATIENCE

MODES = {"sync": SYNC_MASTER, "async": ASYNC_MASTER}
MakeGroup = Callable[[str], Live]
PASSES = ((3, 0.1), (20, 0.3), (60, 0.6), (400, 1.0), (1000, 1.0))
"""How long a stage of a schedule may be: sends that end meanwhile, and seconds at most."""


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for."""

    mode: str = "sync"
    rounds: int = 5
    """Troubles at most."""
    master_power: bool = True
    """Whether the power of a master may be cut that syncs in the background, in `sync` mode."""
    trace: bool = False
    patience: float = PATIENCE
    """Seconds to wait for what comes by itself."""
    keep: bool = False
    """Whether its files stay."""


@dataclass
class Report:
    """Sums of what schedules did."""

    seeds: int = 0
    acked: int = 0
    ambiguous: int = 0
    refused: int = 0
    lost: int = 0
    """Acknowledged messages that are only in a tail that was cut off, or went with the power."""
    promotions: int = 0
    cuts: int = 0
    """Tails that were cut off."""
    hidden: int = 0
    """Messages that the group has not seen, as it had consumed others in their place, which were cut off then."""

    def add(self, other: Report) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def run_seed(seed: int, wanted: Wanted, groups: Sequence[MakeGroup] = (LiveConsumer,)) -> Report:
    """Run one schedule. Raises Broken with the seed, what happened, and how to repeat it.

    Args: groups: make those that consume beside it, by the address of the name server.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"metaq-pair-{wanted.mode}-{seed}-", dir=scratch()))
    course = Course(seed, wanted, folder, groups)
    try:
        course.run()
    except Exception as error:
        told = "\n".join(f"  {line}" for line in course.told)
        where = "" if isinstance(error, Broken) else "".join(traceback.format_exception(error)[-4:])
        logs = "\n".join(f"the log of {side.name}:\n{side.log_tail()}" for side in course.pair.sides)
        files = f"its files: {folder}\n" if wanted.keep else ""
        raise Broken(
            f"seed {seed} of {wanted.mode}: {type(error).__name__}: {error}\n{where}{told}\n{logs}\n{files}"
            f"to repeat it, as far as time allows: python -m tests.crash.pair_ledger {seed} --mode {wanted.mode} --trace"
        ) from error
    finally:
        if not wanted.keep:
            shutil.rmtree(folder)
    return course.report


def run_seeds(seeds: Iterable[int], wanted: Wanted, at_once: int = 4) -> Iterator[Report | Broken]:
    """Run schedules, some at a time: most of each is waiting. Yields how each ended."""

    def run(seed: int) -> Report | Broken:
        try:
            return run_seed(seed, wanted)
        except Broken as error:
            return error

    with ThreadPoolExecutor(at_once) as threads:
        yield from threads.map(run, seeds)


class Course:
    """One schedule.

    Args: groups: make those that consume beside it, by the address of the name server.
    """

    def __init__(self, seed: int, wanted: Wanted, folder: Path, groups: Sequence[MakeGroup]) -> None:
        self._groups = groups
        self.chance = seeded(f"pair {seed} {wanted.mode}")
        self.seed, self.wanted = seed, wanted
        self.flush = self.chance.choice(("ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"))
        self.pair = Pair(folder, seed, MODES[wanted.mode], {"flushDiskType": self.flush}, wanted.patience)
        self.told: list[str] = []
        self._began = SYSTEM.monotonic()
        self.report = Report(seeds=1)

    def tell(self, line: str) -> None:
        line = f"{SYSTEM.monotonic() - self._began:.1f} s: {line}"
        self.told.append(line)
        if self.wanted.trace:
            print(f"{self.seed}: {line}", flush=True)

    def run(self) -> None:
        self.tell(f"{self.wanted.mode}, {self.flush}")
        try:
            self.pair.start()
            self.pair.create_topic()
            load = self.load = Load(self.pair.namesrv, self.seed, self.chance.randint(2, 4))
            with contextlib.ExitStack() as stack:
                groups = [make(self.pair.namesrv) for make in self._groups]
                for group in groups:
                    stack.callback(group.stop)
                try:
                    load.start()
                    self.live()
                finally:
                    load.stop()
                self.tell("the end")
                self.pair.settle()
                self._sum_up(load, Checks(self, load).all(groups))
        finally:
            self.pair.close()

    def _sum_up(self, load: Load, lost: int) -> None:
        report = self.report
        for entry in load.entries.values():
            last = entry.outcomes[-1] if entry.outcomes else None
            report.acked += last is Outcome.ACKED
            report.ambiguous += last is Outcome.AMBIGUOUS
            report.refused += last is Outcome.REFUSED
        report.lost = lost
        ok = sum(entry.status is SendStatus.SEND_OK for entry in load.entries.values())
        self.tell(
            f"{report.acked} acked, {ok} of them SEND_OK, {report.ambiguous} ambiguous, {report.refused} refused, {lost} lost, "
            f"{report.hidden} passed over"
        )

    # ------------------------------------------------------------------ troubles

    def live(self) -> None:
        """What happens while producers send."""
        self._pass()
        for _ in range(self.chance.randint(1, self.wanted.rounds)):
            trouble = self.chance.choice(TROUBLES)
            with self._weather():
                must_settle = trouble(self)
            if must_settle or self.chance.random() < 0.5:
                self.pair.settle()

    def _pass(self) -> None:
        self.load.pass_sends(*self.chance.choice(PASSES))

    def leader(self) -> Side:
        """The side that leads now; after a settlement if that is not clear."""
        leader = self.pair.leader()
        if leader is None:
            self.pair.settle()
            leader = self.pair.leader()
        assert leader is not None, "the pair is even"
        return leader

    @contextlib.contextmanager
    def _weather(self) -> Iterator[None]:
        """Perhaps a slow link between the two, for a while."""
        links = [side.copies for side in self.pair.sides]
        if self.chance.random() < 0.3:
            delay = self.chance.choice((0.005, 0.05, 0.3))
            self.tell(f"copies take {delay} s longer")
            for link in links:
                link.delay(delay)
        yield
        for link in links:
            link.delay(0)

    def _side(self) -> tuple[Side, bool]:
        """A side by chance, and whether it leads."""
        leader = self.leader()
        leads = self.chance.random() < 0.6
        return (leader if leads else self.pair.other(leader)), leads

    def _maybe_force(self, gone: Side, leads: bool) -> bool:
        """With luck, have the other side lead behind a leader that is gone. Returns whether it does."""
        if not leads or self.chance.random() < 0.4:
            return False
        self._pass()
        return self.force(self.pair.other(gone))

    def force(self, side: Side) -> bool:
        """Have a side lead whose master is gone. Returns whether it does."""
        try:
            self.pair.admin.promote(side.address, force=True)
        except MetaqError as error:
            self.tell(f"{side.name} is not promoted: {error}")
            return False
        self.tell(f"{side.name} leads by force")
        self.report.promotions += 1
        return True

    def kill(self) -> bool:
        side, leads = self._side()
        self.tell(f"kill {side.name}{', which leads' if leads else ''}")
        side.kill()
        forced = self._maybe_force(side, leads)
        self._pass()
        self.tell(f"start {side.name}")
        side.start()
        return forced

    def kill_both(self) -> bool:
        sides = self.chance.sample(self.pair.sides, 2)
        self.tell(f"kill {sides[0].name} and {sides[1].name}")
        for side in sides:
            side.kill()
        self._pass()
        for side in self.chance.sample(sides, 2):
            self.tell(f"start {side.name}")
            side.start()
        return False

    def restart(self) -> bool:
        side, leads = self._side()
        self.tell(f"stop {side.name}{', which leads' if leads else ''}")
        side.stop()
        forced = self._maybe_force(side, leads)
        self._pass()
        self.tell(f"start {side.name}")
        side.start()
        return forced

    def sleep(self) -> bool:
        side, leads = self._side()
        self.tell(f"pause {side.name}{', which leads' if leads else ''}")
        side.pause()
        forced = self._maybe_force(side, leads)
        self._pass()
        self.tell(f"resume {side.name}")
        side.resume()
        return forced

    def power(self) -> bool:
        side, leads = self._side()
        if leads and self.flush == "ASYNC_FLUSH" and self.wanted.mode == "sync" and not self.wanted.master_power:
            side, leads = self.pair.other(side), False
        self.tell(f"cut the power of {side.name}{', which leads' if leads else ''}")
        side.cut_power()
        self._maybe_force(side, leads)
        self._pass()
        self.tell(f"start {side.name}")
        side.start()
        return True

    def full(self) -> bool:
        side, leads = self._side()
        room = f"{self.chance.randrange(FILE_BYTES // 2)} {self.chance.choice(('', 'no-files'))}"
        self.tell(f"fill the disk of {side.name}{', which leads' if leads else ''}: room {room}")
        side.set_room(room)
        for _ in range(3):
            self._pass()
        if self._ended(side):
            return False
        self.tell(f"make room at {side.name}")
        side.set_room("")
        return False

    def _ended(self, side: Side) -> bool:
        """Whether it has ended by itself; then it is started again, with room."""
        if side.alive:
            return False
        self.tell(f"{side.name} has ended by itself, and starts again")
        side.wait_ended()
        side.start()
        return True

    def bad_link(self) -> bool:
        """One or all ways to a side."""
        side, leads = self._side()
        all_links = self.chance.random() < 0.5
        links = list(side.links()) if all_links else [self.chance.choice(side.links())]
        fault = self.chance.choice(tuple(LINK_FAULTS))
        which = (
            "all ways"
            if all_links
            else f"the way {['of clients', 'of copies', 'to the name server'][side.links().index(links[0])]}"
        )
        self.tell(f"{fault}: {which} of {side.name}{', which leads' if leads else ''}")
        for link in links:
            LINK_FAULTS[fault](link)
        forced = all_links and fault != "delay" and self._maybe_force(side, leads)
        self._pass()
        self._pass()
        self.tell("mend that")
        for link in links:
            link.mend()
        return forced

    def promote(self) -> bool:
        """In order, perhaps with trouble meanwhile."""
        side = self.pair.other(self.leader())
        trouble = self.chance.choice((None, None, *BESIDE))
        self.tell(f"promote {side.name}{f', and {trouble.__name__} meanwhile' if trouble else ''}")
        done = threading.Thread(target=self._promote, args=(side,))
        done.start()
        if trouble is not None:
            self.load.pass_sends(1000, 0.05 * self.chance.random())
            trouble(self)
        done.join()
        return True

    def _promote(self, side: Side) -> None:
        try:
            self.pair.admin.promote(side.address)
        except MetaqError as error:
            self.tell(f"{side.name} is not promoted: {error}")
        else:
            self.tell(f"{side.name} leads")
            self.report.promotions += 1

    # ------------------------------------------------------------------ troubles beside a promotion

    def one_is_killed(self) -> None:
        side = self.chance.choice(self.pair.sides)
        self.tell(f"kill {side.name}")
        side.kill()
        self._pass()
        self.tell(f"start {side.name}")
        side.start()

    def one_sleeps(self) -> None:
        side = self.chance.choice(self.pair.sides)
        self.tell(f"pause {side.name}")
        side.pause()
        self._pass()
        self.tell(f"resume {side.name}")
        side.resume()

    def copies_stall(self) -> None:
        for side in self.pair.sides:
            side.copies.stall()
        self._pass()
        for side in self.pair.sides:
            side.copies.mend()


LINK_FAULTS: dict[str, Callable[[FlakyNetwork], None]] = {
    "cut": FlakyNetwork.cut,
    "stall": FlakyNetwork.stall,
    "stall what comes back": lambda link: link.stall("to client"),
    "stall what goes there": lambda link: link.stall("to server"),
    "half open": FlakyNetwork.half_open,
    "delay": lambda link: link.delay(0.2),
    "cut in a moment": lambda link: link.cut_after(3000),
}
TROUBLES: tuple[Callable[[Course], bool], ...] = (
    Course.kill, Course.kill, Course.kill_both, Course.restart, Course.sleep, Course.sleep, Course.power, Course.power, Course.full,
    Course.bad_link, Course.bad_link, Course.bad_link, Course.promote, Course.promote,
)  # fmt: skip
"""Each returns whether the pair has to be even before the next one: only one of the two may be lost at a time."""
BESIDE: tuple[Callable[[Course], None], ...] = (Course.one_is_killed, Course.one_sleeps, Course.copies_stall)
