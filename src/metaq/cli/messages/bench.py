"""`metaq bench send` and `metaq bench consume`: how many messages a second a cluster takes and gives, from here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from metaq.amounts import size
from metaq.cli.completing import complete_topics
from metaq.cli.groups import App
from metaq.cli.messages.pace import Pace, Progress
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, NameServers, print_json
from metaq.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from metaq import Producer, SendFuture

app = App("Measure how many messages per second a cluster takes and delivers, from this machine.")

_WINDOW = 2000
_LATENCIES_MAX = 1_000_000

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="topic to send to; the messages stay in it", autocompletion=complete_topics),
]
Count = Annotated[int, typer.Option("-c", "--count", min=1, max=1_000_000_000, help="number of messages")]
Clients = Annotated[int, typer.Option(min=1, max=64, help="threads that send in parallel")]


@app.callback()
def bench() -> None:
    """Measure how many messages per second a cluster takes and delivers, from this machine."""


class Figures(NamedTuple):
    """What was measured."""

    messages: int
    bytes: int
    seconds: float
    latencies_ms: list[float]
    """Sorted; empty: they are not known."""

    def as_dict(self) -> dict[str, Any]:
        rate = self.messages / self.seconds if self.seconds > 0 else 0.0
        found: dict[str, Any] = {
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(rate, 1),
            "bytes_per_second": round(self.bytes / self.seconds if self.seconds > 0 else 0.0, 1),
        }
        if self.latencies_ms:
            found["latency_ms"] = {
                name: round(self.at(part), 3)
                for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
            }
        return found

    def at(self, part: float) -> float:
        """Return the latency, ms, that this part of the messages had at most."""
        return self.latencies_ms[min(len(self.latencies_ms) - 1, int(part * len(self.latencies_ms)))]


@app.command("send")
def bench_send(
    topic: Topic,
    count: Count = 100_000,
    body_size: Annotated[
        int, typer.Option("--size", min=1, max=4 * 1024 * 1024, metavar="BYTES", help="body size of each message")
    ] = 128,
    clients: Clients = 1,
    synchronous: Annotated[
        bool, typer.Option("--sync", help="each thread waits for the ack of a message before it sends the next")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="send at most N messages per second in total")
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send messages as fast as the cluster takes them, and print rate and latencies.

    The latency of a message runs from its submission to its acknowledgement: without --sync it includes the wait in the producer's
    batches.
    """
    import metaq

    body = bytes(65 + at % 26 for at in range(body_size))
    shares = [count // clients + (at < count % clients) for at in range(clients)]
    with metaq.Producer(namesrv) as producer:
        producer.send(topic, body)  # the route, the connection and the topic are there before the clock runs
        sending = _BenchSends(producer, topic, body, Progress(count, "sent"))
        began = SYSTEM.monotonic()
        one = sending.one_by_one if synchronous else sending.in_flight
        try:
            _side_by_side([_bound(one, share, Pace(rate / clients if rate else None)) for share in shares if share])
        except SystemExit:  # a signal
            # Before the producer is closed: it may wait for a broker that does not answer.
            sending.report(SYSTEM.monotonic() - began, as_json=as_json)
            raise
        seconds = SYSTEM.monotonic() - began
    sending.report(seconds, as_json=as_json)


def _bound(function: Callable[[int, Pace], None], share: int, pace: Pace) -> Callable[[], None]:
    return lambda: function(share, pace)


class _BenchSends:
    """The threads of `bench send`: what all of them have sent, and its latencies."""

    def __init__(self, producer: Producer, topic: str, body: bytes, progress: Progress, clock: Clock = SYSTEM) -> None:
        self._producer, self._topic, self._body, self._now = producer, topic, body, clock.monotonic
        self._progress, self._lock = progress, threading.Lock()
        self._acknowledged, self._stopped = 0, False
        self.latencies_ms: list[float] = []

    def stop(self) -> None:
        """Have the threads send no more."""
        self._stopped = True

    def report(self, seconds: float, *, as_json: bool) -> None:
        """End it, and print the figures of what was acknowledged within so many seconds."""
        self.stop()
        with self._lock:
            self._progress.end()
            done, latencies = self._acknowledged, sorted(self.latencies_ms)
        _report(Figures(done, done * len(self._body), seconds, latencies), "sent", as_json=as_json)

    def one_by_one(self, count: int, pace: Pace) -> None:
        for _ in range(count):
            pace.before_next()
            if self._stopped:
                return
            began = self._now()
            self._producer.send(self._topic, self._body)
            self._took(self._now() - began)

    def in_flight(self, count: int, pace: Pace) -> None:
        free = threading.Semaphore(_WINDOW)
        last: SendFuture | None = None
        failed: list[BaseException] = []
        for _ in range(count):
            pace.before_next()
            free.acquire()
            if failed or self._stopped:
                free.release()
                break
            last = self._producer.submit(self._topic, self._body)
            last.add_done_callback(self._settled(self._now(), free, failed))
        if last is not None:
            self._producer.flush()
        for _ in range(_WINDOW):
            free.acquire()
        if failed:
            raise failed[0]

    def _settled(
        self, began: float, free: threading.Semaphore, failed: list[BaseException]
    ) -> Callable[[SendFuture], None]:
        def settled(future: SendFuture) -> None:
            if (fault := future.exception()) is not None:
                failed.append(fault)
            else:
                self._took(self._now() - began)
            free.release()

        return settled

    def _took(self, seconds: float) -> None:
        with self._lock:
            self._acknowledged += 1
            if len(self.latencies_ms) < _LATENCIES_MAX:
                self.latencies_ms.append(seconds * 1000)
            if not self._stopped:
                self._progress.show(self._acknowledged)


@app.command("consume")
def bench_consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="topic to read", autocompletion=complete_topics)],
    count: Annotated[
        int | None,
        typer.Option("-c", "--count", min=1, help="stop after this many messages (default: at the end of the topic)"),
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Read a topic from its beginning as fast as the cluster delivers it, and print the rate.

    The progress of consumer groups does not change.
    """
    import metaq

    messages = read = 0
    with metaq.Reader(namesrv, topic, start="earliest", stop_at_end=True) as reader, _shown(count) as progress:
        began = SYSTEM.monotonic()
        try:
            for message in reader:
                messages += 1
                read += len(message.body)
                if messages % 256 == 0:
                    progress.show(messages)
                if messages == count:
                    break
        except SystemExit:  # a signal
            progress.end()
            _report(Figures(messages, read, SYSTEM.monotonic() - began, []), "consumed", as_json=as_json)
            raise
        seconds = SYSTEM.monotonic() - began
    _report(Figures(messages, read, seconds, []), "consumed", as_json=as_json)
    if not messages:
        raise typer.Exit(EXIT_FAILED)


@contextlib.contextmanager
def _shown(total: int | None) -> Iterator[Progress]:
    progress = Progress(total, "consumed")
    try:
        yield progress
    finally:
        progress.end()


def _side_by_side(works: list[Callable[[], None]]) -> None:
    """Run them in threads. Raises what one of them raised first."""
    faults: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:  # noqa: BLE001  raised again below
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def _report(found: Figures, verb: str, *, as_json: bool) -> None:
    figures = found.as_dict()
    if as_json:
        print_json(figures)
        return
    print(
        f"{found.messages:,} messages ({size(found.bytes)}) {verb} in {found.seconds:.2f} s: "
        f"{figures['messages_per_second']:,.0f} messages/s, {size(round(figures['bytes_per_second']))}/s"
    )
    if found.latencies_ms:
        shown = ", ".join(f"{name} {value:,.2f} ms" for name, value in figures["latency_ms"].items())
        print(f"latency: {shown}")
