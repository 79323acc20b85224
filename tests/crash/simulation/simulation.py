"""The course of one life: starts, faults and ends drawn from a seed, and after each start the whole look around."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from metaq.errors import MetaqError
from metaq.testing.power import PowerLossDisk
from tests.crash.simulation.bare import Unreadable
from tests.crash.simulation.checks import Checks
from tests.crash.simulation.ledger import Broken
from tests.crash.simulation.life import HINTS, Life, Report
from tests.crash.simulation.steps import Steps


class PowerOff(BaseException):
    """The process has ended in the middle of a call. No Exception: no handler of errors goes on after it."""


def simulate(seed: int, folder: Path, trace: Callable[[str], None] | None = None) -> Report:
    """Live one life in `folder`, which must be empty or missing, and leave nothing there.

    Raises Broken with the seed, what happened, and how to repeat it. `trace` is told each step.
    """
    course = _Course(seed, folder, trace)
    try:
        course.run()
    except Exception as error:
        told = "\n".join(f"  {line}" for line in course.told[-60:])
        where = "" if isinstance(error, Broken | Unreadable) else "".join(traceback.format_exception(error)[-4:])
        raise Broken(
            f"seed {seed}: {type(error).__name__}: {error}\n{where}{told}\n"
            f"to repeat it: python -m tests.crash.simulation {seed} --trace"
        ) from error
    finally:
        course.end()
    return course.report


def scratch() -> Path | None:
    """Where files cost least: in memory, if the machine has such a place; None for the usual one."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


class _Course:
    """Starts the broker, has it live, ends it one way or another, and starts it again on what is found then."""

    def __init__(self, seed: int, folder: Path, trace: Callable[[str], None] | None) -> None:
        self._folder, self._roots = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._life = Life(seed, PowerLossDisk(self._next_root(), f"disk {seed}"), trace)
        self._checks = Checks(self._life)
        self._steps = Steps(self._life, self._checks)
        self._after: PowerLossDisk | None = None
        """What is found at the next start."""

    @property
    def told(self) -> list[str]:
        return self._life.told

    @property
    def report(self) -> Report:
        return self._life.report

    def _next_root(self) -> Path:
        self._roots += 1
        return self._folder / f"{self._roots}"

    def end(self) -> None:
        self._life.leave()
        self._life.disk.close()
        if self._after:
            self._after.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self) -> None:
        self._life.tell(f"flush: {self._life.flush_type}")
        for _ in range(self._life.chance.randint(1, 4)):
            self._start()
            try:
                with self._interruption():
                    for _ in range(self._life.chance.choice((0, 3, 10, 30))):
                        self._steps.step()
                        if self._life.store.state.failed is not None:
                            break
                    self._finish()
            except PowerOff:
                self._life.tell("... in the middle of that")
            self._next()
        self._start(last=True)
        self._steps.staged.go_on_to_the_end()
        self._steps.transactions.end_all()
        self._steps.staged.end_all()
        self._checks.deliver_all()
        self._finish(orderly=True)
        self._next()

    def _start(self, *, last: bool = False) -> None:
        """Start the broker, perhaps with an end or faults on the way, and look at everything."""
        while True:
            trouble = "none" if last else self._life.chance.choice(("none",) * 5 + ("end", "full", "files", "error"))
            self._life.report.starts += 1
            self._life.tell(f"start{'' if trouble == 'none' else ' with trouble: ' + trouble}")
            disk = self._life.disk
            if trouble == "full":
                disk.room = self._life.chance.randrange(0, 100_000)
                disk.make_error = self._life.chance.choice((0, errno.ENOSPC))
            elif trouble == "files":
                disk.open_error = errno.EMFILE
            elif trouble == "error":
                self._life.one_error(disk, self._life.chance.randint(1, 30))
            try:
                with self._interruption(always=trouble == "end"):
                    self._life.open()
            except PowerOff:
                self._life.tell("... in the middle of the start")
                self._next()
                continue
            except MetaqError as error:
                if trouble in {"none", "end"}:
                    raise Broken(f"the start was refused: {error}") from error
                self._life.tell(f"the start was refused: {error}")
                self._mend()
                self._life.leave()
                self._life.disk.restart()
                continue
            self._mend()
            self._life.had_error = False
            self._checks.everything()
            self._steps.transactions.once()
            self._steps.staged.once()
            self._steps.staged.same()
            return

    def _mend(self) -> None:
        self._life.disk.room, self._life.disk.open_error, self._life.disk.make_error = None, 0, 0
        self._life.disk.on_call = self._life.disk.used = None

    @contextlib.contextmanager
    def _interruption(self, *, always: bool = False) -> Iterator[None]:
        """With luck, kill the process or cut the power at one of the calls of the disk from here on."""
        disk = self._life.disk
        if always or self._life.chance.random() < 0.5:
            calls = disk.calls + int(self._life.chance.choice((1, 3, 10, 40, 100)) * (0.3 + self._life.chance.random()))
            cut = self._life.chance.random() < 0.6
            before = disk.on_call

            def on_call(name: str) -> None:
                if disk.calls >= calls:
                    self._life.tell(f"{'the power is cut' if cut else 'killed'} at {name}, call {disk.calls}")
                    disk.on_call = _dead
                    self._end_now(cut=cut)
                    raise PowerOff
                if before:
                    before(name)

            disk.on_call = on_call
        try:
            yield
        finally:
            if disk.on_call is not _dead:
                disk.on_call = None

    def _end_now(self, *, cut: bool) -> None:
        if self._after is None:
            to = self._next_root()
            self._after = self._life.disk.cut(to) if cut else self._life.disk.kill(to)
            self._life.power_was_cut |= cut
            self._life.report.cuts += cut
            self._life.report.kills += not cut

    def _finish(self, *, orderly: bool = False) -> None:
        """End the process, in order or not."""
        way = (
            "close"
            if orderly or self._life.store.state.failed
            else self._life.chance.choice(("close", "kill", "kill", "cut", "cut"))
        )
        if self._life.store.state.failed is not None and not orderly:
            way = self._life.chance.choice(("close", "kill", "cut"))
        self._life.tell(way)
        self._life.disk.on_call = None if orderly else self._life.disk.on_call
        if way == "close":
            with self._life.refusals():
                self._life.broker.close()
            self._life.outstanding = [
                (pending, true) for pending, true in self._life.outstanding if pending.error is None
            ]
            self._life.answer()
            with self._life.refusals():
                self._life.store.close()
                if self._life.store.state.failed is None:
                    self._life.ledger.durable_end = self._life.ledger.log_end
                    for place in self._life.ledger.positions if not self._life.broker.offsets.failing else ():
                        self._life.ledger.positions[place] = {self._life.broker.offsets.get(*place)}
            self._after = self._life.disk
            if not orderly and self._life.chance.random() < 0.4:
                self._life.tell("and the power is cut")
                self._after = None
                self._end_now(cut=True)
        else:
            self._end_now(cut=way == "cut")

    def _next(self) -> None:
        """On to the folder that is found next."""
        assert self._after is not None
        self._mend()
        self._life.leave()
        if self._after is not self._life.disk:
            self._life.disk.close()
            shutil.rmtree(self._life.disk.root, ignore_errors=True)
        self._life.disk, self._after = self._after, None
        self._life.disk.restart()
        if self._life.chance.random() < 0.25:
            self._damage()

    def _damage(self) -> None:
        """Harm files that are hints only."""
        name = self._life.chance.choice(HINTS)
        path = self._life.disk.root / name
        how = self._life.chance.choice(("gone", "empty", "zeros", "short", "garbage", "deep", "old"))
        self._life.tell(f"damage: {name} is {how}")
        data = path.read_bytes() if path.exists() else b""
        if name == "abort":
            path.unlink(missing_ok=True) if path.exists() else path.touch()
        elif how == "gone":
            path.unlink(missing_ok=True)
        elif path.parent.exists():
            old = self._life.hints.get(name, b"")
            path.write_bytes({
                "empty": b"", "zeros": bytes(len(data)), "short": data[: len(data) // 2],
                "garbage": b"" if name == "checkpoint" else bytes(self._life.chance.randrange(256) for _ in range(50)),
                "deep": b"" if name == "checkpoint" else b"[" * 20_000, "old": old,
            }[how])  # fmt: skip


def _dead(_name: str) -> None:
    raise PowerOff
