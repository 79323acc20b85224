"""What a scenario has in hand: the peer, foreign clients on it, and the transcript."""

import contextlib
import functools
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from metaq.admin import Admin
from metaq.wire.command import Command
from tests.differential import transcript
from tests.differential.peers import BROKER, Peer, recording
from tests.differential.program import Event, ForeignError, ForeignProgram, Handler
from tests.support import PATIENCE, eventually, exchange

PATIENCE_MS = int(PATIENCE * 1000)
OK, LATER, COMMIT, ROLLBACK = "ok", "later", "commit", "rollback"
"""What listeners answer: each program turns these words into those of its client."""

ROUTE_TRIES = 5


def succeed(_event: Event) -> Event:
    return {"status": OK}


def bodies(messages: list[Event]) -> list[str]:
    return [message["body"] for message in messages]


def place(message: Event) -> Event:
    """A message without where it is: of those that went to a queue of the client's choice."""
    return {key: value for key, value in message.items() if key not in {"queue_id", "queue_offset", "queue"}}


class Client:
    """One producer or consumer in a foreign program."""

    def __init__(self, program: ForeignProgram, name: str) -> None:
        self.program, self.name = program, name

    def start(self, op: str, **arguments: Any) -> Future[Any]:
        return self.program.start(op, name=self.name, **arguments)

    def call(self, op: str, **arguments: Any) -> Any:
        return self.start(op, **arguments).result(PATIENCE)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the client that takes plain values and queues."""
        return self.call("call", method=method, arguments=list(arguments))

    def outcome(self, op: str, **arguments: Any) -> Any:
        """What an operation returns, or what it throws: both are observations."""
        try:
            return self.call(op, **arguments)
        except ForeignError as error:
            return {"threw": error.what}

    def send(self, topic: str, body: str, mode: str = "sync", **more: Any) -> Any:
        """Send. The topic has a route."""
        for _ in range(ROUTE_TRIES - 1):
            try:
                return self.call("send", topic=topic, body=body, mode=mode, **more)
            except ForeignError as error:
                # The C++ client asks for a route once, for 3 s, which a starved machine may need longer for; it has sent nothing then.
                if "No route info of this topic" not in str(error):
                    raise
        return self.call("send", topic=topic, body=body, mode=mode, **more)

    def sending(self, topic: str, body: str, mode: str = "sync", **more: Any) -> Any:
        """Send, and return the receipt or what was thrown."""
        return self.outcome("send", topic=topic, body=body, mode=mode, **more)

    def shutdown(self) -> None:
        self.call("shutdown")


class Consumer(Client):
    """A push consumer, and what it received."""

    def calls(self) -> list[list[Event]]:
        """The messages of each call of its listener."""
        return [event["messages"] for event in self.program.events(self.name, "consume")]

    def received(self) -> list[Event]:
        return [message for call in self.calls() for message in call]

    def await_events(self, enough: int | Callable[[list[Event]], bool], timeout: float = PATIENCE) -> list[Event]:
        """What it has received, as soon as it is `enough`: a number, or a predicate."""

        def probe() -> list[Event] | None:
            got = self.received()
            return got if (enough(got) if callable(enough) else len(got) >= enough) else None

        got: list[Event] = self.program.wait_for(
            probe, lambda: f"{self.name} received {sorted(bodies(self.received()))[:50]}, not enough", timeout
        )
        return got


class World:
    """One scenario on one peer."""

    def __init__(self, peer: Peer, programs: "Programs", name: str) -> None:
        self.peer, self.name = peer, name.replace("_", "-")
        self.transcript = transcript.Transcript()
        self.note, self.note_set = self.transcript.note, self.transcript.note_set
        self._programs = programs
        self._clients: list[Client] = []
        self._own: list[ForeignProgram] = []
        self._acts: list[Callable[[], object]] = []

    # ---- names --------------------------------------------------------------------------------------------------

    def topic(self, suffix: str = "t", *, queues: int = 4, perm: int = 6, order: bool = False) -> str:
        """A new topic; the name server knows it."""
        return self.topic_named(f"{self.name}-{suffix}", queues=queues, perm=perm, order=order)

    def topic_named(self, name: str, *, queues: int = 4, perm: int = 6, order: bool = False) -> str:
        with Admin(self.peer.namesrv) as admin:
            admin.create_topic(name, queues=queues, perm=perm, order=order)
            eventually(lambda: name in admin.list_topics())
        return name

    def group(self, suffix: str = "g") -> str:
        return f"{self.name}-{suffix}"

    def queues_of(self, topic: str) -> int | None:
        """How many queues the name server knows of that topic; None if it does not know it."""
        with Admin(self.peer.namesrv) as admin:
            if topic not in admin.list_topics(system=True):
                return None
            return sum(data.write_queues for data in admin.describe_topic(topic).route.queues)

    def known_group(self, topic: str, group: str = "", **more: Any) -> None:
        """Let the group's retry topic be made, and known: who starts then has its queues at once, not up to 30 s later."""
        self.push(topic, group=group, **more).shutdown()
        namespace = more.get("options", {}).get("namespace", "")
        name = f"%RETRY%{namespace and namespace + '%'}{group or self.group()}"
        eventually(lambda: self.queues_of(name))

    @staticmethod
    def queue(topic: str, number: int) -> Event:
        return {"topic": topic, "broker": BROKER, "queue_id": number}

    def ask(self, code: int, body: Any = None, *, at: str = "", **fields: Any) -> Event:
        """What the broker answers to a request that no client would send so. `body`: bytes, or what becomes JSON.

        `at`: another server's address.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        command = Command(code, language="JAVA", ext={key: str(value) for key, value in fields.items()}, body=data)
        (answer,) = exchange(at or self.peer.broker, [command])
        text = bytes(answer.body).decode(errors="replace")
        with contextlib.suppress(ValueError):
            text = json.loads(text)
        return {"code": answer.code, "remark": answer.remark, "fields": dict(sorted(answer.ext.items())), "body": text}

    def wait_committed(self, topic: str, offsets: dict[int, int], group: str = "") -> None:
        """Wait until the broker has these offsets of the group: queue id to offset."""
        for queue_id, offset in offsets.items():
            fields = {"consumerGroup": group or self.group(), "topic": topic, "queueId": queue_id}
            eventually(
                lambda fields=fields, offset=offset: self.ask(14, **fields)["fields"].get("offset") == str(offset)
            )

    # ---- clients ------------------------------------------------------------------------------------------------

    def program(self, kind: str) -> ForeignProgram:
        """The program of that kind which all scenarios share."""
        return self._programs.shared(kind)

    def own_program(self, kind: str) -> ForeignProgram:
        """One that this scenario may kill."""
        program = self._programs.new(kind)
        self._own.append(program)
        return program

    def _begin(self, client: Client, op: str, faulty: bool, **arguments: Any) -> None:
        client.program.forget(client.name)
        self._clients.append(client)
        namesrv = self.peer.faulty_namesrv if faulty else self.peer.namesrv
        client.call(op, namesrv=namesrv, **arguments)

    def producer(
        self, on: str | ForeignProgram = "java", name: str = "p", *, group: str = "", faulty: bool = False, **more: Any
    ) -> Client:
        """A started producer. `faulty`: through the network that can be cut. `options`: by the client's own names."""
        client = Client(self._on(on), name)
        options = {"sendMsgTimeout": PATIENCE_MS, **more.pop("options", {})}
        self._begin(client, "producer", faulty, group=group or self.group("producers"), options=options, **more)
        return client

    def transaction_producer(
        self,
        on: str | ForeignProgram = "java",
        name: str = "tp",
        *,
        execute: Handler,
        check: Handler,
        group: str = "",
        faulty: bool = False,
        **more: Any,
    ) -> Client:
        """A producer of half messages; `execute` is its local transaction, `check` answers what the broker asks."""
        client = Client(self._on(on), name)
        client.program.forget(name)
        client.program.when(name, "execute", execute)
        client.program.when(name, "check", check)
        self._clients.append(client)
        options = {"sendMsgTimeout": PATIENCE_MS, **more.pop("options", {})}
        namesrv = self.peer.faulty_namesrv if faulty else self.peer.namesrv
        group = group or self.group("producers")
        client.call("producer", namesrv=namesrv, group=group, transactions=True, options=options, **more)
        return client

    def push(
        self,
        topics: str | dict[str, str],
        on: str | ForeignProgram = "java",
        name: str = "c",
        *,
        group: str = "",
        listen: Handler = succeed,
        allocate: Handler | None = None,
        faulty: bool = False,
        **more: Any,
    ) -> Consumer:
        """A started push consumer whose listener is `listen`; from the first offset, where the scenario says nothing."""
        client = Consumer(self._on(on), name)
        program = client.program
        program.forget(name)
        program.when(name, "consume", listen)
        if allocate is not None:
            program.when(name, "allocate", allocate)
            more["own_strategy"] = True
        self._clients.append(client)
        options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", **more.pop("options", {})}
        wanted = {topics: "*"} if isinstance(topics, str) else topics
        namesrv = self.peer.faulty_namesrv if faulty else self.peer.namesrv
        client.call("push", namesrv=namesrv, group=group or self.group(), topics=wanted, options=options, **more)
        return client

    def undertaker(self, on: str | ForeignProgram = "java", group: str = "") -> Consumer:
        """A consumer of the group's dead letters, of which there is one."""
        topic = f"%DLQ%{group or self.group()}"
        eventually(lambda: self.queues_of(topic))
        return self.push(topic, on, "undertaker", group=self.group("undertaker"))

    def pull_consumer(
        self, on: str | ForeignProgram = "java", name: str = "pull", *, group: str = "", **more: Any
    ) -> Client:
        client = Client(self._on(on), name)
        self._begin(client, "pull_consumer", faulty=False, group=group or self.group(), **more)
        return client

    def scheduled(self, topic: str, on: str | ForeignProgram = "java", name: str = "scheduled") -> Client:
        """A scheduled pull consumer, which asks the test after each pull."""
        client = Client(self._on(on), name)
        client.program.forget(name)
        client.program.when(name, "pulled", lambda _event: None)
        self._clients.append(client)
        client.call("schedule", namesrv=self.peer.namesrv, group=self.group(), topic=topic)
        return client

    def client(self, on: str | ForeignProgram, name: str) -> Client:
        """A client that the scenario starts, and ends, by operations of its own."""
        return Client(self._on(on), name)

    def on_close(self, act: Callable[[], object]) -> None:
        """Do this behind the scenario."""
        self._acts.append(act)

    def _on(self, program: str | ForeignProgram) -> ForeignProgram:
        return self.program(program) if isinstance(program, str) else program

    # ---- the end ------------------------------------------------------------------------------------------------

    def compare(self, module: str, scenario: str) -> None:
        """RocketMQ's transcript against the golden one, or into it; ours against it too, but for what is accepted."""
        file = transcript.golden_file(module, scenario)
        if self.peer.name == "rocketmq" and recording():
            transcript.write_golden(file, self.transcript)
            return
        golden = transcript.read_golden(file)
        if self.peer.name == "rocketmq":
            transcript.check_recording(golden, self.transcript.rows)
        else:
            transcript.compare(f"{module}::{scenario}", golden, self.transcript.rows)

    def close(self) -> None:
        """Leave nothing of this scenario behind."""
        self.peer.network.mend()
        if not self.peer.is_up:
            self.peer.start_broker()
        with contextlib.ExitStack() as left:  # each is done whatever becomes of the others
            for program in self._own:
                left.callback(lambda program=program: program.close() if program.alive else None)
            for client in self._clients:
                left.callback(lambda client=client: client.shutdown() if client.program.alive else None)
            for act in self._acts:
                left.callback(act)


class Programs:
    """Foreign programs, each started when it is first wanted."""

    def __init__(self, makers: dict[str, Callable[[Path], ForeignProgram]], folder: Callable[[str], Path]) -> None:
        self._makers, self._folder = makers, folder
        self._shared: dict[str, ForeignProgram] = {}

    def new(self, kind: str) -> ForeignProgram:
        return self._makers[kind](self._folder(kind))

    def shared(self, kind: str) -> ForeignProgram:
        if kind not in self._shared or not self._shared[kind].alive:
            self._shared[kind] = self.new(kind)
        return self._shared[kind]

    def abandon(self, *kinds: str) -> None:
        """Kill them, or those of some kinds: one may hold a client that never started, and the next of its name would share its
        connections."""
        for kind, program in self._shared.items():
            if program.alive and (not kinds or kind in kinds):
                program.kill()

    def close(self) -> None:
        for program in self._shared.values():
            if program.alive:
                program.close()


def scenario(steps: Callable[..., None]) -> Callable[..., None]:
    """A test of `steps`, which take a World and note what they see there: the notes must be those of RocketMQ."""

    @functools.wraps(steps)
    def compared(world: World, **more: Any) -> None:
        steps(world, **more)
        world.compare(steps.__module__.rpartition(".")[2], steps.__name__)

    return compared
