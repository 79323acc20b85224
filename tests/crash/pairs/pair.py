"""Two brokers of one name: who leads, how the other follows, and how that changes.

The decisions of `metaq.app.role` are composed here without sockets, in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from metaq.app.role.both_logs import AskBoth
from metaq.app.role.lost_tail import longer, mend_torn
from metaq.app.role.master import MasterSearch, NoCommonHistory
from metaq.app.role.torn import slaves_of
from metaq.client.conversation.call import Call
from metaq.clock import FakeClock
from metaq.in_pieces import finish
from metaq.model.leadership import ASYNC_MASTER, SLAVE, SYNC_MASTER, Leadership
from metaq.saved import Pending
from tests.crash.pairs.archive import Archive
from tests.crash.pairs.comparison import compare, raw_log
from tests.crash.pairs.link import Link
from tests.crash.pairs.side import NUMBER, Side
from tests.crash.simulation.bare import BareRecord, read_log
from tests.crash.simulation.ledger import Broken, Ledger, short
from tests.crash.simulation.life import Life

T = TypeVar("T")

FILE_BYTES: Final = (64 * 1024, 24 * 1024, 24 * 1024)
"""Of a log file: the less, the more of them retention takes."""
ADDRESSES: Final = {"a": "10.0.0.1:10911", "b": "10.0.0.2:10911"}


class _Search(MasterSearch):
    both: AskBoth

    def _asking(self, _address: str) -> AskBoth:
        return self.both


class Pair:
    """The two, the link between them, and what the leader has promised (`life`)."""

    def __init__(self, life: Life, folder: Path) -> None:
        self.life = life
        chance, clock = life.chance, life.clock
        self.role = chance.choice((ASYNC_MASTER, SYNC_MASTER))
        file_bytes = chance.choice(FILE_BYTES)
        self.sides = [
            Side(name, folder, clock, chance.choice(("SYNC_FLUSH", "ASYNC_FLUSH")), role, file_bytes)
            for name, role in (("a", self.role), ("b", SLAVE))
        ]
        self._loop = asyncio.new_event_loop()
        self._leads = 0
        self.link: Link | None = None
        self.half_open: list[Link] = []
        """Links that the follower has left, and of which the leader does not know that."""
        self.is_cut = False
        """Whether the network between the two is cut."""
        self.agrees = False
        """Whether the follower's log is a begin of that of the one that leads now."""
        self.acked = 0
        """LogOffset up to which a slave has said that it has the log: sends of a SYNC_MASTER up to there are answered with SEND_OK."""
        self.fresh_deletions = set[str]()
        """Topics that were deleted since the follower looked at the tables last."""
        self.archive = Archive()
        life.disk.close()
        life.process = self.leader

    @property
    def leader(self) -> Side:
        return self.sides[self._leads]

    @property
    def follower(self) -> Side:
        return self.sides[1 - self._leads]

    @property
    def clock(self) -> FakeClock:
        return self.life.clock

    def let_go(self) -> None:
        for side in self.sides:
            side.let_go()
        self._loop.close()

    # ------------------------------------------------------------------ starts

    def start_leader(self) -> None:
        """Start the broker that has led and still does: with what the slave has of its log beyond its end after a crash."""
        leader = self.leader
        self.life.report.starts += 1
        self.life.outstanding.clear()
        self.life.had_error = False
        power_was_cut = leader.power_was_cut
        leader.start()
        if not leader.log_store.recovered.in_order:
            self._after_crash(leader)
        end = leader.log_store.log.end
        if end < self.acked:
            other = self.follower
            if not power_was_cut:
                raise Broken(f"the log of {leader.name} ends at {end}, and all up to {self.acked} was acknowledged")
            if other.is_up and not self.is_cut and not other.lost_power:
                raise Broken(f"the log of {leader.name} ends at {end}, and {other.name} has all up to {self.acked}")
            self.acked = end
        leader.lost_power = False
        leader.there.lead()
        leader.save()

    def _after_crash(self, leader: Side) -> None:
        other = self.follower
        if other.is_up and not self.is_cut:
            slaves = slaves_of(leader.there, [(ADDRESSES[other.name], other.there.roles.state())])
            mending = mend_torn(leader.there, slaves, lambda _address: self._asking(leader, other))
            found = self._run(mending, leader)
            if found is not None:
                self.life.tell(f"{leader.name} cuts its log at {leader.log_store.log.end}: behind that it is torn")
            else:
                found = longer(leader.there, slaves)
            if found is not None:
                self.life.tell(f"{leader.name} copies what it has lost from {other.name}, up to {found[1].log_end}")
                self.archive.hold_against(self.life, leader)
                if leader.log_store.state.follows is None:
                    leader.there.follow(for_now=True)
                link = Link(other.there, leader.there, self.life.chance, self._loop)
                link.carry_all()
                link.end()
                if leader.log_store.log.end != found[1].log_end:
                    raise Broken(
                        f"{leader.name} could not copy what it has lost: it ends at {leader.log_store.log.end}: {link.why}"
                    )
                self.archive.bring_back(self.life, leader)
                leader.log_store.flusher.flush()
        if leader.log_store.log.end < (other.log_store.log.end if other.is_up else other.may_hold):
            self.agrees = False  # it has, or may have, more than the leader goes on with
        roles = leader.there.roles
        self._keep(leader, roles.in_epoch(roles.began(0)))

    def start_follower(self) -> None:
        """Start the other one; the broker that led before finds its successor."""
        follower = self.follower
        self.life.report.starts += 1
        follower.start()
        broker = follower.there
        if broker.options.broker_role != SLAVE:
            self._keep(follower, broker.roles.following(NUMBER, ADDRESSES[self.leader.name]))
            follower.take_role(SLAVE, NUMBER)
        broker.follow()
        follower.save()

    def _run(self, work: Coroutine[Any, Any, T], side: Side) -> T:
        """Run what waits for tables that are saved meanwhile."""

        async def run() -> T:
            task = asyncio.ensure_future(work)
            try:
                while not task.done():
                    await asyncio.sleep(0)
                    side.save()
            finally:
                task.cancel()
            return await task

        return self._loop.run_until_complete(run())

    def _asking(self, own: Side, other: Side) -> AskBoth:
        """What has both answer requests for pieces of their logs, each with its log synced."""

        async def ask_both(call: Call[Any]) -> tuple[Any, Any]:
            for side in (other, own):
                side.log_store.flusher.flush()
            return other.piece_of_log(call), own.piece_of_log(call)

        return ask_both

    def _keep(self, side: Side, leadership: Leadership) -> None:
        _ended(side.there.roles.keep(leadership))

    # ------------------------------------------------------------------ following

    def connect(self) -> bool:
        """Connect the follower, if it can be. Returns whether it is connected."""
        if self.link is not None and (self.link.closed or self.is_cut):
            self.disconnect()
        if self.link is None and self.leader.is_up and self.follower.is_up and not self.is_cut:
            if self.follower.leads:
                self._have_step_down()
            self._agree()
            self.agrees = True
            self.link = Link(self.leader.there, self.follower.there, self.life.chance, self._loop)
            self.life.tell(f"{self.follower.name} follows {self.leader.name} from {self.follower.log_store.log.end}")
        return self.link is not None

    def _have_step_down(self) -> None:
        """The old leader, which did not hear of its successor until now, gives way, and starts again as its slave."""
        old = self.follower
        self.life.tell(f"{old.name} hears that {self.leader.name} leads, and steps down")
        old.there.step_down("it has stepped down")
        self._keep(old, old.there.roles.following(NUMBER, ADDRESSES[self.leader.name]))
        old.close()
        self.start_follower()

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.end()
            self.life.tell(f"the link ends: {self.link.why}")
            self.link = None

    def leave_half_open(self) -> None:
        """The follower has left the link, and its leader cannot hear of it."""
        assert self.link is not None
        self.link.leave()
        self.life.tell(f"the link is half-open: {self.link.why}")
        self.half_open.append(self.link)
        self.link = None

    def tick_links(self) -> None:
        """Let time pass at all links: the leader leaves those that are half-open by itself."""
        if self.link is not None:
            self.link.tick()
        for link in self.half_open:
            if link.master is self.leader.broker:
                link.tick_master()
        open_still = [link for link in self.half_open if link.master is self.leader.broker and link.is_half_open]
        for link in self.half_open:
            if link not in open_still:  # or that process has ended
                link.end()
        self.half_open = open_still

    def _agree(self) -> None:
        """Have the follower's log be a begin of the leader's."""
        follower, state = self.follower, self.leader.there.roles.state()
        own = follower.there.roles.kept
        if state.rank < own.rank:
            raise Broken(
                f"{self.leader.name} leads in epoch {state.epoch}, and {follower.name} has been in {own.epoch}"
            )
        log, root = follower.log_store.log, follower.disk.root
        end = log.end
        raw = raw_log(root, log.min, end)
        records, low = read_log(root, log.min, end), log.min
        follower.held = follower.durable = 0  # of a cut that is interrupted anything may be left
        told = len(own.cuts)
        search = _Search(follower.there, None, None)
        search.both = self._asking(follower, self.leader)
        try:
            self._run(search._agree(state, ADDRESSES[self.leader.name]), follower)
        except NoCommonHistory as error:
            self.life.tell(f"{follower.name} starts anew: {error}")
            self.start_anew()
            return
        # What it had beyond that is no part of the leader's log: it is promised no more.
        follower.reported = min(follower.reported, log.end)
        if log.end < end:
            self.life.tell(f"{follower.name} cuts its log at {log.end}, it ended at {end}")
            gone = [record for record in records if record.log_offset >= log.end]
            kept = _pieces(root)
            for record in gone:
                if not any(raw[record.log_offset - low : record.log_end - low] == _cut(record, *one) for one in kept):
                    raise Broken(f"{follower.name} has cut off the record at {record.log_offset}, and does not keep it")
            for tail in follower.there.roles.kept.cuts[told:]:
                counted = sum(record.log_offset >= tail.log_offset for record in records)
                if tail.records != counted:
                    raise Broken(f"{follower.name} has cut off {counted} records, and says {tail.records}")

    def start_anew(self) -> None:
        """The follower cannot go on with its log: an administrator starts it with an empty folder."""
        self.follower.wipe()
        self.fresh_deletions |= self.life.ledger.deleted_at.keys()  # it knows of none until it looks at the tables
        self.follower._more = {"broker_role": SLAVE, "broker_id": NUMBER}
        self.start_follower()
        self._agree()

    def carry(self, pieces: int) -> None:
        if self.link is not None:
            self.link.carry(pieces)
            self.note()

    def note(self) -> None:
        """Note what the follower has promised."""
        if self.leader.is_up:
            log = self.leader.log_store.log
            copied = min(self.leader.there.replicas.copied, log.end)
            if copied > log.min:  # who begins with nothing counts as having what retention has taken
                self.acked = max(self.acked, copied)
        if self.link is not None and self.follower.is_up:
            copied = min(
                self.link.of_slave.replica.copied, self.follower.log_store.log.end
            )  # it may have begun with nothing
            self.follower.reported = max(self.follower.reported, copied)

    def look(self) -> None:
        """The follower takes over what has changed in the leader's tables, as `metaq.app.role.following` does."""
        leader, followed = self.leader.there, self.follower.there.followed
        complete = False
        while not complete:
            changes = finish(leader.feed.changes(*followed.place))
            finish(followed.take(changes))
            complete = changes.complete
        self.fresh_deletions.clear()
        self.follower.forgotten.clear()

    def catch_up(self) -> None:
        """Let the follower have all of the leader's log. It starts anew where retention has taken what it needs."""
        for _ in range(3):
            if not self.connect():
                raise Broken("the two cannot be connected")
            assert self.link is not None
            for _ in range(3):  # with SYNC_FLUSH the follower reports what it has synced
                self.link.carry_all()
                self.follower.log_store.flusher.flush()
            self.note()
            follower, leader = self.follower.log_store.log, self.leader.log_store.log
            if follower.end == leader.end and not self.link.closed:
                return
            if 0 < follower.end < leader.min:
                self.life.tell(
                    f"{self.follower.name} starts anew: its log ends at {follower.end}, {leader.min} is the first"
                )
                self.disconnect()
                self.start_anew()
            elif self.link.closed:
                self.disconnect()
            else:
                raise Broken(
                    f"nothing comes any more: the follower's log ends at {follower.end}, the leader's at {leader.end}"
                )
        raise Broken(f"{self.follower.name} does not catch up")

    def be_quiet(self) -> None:
        """Let all come to rest, and compare the two."""
        life = self.life
        life.tell("quiet point")
        for _ in range(3):
            life.store.flusher.flush()
            life.save()
            life.answer()
        self.catch_up()
        for _ in range(2):
            self.look()
            self.follower.flush()
            self.follower.there.followed.tick()
        self.follower.flush()
        if self.follower.log_store.log.end >= self.acked:
            self.follower.lost_power = False
        topics = {record.body: record.topic for record in life.ledger.log if record.log_offset >= life.ledger.log_min}
        compare(
            self.leader,
            self.follower,
            [(topics[body], key) for body, key in life.ledger.keys.items() if body in topics],
        )

    # ------------------------------------------------------------------ changes of leaders

    def hand_over(self) -> None:
        """The leader steps down, the follower copies the rest and leads, and the old one follows: nothing is lost."""
        old, new, life = self.leader, self.follower, self.life
        life.tell(f"{new.name} is promoted, {old.name} steps down")
        self.be_quiet()
        old.there.step_down("it has stepped down")
        self._keep(old, old.there.roles.following(NUMBER, ADDRESSES[new.name]))
        life.clock.advance(0.1)
        self.catch_up()
        self.look()
        # What was committed at the new leader alone, when it led before, it still has.
        positions = {place: {side.there.offsets.get(*place) for side in (old, new)} for place in life.ledger.positions}
        self.disconnect()
        self._begins_where(new, life.ledger)
        self._lead(new)
        for place, known in positions.items():
            queue = new.log_store.reader.existing_queue(*place[1:])
            end = queue.max_offset if queue is not None else 0  # progress beyond the end is taken back to it
            life.ledger.positions[place] = {one if one is None else min(one, end) for one in known}
        old.close()
        self.start_follower()

    def take_over(self) -> None:
        """The follower leads without the other, which is dead or cut off."""
        new, life = self.follower, self.life
        self.disconnect()
        end = new.log_store.log.end
        life.tell(
            f"{new.name} is promoted by force; its log ends at {end}, that of {self.leader.name} had {life.ledger.log_end}"
        )
        self.check_acknowledged(new)
        if life.ledger.log_end < end:  # the leader before was killed while it copied this back
            self.archive.bring_back(life, new)
        life.outstanding.clear()
        new.log_store.flusher.flush()
        life.power_was_cut = True  # what is not here is lost for now
        life.ledger.durable_end = min(life.ledger.log_end, end)
        ledger = life.ledger
        self._begins_where(new, replace(ledger, log=[record for record in ledger.log if record.log_end <= end]))
        ledger.topics = dict.fromkeys(ledger.topics)
        ledger.groups = dict.fromkeys(ledger.groups)
        self._lead(new)
        for name in sorted(self.fresh_deletions | new.forgotten):
            self._delete_again(name)
        self.fresh_deletions.clear()
        new.forgotten.clear()
        for place in ledger.positions:
            ledger.positions[place] = {new.there.offsets.get(*place)}

    def _begins_where(self, new: Side, copied: Ledger) -> None:
        """The log of who leads next may begin later. Raises Broken: what was owed went there. `copied`: what that log has."""
        begin = new.log_store.log.min
        for record in copied.still_to_deliver():
            if record.log_offset < begin:
                raise Broken(f"{short(record)} was still to be delivered, and its log file went at {new.name}")
        self.life.ledger.log_min = max(self.life.ledger.log_min, begin)

    def _delete_again(self, name: str) -> None:
        """A deletion of which the new leader may not have heard is asked for once more."""
        ledger, leader = self.life.ledger, self.leader
        ledger.limbo.pop(name, None)
        ledger.topics[name] = None
        pending = leader.there.delete_topic(name)
        leader.flush()
        _ended(pending)
        ledger.deleted_at[name] = leader.log_store.log.end
        ledger.topics[name] = False

    def check_acknowledged(self, new: Side) -> None:
        """Raises Broken: the log of who leads now lacks what its master had for copied, and no power cut explains that."""
        end = new.log_store.log.end
        if end < self.acked and not new.lost_power:
            raise Broken(
                f"the log of {new.name}, which leads now, ends at {end}, and all up to {self.acked} was copied to it"
            )
        self.acked = min(self.acked, end)

    def _lead(self, new: Side) -> None:
        broker, roles = new.there, new.there.roles
        self._keep(new, roles.leading(self.role, roles.began(NUMBER)))
        new.take_role(self.role, 0)
        roles.master = ""
        self._leads, self.agrees = 1 - self._leads, False
        self.life.process = new
        broker.lead()
        broker.replicas.history += 1
        new.save()

    # ------------------------------------------------------------------ ends

    def end(self, side: Side, *, cut: bool) -> None:
        """Kill one of the two, or cut its power."""
        self.life.tell(f"{side.name}: {'the power is cut' if cut else 'killed'}")
        self.note()
        side.note()
        side.die(cut=cut)
        side.bury()
        self.disconnect()


def _pieces(root: Path) -> list[tuple[int, bytes]]:
    """LogOffset and bytes of all that is kept of what was cut off."""
    return [(int(path.name), path.read_bytes()) for path in (root / "cut").glob("*/*")]


def _cut(record: BareRecord, start: int, data: bytes) -> bytes:
    """The bytes of a record in one of these pieces; blank ends are not kept."""
    at = record.log_offset - start
    return data[at : at + record.size].ljust(record.size, b"\0") if 0 <= at < len(data) else b""


def _ended(pending: Pending) -> None:
    assert pending.done, "it was saved at once"
    if pending.error is not None:
        raise pending.error
