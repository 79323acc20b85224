"""One client's connection to a broker: a fast path for plain sends, ends of transactions and pulls, a slow one for all
else.

One read event brings many requests. Runs of plain sends and ends go to the log in one call of the compiled extension,
which also writes their answers; pulls go from the scanned row to the store without a Command in between. All other
requests are decoded and handled one by one. A connection's requests are handled in their order, on whichever path, and
their answers leave in one write.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from metaq.broker.channel import Notice
from metaq.broker.pulls.pull import FastPull, Pull, PullAnswer, PullOutcome
from metaq.broker.requests import PullRequest, SendBack
from metaq.errors import Reason, Refused, RemoteProtocolError, StoreError
from metaq.kept import Kept
from metaq.model.message import host_bytes
from metaq.net.peer import Peer
from metaq.net.turns import TURN_BYTES, Source
from metaq.saved import Saving
from metaq.servers.pieces import ColdPieces, Pieces
from metaq.servers.record_access import check_record
from metaq.servers.remoting.acl.signed import callers_of
from metaq.servers.remoting.dispatch import Handling, RemotingSession
from metaq.servers.remoting.handlers import Call
from metaq.servers.remoting.notices import notification_of
from metaq.servers.remoting.quota.waits import charge_account, judge_rows, refuse_rows
from metaq.servers.remoting.workspace import ROWS_MAX, Workspace
from metaq.store.reads.long_body import LONG_BYTES, ColdBody, LongBody
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import LENGTH_BYTES, ONEWAY_FLAG, Command, SerializeType, decode, frame_bytes

log = logging.getLogger(__name__)

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
RETRY_LIMIT_VERSION = 121
"""RocketMQ 3.4.9, from which on clients mean the maxReconsumeTimes that they send; older ones get the group's retryMaxTimes."""
JOINED_BYTES_MAX = 256 * 1024
"""Bytes of answers of one read event that are gathered before they are written."""
LONG_BODY_BYTES = 64 * 1024
"""Smallest body of a pull's answer that is written by itself: copying it costs more than a write."""

CODE_OF: Mapping[PullOutcome, int] = {
    # Clients decode the pull header for exactly these four codes, and take any other for a failure.
    PullOutcome.FOUND: int(ResponseCode.SUCCESS),
    PullOutcome.GO_ON: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    PullOutcome.NOTHING_NEW: int(ResponseCode.PULL_NOT_FOUND),
    PullOutcome.OUT_OF_RANGE: int(ResponseCode.PULL_OFFSET_MOVED),
}
REMARK_OF = {status: status.name for status in ReadStatus}
"""Remark of a pull's answer: RocketMQ's name for the outcome of the look-up."""
_APPENDED = (hot.KIND_SEND, hot.KIND_BATCH, hot.KIND_ENDING)
_OTHER, _PULL, _ENDING = hot.KIND_OTHER, hot.KIND_PULL, hot.KIND_ENDING
SINGLE_ROWS = 2
"""Most requests of a read event that counts as a single one: a client may send a heartbeat in between."""
SINGLES_BEFORE_JOINING = 8
"""Single requests in a row after which a connection joins the sweep."""
_FOUND, _COLD = PullOutcome.FOUND, PullOutcome.COLD
_new_tuple = tuple.__new__  # calling the NamedTuple itself costs another Python frame

OLD_AT_ONCE: Final = 2
"""Pulls of old messages, 20 to 30 µs each, that one connection has answered before others have a turn."""
OLD_MAX: Final = 1024
"""Most pulls of old messages of one connection that wait."""
MANY_TURNS: Final = "[OVERLOAD]system busy: too many pulls of this connection wait for their turn; read the answers to the earlier ones first"
MANY_READS: Final = "[OVERLOAD]system busy: too many pulls of old messages of this connection wait for the disk"


class BrokerSession(RemotingSession):
    """One client's connection. Also the `Channel` by which groups know their members."""

    def __init__(self, peer: Peer, handling: Handling, workspace: Workspace) -> None:
        super().__init__(peer, handling)
        self.born_host = host_bytes(peer.address[0].partition("%")[0] or "0.0.0.0", peer.address[1])  # noqa: S104  no address
        self._workspace = workspace
        self._old: deque[tuple[Pull, ReadResult]] = deque()  # pulls of old messages that wait for their turn
        self._old_left = self._reading = 0
        """Pulls of old messages that this read event may still answer at once; and those that a thread reads for."""
        self._waiting_pulls = Kept(peer.keep)
        """Memory of pulls that wait for their turn or for the disk."""
        self._singles = 0  # single plain requests in a row
        self._callers = callers_of(workspace.signers, self.caller)
        self._sender = self.caller
        """Caller of the rows that a fast path handles now; with access control, the last one that was proven."""
        self.gates = workspace.broker.gates.of(self._sender)

    def data_received(self, data: memoryview) -> int:
        """Handle every whole frame. Return the bytes used. Raises RemoteProtocolError after answering what came before."""
        space, metering = self._workspace, self.metering
        table, start, end = space.table, 0, len(data)
        if metering.waits:
            return self.nothing_now()
        space.current, self._old_left = self, OLD_AT_ONCE
        try:
            while True:
                used = table.scan(data, start, end)
                rows = len(table)
                if metering.limited and rows:
                    done = self._serve_judged(rows)
                else:  # spared a call: this is the way of every send
                    done = self._serve_run(0, rows) if self.handling.identify is None else self._serve(rows)
                if done < rows:  # the peer does not read its answers: it gets no more of them until it does
                    start += sum(LENGTH_BYTES + len(table.frame(row)) for row in range(done))
                    self._needed = 0
                    return start
                start += used
                if rows < ROWS_MAX or self.slices.waits or metering.waits:
                    break
            if table.error:
                frame_bytes(data, start, end, self._frame_bytes_max)  # raises a better text for TLS and HTTP
                raise RemoteProtocolError(table.error)
            self._needed = table.needed
            # A connection with kept bytes does not join: a sweep cannot put them in front of those that it reads.
            if self._singles >= SINGLES_BEFORE_JOINING and start == end and not self.slices.waits:
                self._join()
            return start
        finally:
            # The rows are views of the loop's shared buffer, which the next connection overwrites.
            table.release()
            if self.slices.began:
                self.slices.end()
            try:
                self._flush()
            except BaseException:
                space.acks.clear()  # the buffers are shared: what could not be written must not reach the next peer
                space.answers.clear()
                raise
            finally:
                space.current = None
                # Once per read event and not per message, and behind our own answers: others' pulls wait for what these
                # sends brought.
                if space.broker.held_pulls.grown:
                    space.broker.answer_pulls()

    def _join(self) -> None:
        """Have a sweep read this connection, since it sends one by one."""
        self._singles, sweep = 0, self._workspace.sweep
        if sweep is None or self.metering.limited:  # it does not look at quotas
            return
        if (proof := () if self._callers is None else self._callers.proof) is not None:
            self.peer.join(sweep, (self.gates.table, self.born_host, *proof))

    # -- metaq.broker.channel.Channel
    @property
    def congested(self) -> bool:
        """Whether the client leaves much unread."""
        return self.peer.congested

    def keep(self, more: int) -> None:
        """Count bytes of memory that are kept for this client."""
        self.peer.keep(more)

    def may_keep(self, more: int) -> bool:
        """Return whether so many more would not get this client closed."""
        return self.peer.may_keep(more)

    def tell(self, what: Notice) -> None:
        """Send the client a notice, which it does not answer."""
        self.push(notification_of(what))

    def on_lost(self, why: str) -> None:  # noqa: ARG002  whatever the reason, its memberships end
        self._workspace.cold_reads.forget(self)
        self._workspace.broker.closed(self)

    def on_leaving(self) -> None:
        # At once, though answers may be out still: a dead client's kernel ends its sending just so, and its group must not wait.
        for pull, answer in self._workspace.broker.pulls.give_up(self):
            self.answer_pull(pull, answer)
        self._workspace.broker.closed(self)

    @property
    def owes(self) -> bool:
        return bool(super().owes or self._old or self._reading or self._workspace.held_acks.holds(self.peer))

    # -- the two paths
    def _serve(self, rows: int) -> int:
        """Handle the table's rows in their order. Return how many were handled."""
        if self.handling.identify is None:
            return self._serve_run(0, rows)
        row, space, callers = 0, self._workspace, self._callers
        while row < rows and not self.slices.waits:
            stop, caller = callers.run(space.table, row, rows) if callers is not None else (row, None)
            if callers is None or caller is None:
                if self.peer.congested or not self.slices.may_go_on():
                    break
                self._singles = 0
                self._one(row)
                row += 1
                continue
            if caller is not self._sender:
                self._sender, self.gates = caller, space.broker.gates.of(caller)
                if not charge_account(self.metering, caller, space.table, row, self._answer_failure):
                    row += 1
                    continue
            row = self._serve_run(row, stop)
            if row < stop and not callers.changed:  # else those behind are judged by the new rules
                break
        return row

    def _serve_run(self, row: int, rows: int) -> int:
        """Handle rows of one caller, `_sender`. Return the row behind the last that was handled."""
        space, peer, slices, callers = self._workspace, self.peer, self.slices, self._callers
        table = space.table
        while row < rows:
            kind = table.kind(row)
            if kind in _APPENDED:
                # Appends a run of plain sends and ends of transactions, up to the last row or to one that is not plain.
                if space.appender.rows(table, row, rows, self.gates.table, self.born_host, space.acks, space.outcome):
                    row = space.outcome.row
                    if row == rows:
                        self._singles = self._singles + 1 if rows <= SINGLE_ROWS else 0
                        break
                    kind = table.kind(row)
                    # The row that stopped the run: of another kind, or for a topic without a gate. With a gate now, the
                    # run goes on at it.
                    if kind not in _APPENDED or (kind != _ENDING and self._open_gate(row)):
                        continue
                if not slices.may_go_on():
                    break
                self._one(row)
            elif kind == _OTHER:
                self._singles = 0
                if not slices.may_go_on():
                    break
                self._one(row)
            elif kind == _PULL:
                if peer.congested:  # answers to pulls are long; those to sends are not, and sends are taken
                    break
                self._singles = 0
                row = self._pulls(row, rows)
                if slices.waits:
                    break
                continue
            else:
                if not slices.may_go_on():
                    break
                self._back(row)
            row += 1
            if slices.waits or (callers is not None and callers.changed):
                break
        return row

    def _serve_judged(self, rows: int) -> int:
        """Handle the rows that the quotas take, otherwise as `_serve`; if none, refuse some."""
        table = self._workspace.table
        if taken := judge_rows(self, table, rows):
            return self._serve(taken)
        return refuse_rows(table, rows, self.metering.refusal, self._one, self._answer_failure)

    def _open_gate(self, row: int) -> bool:
        """Open a gate to the row's topic. Return False if there is none: the slow path decides."""
        try:
            return self.gates.open(self._workspace.table.topic(row))
        except (StoreError, OSError, MemoryError) as error:
            log.debug("no gate for row %d (%s); the slow path will say so, or succeed", row, error)
            return False

    def _one(self, row: int) -> None:
        """Handle one row by the slow path."""
        table = self._workspace.table
        try:
            command = decode(table.frame(row))
        except MemoryError as error:
            self._answer_failure(table.code(row), (table.opaque(row), table.binary(row)), error)
        else:
            self.handle(command)

    def _pulls(self, row: int, rows: int) -> int:
        """Answer a run of plain pulls, or one that is not plain. Return the row behind, or the same if the connection has to
        wait for its turn."""
        space = self._workspace
        fast_paths, answers = space.broker.pulls.fast_paths, space.answers
        fast_path = fast_paths.of(self._sender)
        if fast_path is not None:
            done = hot.answer_pulls(space.table, row, rows, fast_path, answers, JOINED_BYTES_MAX)
            if done > row:
                fast_paths.take_over(fast_path)
                if len(answers) >= JOINED_BYTES_MAX:
                    self.out.write(answers.take())
                return done
        if not self.slices.may_go_on():
            return row
        self._pull(row, fast_path)
        return row + 1

    def _pull(self, row: int, fast_path: hot.PullPath | None) -> None:
        space = self._workspace
        table, fast_paths = space.table, space.broker.pulls.fast_paths
        oneway = table.flag(row) & ONEWAY_FLAG
        reply_to = (table.opaque(row), table.binary(row))
        try:
            if not oneway:  # nobody would see the messages
                pull = space.broker.pulls.make(self, self._sender, _new_tuple(PullRequest, table.pull(row)), reply_to)
                if fast_path is not None:
                    key = hot.pull_key(table, row)
                    gate = fast_paths.open(fast_path, key, pull.request, pull.admission, pull.seen_changes)
                    if gate is not None and (generation := fast_paths.current()) is not None:
                        pull.fast = FastPull(self, fast_path, gate, generation)
                self.pull_one(pull)
        except Saving as saving:
            command = decode(table.frame(row))
            if (busy := self.park(command, saving)) is not None:
                self.send(busy)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            if self.handling.identify is not None and isinstance(error, Refused) and error.reason is Reason.DENIED:
                self._one(row)  # whose remark says which request was refused
            else:
                self._answer_failure(table.code(row), reply_to, error)

    def _back(self, row: int) -> None:
        """Handle CONSUMER_SEND_MSG_BACK (36) without a Command; a caller that may not is refused by the slow path."""
        space, table = self._workspace, self._workspace.table
        oneway = table.flag(row) & ONEWAY_FLAG
        opaque, binary = reply_to = table.opaque(row), table.binary(row)
        if not space.broker.leads:  # it is refused, or relayed
            self._one(row)
            return
        try:
            group, log_offset, level, retries_max, repeated, version = table.back(row)
            if not self._may_give_back(group.decode(), log_offset):
                self._one(row)
                return
            if version < RETRY_LIMIT_VERSION:
                retries_max = None
            retries = space.broker.retries
            # The compiled extension tries first. What it leaves, such as a message for the dead-letter queue, is done
            # by `send_back`.
            if not retries.give_back(group, log_offset, level, retries_max):
                retries.send_back(SendBack(
                    group=group.decode(), log_offset=log_offset, delay_level=level, retries_max=retries_max,
                    repeated=repeated, client=self._sender.client,
                ))  # fmt: skip
            if not oneway:
                # Not held with the acks, which may wait for the disk: RocketMQ stores these with WAIT=false, too.
                space.answers.add_done(opaque, binary)
        except Saving as saving:
            command = decode(table.frame(row))
            if (busy := self.park(command, saving)) is not None and not oneway:
                self.send(busy)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            if not oneway:
                self._answer_failure(RequestCode.CONSUMER_SEND_MSG_BACK, reply_to, error)

    def _may_give_back(self, group: str, log_offset: int) -> bool:
        """Return whether the sender may consume in the group, and read the message, of which the group gets a copy."""
        gatekeeper, broker = self.handling.gatekeeper, self._workspace.broker
        if gatekeeper.trusts(self._sender):
            return True
        try:
            gatekeeper.check_consumer(self._sender, group)
            check_record(broker, self._sender, log_offset)
        except Refused:
            return False
        return True

    def resume(self, command: Command, work: Callable[[], Command | None] | None) -> None:
        """Resume a parked request; its answers leave as those of a read event do.

        If the connection has closed meanwhile, a send is stored all the same, since it came before the end; other
        requests are dropped.
        """
        if self.gone and command.code not in SENDS:
            return
        if work is None:
            self._as_if_read(functools.partial(self.handle, command))
        else:
            self._as_if_read(functools.partial(super().resume, command, work))

    def handle_late(self, command: Command) -> None:
        """Handle a request anew that a handler has put off, also of a connection that has closed meanwhile."""
        if self._owed:
            self._owed.discard(command.opaque)
        self._as_if_read(functools.partial(self.answer if self.gone else self.handle, command))

    def _as_if_read(self, handle: Callable[[], object]) -> None:
        space = self._workspace
        space.current = self
        try:
            handle()
        finally:
            if self.gone:
                # Nobody reads them any more, and the buffers are shared with the other connections.
                space.acks.take()
                space.answers.take()
            self._flush()
            space.current = None
            if space.broker.held_pulls.grown:
                space.broker.answer_pulls()

    # -- pulls
    def pull_one(self, pull: Pull, *, its_turn: bool = False) -> None:
        """Answer a pull, or hold it; one that may be long waits for its turn. Raises what the store raises."""
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
        """Answer a held pull, also one that has failed."""
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
        """Return the answer to a held plain pull, made by the compiled extension; None if it is not plain any more."""
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
        """Send the result of `fast_answer`, at once."""
        self.peer.write_now(answers)

    def _waits_for_turn(self, pull: Pull) -> bool:
        """Queue a long pull if others are being answered. Return whether it was queued. Raises Refused BUSY: too many wait."""
        if self.peer.turn_is_free:
            return False
        if not self.peer.when_its_turn(functools.partial(self._pull_in_turn, pull)):
            raise Refused(Reason.BUSY, MANY_TURNS)
        self._waiting_pulls.add(pull.size)
        return True

    def _pull_in_turn(self, pull: Pull) -> None:
        self._waiting_pulls.add(-pull.size)
        try:
            self.pull_one(pull, its_turn=True)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            self.pull_failed(pull, error)

    def _read_cold(self, pull: Pull, pulled: ReadResult) -> None:
        """Read old messages: a few pulls at once, the others in turns, so that one connection with many delays no other."""
        # Waiting pulls go first: a connection's pulls of old messages keep their order.
        if self._old_left > 0 and not self._old:
            self._old_left -= 1
            self._read_old(pull, pulled)
            return
        if len(self._old) >= OLD_MAX or not (self._old or self.peer.when_its_turn(self._old_in_turn, TURN_BYTES)):
            raise Refused(Reason.BUSY, MANY_TURNS)
        self._old.append((pull, pulled))
        self._waiting_pulls.add(pull.size)

    def _old_in_turn(self) -> None:
        space = self._workspace
        space.current = self
        try:
            for _ in range(min(OLD_AT_ONCE, len(self._old))):
                pull, pulled = self._old.popleft()
                self._waiting_pulls.add(-pull.size)
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
        """Read old messages in a thread unless they are in the page cache: a page fault would stall the whole loop."""
        assert pulled.job is not None
        assert pulled.cached is not None
        if (found := pulled.cached()) is not None:
            self._after_cold(pull, found)
            return
        if self._workspace.cold_reads.read(self, pulled.job, functools.partial(self._cold_done, pull)):
            self._reading += 1
            self._waiting_pulls.add(pull.size)
        else:
            self.pull_failed(pull, Refused(Reason.BUSY, MANY_READS))

    def _cold_done(self, pull: Pull, future: asyncio.Future[ReadResult]) -> None:
        self._waiting_pulls.add(-pull.size)
        self._reading -= 1
        # The read was cancelled by the server's stop, or the connection closed while the disk was read.
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
        """Return the source of a long answer: read on the loop, or in a thread if it is old."""
        return ColdPieces(body, self, self._workspace.cold_reads) if isinstance(body, ColdBody) else Pieces(body)

    # -- answers
    def write(self, data: bytes) -> None:
        gathered = self._workspace.answers
        if self._workspace.current is not self:
            self.out.write(data)
            return
        gathered.extend(data)
        if len(gathered) >= JOINED_BYTES_MAX:
            self.out.write(gathered.take())

    def write_pull(self, pull: Pull, answer: PullAnswer) -> None:
        """Write the answer to a pull: a long body by itself, others with the answers of the read event."""
        pulled, body, space = answer.pulled, answer.pulled.body, self._workspace
        opaque, binary = pull.reply_to
        if answer.outcome is _FOUND:  # spares two look-ups: the hash of an enum member is a call of Python code
            code, remark = 0, "FOUND"
        else:
            code, remark = CODE_OF[answer.outcome], REMARK_OF[answer.status]
        facts = (
            opaque, binary, code, remark, answer.suggest_broker_id, answer.next_offset,
            pulled.min_offset, pulled.max_offset,
        )  # fmt: skip
        if pulled.long is not None:
            # What is gathered goes out first: everything written later waits behind the long answer.
            if space.current is self:
                self._flush()
            self.peer.write_from(hot.pull_reply(*facts, len(pulled.long)), self._pieces(pulled.long))
            return
        if len(body) < LONG_BODY_BYTES and space.current is self:
            space.answers.add_pull(*facts, body)
            if len(space.answers) >= JOINED_BYTES_MAX:
                self.out.write(space.answers.take())
            return
        head = hot.pull_reply(*facts, len(body))
        if len(body) < LONG_BODY_BYTES:
            self.peer.write(b"".join((head, body)))
            return
        if space.current is self:
            self._flush()
        # Head and body are written one by one: joining them would copy the body.
        self.peer.write(head)
        self.peer.write(body)

    def pull_failed(self, pull: Pull, error: Exception) -> None:
        self._answer_failure(RequestCode.PULL_MESSAGE, pull.reply_to, error)

    def _answer_failure(self, code: int, reply_to: tuple[int, bool], error: Exception) -> None:
        opaque, serialize = reply_to[0], SerializeType.BINARY if reply_to[1] else SerializeType.JSON
        # Answers have the header form of the request: the Node client, for one, cannot read a binary header.
        self.send(self.failure(Command(code, opaque, serialize=serialize), error))

    def _flush(self) -> None:
        """Write the answers of this read event; those to sends wait for the disk where they must.

        Raises MemoryError: the answers are lost, and the connection must end.
        """
        space = self._workspace
        if len(space.acks):
            due = space.broker.acks.due()
            if due is None:
                self.out.write(space.acks.take())
            else:
                space.held_acks.hold(self.out, due, space.acks.take())
        if len(space.answers):
            self.out.write(space.answers.take())


def session_of(call: Call[Any]) -> BrokerSession:
    """Return the connection of a request to a broker."""
    session = call.session
    assert isinstance(session, BrokerSession), "a broker's server makes no others"
    return session
