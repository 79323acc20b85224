"""`metaq bench send|consume`: figures of a real broker, and what is made of them."""

from __future__ import annotations

import concurrent.futures
import io
import json
import signal
from types import SimpleNamespace

import pytest

import metaq
from metaq.cli.messages.bench import Figures, _BenchSends, bench_consume
from metaq.cli.messages.pace import Pace, Progress
from metaq.errors import BrokerError
from tests.support import PATIENCE, metaq_command, process, run_metaq


@pytest.mark.parametrize("words", [(), ("--sync",), ("--clients", "3")])
def test_what_is_sent_is_there_and_is_counted(metaq_broker, words):
    """Every message counts, also with threads side by side; consume finds them and the one that came before the clock ran."""
    topic = f"cli-bench{len(words)}{words[0] if words else ''}"
    at = ("-n", metaq_broker.namesrv)
    sent = run_metaq("bench", "send", topic, "-c", "301", "--size", "50", "--json", *words, *at)
    assert sent.returncode == 0, sent.stderr
    figures = json.loads(sent.stdout)
    assert (figures["messages"], figures["bytes"]) == (301, 15050)
    assert figures["messages_per_second"] > 0
    assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["p99"] <= figures["latency_ms"]["max"]
    read = json.loads(run_metaq("bench", "consume", topic, "--json", *at).stdout)
    assert (read["messages"], read["bytes"], "latency_ms" in read) == (302, 15100, False)


def test_figures_in_text(metaq_broker):
    """One line, and one of latencies."""
    at = ("-n", metaq_broker.namesrv)
    sent = run_metaq("bench", "send", "cli-bench-text", "-c", "20", *at).stdout.splitlines()
    assert sent[0].startswith("20 messages (2.5 KiB) sent in ")
    assert sent[1].startswith("latency: p50 ")
    assert run_metaq("bench", "consume", "cli-bench-text", "-c", "5", *at).stdout.startswith(
        "5 messages (640 B) consumed"
    )


@pytest.mark.parametrize("words", [(), ("--sync",), ("--clients", "3")])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_bench_prints_the_figures_until_then(metaq_broker, words, number, code):
    """Of the messages that were acknowledged; the topic has these, and at most those that were on their way."""
    topic = f"cli-bench-stopped-{code}{''.join(words)}"
    at = ("-n", metaq_broker.namesrv)
    command = metaq_command("bench", "send", topic, "-c", "1000000", "--rate", "300", "--json", *words, *at)
    with process(*command) as child, metaq.Reader(metaq_broker.namesrv, topic, start="earliest") as reader:
        assert all(reader.receive(PATIENCE) for _ in range(30))
        child.send_signal(number)
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, err) == (code, "")
    figures = json.loads(out)
    assert figures["bytes"] == 128 * figures["messages"]
    assert figures["messages_per_second"] > 0
    assert figures["latency_ms"]["max"] > 0
    stored = json.loads(run_metaq("topic", "show", topic, "--json", *at).stdout)["messages"]
    assert 1 <= figures["messages"] < stored <= figures["messages"] + 100


def test_an_interrupted_reading_prints_the_figures_until_then(monkeypatch, capsys):
    """`bench consume`, in which nothing waits for more than a signal."""

    class Interrupted:
        def __init__(self, *_args, **_options):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            pass

        def __iter__(self):
            yield from (SimpleNamespace(body=b"12345"),) * 3
            raise SystemExit(130)

    monkeypatch.setattr(metaq, "Reader", Interrupted)
    with pytest.raises(SystemExit) as ended:
        bench_consume("t", None, "127.0.0.1:1", as_json=True)
    assert ended.value.code == 130
    figures = json.loads(capsys.readouterr().out)
    assert (figures["messages"], figures["bytes"]) == (3, 15)


def test_a_fault_ends_it(metaq_broker):
    """One sentence and its exit code, from whichever thread."""
    at = ("-n", metaq_broker.namesrv)
    done = run_metaq("bench", "send", "a b", "-c", "5", *at)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert run_metaq("bench", "consume", "cli-no-such-bench", *at).returncode == 3
    assert run_metaq("bench", "send", "x", "--size", "0", *at).returncode == 2


def test_percentiles():
    """Of a hundred latencies, and of one."""
    found = Figures(100, 1000, 2.0, [float(n) for n in range(1, 101)]).as_dict()
    assert found["messages_per_second"] == 50
    assert found["latency_ms"] == {"p50": 51, "p99": 100, "p999": 100, "max": 100}
    assert Figures(0, 0, 0.0, []).as_dict()["messages_per_second"] == 0
    assert Figures(1, 1, 1.0, [3.0]).as_dict()["latency_ms"]["p50"] == 3


class Refusing:
    """A producer whose acks are faults from the third on; its threads are the caller's."""

    def __init__(self):
        self.sent = 0

    def submit(self, topic, body):
        self.sent += 1
        future = concurrent.futures.Future()
        if self.sent < 3:
            future.set_result(None)
        else:
            future.set_exception(BrokerError(1, "no"))
        return future

    def flush(self):
        pass


def test_a_fault_under_way_ends_all_and_is_raised():
    """Nobody waits for what will not come."""
    producer = Refusing()
    sends = _BenchSends(producer, "t", b"x", Progress(9, "sent", io.StringIO()))
    with pytest.raises(BrokerError):
        sends.in_flight(5000, Pace(None))
    assert (producer.sent, len(sends.latencies_ms)) == (3, 2)


def test_what_is_stopped_submits_no_more():
    producer = Refusing()
    sends = _BenchSends(producer, "t", b"x", Progress(9, "sent", io.StringIO()))
    sends.stop()
    sends.in_flight(5000, Pace(None))
    sends.one_by_one(5000, Pace(None))
    assert producer.sent == 0
