"""One connection of the MetaQ 1.x server: lines to calls of partitions and transactions, results to answers.

Commands are taken one after the other. One that needs a change that is being saved (a topic that is made, positions
that are computed) holds up those behind it on its own connection: a transaction's steps and puts depend on their order.
A get that reads old messages does not; only its answer is waited for by the later ones.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from metaq.broker.channel import Notice, OnAnswer, Unanswered
from metaq.broker.log.acks import later
from metaq.broker.metaq1.pair.gregor import NO_PUTS
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.model.access import Action
from metaq.model.message import host_bytes
from metaq.model.metaq1.pair import BRANCHES_TOPIC
from metaq.model.metaq1.partition import (
    Frames,
    Got,
    Judged,
    Judging,
    Later,
    Moved,
    PartitionGet,
    PartitionPut,
    PartitionStored,
)
from metaq.net.address import join_address
from metaq.net.peer import Peer
from metaq.saved import Saving
from metaq.servers.metaq1.answers import Answers, Slot, raised_or
from metaq.servers.metaq1.space import Space
from metaq.servers.metaq1.syncing import UNSUPPORTED, UNSUPPORTED_BEGIN, copy_of, sync_of
from metaq.servers.metaq1_counters import Counted
from metaq.servers.metering import Metering, Sink
from metaq.servers.server import caller_of
from metaq.servers.slices import Slices
from metaq.servers.waiting import Parked, ParkedRequest
from metaq.wire.metaq1.commands import (
    Code,
    Command,
    GetLine,
    Line,
    OffsetLine,
    PutLine,
    QuitLine,
    Reader,
    ResultLine,
    StatsLine,
    SyncLine,
    TooLong,
    TransactionLine,
    ValueLine,
    VersionLine,
    put_body,
    result,
    value_head,
)

log = logging.getLogger(__name__)

_P: Final = ord("p")
LATE_GETS_MAX: Final = 4
"""Most late gets of one connection, each up to maxTransferSize."""


class Metaq1Session:
    """One client's connection. Also the `Channel` by which services know it."""

    def __init__(self, peer: Peer, space: Space) -> None:
        self.peer, self._space = peer, space
        space.connections += 1
        self.remote = join_address(*peer.address)
        self.born_host = host_bytes(peer.address[0].partition("%")[0] or "0.0.0.0", peer.address[1])  # noqa: S104  no address
        self._reader = Reader(0)
        caller = caller_of(peer)
        self.caller = caller if space.identify is None else space.identify(caller)
        """Caller of all its commands: those of MetaQ 1.x carry no identity, so that its address stands for one."""
        self._gates = space.fast_path.of(self.caller)
        self._answers = Answers(peer, self._go_on, space.behind, peer.keep)
        self.metering = Metering(self, space.broker.quotas)
        self._acks = list[bytes]()
        """Answers to puts and steps of this read event: they may have to wait for the disk."""
        self._steps = False
        """Answers to steps of transactions are among them."""
        self.slices = Slices(peer, space.slow_work)
        self._late_gets = 0
        self._parked = Parked(peer.keep)
        self._waiting: ParkedRequest | None = None
        """The parked command that holds up the connection."""
        self._ending: str | None = None
        """Why the connection is closed once all answers are out; None: it goes on."""
        # `printf ... | nc` shuts its side at once, and waits for the answers.
        peer.on_half_closed = self._half_closed

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
        """Drop a notice: the protocol has none, and a 1.x client ignores answers that it did not ask for."""
        log.debug("a client of MetaQ 1.x cannot be told %s", what)

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:  # noqa: ARG002  the protocol has no requests to clients
        done(Unanswered.UNKNOWN)

    # -- metaq.net.peer.Session
    def data_received(self, data: memoryview) -> int:
        """Handle every whole command, until one must wait. Return the bytes used.

        Raises RemoteProtocolError after answering what came before.
        """
        if self._stopped:
            self.peer.pause()
            return 0
        space, reader, start, size = self._space, self._reader, 0, len(data)
        # The original stores longer messages, which no get can ever return: ours refuses them.
        reader.body_bytes_max = space.body_bytes_max
        rest, rest_at, slices = b"", -1, self.slices
        """`data` from `rest_at` on as bytes, for the commands that the fast path leaves."""
        try:
            while not (self._stopped or self.peer.congested):
                if not reader.passing and not self.metering.limited:
                    start = self._plain_puts(data, start)
                if start == size and size:
                    break
                # 512 KiB hold 70 000 times `stats`, each of which looks at all topics.
                if not slices.may_go_on():
                    break
                if rest_at < 0:
                    rest, rest_at = bytes(data[start:]), start
                try:
                    line, end = reader.next(rest, start - rest_at)
                    end += rest_at
                except RemoteProtocolError as error:
                    self._end(str(error))
                    break
                if line is None:
                    start = end
                    break
                if (self.metering.limited and self._is_refused(line, end - start)) or self._take(line):
                    start = end
        finally:
            if slices.began:
                slices.end()
            self._flush()
            if space.broker.held_pulls.grown:
                space.broker.answer_pulls()
        if self._ending is not None:
            # Nothing behind a `quit`, or behind a line that cannot be read, is looked at.
            start = size
            if not self._answers.late:
                raise RemoteProtocolError(self._ending)
        if self._stopped:
            self.peer.pause()
        return start

    def _plain_puts(self, data: memoryview, start: int) -> int:
        """Have the fast path store the plain puts at `start`. Return where they end."""
        if start == len(data) or data[start] != _P or not self._gates:
            return start
        space = self._space
        try:
            end = space.fast_path.run(data, start, self._gates, self.born_host, space.acks, space.outcome)
            if end > start:
                self._reader.forget()
                self._acks.append(space.acks.take())
        except BaseException:
            space.acks.clear()  # the buffer is shared: they must not reach the next peer
            raise
        return end

    # -- quotas
    @property
    def out(self) -> Sink:
        """Where answers go."""
        return self._answers.sink

    @out.setter
    def out(self, sink: Sink) -> None:
        self._answers.sink = sink

    def may_read(self) -> bool:
        """Return whether the connection waits for nothing but its quota."""
        return not self._stopped

    def telling(self, data: bytes | bytearray | memoryview, wait_ms: int) -> None:
        """Return None: no client of MetaQ 1.x can be told to wait."""

    def _is_refused(self, line: Line | TooLong, size: int) -> bool:
        """Judge a command by the quotas; if it is not taken, say so."""
        if not isinstance(line, PutLine | GetLine | OffsetLine | StatsLine | TransactionLine):
            return False
        # A step of a transaction is charged, but never refused: its other messages are stored already.
        if self.metering.judge(1, size, lambda _row: size) or isinstance(line, TransactionLine):
            return False
        self._count(line, 0)
        self._say_failure(line, self.metering.refusal)
        return True

    def frame_needed(self) -> int:
        return self._reader.needed

    def connection_lost(self, why: str) -> None:  # noqa: ARG002  whatever the reason
        space = self._space
        self.metering.close()
        if self._waiting is not None:
            space.parking.withdraw(self._waiting)
        self._answers.close()
        space.connections -= 1
        space.cold_reads.forget(self)
        space.broker.closed(self)

    # -- waiting
    @property
    def _stopped(self) -> bool:
        return (
            self._waiting is not None
            or self.slices.waits
            or self.metering.waits
            or self._ending is not None
            or self._answers.full
            or self._late_gets >= LATE_GETS_MAX
        )

    def _go_on(self) -> None:
        """Go on reading, or close: something that the connection waited for has come."""
        if self._ending is not None:
            if not self._answers.late:
                self.peer.close(self._ending)
        elif not self._stopped:
            self.peer.resume()

    def _half_closed(self) -> bool:
        """Handle the end of the client's sending (`nc` does so at the end of its input). Return whether answers are
        still to come."""
        if (self._answers.late or self.metering.waits) and self._ending is None:
            self._end("it sends no more")
        return self._answers.late > 0 or self.metering.waits

    def _end(self, why: str) -> None:
        self._flush()
        self._ending, self._answers.awaited = why, True

    def _park(self, line: Command, run: Callable[[], Any], saving: Saving) -> None:
        """Hold up the connection until the changes of `saving` are saved."""
        body_bytes = len(line.body) if isinstance(line, PutLine | SyncLine) else 0

        def resume(then: Callable[[], Any] | None) -> None:
            self._waiting = None
            self._answer(line, then or run)
            self._waited()

        def refuse(error: Refused) -> None:
            self._waiting = None
            self._say_failure(line, error)
            self._waited()

        try:
            request = self._space.parking.park(saving, self._parked, resume, refuse, body_bytes)
        except Refused as busy:
            self._say_failure(line, busy)
            return
        if not request.over:
            self._waiting = request

    def _waited(self) -> None:
        """Go on behind the command that held up the connection."""
        self._flush()
        if self._space.broker.held_pulls.grown:
            self._space.broker.answer_pulls()
        self._go_on()

    # -- commands
    def _take(self, line: Line | TooLong) -> bool:
        """Handle a command. Return False: it is to come again."""
        match line:
            case ResultLine() | ValueLine():
                return True  # answers that nobody asked for: the original ignores them too
            case TooLong(line=PutLine() | SyncLine() as put, body_bytes=size):
                if isinstance(put, SyncLine) and self._space.gregor is None:
                    return self._take(put)
                self._count(put, size)
                self._say_failure(put, self._space.partitions.too_long(put.topic, size))
                return True
            case TooLong():
                return True
            case QuitLine():
                self._end("it said quit")
                return True
        # Answers keep the order of their commands: those to puts, which may be held, come before this one's.
        if self._acks and not isinstance(line, PutLine | SyncLine | TransactionLine):
            self._flush_acks()
            if self._answers.full:  # of other connections' late answers: another answer would have to wait, too
                return False
        self._count(line, len(line.body) if isinstance(line, PutLine | SyncLine) else 0)
        self._answer(line, functools.partial(self._run, line))
        return True

    def _answer(self, line: Command, run: Callable[[], Any]) -> None:
        """Run a command, or the rest of it, and answer; or park it."""
        try:
            body = run()
        except Saving as saving:
            self._park(line, run, saving)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            self._say_failure(line, error)
        else:
            if body is not None:
                self._say_success(line, body)

    def _run(self, line: Command) -> bytes | None:
        """Run a command. Return the body of its answer, None if it is answered otherwise."""
        space = self._space
        match line:
            case PutLine():
                return self._put(line)
            case GetLine():
                self._get(line)
                return None
            case OffsetLine():
                return b"%d" % space.partitions.offset(line.topic, line.partition, line.offset, self.caller)
            case TransactionLine():
                if space.gregor is not None:
                    raise Refused(Reason.INVALID, UNSUPPORTED.get(line.step, UNSUPPORTED_BEGIN))
                return space.transactions.step(line, self)
            case VersionLine():
                return space.version
            case StatsLine():
                space.broker.gatekeeper.check(self.caller, Action.OBSERVE, "")
                return space.stats(line.item)
            case SyncLine():
                return self._sync(line)
        raise AssertionError(f"{line} is taken elsewhere")

    def _put(self, line: PutLine) -> bytes:
        space = self._space
        put = PartitionPut(
            topic=line.topic,
            partition=line.partition,
            body=line.body,
            flag=line.flag,
            checksum=line.checksum,
            born_host=self.born_host,
        )
        if space.gregor is not None:
            raise Refused(Reason.NOT_STORED, NO_PUTS)
        if line.transactional:  # stored at the commit: partition and id are known now, the position is not
            return space.transactions.put(line, put, self)
        return self._stored(line.topic, functools.partial(space.partitions.put, put, self.caller))

    def _sync(self, line: SyncLine) -> bytes:
        space = self._space
        if space.gregor is None:
            # The original answers 503 on a broker without a handler for `sync`.
            raise Refused(Reason.UNAVAILABLE, "this broker is nobody's synchronous slave: it takes no sync")
        if line.topic == BRANCHES_TOPIC:
            space.gregor.branch(copy_of(line), self.born_host, self)
            self._steps = True
            return b""
        stored = space.gregor.sync(sync_of(line, self.born_host), self.caller)
        return put_body(stored.message_id, stored.partition, stored.position)

    def _stored(self, topic: str, run: Callable[[], PartitionStored]) -> bytes:
        try:
            stored = run()
        except Saving as saving:
            if saving.then is None:
                raise
            # The rest of the put comes back through here, to open the fast path and to make the answer's body.
            raise Saving(*saving.pending, then=functools.partial(self._stored, topic, saving.then)) from None
        self._space.fast_path.open(self._gates, topic, stored.partition, self.caller)
        return put_body(stored.message_id, stored.partition, stored.position)

    def _count(self, line: Command, size: int) -> None:
        """Count a command; once, however often it has to wait."""
        counters = self._space.counters
        match line:
            case PutLine() | SyncLine():
                counters.count(Counted.PUT, line.topic)
                counters.count(Counted.BYTES, line.topic, size)
            case GetLine():
                counters.count(Counted.GET, line.topic)
            case OffsetLine():
                counters.count(Counted.OFFSET, line.topic)

    # -- gets
    def _get(self, line: GetLine) -> None:
        space = self._space
        wanted = PartitionGet(
            topic=line.topic,
            group=line.group,
            partition=line.partition,
            position=line.offset,
            size_max=line.max_bytes,
        )
        got = space.partitions.get(wanted, self)
        self._flush_acks()
        if isinstance(got, Frames | Moved):
            self._answers.say(*self._got(line, got))
            return
        slot = self._answers.later()
        self._late_gets += 1
        self._get_on(line, slot, lambda: got)

    def _get_on(self, line: GetLine, slot: Slot, come: Callable[[], Judged]) -> None:
        """Take the next step of a late get: `come` returns its state, or raises."""
        if self.peer.closed:
            return
        try:
            match got := come():
                case Judging():
                    got.begin(lambda outcome: self._get_on(line, slot, lambda: raised_or(outcome)))
                    return
                case Later(job, finish):

                    def done(future: asyncio.Future[Any]) -> None:
                        if not future.cancelled():
                            self._get_on(line, slot, lambda: finish(future.result()))

                    if self._space.cold_reads.read(self, job, done):
                        return
                    busy = Refused(Reason.BUSY, "too many gets of old messages wait for the disk")
                    data = self._space.failures.answer(line, busy, self)
                case _:
                    data = b"".join(self._got(line, got))
        except Saving as saving:
            try:
                self._space.parking.park(
                    saving,
                    self._parked,
                    lambda then: self._get_on(line, slot, then or come),
                    lambda error: self._get_on(line, slot, lambda: raised_or(error)),
                )
            except Refused as busy:
                data = self._space.failures.answer(line, busy, self)
            else:
                return
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer
            data = self._space.failures.answer(line, error, self)
        self._late_gets -= 1
        slot.write(data)
        self._go_on()

    def _got(self, line: GetLine, got: Got) -> tuple[bytes | memoryview, ...]:
        if isinstance(got, Frames):
            return value_head(len(got.body), line.opaque), got.body
        return (result(Code.MOVED, b"%d" % got.position, line.opaque),)

    # -- answers
    def _say_success(self, line: Command, body: bytes) -> None:
        assert not isinstance(line, QuitLine), "nothing is answered to it"
        data = result(Code.SUCCESS, body, line.opaque)
        if isinstance(line, PutLine | SyncLine | TransactionLine):
            self._acks.append(data)
            self._steps |= isinstance(line, TransactionLine)
        else:
            self._flush_acks()
            self._answers.say(data)

    def _say_failure(self, line: Command, error: BaseException) -> None:
        self._flush_acks()
        self._answers.say(self._space.failures.answer(line, error, self))

    def _flush_acks(self) -> None:
        """Send or hold the answers to puts, before any later answer."""
        if not self._acks:
            return
        data = b"".join(self._acks)
        self._acks.clear()
        steps, self._steps = self._steps, False
        due = self._space.partitions.acks.due()
        if steps:
            due = later(due, self._space.transactions.due())
        if due is None:
            self._answers.say(data)
        else:
            self._space.held_acks.hold(self._answers.later(), due, data)

    def _flush(self) -> None:
        self._flush_acks()
        self._answers.flush()
