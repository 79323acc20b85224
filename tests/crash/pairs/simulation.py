"""The course of one pair: what happens to which of the two, drawn from a seed, and a quiet point now and then."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from metaq.broker.requests import OffsetCommit, Send
from metaq.saved import Saving
from metaq.testing.power import PowerLossDisk
from tests.crash.pairs.pair import Pair
from tests.crash.pairs.side import Side
from tests.crash.pairs.troubles import Troubles
from tests.crash.simulation.bare import Unreadable
from tests.crash.simulation.checks import Checks
from tests.crash.simulation.ledger import Broken
from tests.crash.simulation.life import BORN, GROUPS, QUEUES, TOPICS, Life, Report
from tests.crash.simulation.steps import Steps


def simulate(seed: int, folder: Path, trace: Callable[[str], None] | None = None) -> Report:
    """Run the pair of one seed in `folder`, which must be empty or missing, and leave nothing there.

    Raises Broken with the seed, what happened, and how to repeat it. `trace` is told each step.
    """
    course = _Course(seed, folder, trace)
    try:
        course.run()
    except Exception as error:
        told = "\n".join(f"  {line}" for line in course.life.told[-60:])
        where = "" if isinstance(error, Broken | Unreadable) else "".join(traceback.format_exception(error)[-4:])
        raise Broken(
            f"seed {seed}: {type(error).__name__}: {error}\n{where}{told}\n"
            f"to repeat it: python -m tests.crash.pairs {seed} --trace"
        ) from error
    finally:
        course.pair.let_go()
        shutil.rmtree(folder, ignore_errors=True)
    return course.life.report


class _Steps(Steps):
    """The steps of the broker that leads."""

    def send(self) -> None:
        """A message, with nothing else that a step may do."""
        self._send()
        self.answer()

    def _commit(self) -> None:
        """A consumer's progress: it never lies beyond the end of a queue, to which a change of leaders would take it back."""
        group, topic = self._life.chance.choice(GROUPS), self._life.chance.choice(TOPICS)
        queue = self._life.store.reader.existing_queue(topic, 0)
        if queue is None or not (self._life.ledger.groups.get(group) and self._life.ledger.topics.get(topic)):
            return
        offset = self._life.chance.randint(queue.min_offset, queue.max_offset)
        self._life.tell(f"{group} commits {offset} in {topic}:0")
        with self._life.refusals():
            self._life.broker.commit_offset(OffsetCommit(group=group, topic=topic, queue_id=0, offset=offset))
            self._life.ledger.positions.setdefault((group, topic, 0), {None}).add(offset)


class _Course:
    def __init__(self, seed: int, folder: Path, trace: Callable[[str], None] | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.life = Life(seed, PowerLossDisk(folder / "unused"), trace)
        self._aside = 0
        self.pair = Pair(self.life, folder / f"{seed}")
        self._checks = Checks(self.life)
        self._steps = _Steps(self.life, self._checks)
        self._troubles = Troubles(self.pair, self._steps.send)

    @property
    def _chance(self):
        return self.life.chance

    def run(self) -> None:
        pair, life = self.pair, self.life
        life.tell(f"{pair.role}, flush: {', '.join(f'{side.name} {side.flush_type}' for side in pair.sides)}")
        pair.start_leader()
        self._look_around()
        pair.start_follower()
        for _ in range(self._chance.choice((10, 30, 80, 200))):
            self._step()
        self._all_up()
        pair.be_quiet()
        self._steps.staged.go_on_to_the_end()
        self._steps.transactions.end_all()
        self._steps.staged.end_all()
        self._checks.deliver_all()
        pair.be_quiet()

    def _step(self) -> None:
        pair = self.pair
        steps = (
            (self._lead_on, 60), (self._carry, 25), (self._chores, 5), (self._look, 4), (self._quiet, 2), (self._network, 3),
            (self._end_one, 4), (self._start_one, 8), (self._promote, 3), (self._send_aside, 3),
            (self._troubles.stall, 2), (self._fill, 1),
        )  # fmt: skip
        (step,) = self._chance.choices([step for step, _ in steps], [weight for _, weight in steps])
        step()
        pair.note()
        pair.archive.note(self.life)

    # ------------------------------------------------------------------ steps

    def _lead_on(self) -> None:
        pair, leader = self.pair, self.pair.leader
        if not leader.is_up:
            return
        with leader.mortal(self._chance, 0.02, self.life.tell):
            before = dict(self.life.ledger.deleted_at)
            self._steps.step()
            # A full disk lasts for some steps.
            while self.life.disk_is_bad and leader.log_store.state.failed is None and self._chance.random() < 0.8:
                self._steps.step()
            self._mend(leader)
            gone = {*self.life.ledger.deleted_at.items()} - {*before.items()}
            pair.fresh_deletions |= self.life.ledger.limbo.keys() | {name for name, _ in gone}
            if leader.log_store.state.failed is not None:
                self.life.tell(f"{leader.name} ends: {leader.log_store.state.failed}")
                leader.die(cut=False)
        if not leader.is_up:
            self._has_ended(leader)

    def _mend(self, side: Side) -> None:
        side.disk.room, side.disk.open_error, side.disk.make_error = None, 0, 0

    def _has_ended(self, side: Side) -> None:
        self.life.report.kills += not side.power_was_cut
        self.life.report.cuts += side.power_was_cut
        self.pair.disconnect()
        side.lost_power |= side.power_was_cut and side.held < self.pair.acked  # also what it had as a leader
        if side is self.pair.leader:
            self.life.power_was_cut |= side.power_was_cut

    def _carry(self) -> None:
        pair = self.pair
        if not (pair.leader.is_up and pair.follower.is_up):
            return
        with pair.follower.mortal(self._chance, 0.04, self.life.tell):
            if pair.connect():
                pair.carry(self._chance.choice((1, 3, 10, 40)))
        if not pair.follower.is_up:
            self._has_ended(pair.follower)

    def _fill(self) -> None:
        follower = self.pair.follower
        if follower.is_up:
            with follower.mortal(self._chance, 0.04, self.life.tell):
                self._troubles.fill()
            if not follower.is_up:
                self._has_ended(follower)

    def _chores(self) -> None:
        """What a slave does by itself."""
        follower = self.pair.follower
        if not follower.is_up:
            return
        what = self._chance.choice(("flush", "save", "checkpoint", "tick", "retain", "retain"))
        self.life.tell(f"{follower.name}: {what}")
        with follower.mortal(self._chance, 0.1, self.life.tell):
            if what == "flush":
                follower.log_store.flusher.flush()
            elif what == "save":
                follower.save()
            elif what == "checkpoint":
                follower.log_store.keeper.checkpoint()
            elif what == "retain":
                follower.disk.used = self._chance.choice((None, 88.0))  # then files go before their time
                follower.log_store.keeper.retain(self.life.clock.now_ms(), at_once=True)
                follower.disk.used = None
            else:
                follower.there.tick()
                follower.there.deliver()
                self.pair.tick_links()
        follower.note()
        if not follower.is_up:
            self._has_ended(follower)

    def _look(self) -> None:
        pair = self.pair
        if pair.leader.is_up and pair.follower.is_up and not pair.is_cut and not pair.follower.leads:
            self.life.tell(f"{pair.follower.name} looks at the tables")
            self._steps.let_go()  # and hears what is needed of the log
            pair.look()

    def _quiet(self) -> None:
        pair = self.pair
        if pair.leader.is_up and pair.follower.is_up and not pair.is_cut:
            pair.be_quiet()

    def _network(self) -> None:
        pair = self.pair
        pair.is_cut = not pair.is_cut and self._chance.random() < 0.5
        self.life.tell(f"the network is {'cut' if pair.is_cut else 'there'}")
        if pair.is_cut:
            pair.disconnect()

    def _end_one(self) -> None:
        side = self._chance.choice(self.pair.sides)
        if side.is_up:
            self.pair.end(side, cut=self._chance.random() < 0.5)
            self._has_ended(side)

    def _start_one(self) -> None:
        for side in self.pair.sides:
            if not side.is_up:
                self._start(side)
                return

    def _start(self, side: Side, likely: float = 0.15) -> None:
        """Start one of the two, perhaps with an end on the way."""
        pair = self.pair
        leads = side is pair.leader
        if not leads and not pair.leader.is_up:
            return  # it would lead, or wait for a master
        self.life.tell(f"{side.name} starts, and {'leads' if leads else 'follows'}")
        with side.mortal(self._chance, likely, self.life.tell):
            if leads:
                pair.start_leader()
                self._look_around()
            else:
                pair.start_follower()
        if not side.is_up:
            self._has_ended(side)

    def _promote(self) -> None:
        pair = self.pair
        if not pair.follower.is_up or pair.follower.leads:
            return
        lacks = pair.follower.there.followed.lacks()
        if lacks is not None:
            self.life.tell(
                f"{pair.follower.name} is not promoted: the log from {lacks} on is needed, and not all of it is there"
            )
            return
        if pair.leader.is_up and not pair.is_cut:
            pair.hand_over()
        elif pair.agrees and self._chance.random() < 0.7:
            pair.take_over()
        else:
            return
        self._look_around()

    def _send_aside(self) -> None:
        """The broker that was replaced and does not know it takes messages."""
        old = self.pair.follower
        if not old.leads:
            return
        for _ in range(self._chance.randint(1, 5)):
            self._aside += 1
            body = b"aside %d" % self._aside
            send = Send(
                topic=self._chance.choice(TOPICS), body=body, queue_id=self._chance.randrange(QUEUES),
                born_ms=self.life.clock.now_ms(), born_host=BORN, template_queues=QUEUES,
            )  # fmt: skip
            try:
                old.there.sends.send(send)
            except Saving:
                old.save()
            else:
                self.life.tell(f"{old.name} still takes {body!r}")

    def _all_up(self) -> None:
        self.pair.is_cut = False
        for side in (self.pair.leader, self.pair.follower):
            if not side.is_up:
                self._start(side, 0)

    def _look_around(self) -> None:
        """Hold all that was promised against what the leader has."""
        self._checks.everything()
        self._steps.transactions.once()
        self._steps.staged.once()
        self._steps.staged.same()
