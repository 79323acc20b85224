"""The broker's remoting door: the fast lane for plain sends and pulls, and the handler table for everything else.

One read event brings many requests. Runs of plain sends go to the log in one call of the hot module, which also writes
their answers; pulls go from the scanned row to the store without a Command in between. What is left is decoded and
handled one by one (`remoting_messages`, `remoting_clients`, `remoting_admin`). One connection's requests are taken in
their order, whichever lane they use, and their answers leave in one write.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from metaq.broker.broker import Broker
from metaq.broker.members import Notice
from metaq.broker.pull import Pull, PullAnswer, PullOutcome
from metaq.broker.requests import PullRequest
from metaq.doors.dispatch import RemotingSession
from metaq.doors.flush_gate import FlushGate
from metaq.doors.handlers import table_of
from metaq.doors.parking import Parking
from metaq.doors.pieces import ColdPieces, ColdReads, Pieces
from metaq.doors.remoting_admin import AdminHandlers
from metaq.doors.remoting_clients import ClientHandlers
from metaq.doors.remoting_messages import SENDS, MessageHandlers
from metaq.errors import Reason, Refused, RemoteProtocolError, StoreError
from metaq.log import RateLimitedLog
from metaq.model.message import host_bytes
from metaq.net.peer import Peer
from metaq.net.turns import Source
from metaq.saved import Saving
from metaq.store.long_body import LONG_BYTES, LongBody
from metaq.store.pull import Pulled, PullStatus
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import ONEWAY_FLAG, Command, SerializeType, decode, request
from metaq.wire.frame import LENGTH_BYTES, frame_bytes
from metaq.wire.headers import ConsumerGroupHeader

log = logging.getLogger(__name__)

ROWS_MAX = 4096
JOINED_BYTES_MAX = 256 * 1024
"""Answers of one read event are gathered up to this, then written."""
LONG_BODY_BYTES = 64 * 1024
"""A pull's body from here on is written by itself: copying it costs more than a write."""
COLD_READERS = 2

CODE_OF: Mapping[PullOutcome, int] = {
    PullOutcome.FOUND: int(ResponseCode.SUCCESS),
    PullOutcome.GO_ON: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    PullOutcome.NOTHING_NEW: int(ResponseCode.PULL_NOT_FOUND),
    PullOutcome.OUT_OF_RANGE: int(ResponseCode.PULL_OFFSET_MOVED),
}
REMARK_OF = {status: status.name for status in PullStatus}
"""RocketMQ says how the look-up ended, in its names."""
_FOUND, _COLD = PullOutcome.FOUND, PullOutcome.COLD

CallSoon = Callable[[Callable[[], None]], None]


class RemotingDoor:
    """Makes a session for each connection to one broker.

    Args: `call_soon` brings a call from another thread to the event loop: `loop.call_soon_threadsafe`.
    """

    def __init__(self, broker: Broker, call_soon: CallSoon) -> None:
        self.broker, self.appender = broker, broker.appender
        self.faults = RateLimitedLog(log, broker.clock)
        options = broker.options
        self.frame_bytes_max = options.frame_bytes_max
        self.table = hot.FrameTable(options.frame_bytes_max, ROWS_MAX)
        self.outcome = hot.AppendOutcome()
        self.answers, self.acks = self._replies(), self._replies()
        """`acks`: success answers to sends, by themselves because they may have to wait for the disk."""
        broker.settings.on_change.append(self._options_changed)
        self.current: BrokerSession | None = None
        """The session whose read event is being handled: its answers are gathered, those of others go out at once."""
        self.flush_gate = FlushGate(
            broker.acks, broker.store, broker.clock, call_soon, broker.store_options.sync_flush_timeout / 1000
        )
        self.parking = Parking(broker.clock)
        self.handlers = table_of(
            MessageHandlers(broker, lambda: self.acks, self.pull_one),
            ClientHandlers(broker, self.notify),
            AdminHandlers(broker, self._when_registered),
        )
        self.after_registration: Callable[[Callable[[], None]], None] = _at_once
        """Calls its argument when the name servers know the topics as they are; set by whoever registers the broker."""
        self._cold_readers = ThreadPoolExecutor(COLD_READERS, "metaq-cold-read")
        self._cold_reads = ColdReads(self._cold_readers)
        self._delay_reader = ThreadPoolExecutor(1, "metaq-delay-read")
        broker.ladder.read_cold = self._read_delayed

    def _replies(self) -> hot.Replies:
        options = self.broker.options
        return hot.Replies(options.region_id.encode(), options.trace_on)

    def _options_changed(self, names: Collection[str]) -> None:
        if "trace_on" in names:  # perhaps in the middle of a read event, which has gathered answers already
            gathered = self.answers.take(), self.acks.take()
            self.answers, self.acks = self._replies(), self._replies()
            self.answers.extend(gathered[0])
            self.acks.extend(gathered[1])

    def session(self, peer: Peer) -> BrokerSession:
        """A new connection."""
        return BrokerSession(peer, self)

    def tick(self) -> None:
        """Let time pass; called ten times a second."""
        self.notify(self.broker.tick())
        self.answer_woken()
        self._answer_held(self.broker.pulls.overdue())
        self.flush_gate.expire()
        self.faults.tick()
        self.parking.expire()

    def deliver(self) -> float:
        """Deliver delayed messages that are due, for a bounded time. Returns the seconds until the next call, 0: soon."""
        pause = self.broker.ladder.deliver()
        self.answer_woken()
        return pause

    def _read_delayed(self, job: Callable[[], Pulled], done: Callable[[Pulled | None], None]) -> None:
        def finish(future: asyncio.Future[Pulled]) -> None:
            if future.cancelled():
                return
            if error := future.exception():
                log.error("old delayed messages could not be read, they are tried again: %s", error)
            done(None if error else future.result())

        asyncio.get_running_loop().run_in_executor(self._delay_reader, job).add_done_callback(finish)

    def _when_registered(self, done: Callable[[], None]) -> None:
        self.after_registration(done)

    def close(self) -> None:
        self._cold_readers.shutdown(wait=False, cancel_futures=True)
        self._delay_reader.shutdown(wait=False, cancel_futures=True)

    def notify(self, notices: Iterable[Notice]) -> None:
        """Tell consumers that the members of their group have changed."""
        if not self.broker.options.notify_consumer_ids_changed_enable:
            return
        for channel, group in notices:
            config = self.broker.groups.get(group)
            if config is None or config.notify_changed:
                header = ConsumerGroupHeader(consumer_group=group)
                channel.push(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True))

    # -- pulls
    def answer_woken(self) -> None:
        """Answer the held pulls whose queues grew."""
        if self.broker.hold.grown:
            self._answer_held(self.broker.pulls.woken())

    def _answer_held(self, answers: Iterable[tuple[Pull, PullAnswer | Exception]]) -> None:
        """Answer pulls that were held; one that fails is told, and the others are answered all the same."""
        for pull, answer in answers:
            session = pull.channel
            assert isinstance(session, BrokerSession)
            if isinstance(answer, Exception):
                session.pull_failed(pull, answer)
                continue
            try:
                self.answer_pull(pull, answer)
            except (MemoryError, OSError, RuntimeError) as error:  # RuntimeError: no more threads
                session.pull_failed(pull, error)

    def pull_one(self, pull: Pull, *, its_turn: bool = False) -> None:
        """Read and answer, or hold; a pull that may be long when its turn has come. Raises what the store raises."""
        if pull.bytes_max > LONG_BYTES and not its_turn and self._waits_for_turn(pull):
            return
        pulls = self.broker.pulls
        answer = pulls.first(pull, pulls.read(pull, pull.offset))
        if answer is not None:
            self.answer_pull(pull, answer)

    def _waits_for_turn(self, pull: Pull) -> bool:
        """Whether a long pull comes later, because others are being answered. Raises Refused: too many wait."""
        session = pull.channel
        assert isinstance(session, BrokerSession)
        if session.peer.turn_is_free:
            return False
        if not session.peer.when_its_turn(functools.partial(self._pull_in_turn, session, pull)):
            raise Refused(
                Reason.BUSY,
                "[OVERLOAD]system busy: too many pulls of this connection wait for their turn; read the answers to the "
                "earlier ones first",
            )
        return True

    def _pull_in_turn(self, session: BrokerSession, pull: Pull) -> None:
        try:
            self.pull_one(pull, its_turn=True)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            session.pull_failed(pull, error)

    def answer_pull(self, pull: Pull, answer: PullAnswer) -> None:
        session = pull.channel
        assert isinstance(session, BrokerSession)
        if answer.outcome is _COLD:
            self._read_cold(session, pull, answer.pulled)
        else:
            session.write_pull(pull, answer)

    def _read_cold(self, session: BrokerSession, pull: Pull, pulled: Pulled) -> None:
        """Old messages are read off the loop: a page that must come from the disk stalls only its own reader."""
        assert pulled.job is not None
        if not self._cold_reads.read(session, pulled.job, functools.partial(self._cold_done, session, pull)):
            text = "[OVERLOAD]system busy: too many pulls of old messages of this connection wait for the disk"
            session.pull_failed(pull, Refused(Reason.BUSY, text))

    def _cold_done(self, session: BrokerSession, pull: Pull, future: asyncio.Future[Pulled]) -> None:
        if future.cancelled() or session.peer.closed:
            return
        error = future.exception()
        if error is None:
            session.write_pull(pull, self.broker.pulls.after_cold(pull, future.result()))
        elif isinstance(error, Exception):
            session.pull_failed(pull, error)

    def pieces(self, session: BrokerSession, body: LongBody) -> Source:
        """The pieces of a long answer, read where they may be."""
        return ColdPieces(body, session, self._cold_reads) if body.cold else Pieces(body)

    def gone(self, session: BrokerSession) -> None:
        """A connection has ended: forget what it waits for."""
        self._cold_reads.forget(session)
        self.broker.hold.closed(session)
        self.notify(self.broker.members.closed(session))


_new_tuple = tuple.__new__  # a call of the class itself costs a Python frame more


def _at_once(done: Callable[[], None]) -> None:
    done()


class BrokerSession(RemotingSession):
    """One client's connection. It is also the `Channel` that groups know their members by."""

    def __init__(self, peer: Peer, door: RemotingDoor) -> None:
        super().__init__(peer, door.handlers, door.parking, door.frame_bytes_max, door.faults)
        self.born_host = host_bytes(peer.address[0].partition("%")[0] or "0.0.0.0", peer.address[1])  # noqa: S104  no address
        self._door = door
        self.gates = door.broker.gates.of(self.identity)

    def data_received(self, data: memoryview) -> int:
        """Take every whole frame. Returns the bytes used. Raises RemoteProtocolError after answering what came before."""
        door = self._door
        table, start, end = door.table, 0, len(data)
        door.current = self
        try:
            while True:
                used = table.scan(data, start, end)
                rows = len(table)
                done = self._serve(rows)
                if done < rows:  # The peer does not read its answers: it gets no more of them until it does.
                    start += sum(LENGTH_BYTES + len(table.frame(row)) for row in range(done))
                    self._needed = 0
                    return start
                start += used
                if rows < ROWS_MAX:
                    break
            if table.error:
                frame_bytes(data, start, end, door.frame_bytes_max)  # raises with more to say about TLS and HTTP
                raise RemoteProtocolError(table.error)
            self._needed = table.needed
            return start
        finally:
            table.release()
            try:
                self._flush()
            except BaseException:
                door.acks.clear()  # what could not be flushed must not reach the next peer
                door.answers.clear()
                raise
            finally:
                door.current = None
                if door.broker.hold.grown:
                    door.answer_woken()

    def on_lost(self, why: str) -> None:  # noqa: ARG002  whatever the reason, its memberships end
        self._door.gone(self)

    # -- the two lanes
    def _serve(self, rows: int) -> int:
        """Handle the table's rows in their order. Returns how many were handled."""
        door, peer, row = self._door, self.peer, 0
        table = door.table
        while row < rows:
            kind = table.kind(row)
            if kind == hot.KIND_OTHER:
                self._one(row)
                row += 1
            elif kind == hot.KIND_PULL:
                if peer.congested:
                    break
                self._pull(row)
                row += 1
            else:
                # A run of plain sends, up to the end or to one that is not plain.
                if door.appender.rows(table, row, rows, self.gates.table, self.born_host, door.acks, door.outcome):
                    row = door.outcome.row
                    if row == rows or table.kind(row) in (hot.KIND_OTHER, hot.KIND_PULL) or self._open_gate(row):
                        continue
                self._one(row)
                row += 1
        return row

    def _open_gate(self, row: int) -> bool:
        """Whether the row has a gate now that it had not. False: the slow lane decides."""
        try:
            return self.gates.open(self._door.table.topic(row))
        except (StoreError, OSError, MemoryError) as error:
            log.debug("no gate for row %d (%s); the slow lane will say so, or succeed", row, error)
            return False

    def _one(self, row: int) -> None:
        """The slow lane: one request, one method."""
        table = self._door.table
        try:
            command = decode(table.frame(row))
        except MemoryError as error:
            self._answer_failure(table.code(row), (table.opaque(row), table.binary(row)), error)
        else:
            self.handle(command)

    def _pull(self, row: int) -> None:
        door = self._door
        table = door.table
        oneway = table.flag(row) & ONEWAY_FLAG
        reply_to = (table.opaque(row), table.binary(row))
        try:
            if not oneway:
                door.pull_one(door.broker.pulls.make(self, _new_tuple(PullRequest, table.pull(row)), reply_to))
        except Saving as saving:
            command = decode(table.frame(row))
            busy = self.park(command, saving)
            if busy is not None:
                self.send(busy)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            self._answer_failure(table.code(row), reply_to, error)

    def resume(self, command: Command, work: Callable[[], Command | None] | None) -> None:
        """A request that waited goes on: its answers leave as those of a read event do.

        A send whose connection has closed meanwhile is stored all the same: it came before the end. Nobody else is left
        to want what he asked for.
        """
        door = self._door
        if self.gone and command.code not in SENDS:
            return
        door.current = self
        try:
            if work is None:
                self.handle(command)
            else:
                super().resume(command, work)
        finally:
            if self.gone:
                door.acks.take()
                door.answers.take()
            self._flush()
            door.current = None
            if door.broker.hold.grown:
                door.answer_woken()

    # -- answers
    def write(self, data: bytes) -> None:
        gathered = self._door.answers
        if self._door.current is not self:
            self.peer.write(data)
            return
        gathered.extend(data)
        if len(gathered) >= JOINED_BYTES_MAX:
            self.peer.write(gathered.take())

    def write_pull(self, pull: Pull, answer: PullAnswer) -> None:
        """Write the answer to a pull: its body by itself if it is long, else with the event's other answers."""
        pulled, body, door = answer.pulled, answer.pulled.body, self._door
        opaque, binary = pull.reply_to
        if answer.outcome is _FOUND:  # spares two look-ups: hashing an enum is dear
            code, remark = 0, "FOUND"
        else:
            code, remark = CODE_OF[answer.outcome], REMARK_OF[answer.status]
        facts = (
            opaque, binary, code, remark, answer.suggest_broker_id, answer.next_offset,
            pulled.min_offset, pulled.max_offset,
        )  # fmt: skip
        if pulled.long is not None:
            if door.current is self:
                self._flush()
            self.peer.write_from(hot.pull_reply(*facts, len(pulled.long)), door.pieces(self, pulled.long))
            return
        if len(body) < LONG_BODY_BYTES and door.current is self:
            door.answers.add_pull(*facts, body)
            if len(door.answers) >= JOINED_BYTES_MAX:
                self.peer.write(door.answers.take())
            return
        head = hot.pull_reply(*facts, len(body))
        if len(body) < LONG_BODY_BYTES:
            self.peer.write(b"".join((head, body)))
            return
        if door.current is self:
            self._flush()
        self.peer.write(head)
        self.peer.write(body)

    def pull_failed(self, pull: Pull, error: Exception) -> None:
        self._answer_failure(RequestCode.PULL_MESSAGE, pull.reply_to, error)

    def _answer_failure(self, code: int, reply_to: tuple[int, bool], error: Exception) -> None:
        opaque, binary = reply_to
        serialize = SerializeType.BINARY if binary else SerializeType.JSON
        self.send(self.failure(Command(code, opaque, serialize=serialize), error))

    def _flush(self) -> None:
        """Write what this event gathered. Answers to sends wait for the disk where they must.

        Raises MemoryError: the answers are lost, and the connection must end.
        """
        door = self._door
        if len(door.acks):
            due = door.broker.acks.due()
            if due is None:
                self.peer.write(door.acks.take())
            else:
                door.flush_gate.hold(self.peer, due, door.acks.take())
        if len(door.answers):
            self.peer.write(door.answers.take())
