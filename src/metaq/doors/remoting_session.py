"""One client's connection to a broker: the fast lane for plain sends and pulls, and everything else one by one.

One read event brings many requests. Runs of plain sends go to the log in one call of the hot module, which also writes
their answers; pulls go from the scanned row to the store without a Command in between. What is left is decoded and
handled one by one. One connection's requests are taken in their order, whichever lane they use, and their answers leave
in one write.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from metaq.broker.channel import Told
from metaq.broker.pull import Pull, PullAnswer, PullOutcome
from metaq.broker.requests import PullRequest
from metaq.doors.dispatch import RemotingSession
from metaq.doors.handlers import Call
from metaq.doors.pieces import ColdPieces, Pieces
from metaq.errors import Reason, Refused, RemoteProtocolError, StoreError
from metaq.model.message import host_bytes
from metaq.model.notices import MembersChanged
from metaq.net.peer import Peer
from metaq.net.turns import Source
from metaq.saved import Saving
from metaq.store.long_body import LONG_BYTES, LongBody
from metaq.store.pull import ReadResult, ReadStatus
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import ONEWAY_FLAG, Command, SerializeType, decode, request
from metaq.wire.frame import LENGTH_BYTES, frame_bytes
from metaq.wire.headers import ConsumerGroupHeader

if TYPE_CHECKING:
    from metaq.doors.remoting import RemotingDoor

log = logging.getLogger(__name__)

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
ROWS_MAX = 4096
JOINED_BYTES_MAX = 256 * 1024
"""Answers of one read event are gathered up to this, then written."""
LONG_BODY_BYTES = 64 * 1024
"""A pull's body from here on is written by itself: copying it costs more than a write."""

CODE_OF: Mapping[PullOutcome, int] = {
    PullOutcome.FOUND: int(ResponseCode.SUCCESS),
    PullOutcome.GO_ON: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    PullOutcome.NOTHING_NEW: int(ResponseCode.PULL_NOT_FOUND),
    PullOutcome.OUT_OF_RANGE: int(ResponseCode.PULL_OFFSET_MOVED),
}
REMARK_OF = {status: status.name for status in ReadStatus}
"""RocketMQ says how the look-up ended, in its names."""
_FOUND, _COLD = PullOutcome.FOUND, PullOutcome.COLD
_new_tuple = tuple.__new__  # a call of the class itself costs a Python frame more


def notification_of(what: Told) -> Command:
    """What tells a client so."""
    match what:
        case MembersChanged(group):
            header = ConsumerGroupHeader(consumer_group=group)
            return request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)


class BrokerSession(RemotingSession):
    """One client's connection. It is also the `Channel` that groups know their members by."""

    def __init__(self, peer: Peer, door: RemotingDoor) -> None:
        super().__init__(peer, door.handling)
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
                    door.broker.answer_pulls()

    # -- metaq.broker.channel.Channel
    def tell(self, what: Told) -> None:
        """Tell the client something; it answers nothing."""
        self.push(notification_of(what))

    def on_lost(self, why: str) -> None:  # noqa: ARG002  whatever the reason, its memberships end
        self._door.cold_reads.forget(self)
        self._door.broker.closed(self)

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
                self.pull_one(door.broker.pulls.make(self, _new_tuple(PullRequest, table.pull(row)), reply_to))
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
                door.broker.answer_pulls()

    # -- pulls
    def pull_one(self, pull: Pull, *, its_turn: bool = False) -> None:
        """Read and answer, or hold; a pull that may be long when its turn has come. Raises what the store raises."""
        if pull.bytes_max > LONG_BYTES and not its_turn and self._waits_for_turn(pull):
            return
        pulls = self._door.broker.pulls
        answer = pulls.first(pull, pulls.read(pull, pull.offset))
        if answer is None:
            return
        if answer.outcome is _COLD:
            self._read_cold(pull, answer.pulled)
        else:
            self.write_pull(pull, answer)

    def answer_pull(self, pull: Pull, answer: PullAnswer | Exception) -> None:
        """Answer a pull that was held; one that fails is told."""
        if isinstance(answer, Exception):
            self.pull_failed(pull, answer)
            return
        try:
            if answer.outcome is _COLD:
                self._read_cold(pull, answer.pulled)
            else:
                self.write_pull(pull, answer)
        except (MemoryError, OSError, RuntimeError) as error:  # RuntimeError: no more threads
            self.pull_failed(pull, error)

    def _waits_for_turn(self, pull: Pull) -> bool:
        """Whether a long pull comes later, because others are being answered. Raises Refused: too many wait."""
        if self.peer.turn_is_free:
            return False
        if not self.peer.when_its_turn(functools.partial(self._pull_in_turn, pull)):
            raise Refused(
                Reason.BUSY,
                "[OVERLOAD]system busy: too many pulls of this connection wait for their turn; read the answers to the "
                "earlier ones first",
            )
        return True

    def _pull_in_turn(self, pull: Pull) -> None:
        try:
            self.pull_one(pull, its_turn=True)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            self.pull_failed(pull, error)

    def _read_cold(self, pull: Pull, pulled: ReadResult) -> None:
        """Old messages are read off the loop: a page that must come from the disk stalls only its own reader."""
        assert pulled.job is not None
        if not self._door.cold_reads.read(self, pulled.job, functools.partial(self._cold_done, pull)):
            text = "[OVERLOAD]system busy: too many pulls of old messages of this connection wait for the disk"
            self.pull_failed(pull, Refused(Reason.BUSY, text))

    def _cold_done(self, pull: Pull, future: asyncio.Future[ReadResult]) -> None:
        if future.cancelled() or self.peer.closed:
            return
        error = future.exception()
        if error is None:
            self.write_pull(pull, self._door.broker.pulls.after_cold(pull, future.result()))
        elif isinstance(error, Exception):
            self.pull_failed(pull, error)

    def _pieces(self, body: LongBody) -> Source:
        """The pieces of a long answer, read where they may be."""
        return ColdPieces(body, self, self._door.cold_reads) if body.cold else Pieces(body)

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
            self.peer.write_from(hot.pull_reply(*facts, len(pulled.long)), self._pieces(pulled.long))
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


def session_of(call: Call[Any]) -> BrokerSession:
    """The connection that a request to a broker came by."""
    session = call.session
    assert isinstance(session, BrokerSession), "a broker's door makes no others"
    return session
