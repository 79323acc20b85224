"""Our real broker and name server behind a proxy whose script decides what becomes of single requests and answers.

What no real server does when it is asked to, the script does in its stead: it loses a request, answers with an error or
with garbage, hangs up, waits. Everything else is answered by the real servers, so that a test says nothing about semantics
that no broker has.

    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [b"a", b"b"])
        cluster.script = lambda asked: Fate.HANG_UP if asked.code == RequestCode.PULL_MESSAGE else None
        ... a client of cluster.namesrv ...
        assert cluster.count(RequestCode.PULL_MESSAGE) == 3
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import socketserver
import threading
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from msgspec import Struct, structs

from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.app.runtime import loop_factory
from metaq.clock import FakeClock
from metaq.model import MessageQueue
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.store.disk import Disk
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, decode, encode, request
from tests.support import PATIENCE, eventually, exchange, read_frame

Value = TypeVar("Value")

BROKER: Final = "broker-a"
LOG_FILE_BYTES: Final = 1 << 20
_READ_WRITE: Final = 6


class Fate(enum.Enum):
    """What a script does with a request or an answer that is not to go on."""

    LOSE = "it never arrives"
    HANG_UP = "the connection is closed, at both ends"


class Later(Struct, frozen=True):
    """Goes on when the event is set; what comes behind it overtakes it."""

    event: threading.Event


Verdict = Fate | Later | Command | bytes | None
"""None: it goes on as it is. Of a request: a Command that is a response answers it, any other goes on in its stead; bytes
answer it, whatever they are. Of an answer: the Command or the bytes go on in its stead."""
Script = Callable[[Command], Verdict]


def goes_on(command: Command) -> Verdict:
    """The script of a proxy that nobody has told anything."""
    return None


class ScriptedProxy:
    """Forwards the frames of one server, given as `host:port`, and tells the scripts of each.

    `script` is called with every request, `answer_script` with every answer, in the thread of their connection: one that
    waits stops what comes behind it. An error that a script raises is raised again by `close`.
    """

    def __init__(self, target: str, script: Script = goes_on, answer_script: Script = goes_on) -> None:
        self.target = target
        self.script, self.answer_script = script, answer_script
        self.codes: list[int] = []
        """Of every request, in the order in which they came."""
        self._sockets: set[socket.socket] = set()
        self._errors: list[Exception] = []
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = "127.0.0.1:{1}".format(*self._server.server_address)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def hang_up(self) -> None:
        """Close every connection there is now."""
        for one in list(self._sockets):
            _shut(one)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.hang_up()
        if self._errors:
            raise self._errors[0]

    def _serve(self, near: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        with contextlib.suppress(OSError), near, socket.create_connection((host, int(port)), PATIENCE) as far:
            ends = near, far
            self._sockets.update(ends)
            try:
                for end in ends:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far.settimeout(None)
                locks = {end: threading.Lock() for end in ends}
                back = threading.Thread(target=self._forward, args=(far, near, locks, self._on_answer), daemon=True)
                back.start()
                self._forward(near, far, locks, self._on_request)
                back.join()
            finally:
                self._sockets.difference_update(ends)

    def _on_request(self, command: Command) -> Verdict:
        self.codes.append(command.code)
        return self.script(command)

    def _on_answer(self, command: Command) -> Verdict:
        return self.answer_script(command)

    def _forward(
        self, source: socket.socket, sink: socket.socket, locks: dict[socket.socket, threading.Lock], script: Script
    ) -> None:
        """Bring every frame of `source` where its verdict says, until one of the two is closed; then close both."""

        def send(to: socket.socket, data: bytes) -> None:
            with locks[to], contextlib.suppress(OSError):
                to.sendall(data)

        try:
            with source.makefile("rb") as stream:
                while frame := read_frame(stream):
                    command = decode(frame[4:])
                    verdict = script(command)
                    if verdict is Fate.HANG_UP:
                        return
                    if isinstance(verdict, Later):
                        threading.Thread(
                            target=_send_later, args=(verdict.event, send, sink, frame), daemon=True
                        ).start()
                    elif isinstance(verdict, Command):
                        back = verdict.is_response and not command.is_response
                        send(source if back else sink, encode(verdict))
                    elif isinstance(verdict, bytes):
                        send(sink if command.is_response else source, verdict)
                    elif verdict is None:
                        send(sink, frame)
        except OSError:
            pass  # A connection that is closed while it is read has simply ended.
        except Exception as error:
            self._errors.append(error)
        finally:
            _shut(source)
            _shut(sink)


def _send_later(
    event: threading.Event, send: Callable[[socket.socket, bytes], None], sink: socket.socket, frame: bytes
) -> None:
    if event.wait(PATIENCE):
        send(sink, frame)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class ScriptedCluster:
    """A broker and a name server in this process, each behind a `ScriptedProxy`; clients see the proxies only.

    The broker's clock is the test's (`clock`), the name server's the machine's, so that a jump of the one ends no lease
    of the other. `put`, `expire` and the questions about what is stored go to the broker past its proxy: no script sees
    them.

    Args: folder: for the store, which is made below it. now_ms: where the broker's clock begins. store: options of the
    store, over small files. disk: what the store stands on, for example a `FaultyDisk`.
    """

    def __init__(self, folder: Path, now_ms: int = 1_700_000_000_000, disk: Disk | None = None, **store: Any) -> None:
        self.clock = FakeClock(now_ms)
        self.script: Script = goes_on
        """Of requests to broker and name server, but for the broker's own registration."""
        self.answer_script: Script = goes_on
        self.namesrv = ""
        """`host:port`, for clients."""
        self.broker = ""
        """`host:port`, as the name server tells it."""
        self._folder, self._disk = folder, disk
        self._store = StoreOptions(
            store_path_root_dir=str(folder / "store"),
            **{
                "mapped_file_size_commit_log": LOG_FILE_BYTES, "mapped_file_size_consume_queue": 60_000,
                "max_hash_slot_num": 20_000, "max_index_num": 80_000, "max_message_size": LOG_FILE_BYTES // 4,
                # What is expired goes at once, and nothing else, however full this machine's disk is.
                "delete_when": ";".join(map(str, range(24))), "clean_resource_interval": 10,
                "disk_max_used_space_ratio": 95, "clean_file_forcibly_enable": False,
            } | store,
        )  # fmt: skip
        self._loop = loop_factory()()
        self._queues: dict[str, int] = {}
        self._sent = self._log_file = 0
        self._end = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as end:
            thread = threading.Thread(target=self._loop.run_forever, name="scripted-cluster", daemon=True)
            thread.start()
            end.callback(self._loop.close)
            end.callback(thread.join, PATIENCE)
            end.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            namesrv = self._run(
                start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(self._folder / "kv.json")))
            )
            end.callback(lambda: self._run(namesrv.close()))
            self._namesrv_proxy = ScriptedProxy(namesrv.address, self._asked_namesrv, self._answered)
            end.callback(self._namesrv_proxy.close)
            self._broker_proxy = ScriptedProxy("", lambda asked: self.script(asked), self._answered)
            end.callback(self._broker_proxy.close)
            self.namesrv, self.broker = self._namesrv_proxy.address, self._broker_proxy.address
            options = BrokerOptions(listen_port=0, broker_name=BROKER, namesrv_addr=self.namesrv)
            broker = self._running = self._run(start_broker(options, self._store, self.clock, self._disk))
            end.callback(lambda: self._run(broker.close()))
            self._end = end.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def _asked_namesrv(self, asked: Command) -> Verdict:
        # The broker registers its own address, and clients are to be told the proxy's.
        if "brokerAddr" not in asked.ext:
            return self.script(asked)
        self._broker_proxy.target = asked.ext["brokerAddr"]
        return structs.replace(asked, ext=asked.ext | {"brokerAddr": self._broker_proxy.address})

    def _answered(self, answer: Command) -> Verdict:
        return self.answer_script(answer)

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    # -------------------------------------------------------------- what clients have asked
    def count(self, code: int) -> int:
        """How many requests with this code have come to broker and name server, those of scripts' fates included."""
        return self.requests.count(code)

    @property
    def requests(self) -> list[int]:
        """The codes of all requests so far: those to the broker, then those to the name server."""
        return self._broker_proxy.codes + self._namesrv_proxy.codes

    @property
    def bytes_out(self) -> int:
        """Bytes of records that the broker has answered pulls with, by its own counter."""
        return self._running._broker.stats.got_bytes

    # -------------------------------------------------------------- what is stored
    def put(
        self, topic: str, queue_id: int, bodies: Iterable[bytes], store_ms: int | None = None, properties: str = "",
        sys_flag: int = 0,
    ) -> None:  # fmt: skip
        """Store messages, at `store_ms` by the broker's clock (which stays there), with the tag `t` and a unique id.

        properties: instead of these two. sys_flag: what the sender says of itself: 1, that bodies are compressed. The topic is made, or gets more queues, as needed.
        """
        if self._queues.get(topic, 0) <= queue_id:
            self.make_topic(topic, queue_id + 1)
        if store_ms is not None:
            self.clock.set_wall(store_ms)
        messages = []
        for body in bodies:
            self._sent += 1
            sent = headers.SendHeader(
                producer_group="scripted", topic=topic, queue_id=queue_id, born_ms=self.clock.now_ms() - 5, sys_flag=sys_flag,
                properties=properties or f"UNIQ_KEY\x01{self._sent:032X}\x02TAGS\x01t",
            )  # fmt: skip
            messages.append(request(RequestCode.SEND_MESSAGE_V2, sent, body))
        for answer in self._ask(messages):
            message_id = headers.SendReplyHeader.from_ext(answer.ext).message_id
            self._log_file = int(message_id[-16:], 16) // LOG_FILE_BYTES

    def make_topic(self, topic: str, queues: int) -> None:
        """Make a topic with so many queues, or give it more. Returns when the name server knows."""
        made = headers.CreateTopicHeader(topic=topic, read_queues=queues, write_queues=queues, perm=_READ_WRITE)
        self._ask([request(RequestCode.UPDATE_AND_CREATE_TOPIC, made)])
        self._queues[topic] = queues

    def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, BROKER, queue_id) for queue_id in range(self._queues[topic])]

    def ends(self, topic: str) -> dict[MessageQueue, int]:
        """Each queue's max offset."""
        return self._offsets(RequestCode.GET_MAX_OFFSET, topic)

    def starts(self, topic: str) -> dict[MessageQueue, int]:
        """Each queue's min offset."""
        return self._offsets(RequestCode.GET_MIN_OFFSET, topic)

    def progress(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Where the group stands in each queue that it has a position in."""
        asked = [
            request(
                RequestCode.QUERY_CONSUMER_OFFSET,
                headers.QueryOffsetHeader(group=group, topic=queue.topic, queue_id=queue.queue_id),
            )
            for queue in self.queues(topic)
        ]
        return self._told(topic, self._ask(asked, {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}))

    def _offsets(self, code: RequestCode, topic: str) -> dict[MessageQueue, int]:
        wanted = [headers.QueueHeader(topic=topic, queue_id=queue.queue_id) for queue in self.queues(topic)]
        return self._told(topic, self._ask([request(code, header) for header in wanted]))

    def _told(self, topic: str, answers: Sequence[Command]) -> dict[MessageQueue, int]:
        return {
            queue: headers.OffsetReplyHeader.from_ext(answer.ext).offset
            for queue, answer in zip(self.queues(topic), answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }

    def new_log_file(self) -> None:
        """Fill the log's newest file: what was put before can leave the log without what is put from now on."""
        before = self._log_file
        while self._log_file == before:
            self.put("padding", 0, [bytes(LOG_FILE_BYTES // 5)])

    def expire(self, topic: str, queue_id: int, first: int) -> None:
        """Three days pass, and all log files but the newest go: `first` is what this queue begins with then."""
        self.clock.advance(73 * 3600)
        queue = MessageQueue(topic, BROKER, queue_id)
        eventually(lambda: self.starts(topic)[queue] == first, what=f"{queue} begins at {first}")

    def _ask(self, asked: Sequence[Command], fine: Container[int] = (ResponseCode.SUCCESS,)) -> list[Command]:
        """Ask the broker itself; the answers in order. Raises AssertionError: the code of one is not fine."""
        answers = exchange(self._broker_proxy.target, asked)
        for answer in answers:
            assert answer.code in fine, answer
        return answers
