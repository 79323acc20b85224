"""One seed: load, kills, and what is found afterwards.

`python -m tests.spark.proof FIRST [LAST]` runs some, tests/spark/proof/test_seeds.py those of CI.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import metaq
from metaq.admin import Admin
from metaq.pipelines.lease import is_free
from metaq.spark.engine.slow_start import TOO_SLOW
from metaq.testing import Cluster
from tests.pipelines.archive.support import planned
from tests.spark.proof import compare, processes
from tests.spark.proof.driver import FINISH
from tests.spark.proof.found import archived, dumped, manifests
from tests.spark.proof.ledger import ACKED, DOUBTFUL, REFUSED, Bodies, Ledger
from tests.spark.proof.load import Load
from tests.spark.proof.plan import ACKNOWLEDGED, ARCHIVED, AT_ONCE, BROKER, DELIVERED, DRIVER, JVM, PYTHON, Plan, Strike
from tests.spark.proof.processes import Process
from tests.spark.proof.progress import Progress, crossed
from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, environment, metaq_command

SOURCE, TARGET = "source", "copies"
LOOK_SECONDS: Final = 0.02
SCAN_SECONDS: Final = 0.5
"""How often the processes below the driver are written down, to see later that none is left."""
SENDS_UNANSWERED: Final = 4000
"""Messages that are to be sent while a broker's answers are lost, and"""
SENDS_SECONDS: Final = 3.0
"""how long they may take: at the end of a run nobody sends any more."""
DEATHS_MAX: Final = 8
"""Drivers that may end by themselves, one after the other, without a message more being archived or copied."""


class Broken(AssertionError):
    """A run did not end as it must. The text has the plan, and what was found."""


@dataclass
class Report:
    """What a run came to."""

    plan: Plan
    acked: int = 0
    doubtful: int = 0
    refused: int = 0
    stored: int = 0
    repeats: int = 0
    archived: int = 0
    copied: int = 0
    batches: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    """Strikes whose victims were not there any more."""
    drivers: int = 0
    failed: int = 0
    """Drivers that ended by themselves, because of what was killed around them."""
    orphan_seconds: float = 0.0
    """The longest that a process outlived its driver."""
    load_seconds: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        killed = ", ".join(f"{count} {victim}" for victim, count in sorted(self.kills.items()))
        return (
            f"seed {self.plan.seed}: {self.acked:,} acknowledged, {self.doubtful:,} in doubt, {self.refused:,} refused, {self.stored:,} stored = "
            f"{self.archived:,} archived + {self.repeats:,} repeats in {self.batches} batches, {self.copied:,} copied; killed: {killed}; {self.missed} missed; "
            f"{self.drivers} drivers, {self.failed} of them failed, orphans gone after {self.orphan_seconds:.1f} s; "
            f"{self.load_seconds:.0f} s load, {self.seconds:.0f} s"
        )


@dataclass
class _Waiting:
    """A strike that has not happened."""

    strike: Strike
    armed: bool = False
    before: object = None


class Run:
    """One seed in a folder of its own, which is left as it is."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        tell: Callable[[str], None] = lambda _: None,
        *,
        delivery: str = "effectively-once",
    ) -> None:
        folder = folder.absolute()
        self.plan, self.folder, self._tell = plan, folder, tell
        self._delivery = delivery
        self.ledger = Ledger(Bodies(plan.seed))
        self.report = Report(plan)
        self.problems: list[str] = []
        self._began = time.monotonic()
        folder.mkdir(parents=True)
        self._cluster = Cluster(folder=folder / "cluster", networks=True)
        self._broker = self._cluster.brokers[0]
        self._back_at: float | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._struck: list[str] = []
        """What was killed that the driver of now may fail of."""
        self._strike_at_start = self._muted = False
        self._in_vain = 0
        self._waiting = [_Waiting(strike) for strike in plan.strikes]
        self._progress = Progress(folder)
        self._below: dict[tuple[int, int], Process] = {}
        self._orphans: list[tuple[float, Process]] = []
        self._scanned = 0.0

    # ------------------------------------------------------------ the run
    def run(self) -> Report:
        """Raises Broken."""
        try:
            self._cluster.start()
            self._make_topics()
            load = Load(self._cluster.namesrv, SOURCE, self.plan.messages, self.ledger, self._may_go_on)
            try:
                self._look_after(load)
            finally:
                load.stop()
            self.report.load_seconds = time.monotonic() - self._began
            self._cluster.close()
            self._compare()
        finally:
            self._end_driver()
            for server in (self._broker, *self._cluster.name_servers):
                server.end()
            self._cluster.close()
        self.report.seconds = time.monotonic() - self._began
        if self.problems:
            raise Broken("\n".join([str(self.plan), str(self.report), *(f"  PROBLEM: {one}" for one in self.problems)]))
        return self.report

    def _say(self, text: str) -> None:
        counts = f"{self.ledger.acked:,} acked, {self._progress.archived:,} archived, {self._progress.copied:,} copied"
        self._tell(f"{time.monotonic() - self._began:6.1f} s  {text}  ({counts})")

    def _make_topics(self) -> None:
        with Admin(self._cluster.namesrv) as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topic(topic, queues=self.plan.queues)

    def _may_go_on(self) -> bool:
        if self._muted:
            return True
        slower = min(self._progress.archived, self._progress.copied)
        return self.ledger.acked - slower < self.plan.lead

    def _look_after(self, load: Load) -> None:
        """Until all is sent, archived and copied, and everybody was killed who was to be."""
        pause, moved, last = threading.Event(), time.monotonic(), None
        while True:
            pause.wait(LOOK_SECONDS)
            now = time.monotonic()
            self._progress.look()
            self._see_to_broker(now)
            self._see_to_driver(now)
            state = (self._progress.archived, self._progress.copied, len(self._waiting))
            if state != last:
                last, moved, self._in_vain = state, now, 0
            if now - moved > WHOLE_PATIENCE:
                raise Broken(f"{self.plan}\n{self.report}\nnothing moves any more: {state}")
            if load.faults:
                raise load.faults[0]
            idle = load.ended and self._back_at is None and self._is_done()
            self._strike(idle)
            if idle and not self._waiting and not self._strike_at_start:
                break
        self._say("all is there")
        self._finish()

    def _is_done(self) -> bool:
        least = self.ledger.acked
        if min(self._progress.archived, self._progress.copied) < least:
            return False
        with metaq.Reader(self._cluster.namesrv, SOURCE) as reader:
            stored = sum(span.stop for span in reader.ranges().values())
        return self._progress.archived == self._progress.copied == stored

    # ------------------------------------------------------------ kills
    def _strike(self, idle: bool) -> None:
        counts = {ACKNOWLEDGED: self.ledger.acked, ARCHIVED: self._progress.archived}
        for waiting in list(self._waiting):
            strike = waiting.strike
            if not waiting.armed:
                if counts.get(strike.count, self._progress.copied) < strike.part * self.plan.messages and not idle:
                    continue
                waiting.before = self._edge(strike.edge)
                waiting.armed = waiting.before is not None
            if strike.edge != AT_ONCE and not idle and not crossed(waiting.before, self._edge(strike.edge)):
                continue
            if self._hit(strike):
                self._waiting.remove(waiting)
            elif (
                idle and self._driver is not None and self._broker.alive
            ):  # Spark ends workers that have nothing to do.
                self._waiting.remove(waiting)
                self.report.missed += 1
                self._say(f"not there any more: {strike}")

    def _edge(self, name: str) -> object:
        """Something that changes when that edge of a batch comes; None: it cannot be seen now."""
        if name != DELIVERED:
            return self._progress.edge(name)
        if self._back_at is not None:
            return None
        with metaq.Reader(self._cluster.namesrv, TARGET) as reader:
            return sum(span.stop for span in reader.ranges().values())

    def _hit(self, strike: Strike) -> bool:
        """Kill them, if all are there. Returns whether they were."""
        found: dict[str, Process | None] = {}
        below = self._scan()
        for victim in strike.victims:
            if victim == BROKER:
                if not self._broker.alive:
                    return False
                continue
            if self._driver is None or self._driver.poll() is not None:
                return False
            if victim not in {DRIVER, PYTHON}:
                those = processes.parts(self._driver.pid, below)[victim]
                if not those:
                    return False
                found[victim] = those[(self.ledger.begun + len(those)) % len(those)]
        for victim in strike.victims:
            self.report.kills[victim] = self.report.kills.get(victim, 0) + 1
            if victim == BROKER:
                if strike.mute:
                    self._lose_answers(strike.mute)
                self._broker.kill()
                self._cluster.mend()
                self._back_at = time.monotonic() + strike.away
            elif victim == DRIVER:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._driver.pid, signal.SIGKILL)
            elif victim == PYTHON:
                self._driver.kill()
            else:
                processes.kill(found[victim])
            self._struck.append(victim)
        self._strike_at_start |= strike.at_start
        self._say(f"killed: {strike}")
        return True

    def _lose_answers(self, seconds: float) -> None:
        """From now on what the broker stores is stored, and nobody hears of it; the producers send, however far ahead they are."""
        begun, give_up, pause = self.ledger.begun, time.monotonic() + SENDS_SECONDS, threading.Event()
        self._muted = True
        self._cluster.client_to_broker(0).stall("to client")
        while self.ledger.begun < begun + SENDS_UNANSWERED and time.monotonic() < give_up:
            pause.wait(LOOK_SECONDS)
        pause.wait(seconds)
        self._cluster.client_to_broker(0).cut()  # Or what is held back would come after all.
        self._muted = False

    def _see_to_broker(self, now: float) -> None:
        if self._back_at is not None and now >= self._back_at:
            self._broker.start()
            self._back_at = None
            self._say("the broker is back")

    def _see_to_driver(self, now: float) -> None:
        if self._driver is not None and self._driver.poll() is not None:
            self._bury()
        if self._driver is None:
            self._start_driver()
        if now - self._scanned > SCAN_SECONDS:
            below = self._scan()
            jvms = processes.parts(self._driver.pid, below)[JVM]
            if self._strike_at_start and jvms:
                self._strike_at_start = False
                self._struck.append(DRIVER)
                self.report.kills[DRIVER] = self.report.kills.get(DRIVER, 0) + 1
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._driver.pid, signal.SIGKILL)
                self._say("killed: the driver, as soon as it had its JVM")
        self._see_to_orphans(now)

    # ------------------------------------------------------------ the driver
    def _start_driver(self) -> None:
        plan = self.plan
        self.report.drivers += 1
        if self._in_vain > DEATHS_MAX:
            raise Broken(f"{plan}\n{self.report}\n{DEATHS_MAX} drivers have ended, the last so:\n{self._log_tail()}")
        told = json.dumps({
            "folder": str(self.folder), "namesrv": self._cluster.namesrv, "source": SOURCE, "target": TARGET,
            "archive_batch": plan.archive_batch, "archive_file": plan.archive_file, "copy_batch": plan.copy_batch,
            "copy_tasks": plan.copy_tasks, "compact_files": plan.compact_files, "delivery": self._delivery,
        })  # fmt: skip
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
        with self._log.open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.proof.driver", told],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._below = {}

    @property
    def _log(self) -> Path:
        return self.folder / f"driver-{self.report.drivers}.log"

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _bury(self) -> None:
        """The driver has ended: see that nothing of it stays, and that it had a reason."""
        code = self._driver.wait()
        now = time.monotonic()
        self._orphans += [(now, one) for one in self._below.values() if one.pid != self._driver.pid]
        killed = code == -signal.SIGKILL
        self._say(f"driver {self.report.drivers} ended: {'killed' if killed else f'exit status {code}'}")
        if not killed and (code != 0 or not (self.folder / FINISH).exists()):
            self.report.failed += 1
            self._in_vain += 1
            if not self._struck and TOO_SLOW not in self._log.read_text(errors="replace"):
                self.problems.append(
                    f"driver {self.report.drivers} ended with {code} though nothing was killed: {self._log_tail()}"
                )
        # A driver that was killed alone leaves a JVM that may get in the next one's way for a moment.
        self._struck = ["the driver before"] if {PYTHON, JVM} & set(self._struck) else []
        if self._back_at is not None:
            self._struck.append(BROKER)
        self._driver = None

    def _scan(self) -> list[Process]:
        self._scanned = time.monotonic()
        if self._driver is None:
            return []
        below = processes.below(self._driver.pid)
        self._below |= {one.key: one for one in below}
        return below

    def _see_to_orphans(self, now: float) -> None:
        left = []
        for since, one in self._orphans:
            if processes.lives(one):
                left.append((since, one))
            else:
                self.report.orphan_seconds = max(self.report.orphan_seconds, now - since)
        self._orphans = left
        for since, one in left:
            if now - since > PATIENCE:
                raise Broken(f"{self.plan}\n{self.report}\na process outlives its driver by {now - since:.0f} s: {one}")

    def _finish(self) -> None:
        """Let the driver end by itself, and see that all that it started does."""
        (self.folder / FINISH).touch()
        while True:
            self._scan()
            code = self._driver.wait(WHOLE_PATIENCE)
            self._bury()
            if code == 0:
                break
            self._start_driver()  # It was hit by the last strike, and noticed only now.
        while self._orphans:
            self._see_to_orphans(time.monotonic())
            threading.Event().wait(LOOK_SECONDS)
        if not is_free(self.folder / "archive"):
            self.problems.append("the archive's lease is still taken")

    def _end_driver(self) -> None:
        if self._driver is not None:
            below = self._scan()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            for one in [*below, *(one for _, one in self._orphans)]:
                processes.kill(one)
            self._driver.wait(PATIENCE)

    # ------------------------------------------------------------ the end
    def _compare(self) -> None:
        """All that was found goes into the report and the problems."""
        report, folder, store = self.report, self.folder / "archive", self._broker.data
        states, *_ = self.ledger.columns()
        report.acked, report.doubtful, report.refused = (
            int((states == one).sum()) for one in (ACKED, DOUBTFUL, REFUSED)
        )
        with ThreadPoolExecutor() as pool:
            survey = pool.submit(_survey, store)
            stored, copies = dumped(store, SOURCE, TARGET)
        batches = manifests(folder)
        plain = archived(sorted(folder.glob("**/*.parquet")))
        report.stored, report.copied, report.archived, report.batches = (
            len(stored),
            len(copies),
            len(plain),
            len(batches),
        )
        report.repeats = sum(batch["repeats"] for batch in batches)
        by_plan = sorted(path.resolve() for _, path in planned(folder))
        plainly = sorted(path.resolve() for path in folder.glob("**/*.parquet"))
        if by_plan != plainly:
            self.problems.append(
                f"the manifests name {len(by_plan)} files, a glob finds {len(plainly)}: {set(by_plan) ^ set(plainly)}"
            )
        if (rows := sum(batch["rows"] for batch in batches)) != len(plain):
            self.problems.append(f"the manifests count {rows} messages, the files have {len(plain)}")
        left = list((self.folder / ".archive.staging").glob("**/*.parquet"))
        if left:
            self.problems.append(f"{len(left)} files are left in the staging folder")
        self.problems += compare.receipts_against_store(stored, self.ledger)
        self.problems += compare.against_ledger(stored, self.ledger, "stored", once=False)
        self.problems += compare.against_ledger(plain, self.ledger, "archived", once=True)
        self.problems += compare.archive_against_store(plain, stored, report.repeats)
        self.problems += compare.copies_against_store(copies, stored, ordered=self.plan.ordered)
        if fault := survey.result():
            self.problems.append(fault)


def _survey(store: Path) -> str:
    """Whether what was delivered of staged transactions is what was decided."""
    asked = subprocess.run(
        metaq_command("store", "transactions", str(store)),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    return "" if asked.returncode == 0 else f"metaq store transactions: {asked.stderr[-2000:]}"


def run_seed(plan: Plan, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Run it in a new folder, which goes if all is well. Raises Broken: the folder stays as evidence."""
    report = Run(plan, folder, tell).run()
    shutil.rmtree(folder)
    return report
