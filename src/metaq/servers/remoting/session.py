"""One client's connection to a broker: the fast path for plain sends, ends of transactions and pulls, all else one by one.

One read event brings many requests. Runs of plain sends and ends go to the log in one call of the compiled extension, which also writes
their answers; pulls go from the scanned row to the store without a Command in between. What is left is decoded and
handled one by one. One connection's requests are taken in their order, whichever path they use, and their answers leave
in one write.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from metaq.broker.broker import Broker
from metaq.broker.channel import Notice
from metaq.broker.pulls.pull import FastPull, Pull, PullAnswer, PullOutcome
from metaq.broker.requests import PullRequest, SendBack
from metaq.errors import Reason, Refused, RemoteProtocolError, StoreError
from metaq.model.access import Action
from metaq.model.message import host_bytes
from metaq.net.peer import Peer
from metaq.net.sweep import Sweep
from metaq.net.turns import TURN_BYTES, Source
from metaq.saved import Saving
from metaq.servers.held_acks import HeldAcks
from metaq.servers.pieces import ColdPieces, ColdReads, Pieces
from metaq.servers.remoting.dispatch import Handling, RemotingSession
from metaq.servers.remoting.handlers import Call
from metaq.servers.remoting.notices import notification_of
from metaq.store.reads.long_body import LONG_BYTES, ColdBody, LongBody
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import LENGTH_BYTES, ONEWAY_FLAG, Command, SerializeType, decode, frame_bytes

log = logging.getLogger(__name__)

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
RETRY_LIMIT_VERSION = 121
"""Clients of at least this version mean the maxReconsumeTimes that they send."""
SIGNATURE: Final = b"Signature"
"""The field of a header by which RocketMQ's clients sign a request. Where it stands in a body, the slow path sees that."""
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
_APPENDED = (hot.KIND_SEND, hot.KIND_BATCH, hot.KIND_ENDING)
_OTHER, _PULL, _ENDING = hot.KIND_OTHER, hot.KIND_PULL, hot.KIND_ENDING
SINGLE_ROWS = 2
"""Of a read event that counts as a request by itself: a client may send a heartbeat in between."""
SINGLES_BEFORE_JOINING = 8
_FOUND, _COLD = PullOutcome.FOUND, PullOutcome.COLD
_new_tuple = tuple.__new__  # a call of the class itself costs a Python frame more


OLD_AT_ONCE: Final = 2
"""Pulls of old messages, 20 to 30 µs each, that a connection has answered before the others have a turn."""
OLD_MAX: Final = 1024
"""Such pulls of one connection that may wait."""
MANY_TURNS: Final = "[OVERLOAD]system busy: too many pulls of this connection wait for their turn; read the answers to the earlier ones first"


class Workspace:
    """What the sessions of one server work with, one read event at a time."""

    def __init__(self, broker: Broker, held_acks: HeldAcks, cold_reads: ColdReads) -> None:
        self.broker, self.appender = broker, broker.appender
        self.held_acks, self.cold_reads = held_acks, cold_reads
        self.table = hot.FrameTable(broker.options.frame_bytes_max, ROWS_MAX)
        self.outcome = hot.AppendOutcome()
        self.answers, self.acks = self._replies(), self._replies()
        """`acks`: success answers to sends and ends of transactions, by themselves because they may have to wait for the disk."""
        self.woken = self._replies()
        """Of one pull that was held, whoever's event it is."""
        self.current: BrokerSession | None = None
        """The session whose read event is being handled: its answers are gathered, those of others go out at once."""
        self.sweep: Sweep | None = None
        """What reads connections that send one by one, if there is one."""
        broker.settings.watch(self._options_changed)

    def _replies(self) -> hot.Replies:
        options = self.broker.options
        return hot.Replies(options.region_id.encode(), options.trace_on)

    def _options_changed(self, names: Collection[str]) -> None:
        if "trace_on" in names:  # perhaps in the middle of a read event, which has gathered answers already
            gathered = self.answers.take(), self.acks.take()
            self.answers, self.acks = self._replies(), self._replies()
            self.answers.extend(gathered[0])
            self.acks.extend(gathered[1])


class BrokerSession(RemotingSession):
    """One client's connection. It is also the `Channel` that groups know their members by."""

    def __init__(self, peer: Peer, handling: Handling, workspace: Workspace) -> None:
        super().__init__(peer, handling)
        self.born_host = host_bytes(peer.address[0].partition("%")[0] or "0.0.0.0", peer.address[1])  # noqa: S104  no address
        self._workspace = workspace
        self._old: deque[tuple[Pull, ReadResult]] = deque()
        """Pulls of old messages that wait for their turn."""
        self._old_left = 0
        """Such pulls that this read event may yet bring at once."""
        self._singles = 0
        """Plain requests that came one by one since the last that did not."""
        self.gates = workspace.broker.gates.of(self.caller)

    def data_received(self, data: memoryview) -> int:
        """Take every whole frame. Returns the bytes used. Raises RemoteProtocolError after answering what came before."""
        space = self._workspace
        table, start, end = space.table, 0, len(data)
        space.current, self._old_left = self, OLD_AT_ONCE
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
                frame_bytes(data, start, end, self._frame_bytes_max)  # raises with more to say about TLS and HTTP
                raise RemoteProtocolError(table.error)
            self._needed = table.needed
            if self._singles >= SINGLES_BEFORE_JOINING and start == end:
                self._join()
            return start
        finally:
            table.release()
            try:
                self._flush()
            except BaseException:
                space.acks.clear()  # what could not be flushed must not reach the next peer
                space.answers.clear()
                raise
            finally:
                space.current = None
                if space.broker.held_pulls.grown:
                    space.broker.answer_pulls()

    def _join(self) -> None:
        """Have a sweep read this connection, since it sends one by one."""
        self._singles, sweep = 0, self._workspace.sweep
        if sweep is not None and self.handling.identify is None:  # it looks for no signatures
            self.peer.join(sweep, (self.gates.table, self.born_host))

    # -- metaq.broker.channel.Channel
    @property
    def congested(self) -> bool:
        """Whether the client leaves much unread."""
        return self.peer.congested

    def tell(self, what: Notice) -> None:
        """Tell the client something; it answers nothing."""
        self.push(notification_of(what))

    def on_lost(self, why: str) -> None:  # noqa: ARG002  whatever the reason, its memberships end
        self._workspace.cold_reads.forget(self)
        self._workspace.broker.closed(self)

    # -- the two paths
    def _serve(self, rows: int) -> int:
        """Handle the table's rows in their order. Returns how many were handled."""
        space, peer, row = self._workspace, self.peer, 0
        table = space.table
        if self.handling.identify is not None and self._brings_signatures(rows):
            return self._serve_singly(rows)
        while row < rows:
            kind = table.kind(row)
            if kind in _APPENDED:
                # A run of plain sends and ends of transactions, up to the end or to one that is not plain.
                if space.appender.rows(table, row, rows, self.gates.table, self.born_host, space.acks, space.outcome):
                    row = space.outcome.row
                    if row == rows:
                        self._singles = self._singles + 1 if rows <= SINGLE_ROWS else 0
                        break
                    kind = table.kind(row)
                    if kind not in _APPENDED or (kind != _ENDING and self._open_gate(row)):
                        continue
                self._one(row)
            elif kind == _OTHER:
                self._singles = 0
                self._one(row)
            elif kind == _PULL:
                if peer.congested:
                    break
                self._singles = 0
                row = self._pulls(row, rows)
                continue
            else:
                self._back(row)
            row += 1
        return row

    def _brings_signatures(self, rows: int) -> bool:
        """Whether any of the rows may be signed. The fast paths take what comes for the connection's own."""
        table = self._workspace.table
        return any(SIGNATURE in bytes(table.frame(row)) for row in range(rows))

    def _serve_singly(self, rows: int) -> int:
        """As `_serve`, all by the slow path."""
        for row in range(rows):
            if self.peer.congested:
                return row
            self._singles = 0
            self._one(row)
        return rows

    def _open_gate(self, row: int) -> bool:
        """Whether the row has a gate now that it had not. False: the slow path decides."""
        try:
            return self.gates.open(self._workspace.table.topic(row))
        except (StoreError, OSError, MemoryError) as error:
            log.debug("no gate for row %d (%s); the slow path will say so, or succeed", row, error)
            return False

    def _one(self, row: int) -> None:
        """The slow path: one request, one method."""
        table = self._workspace.table
        try:
            command = decode(table.frame(row))
        except MemoryError as error:
            self._answer_failure(table.code(row), (table.opaque(row), table.binary(row)), error)
        else:
            self.handle(command)

    def _pulls(self, row: int, rows: int) -> int:
        """A run of plain pulls; or one that is not. Returns the row behind."""
        space = self._workspace
        fast_paths, answers = space.broker.pulls.fast_paths, space.answers
        fast_path = fast_paths.of(self.caller)
        if fast_path is not None:
            done = hot.answer_pulls(space.table, row, rows, fast_path, answers, JOINED_BYTES_MAX)
            if done > row:
                fast_paths.take_over(fast_path)
                if len(answers) >= JOINED_BYTES_MAX:
                    self.peer.write(answers.take())
                return done
        self._pull(row, fast_path)
        return row + 1

    def _pull(self, row: int, fast_path: hot.PullPath | None) -> None:
        space = self._workspace
        table, fast_paths = space.table, space.broker.pulls.fast_paths
        oneway = table.flag(row) & ONEWAY_FLAG
        reply_to = (table.opaque(row), table.binary(row))
        try:
            if not oneway:
                pull = space.broker.pulls.make(self, self.caller, _new_tuple(PullRequest, table.pull(row)), reply_to)
                if fast_path is not None:
                    key = hot.pull_key(table, row)
                    gate = fast_paths.open(fast_path, key, pull.request, pull.admission, pull.seen_changes)
                    if gate is not None and (generation := fast_paths.current()) is not None:
                        pull.fast = FastPull(self, fast_path, gate, generation)
                self.pull_one(pull)
        except Saving as saving:
            command = decode(table.frame(row))
            busy = self.park(command, saving)
            if busy is not None:
                self.send(busy)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            self._answer_failure(table.code(row), reply_to, error)

    def _back(self, row: int) -> None:
        """A message that comes back. As `MessageHandlers.send_back`, for those who may; the others hear it from there."""
        space, gatekeeper = self._workspace, self.handling.gatekeeper
        table = space.table
        oneway = table.flag(row) & ONEWAY_FLAG
        opaque, binary = reply_to = table.opaque(row), table.binary(row)
        try:
            group, log_offset, level, retries_max, repeated, version = table.back(row)
            if not (gatekeeper.unguarded or gatekeeper.allows(self.caller, Action.SUBSCRIBE, group.decode())):
                self._one(row)
                return
            if version < RETRY_LIMIT_VERSION:
                retries_max = None
            retries = space.broker.retries
            if not retries.give_back(group, log_offset, level, retries_max):
                retries.send_back(SendBack(
                    group=group.decode(), log_offset=log_offset, delay_level=level, retries_max=retries_max,
                    repeated=repeated,
                ))  # fmt: skip
            if not oneway:
                space.answers.add_done(opaque, binary)
        except Saving as saving:
            command = decode(table.frame(row))
            busy = self.park(command, saving)
            if busy is not None and not oneway:
                self.send(busy)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            if not oneway:
                self._answer_failure(RequestCode.CONSUMER_SEND_MSG_BACK, reply_to, error)

    def resume(self, command: Command, work: Callable[[], Command | None] | None) -> None:
        """A request that waited goes on: its answers leave as those of a read event do.

        A send whose connection has closed meanwhile is stored all the same: it came before the end. Nobody else is left
        to want what he asked for.
        """
        space = self._workspace
        if self.gone and command.code not in SENDS:
            return
        space.current = self
        try:
            if work is None:
                self.handle(command)
            else:
                super().resume(command, work)
        finally:
            if self.gone:
                space.acks.take()
                space.answers.take()
            self._flush()
            space.current = None
            if space.broker.held_pulls.grown:
                space.broker.answer_pulls()

    # -- pulls
    def pull_one(self, pull: Pull, *, its_turn: bool = False) -> None:
        """Read and answer, or hold; a pull that may be long when its turn has come. Raises what the store raises."""
        if pull.bytes_max > LONG_BYTES and not its_turn and self._waits_for_turn(pull):
            return
        answer = self._workspace.broker.pulls.first(pull)
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

    # -- metaq.broker.pulls.pull.FastAnswers
    def fast_answer(self, fast: FastPull, pull: Pull, place: int) -> bytes | None:
        """The answer to a held pull, as most of them are, without a value in between; None: it is not plain now."""
        space, (opaque, binary) = self._workspace, pull.reply_to
        try:
            if not hot.answer_held(fast.fast_path, fast.gate, place, pull.count_max, opaque, binary, space.woken):
                return None
            space.broker.pulls.fast_paths.take_over(fast.fast_path)
            return space.woken.take()
        except MemoryError:
            space.woken.clear()
            return None

    def write_fast(self, answers: bytes) -> None:
        """Send what `fast_answer` has made, at once."""
        self.peer.write_now(answers)

    def _waits_for_turn(self, pull: Pull) -> bool:
        """Whether a long pull comes later, because others are being answered. Raises Refused: too many wait."""
        if self.peer.turn_is_free:
            return False
        if not self.peer.when_its_turn(functools.partial(self._pull_in_turn, pull)):
            raise Refused(Reason.BUSY, MANY_TURNS)
        return True

    def _pull_in_turn(self, pull: Pull) -> None:
        try:
            self.pull_one(pull, its_turn=True)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            self.pull_failed(pull, error)

    def _read_cold(self, pull: Pull, pulled: ReadResult) -> None:
        """Read old messages: a few pulls at once, the others in turns, or whoever asks for many would keep all waiting."""
        if self._old_left > 0 and not self._old:
            self._old_left -= 1
            self._read_old(pull, pulled)
            return
        if len(self._old) >= OLD_MAX or not (self._old or self.peer.when_its_turn(self._old_in_turn, TURN_BYTES)):
            raise Refused(Reason.BUSY, MANY_TURNS)
        self._old.append((pull, pulled))

    def _old_in_turn(self) -> None:
        space = self._workspace
        space.current = self
        try:
            for _ in range(min(OLD_AT_ONCE, len(self._old))):
                pull, pulled = self._old.popleft()
                try:
                    self._read_old(pull, pulled)
                except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
                    self.pull_failed(pull, error)
        finally:
            if self._old:
                self.peer.when_its_turn(self._old_in_turn, TURN_BYTES)
            self._flush()
            space.current = None

    def _read_old(self, pull: Pull, pulled: ReadResult) -> None:
        """Old messages are read off the loop: a page that must come from the disk stalls only its own reader."""
        assert pulled.job is not None
        assert pulled.cached is not None
        if (found := pulled.cached()) is not None:
            self._after_cold(pull, found)
            return
        if not self._workspace.cold_reads.read(self, pulled.job, functools.partial(self._cold_done, pull)):
            text = "[OVERLOAD]system busy: too many pulls of old messages of this connection wait for the disk"
            self.pull_failed(pull, Refused(Reason.BUSY, text))

    def _cold_done(self, pull: Pull, future: asyncio.Future[ReadResult]) -> None:
        if future.cancelled() or self.peer.closed:
            return
        error = future.exception()
        if error is None:
            self._after_cold(pull, future.result())
        elif isinstance(error, Exception):
            self.pull_failed(pull, error)

    def _after_cold(self, pull: Pull, pulled: ReadResult) -> None:
        try:
            answer = self._workspace.broker.pulls.after_cold(pull, pulled)
        except Refused as refused:
            self.pull_failed(pull, refused)
            return
        if answer is not None:
            self.write_pull(pull, answer)

    def _pieces(self, body: LongBody) -> Source:
        """The pieces of a long answer, read where they may be."""
        return ColdPieces(body, self, self._workspace.cold_reads) if isinstance(body, ColdBody) else Pieces(body)

    # -- answers
    def write(self, data: bytes) -> None:
        gathered = self._workspace.answers
        if self._workspace.current is not self:
            self.peer.write(data)
            return
        gathered.extend(data)
        if len(gathered) >= JOINED_BYTES_MAX:
            self.peer.write(gathered.take())

    def write_pull(self, pull: Pull, answer: PullAnswer) -> None:
        """Write the answer to a pull: its body by itself if it is long, else with the event's other answers."""
        pulled, body, space = answer.pulled, answer.pulled.body, self._workspace
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
            if space.current is self:
                self._flush()
            self.peer.write_from(hot.pull_reply(*facts, len(pulled.long)), self._pieces(pulled.long))
            return
        if len(body) < LONG_BODY_BYTES and space.current is self:
            space.answers.add_pull(*facts, body)
            if len(space.answers) >= JOINED_BYTES_MAX:
                self.peer.write(space.answers.take())
            return
        head = hot.pull_reply(*facts, len(body))
        if len(body) < LONG_BODY_BYTES:
            self.peer.write(b"".join((head, body)))
            return
        if space.current is self:
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
        space = self._workspace
        if len(space.acks):
            due = space.broker.acks.due()
            if due is None:
                self.peer.write(space.acks.take())
            else:
                space.held_acks.hold(self.peer, due, space.acks.take())
        if len(space.answers):
            self.peer.write(space.answers.take())


def session_of(call: Call[Any]) -> BrokerSession:
    """The connection that a request to a broker came by."""
    session = call.session
    assert isinstance(session, BrokerSession), "a broker's server makes no others"
    return session
