"""Troubles between the two and at the one that follows: links that stall or are half-open, a disk without room."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import Final

from metaq.broker.log.acks import Lack
from metaq.broker.replication.tables import AGAIN_SECONDS
from metaq.errors import Refused, StoreError
from metaq.servers.held_acks import HeldAcks
from tests.crash.pairs.pair import Pair
from tests.crash.pairs.side import Side
from tests.crash.simulation.ledger import Broken
from tests.crash.simulation.life import TOPICS
from tests.store.support import read_all

STALLED_SECONDS: Final = (4, 12, 19, 30, 45)
"""How long a link stalls; both ends leave one that is silent for 20 s."""
TICKS: Final = (0.5, 3.0, 5.0)
"""Seconds between two looks at the clock: less than `haSendHeartbeatInterval`, or as long."""
FLUSH_SECONDS: Final = 5.0
"""How long an answer waits for a flush; for the slave, `slaveTimeout` (3 s)."""
FULL: Final = ("no room on the disk", "disk is full")
"""What a broker says that has no room."""
LATE: Final = b"late "
"""Precedes an answer that says what its message lacks."""


class Troubles:
    """Steps of their own.

    Args: send: has the leader take a message.
    """

    def __init__(self, pair: Pair, send: Callable[[], None]) -> None:
        self._pair, self._send = pair, send

    def fill(self) -> None:
        """The follower's disk is full for a while: it stops following and says why, serves what it has, and goes on when there is room."""
        pair, life, follower = self._pair, self._pair.life, self._pair.follower
        if pair.is_cut or follower.leads or not (pair.leader.is_up and follower.is_up):
            return
        full, room = follower.disk, life.chance.randrange(40_000)
        life.tell(f"the disk of {follower.name} has room for {room} bytes")
        life.report.faults += 1
        full.room, full.make_error = room, life.chance.choice((0, errno.ENOSPC))
        try:
            for _ in range(life.chance.randint(1, 5)):
                for _ in range(life.chance.randint(1, 3)):
                    self._send()
                self._follow_without_room()
            _serves(follower)
        finally:
            full.room, full.make_error = None, 0
        life.tell("there is room again")
        life.clock.advance(AGAIN_SECONDS)  # what could not be saved is asked for again
        pair.catch_up()

    def _follow_without_room(self) -> None:
        pair, follower = self._pair, self._pair.follower
        try:
            if pair.connect():
                pair.carry(20)
            pair.look()
            follower.log_store.flusher.flush()
            follower.log_store.keeper.checkpoint()
        except (StoreError, Refused, OSError) as error:
            pair.life.tell(f"... {follower.name} cannot: {error}")
        follower.save()
        follower.there.tick()
        follower.note()
        if (failed := follower.log_store.state.failed) is not None:
            raise Broken(f"{follower.name} ends for want of room: {failed}")
        if pair.link is not None and pair.link.closed:
            why = pair.link.slave_said
            if why and not any(word in why for word in FULL):
                raise Broken(f"{follower.name} has no room, and gives another reason for following no more: {why}")
            pair.disconnect()

    def stall(self) -> None:
        """Bytes of one direction, of both or of none do not come for a while, until one end gives up, or they come again."""
        pair, life = self._pair, self._pair.life
        link = pair.link
        if link is None or link.closed or not (pair.leader.is_up and pair.follower.is_up) or life.is_troubled:
            return
        pair.tick_links()
        link.carry_all()  # what passed before without a tick is no silence of theirs
        if link.closed:
            pair.disconnect()
            return
        to_slave, to_master = life.chance.choice(((True, False), (False, True), (True, True), (False, False)))
        seconds = life.chance.choice(STALLED_SECONDS)
        life.tell(f"for {seconds} s nothing comes{' at the slave' * to_slave}{' at the master' * to_master}")
        link.stall(to_slave=to_slave, to_master=to_master)
        answers, reads, stops = _Answers(pair), _Reads(pair), life.clock.monotonic() + seconds
        while life.clock.monotonic() < stops and not link.closed:
            if life.chance.random() < 0.3:
                self._send()
                answers.hold()
            life.clock.advance(life.chance.choice(TICKS))
            link.carry_all()
            pair.follower.log_store.flusher.flush()  # with SYNC_FLUSH it reports then
            link.carry_all()
            pair.tick_links()
            pair.note()
            answers.expire()
            reads.look()
        answers.forget()
        if link.is_half_open and to_master:  # its word that it goes does not come either
            pair.leave_half_open()
        elif link.closed:
            if link.was_silent and not (to_slave or to_master):
                raise Broken(f"nothing was in the way of a link, and it was left: {link.said}")
            pair.disconnect()
        else:
            link.stall(to_slave=False, to_master=False)


def _serves(side: Side) -> None:
    """Raises Broken: consumers do not get from it what its log has."""
    for (topic, queue_id), queue in side.log_store.reader.queues().items():
        wanted = queue.max_offset - queue.min_offset
        if topic in TOPICS and len(found := read_all(side.log_store, topic, queue_id)) != wanted:
            raise Broken(f"{side.name} gives {len(found)} of {wanted} messages in {topic}:{queue_id}")


class _Answers:
    """Answers to sends, held as a server does until they are true or late. They tell the truth of the follower's log."""

    def __init__(self, pair: Pair) -> None:
        self._pair, leader = pair, pair.leader.there
        self._acks, self._since = leader.acks, dict[int, float]()
        self._held = HeldAcks(
            leader.acks, leader.store.flusher, pair.clock, lambda act: act(), FLUSH_SECONDS, _late,
            copy_seconds=leader.options.slave_timeout / 1000,
        )  # fmt: skip

    def hold(self) -> None:
        """Hold the answer to what was sent last."""
        due = self._acks.due()
        if due is not None:
            self._since[due.copied] = self._pair.clock.monotonic()
            self._held.hold(self, due, str(due.copied).encode())

    def write(self, data: bytes) -> None:
        """Take an answer. Raises Broken: the follower has not what it says."""
        copied = int(data.removeprefix(LATE))
        follower = self._pair.follower
        known = self._since.pop(copied, None) is not None and follower.is_up
        if known and not data.startswith(LATE) and (end := follower.log_store.log.end) < copied:
            raise Broken(f"a send up to {copied} was answered, and the log of {follower.name} ends at {end}")

    def expire(self) -> None:
        """Let time pass. Raises Broken: an answer does not come."""
        self._held.expire()
        for copied, since in self._since.items():
            if self._pair.clock.monotonic() - since >= FLUSH_SECONDS:
                raise Broken(f"a send up to {copied} is not answered")

    def forget(self) -> None:
        """Their connections end."""
        self._since.clear()


class _Reads:
    """How far clients read the log of a SYNC_MASTER: as the follower has it, until that reports nothing new for `slaveTimeout`."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._timeout = pair, pair.leader.there.options.slave_timeout / 1000
        self._copied = pair.leader.there.replicas.copied
        self._lacks_since = math.inf
        """Not known before it has reported something."""

    def look(self) -> None:
        """Let time pass. Raises Broken: clients read what only the leader has."""
        leader, replicas = self._pair.leader.log_store, self._pair.leader.there.replicas
        replicas.tick()
        now, end = self._pair.clock.monotonic(), self._pair.follower.log_store.log.end
        if replicas.copied > self._copied:
            self._copied, self._lacks_since = replicas.copied, now
        elif replicas.copied >= leader.log.end:
            self._lacks_since = now
        read_end = min(leader.log.tail.read_end, leader.log.end)
        is_waited_for = replicas.required and replicas.available and 0 <= now - self._lacks_since < self._timeout
        if is_waited_for and read_end > end:
            raise Broken(f"clients read up to {read_end}, and the log of {self._pair.follower.name} ends at {end}")


def _late(frames: bytes, _lack: Lack) -> bytes:
    return LATE + frames
