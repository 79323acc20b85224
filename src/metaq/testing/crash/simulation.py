"""One life of a broker: steps, faults and ends drawn from a seed, and after each start the whole look around."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.requests import OffsetCommit
from metaq.clock import FakeClock, seeded
from metaq.doors.remoting_messages import send_of
from metaq.errors import MetaqError, RemoteProtocolError
from metaq.model import TopicConfig
from metaq.model import properties as props
from metaq.model.access import Identity
from metaq.model.message import host_bytes
from metaq.model.system import SCHEDULE_TOPIC
from metaq.options import BrokerOptions, StoreOptions
from metaq.saved import Pending, Saving
from metaq.store.config_file import ConfigFile
from metaq.store.message_store import MessageStore
from metaq.store.pull import PullStatus
from metaq.testing.crash.bare import BareRecord, Unreadable, log_files, read_log, read_units
from metaq.testing.crash.ledger import Broken, Key, Ledger, short
from metaq.testing.power import PowerLossDisk
from metaq.wire import hot
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request
from metaq.wire.headers import SendHeader
from metaq.wire.record import decode_record

HOST = host_bytes("127.0.0.1", 10911)
BORN = host_bytes("127.0.0.1", 50000)
SOMEBODY: Final = Identity("127.0.0.1", loopback=True)
START_MS: Final = 1_700_000_000_000
TOPICS: Final = ("orders", "bills", "mails")
GROUPS: Final = ("mailer", "audit", "stock")
QUEUES: Final = 2
JAVA_4_9: Final = 409
HINTS: Final = ("config/metaqTails.json", "config/metaqTails.json.bak", "checkpoint", "abort")


class PowerOff(BaseException):
    """The process has ended in the middle of a call. No Exception: no handler of errors goes on after it."""


@dataclass(slots=True)
class Report:
    """What a life was like."""

    seed: int
    starts: int = 0
    kills: int = 0
    cuts: int = 0
    stored: int = 0
    lost: int = 0
    """Not yet durable when the power was cut."""
    faults: int = 0


def simulate(seed: int, folder: Path, trace: Callable[[str], None] | None = None) -> Report:
    """Live one life in `folder`, which must be empty or missing, and leave nothing there.

    Raises Broken with the seed, what happened, and how to repeat it. `trace` is told each step.
    """
    life = _Life(seed, folder, trace)
    try:
        life.run()
    except Exception as error:
        told = "\n".join(f"  {line}" for line in life.told[-60:])
        where = "" if isinstance(error, Broken | Unreadable) else "".join(traceback.format_exception(error)[-4:])
        raise Broken(
            f"seed {seed}: {type(error).__name__}: {error}\n{where}{told}\n"
            f"to repeat it: python -m metaq.testing.crash {seed} --trace"
        ) from error
    finally:
        life.end()
    return life.report


def scratch() -> Path | None:
    """Where files cost least: in memory, if the machine has such a place; None for the usual one."""
    memory = Path("/dev/shm")  # noqa: S108  the caller makes a folder of its own in it
    return memory if os.access(memory, os.W_OK) else None


def _options(folder: Path, flush: str) -> StoreOptions:
    """Files so small that a life crosses their borders."""
    return StoreOptions(
        store_path_root_dir=str(folder),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 20,
        max_hash_slot_num=13,
        max_index_num=60,
        max_message_size=20_000,
        flush_disk_type=flush,
        message_delay_level="1s 10s",
        file_reserved_time=1,
    )


class _LateFile:
    """A configuration file that is written when it is its turn: what is answered before is answered too early."""

    def __init__(self, file: ConfigFile, turns: deque[Callable[[], None]]) -> None:
        self._file, self._turns = file, turns

    @property
    def where(self) -> str:
        return self._file.where

    def load(self) -> str:
        return self._file.load()

    def save(self, text: str) -> None:
        self.save_soon(lambda: text, lambda _error: None)

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        self._turns.append(lambda: self._file.save_soon(text, done))

    def flush(self) -> None:
        while self._turns:
            self._turns.popleft()()


class _Life:
    def __init__(self, seed: int, folder: Path, trace: Callable[[str], None] | None) -> None:
        self.report = Report(seed)
        self.told: list[str] = []
        self._trace, self._folder = trace, folder
        self._chance = seeded(f"life {seed}")
        self._clock = FakeClock(START_MS)
        self._flush = self._chance.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self._ledger = Ledger()
        self._number = self._sent = 0
        self._roots = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._disk = PowerLossDisk(self._next_root(), f"disk {seed}")
        self._store: MessageStore | None = None
        self._broker: Broker | None = None
        self._power_was_cut = False
        self._had_error = False
        """A sync has failed since the start: what fails after it has its reason."""
        self._after: PowerLossDisk | None = None
        self._hints: dict[str, bytes] = {}
        self._saves: deque[Callable[[], None]] = deque()
        self._outstanding: list[tuple[Pending, Callable[[], None]]] = []
        """Changes that are being saved, and what is true once they are."""

    def _tell(self, text: str) -> None:
        self.told.append(text)
        if self._trace:
            self._trace(text)

    def _next_root(self) -> Path:
        self._roots += 1
        return self._folder / f"{self._roots}"

    def end(self) -> None:
        self._leave()
        self._disk.close()
        if self._after:
            self._after.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ the life

    def run(self) -> None:
        self._tell(f"flush: {self._flush}")
        for _ in range(self._chance.randint(1, 4)):
            self._start()
            try:
                with self._interruption():
                    for _ in range(self._chance.choice((0, 3, 10, 30))):
                        self._step()
                        if self.store.failed is not None:
                            break
                    self._finish()
            except PowerOff:
                self._tell("... in the middle of that")
            self._next()
        self._start(last=True)
        self._deliver_all()
        self._finish(orderly=True)
        self._next()

    @property
    def store(self) -> MessageStore:
        assert self._store is not None
        return self._store

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def _start(self, *, last: bool = False) -> None:
        """Start the broker, perhaps with an end or faults on the way, and look at everything."""
        while True:
            trouble = "none" if last else self._chance.choice(("none",) * 5 + ("end", "full", "files", "error"))
            self.report.starts += 1
            self._tell(f"start{'' if trouble == 'none' else ' with trouble: ' + trouble}")
            disk = self._disk
            if trouble == "full":
                disk.room = self._chance.randrange(0, 100_000)
                disk.make_error = self._chance.choice((0, errno.ENOSPC))
            elif trouble == "files":
                disk.open_error = errno.EMFILE
            elif trouble == "error":
                self._one_error(disk, self._chance.randint(1, 30))
            try:
                with self._interruption(always=trouble == "end"):
                    self._open()
            except PowerOff:
                self._tell("... in the middle of the start")
                self._next()
                continue
            except MetaqError as error:
                if trouble in {"none", "end"}:
                    raise Broken(f"the start was refused: {error}") from error
                self._tell(f"the start was refused: {error}")
                self._mend()
                self._leave()
                self._disk.restart()
                continue
            self._mend()
            self._had_error = False
            self._look()
            return

    def _open(self) -> None:
        options = _options(self._disk.root, self._flush)
        config = self._disk.root / "config"
        disk = self._disk
        self._store = MessageStore(options, self._clock, HOST, "DefaultCluster", disk=disk, threads=False)
        table = BrokerOptions(broker_name="broker-a", broker_cluster_name="DefaultCluster")

        def open_file(name: str) -> _LateFile:
            return _LateFile(ConfigFile(config / name, disk), self._saves)

        self._saves.clear()
        self._outstanding.clear()
        environment = Environment(table, options, self._clock, self._store, "broker-a", HOST)
        self._broker = Broker(environment, broker_files(open_file))
        self._save()

    def _mend(self) -> None:
        self._disk.room, self._disk.open_error, self._disk.make_error = None, 0, 0
        self._disk.on_call = None

    @contextlib.contextmanager
    def _interruption(self, *, always: bool = False) -> Iterator[None]:
        """With luck, kill the process or cut the power at one of the calls of the disk from here on."""
        disk = self._disk
        if always or self._chance.random() < 0.5:
            calls = disk.calls + int(self._chance.choice((1, 3, 10, 40, 100)) * (0.3 + self._chance.random()))
            cut = self._chance.random() < 0.6
            before = disk.on_call

            def on_call(name: str) -> None:
                if disk.calls >= calls:
                    self._tell(f"{'the power is cut' if cut else 'killed'} at {name}, call {disk.calls}")
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

    def _one_error(self, disk: PowerLossDisk, calls: int) -> None:
        """Fail one sync, some calls from now."""
        at = disk.calls + calls

        def on_call(name: str) -> None:
            if disk.calls >= at and name.startswith("sync"):
                disk.on_call = None
                self._had_error = True
                self._tell(f"{name} fails, call {disk.calls}")
                raise OSError(errno.EIO, "Input/output error")

        disk.on_call = on_call

    def _end_now(self, *, cut: bool) -> None:
        if self._after is None:
            to = self._next_root()
            self._after = self._disk.cut(to) if cut else self._disk.kill(to)
            self._power_was_cut |= cut
            self.report.cuts += cut
            self.report.kills += not cut

    def _finish(self, *, orderly: bool = False) -> None:
        """End the process, in order or not."""
        way = "close" if orderly or self.store.failed else self._chance.choice(("close", "kill", "kill", "cut", "cut"))
        if self.store.failed is not None and not orderly:
            way = self._chance.choice(("close", "kill", "cut"))
        self._tell(way)
        self._disk.on_call = None if orderly else self._disk.on_call
        if way == "close":
            with self._refusals():
                self.broker.close()
            self._outstanding = [(pending, true) for pending, true in self._outstanding if pending.error is None]
            self._answer()
            with self._refusals():
                self.store.close()
                if self.store.failed is None:
                    self._ledger.durable_end = self._ledger.log_end
                    for place in self._ledger.positions if not self.broker.offsets.failing else ():
                        self._ledger.positions[place] = {self.broker.offsets.get(*place)}
            self._after = self._disk
            if not orderly and self._chance.random() < 0.4:
                self._tell("and the power is cut")
                self._after = None
                self._end_now(cut=True)
        else:
            self._end_now(cut=way == "cut")

    def _next(self) -> None:
        """On to the folder that is found next."""
        assert self._after is not None
        self._mend()
        self._leave()
        if self._after is not self._disk:
            self._disk.close()
            shutil.rmtree(self._disk.root, ignore_errors=True)
        self._disk, self._after = self._after, None
        self._disk.restart()
        if self._chance.random() < 0.25:
            self._damage()

    def _leave(self) -> None:
        """Let go of a store without a word, as a killed process does."""
        if self._store is not None:
            self._store.folder.close()
        self._store = self._broker = None

    def _damage(self) -> None:
        """Harm files that are hints only."""
        name = self._chance.choice(HINTS)
        path = self._disk.root / name
        how = self._chance.choice(("gone", "empty", "zeros", "short", "garbage", "deep", "old"))
        self._tell(f"damage: {name} is {how}")
        data = path.read_bytes() if path.exists() else b""
        if name == "abort":
            path.unlink(missing_ok=True) if path.exists() else path.touch()
        elif how == "gone":
            path.unlink(missing_ok=True)
        elif path.parent.exists():
            old = self._hints.get(name, b"")
            path.write_bytes({
                "empty": b"", "zeros": bytes(len(data)), "short": data[: len(data) // 2],
                "garbage": b"" if name == "checkpoint" else bytes(self._chance.randrange(256) for _ in range(50)),
                "deep": b"" if name == "checkpoint" else b"[" * 20_000, "old": old,
            }[how])  # fmt: skip

    # ------------------------------------------------------------------ steps

    def _change(self, pending: Pending, true: Callable[[], None]) -> None:
        """A change of a table was asked for: `true` says what holds once it is answered."""
        self._outstanding.append((pending, true))
        if self._chance.random() < 0.7:
            self.store.flush()  # a deletion waits for it
            self._save()
        self._answer()

    def _save(self) -> None:
        """Write the configuration files that wait for their turn."""
        while self._saves:
            self._saves.popleft()()

    def _answer(self) -> None:
        waiting, self._outstanding = self._outstanding, []
        for pending, true in waiting:
            if not pending.done:
                self._outstanding.append((pending, true))
            elif pending.error is None:
                true()
            else:
                with self._refusals():
                    raise pending.error

    def _step(self) -> None:
        steps = (
            (self._send, 30), (self._send_run, 4), (self._send_batch, 6), (self._send_later, 5), (self._make_topic, 3),
            (self._delete_topic, 2), (self._make_group, 2), (self._commit, 4), (self._tick, 6), (self._flush_now, 8),
            (self._checkpoint, 6), (self._populate, 2), (self._retain, 1), (self._trouble, 2), (self._pull, 3),
            (self._note_hints, 1),
        )  # fmt: skip
        (step,) = self._chance.choices([step for step, _ in steps], [weight for _, weight in steps])
        step()
        if self._chance.random() < 0.3:
            self._save()
        self._answer()
        self._ledger.durable_end = max(self._ledger.durable_end, min(self.store.flushed, self._ledger.log_end))

    @property
    def _is_troubled(self) -> bool:
        return self._disk_is_bad or self.store.failed is not None

    @property
    def _disk_is_bad(self) -> bool:
        return self._disk.room is not None or self._disk.open_error != 0

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """A refusal is right when the disk is in trouble, and only then."""
        try:
            yield
        except Saving:
            self._tell("... has to wait for a file")
        except (MetaqError, OSError) as error:
            if not self._is_troubled and not self._had_error:
                raise
            self._tell(f"... refused: {error}")

    def _absorb(self, bodies: list[bytes]) -> list[BareRecord]:
        """Enter what was stored since into the ledger; it must be these bodies, or copies of delayed ones."""
        ledger, store = self._ledger, self.store
        if store.log_end == ledger.log_end:
            return []
        start = max(ledger.log_end, store.min_log)
        found = read_log(self._disk.root, start, store.log_end)
        for record in found:
            if record.body not in bodies:
                raise Broken(f"{short(record)} was stored, and nobody has just sent it")
        ledger.added(found, store.log_end)
        self.report.stored += len(found)
        return found

    def _body(self) -> bytes:
        self._number += 1
        size = self._chance.choice((0, 60, 400, 3000, 12_000))
        return b"%d:" % self._number + self._chance.choice((b"x", b"\0")) * size

    def _header(self, topic: str, queue_id: int, pairs: dict[str, str], *, batch: bool = False) -> SendHeader:
        return SendHeader(
            producer_group="p", topic=topic, default_topic="TBW102", default_topic_queues=QUEUES, queue_id=queue_id, sys_flag=0,
            born_ms=self._clock.now_ms(), flag=0, properties=props.join(pairs), batch=batch,
        )  # fmt: skip

    def _send(self, *, delay: int = 0) -> None:
        ledger = self._ledger
        topic, queue_id, body = self._chance.choice(TOPICS), self._chance.randrange(QUEUES), self._body()
        pairs = {}
        if self._chance.random() < 0.6:
            pairs[props.KEYS] = f"k{self._number}"
        if self._chance.random() < 0.3:
            pairs["last"] = "ends in NULs\0" + "\0" * self._chance.choice((0, 600))
        if delay:
            pairs[props.DELAY] = str(delay)
        self._tell(
            f"send {body[:6]!r} ({len(body)}) to {topic}:{queue_id}" + (f", delay level {delay}" if delay else "")
        )
        if ledger.topics.get(topic) is False or topic not in ledger.topics:
            ledger.topics[topic] = None
        ledger.in_flight = [body]
        if props.KEYS in pairs:
            ledger.keys[body] = pairs[props.KEYS]
        before = self._sent
        with self._refusals():
            try:
                self._send_now(topic, queue_id, pairs, body)
            except Saving as saving:  # the topic is being made: as a door does, once more after that
                for pending in saving.pending:
                    self._change(pending, lambda: None)
                if all(pending.done for pending in saving.pending):
                    if not ledger.topics.get(topic):
                        ledger.topics[topic] = None
                    self._send_now(topic, queue_id, pairs, body)
        self._stored([body], self._sent - before)

    def _send_now(self, topic: str, queue_id: int, pairs: dict[str, str], body: bytes) -> None:
        self.broker.sends.send(send_of(self._header(topic, queue_id, pairs), body, BORN, JAVA_4_9))
        self._sent += 1
        self._is_there(topic)
        if props.DELAY in pairs:
            self._ledger.delayed[body] = topic, queue_id

    def _stored(self, bodies: list[bytes], acknowledged: int) -> None:
        """So many of these messages were acknowledged, in their order, and the others refused."""
        found = self._absorb(bodies)
        if [record.body for record in found] != bodies[:acknowledged]:
            raise Broken(f"{acknowledged} messages were acknowledged, and {len(found)} are in the log")
        self._ledger.in_flight = []
        if found and self._flush == "SYNC_FLUSH":
            self.store.when_flushed(found[-1].log_end, lambda good: self._answered(found[-1].log_end, good=good))
            if self._chance.random() < 0.3:
                self._flush_now()

    def _answered(self, log_end: int, *, good: bool) -> None:
        if good:
            self._ledger.durable_end = max(self._ledger.durable_end, log_end)

    def _send_batch(self) -> None:
        topic, queue_id = self._chance.choice(TOPICS), self._chance.randrange(QUEUES)
        if not self._ledger.topics.get(topic):
            return
        bodies = [self._body()[:500] for _ in range(self._chance.randint(2, 12))]
        self._tell(f"send a batch of {len(bodies)}, {bodies[0][:6]!r} and so on, to {topic}:{queue_id}")
        entries = b"".join(_batch_entry(body) for body in bodies)
        self._ledger.in_flight = bodies
        acknowledged = 0
        with self._refusals():
            self.broker.sends.send(send_of(self._header(topic, queue_id, {}, batch=True), entries, BORN, JAVA_4_9))
            acknowledged = len(bodies)
        self._stored(bodies, acknowledged)

    def _send_run(self) -> None:
        """Many sends in one read event: the fast lane."""
        topic, rows = self._chance.choice(TOPICS), self._chance.randint(1, 30)
        if not self._ledger.topics.get(topic):
            return
        bodies = [self._body() for _ in range(rows)]
        self._tell(f"send a run of {rows}, {bodies[0][:6]!r} and so on, to {topic}")
        frames = list[bytes]()
        for body in bodies:
            key = f"k{body.partition(b':')[0].decode()}"
            header = self._header(topic, self._chance.randrange(QUEUES), {props.KEYS: key})
            frames.append(encode(request(RequestCode.SEND_MESSAGE_V2, header, body)))
            self._ledger.keys[body] = key
        data = b"".join(frames)
        table, outcome = hot.FrameTable(1 << 24), hot.AppendOutcome()
        table.scan(data, 0, len(data))
        replies = hot.Replies(b"DefaultRegion", True)
        self._ledger.in_flight = bodies
        with self._refusals():
            gates = self.broker.gates.of(SOMEBODY)
            gates.open(topic.encode())
            self.store.append_rows(table, 0, rows, gates.table, BORN, replies, outcome)
        self._stored(bodies, outcome.row)

    def _send_later(self) -> None:
        self._send(delay=self._chance.randint(1, 2))

    def _make_topic(self) -> None:
        name = self._chance.choice(TOPICS)
        queues = self._chance.randint(QUEUES, QUEUES + 4)
        self._tell(f"make the topic {name} with {queues} queues")
        if not self._ledger.topics.get(name):
            self._ledger.topics[name] = None
        with self._refusals():
            self._change(self.broker.topics.update(TopicConfig(name, queues, queues)), lambda: self._is_there(name))

    def _delete_topic(self) -> None:
        name = self._chance.choice(TOPICS)
        if self._ledger.topics.get(name) is not True:
            return
        self._tell(f"delete the topic {name}")
        self._ledger.topics[name] = None
        self._ledger.limbo[name] = self.store.log_end
        with self._refusals():
            self._change(self.broker.delete_topic(name), lambda: self._is_gone(name))

    def _is_there(self, name: str) -> None:
        if name not in self._ledger.limbo:
            self._ledger.topics[name] = True

    def _is_gone(self, name: str) -> None:
        self._tell(f"the topic {name} is deleted")
        ledger = self._ledger
        ledger.topics[name] = False
        ledger.deleted_at[name] = ledger.limbo.pop(name)
        for place in [place for place in ledger.positions if place[1] == name]:
            ledger.positions[place] = {None}

    def _make_group(self) -> None:
        name = self._chance.choice(GROUPS)
        self._tell(f"make the group {name}")
        if not self._ledger.groups.get(name):
            self._ledger.groups[name] = None
        with self._refusals():
            try:
                self.broker.groups.require(name)
                self._ledger.groups[name] = True
            except Saving as saving:
                for pending in saving.pending:
                    self._change(pending, lambda: self._ledger.groups.__setitem__(name, True))

    def _commit(self) -> None:
        group, topic = self._chance.choice(GROUPS), self._chance.choice(TOPICS)
        if not (self._ledger.groups.get(group) and self._ledger.topics.get(topic)):
            return
        offset = self._chance.randrange(50)
        self._tell(f"{group} commits {offset} in {topic}:0")
        with self._refusals():
            self.broker.commit_offset(OffsetCommit(group=group, topic=topic, queue_id=0, offset=offset))
            self._ledger.positions.setdefault((group, topic, 0), {None}).add(offset)

    def _tick(self) -> None:
        seconds = self._chance.choice((0.1, 1.0, 6.0, 11.0))
        self._tell(f"{seconds} s pass")
        self._clock.advance(seconds)
        waiting = list(self._ledger.delayed)
        self._ledger.in_flight = waiting
        with self._refusals():
            self.broker.tick()
        for record in self._absorb(waiting):
            if not self._ledger.topics.get(record.topic):  # deleted since: the next start may bring it back for this
                self._ledger.topics[record.topic] = None
        self._ledger.in_flight = []

    def _flush_now(self) -> None:
        self._tell("flush")
        self.store.flush()

    def _checkpoint(self) -> None:
        self._tell("checkpoint")
        with self._refusals():
            self.store.checkpoint()

    def _populate(self) -> None:
        self._tell("populate")
        with self._refusals():
            self.store.populate()

    def _retain(self) -> None:
        self._tell("an hour passes, what is over goes")
        self._clock.advance(3600 * self._chance.choice((0.5, 1.01)))
        self._ledger.in_flight = []
        files = [int(path.name) for path in log_files(self._disk.root)]
        owed = self._ledger.still_to_deliver()
        before, self._ledger.log_min = self._ledger.log_min, max([self._ledger.log_min, *files])
        with self._refusals():
            self.store.retain(self._clock.now_ms(), at_once=True)
        self._ledger.log_min = max(before, self.store.min_log)
        for record in owed:
            if record.log_offset < self.store.min_log:
                raise Broken(f"{short(record)} was still to be delivered, and its log file went")

    def _trouble(self) -> None:
        """Begin or end a time of faults."""
        disk = self._disk
        if self._disk_is_bad:
            self._tell("the trouble is over")
            disk.room, disk.open_error, disk.make_error = None, 0, 0
            return
        what = self._chance.choice(("full", "files", "error"))
        self._tell(f"trouble: {what}")
        self.report.faults += 1
        if what == "full":
            disk.room = self._chance.randrange(0, 80_000)
            disk.make_error = self._chance.choice((0, errno.ENOSPC))
        elif what == "files":
            disk.open_error = errno.EMFILE
        elif disk.on_call is None:
            self._one_error(disk, self._chance.randint(1, 5))

    def _pull(self) -> None:
        if self._disk.open_error == 0:
            self._look_at_queues(self._ledger.wanted())

    def _note_hints(self) -> None:
        for name in HINTS:
            path = self._disk.root / name
            if path.exists():
                self._hints[name] = path.read_bytes()

    # ------------------------------------------------------------------ looking

    def _look(self) -> None:
        """Hold everything against the ledger, right after a start."""
        ledger, store = self._ledger, self.store
        ledger.in_flight += ledger.delayed
        found = read_log(self._disk.root, store.min_log, store.log_end)
        self.report.lost += ledger.hold_against(found, store.min_log, power_was_cut=self._power_was_cut)
        ledger.log_end, ledger.log_min = store.log_end, max(ledger.log_min, store.min_log)
        ledger.durable_end = store.flushed
        self._power_was_cut = False
        wanted = ledger.wanted()
        self._settle(wanted)
        wanted = ledger.wanted()
        self._look_at_queues(wanted)
        for (topic, queue_id), records in wanted.items():
            units = read_units(self._disk.root, topic, queue_id)
            for record in records:
                if units.get(record.queue_offset) != (record.log_offset, record.size):
                    raise Broken(f"the unit of {short(record)} is {units.get(record.queue_offset)}")
                key = ledger.keys.get(record.body)
                if key and topic != SCHEDULE_TOPIC:
                    found_bodies = [decode_record(data).body for data in store.query(topic, key, 32, 0, 1 << 60)]
                    if record.body not in found_bodies:
                        raise Broken(f"{short(record)} is not found under its key {key}")
        self._look_at_tables()

    def _settle(self, wanted: dict[Key, list[BareRecord]]) -> None:
        """A deletion that was interrupted has happened, or not: the topic tells, also by what nobody expects any more."""
        keys = sorted({*wanted, *self.store.queues()})
        for topic, place in sorted(self._ledger.limbo.items()):
            if not any(self._served(key) for key in keys if key[0] == topic):
                self._ledger.deleted_at[topic] = place
                for key in [key for key in self._ledger.positions if key[1] == topic]:
                    self._ledger.positions[key].add(None)
        self._ledger.limbo.clear()

    def _look_at_queues(self, wanted: dict[Key, list[BareRecord]]) -> None:
        keys = set(wanted) | {key for key, queue in self.store.queues().items() if queue.max_offset}
        for key in sorted(keys):
            if key[0] in self._ledger.limbo:
                continue
            given_up = self._ledger.given_up(key)
            served = [found for found in self._served(key) if found not in given_up]
            expected = [(record.queue_offset, record.body) for record in wanted.get(key, [])]
            if served != expected:
                raise Broken(f"{key[0]}:{key[1]} serves {_shown(served)} in place of {_shown(expected)}")

    def _served(self, key: Key) -> list[tuple[int, bytes]]:
        """(queue offset, body) of all that pulls give from a queue."""
        store, found = self.store, list[tuple[int, bytes]]()
        queue = store.existing_queue(*key)
        offset = queue.min_offset if queue else 0
        while True:
            pulled = store.pull(*key, offset, 32)
            if pulled.status is PullStatus.COLD and pulled.job:
                pulled = pulled.job()
            place = 0
            while place < len(pulled.body):
                try:
                    message = decode_record(pulled.body, place)
                except RemoteProtocolError as error:
                    raise Broken(f"{key[0]}:{key[1]} serves from {offset} on what is no record: {error}") from error
                place += int.from_bytes(pulled.body[place : place + 4], "big")
                if (message.topic, message.queue_id) != key:
                    raise Broken(f"{key[0]}:{key[1]} serves a message of {message.topic}:{message.queue_id}")
                found.append((message.queue_offset, message.body))
            if pulled.next_offset <= offset:
                return found
            offset = pulled.next_offset

    def _look_at_tables(self) -> None:
        broker, ledger = self.broker, self._ledger
        for name, wanted in ledger.topics.items():
            there = broker.topics.get(name) is not None
            if wanted is not None and there is not wanted:
                raise Broken(
                    f"the topic {name} is {'there' if there else 'gone'}, though that was acknowledged otherwise"
                )
            ledger.topics[name] = there
        for name, wanted in ledger.groups.items():
            there = broker.groups.get(name) is not None
            if wanted is not None and there is not wanted:
                raise Broken(
                    f"the group {name} is {'there' if there else 'gone'}, though that was acknowledged otherwise"
                )
            ledger.groups[name] = there
        for place, allowed in ledger.positions.items():
            position = broker.offsets.get(*place)
            if position not in allowed:
                raise Broken(f"the position of {place} is {position}, of {allowed}")
            ledger.positions[place] = {position}

    def _deliver_all(self) -> None:
        """What is owed comes: every delayed message that was stored, at least once."""
        self._tell("deliver all that waits")
        for _ in range(3):
            self._clock.advance(20)
            waiting = list(self._ledger.delayed)
            self.broker.tick()
            self._absorb(waiting)
        stored = {
            record.body
            for record in self._ledger.log
            if record.topic == SCHEDULE_TOPIC and record.log_offset >= self._ledger.log_min
        }
        for body, (topic, queue_id) in self._ledger.delayed.items():
            copies = [record for record in self._ledger.log if record.body == body and record.topic == topic]
            if body not in stored or topic in self._ledger.deleted_at:
                continue
            if not copies:
                raise Broken(f"the delayed message {body[:12]!r} never came to {topic}:{queue_id}")
            if len(copies) > 1 + self.report.cuts:
                raise Broken(f"the delayed message {body[:12]!r} came {len(copies)} times to {topic}:{queue_id}")
        self._look_at_queues(self._ledger.wanted())


def _dead(_name: str) -> None:
    raise PowerOff


def _shown(served: list[tuple[int, bytes]]) -> str:
    return str([(offset, body[:8]) for offset, body in served])


def _batch_entry(body: bytes) -> bytes:
    """One message of a batch's body: total size, magic, CRC, flag, body, properties."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2
    return b"".join((
        size.to_bytes(4, "big"), bytes(12), len(body).to_bytes(4, "big"), body, (0).to_bytes(2, "big"),
    ))  # fmt: skip
