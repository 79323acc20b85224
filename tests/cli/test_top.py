"""`metaq top`: on a terminal, in a pipe, as JSON."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from fcntl import ioctl

import pytest
from rich.console import Console

import metaq
from metaq.admin import Activity, BrokerStatus, GroupActivity, TopicActivity
from metaq.cli.cluster.top_figures import GroupSort, TopicSort, sorted_groups, sorted_topics
from metaq.cli.cluster.top_screen import View, screen_of
from tests.support import PATIENCE, environment, metaq_command, process, run_metaq

TOPIC, GROUP = "top-orders", "top-mailer"


@pytest.fixture(scope="module")
def behind(metaq_broker):
    """A group that has not consumed two of three messages."""
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(3):
            producer.send(TOPIC, b"%d" % number)
    with metaq.Consumer(metaq_broker.namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()


def test_one_look_as_json(metaq_broker, behind):
    """Brokers, topics and groups, sorted, with what the look has cost."""
    done = run_metaq("top", "--once", "--json", "--groups", "name", "-n", metaq_broker.namesrv)
    assert done.returncode == 0, done.stderr
    look = json.loads(done.stdout)
    [broker] = look["brokers"]
    assert (broker["answers"], broker["registered"], broker["state"], broker["broker_id"]) == (True, True, "", 0)
    assert 0 <= broker["disk_used"] <= 1
    assert broker["connections"] >= 1
    found = {one["group"]: one for one in look["groups"]}
    assert (found[GROUP]["lag"], found[GROUP]["lag_growth_per_second"], found[GROUP]["members"]) == (2, None, 0)
    assert list(found) == sorted(found)
    assert next(one for one in look["topics"] if one["topic"] == TOPIC)["groups"] == 1
    assert look["requests"] > 3
    few = run_metaq("top", "--once", "--json", "--rows", "1", "-n", metaq_broker.namesrv)
    assert [len(json.loads(few.stdout)[key]) for key in ("topics", "groups")] == [1, 1]


def test_documents_and_plain_tables_in_a_pipe(metaq_broker, behind):
    """One look after the other until Ctrl-C, without the codes of a terminal."""
    for more in (("--json",), ()):
        with process(*metaq_command("top", "--interval", "0.1", *more, "-n", metaq_broker.namesrv)) as child:
            if more:
                looks = [json.loads(child.stdout.readline()) for _ in range(2)]
                assert [one["group"] for one in looks[1]["groups"] if one["lag_growth_per_second"] == 0.0].count(
                    GROUP
                ) == 1
            else:
                lines = [child.stdout.readline() for _ in range(4)]
                assert lines[0].startswith("20")
                assert lines[1].split()[:5] == ["broker", "id", "address", "stored/s", "delivered/s"]
                assert "\x1b" not in "".join(lines)
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE) == 130


def test_nobody_there_is_told(unused_address="127.0.0.1:1"):
    done = run_metaq("top", "-n", unused_address)
    assert done.returncode == 1
    assert done.stderr.startswith("metaq: ")
    assert done.stderr.count("\n") == 1


class Terminal:
    """`metaq top` on a pseudo-terminal of so many columns and lines."""

    def __init__(self, namesrv, columns, lines):
        self.mine, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.mine)
        words = metaq_command("top", "--interval", "0.2", "-n", namesrv)
        more = {"TERM": "xterm", "COLUMNS": "", "LINES": ""}
        self.child = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**more), start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def until(self, text):
        """Read on until a text is shown that was not before."""
        start, deadline = len(self.shown), time.monotonic() + PATIENCE
        while text not in self.shown[start:]:
            assert select.select([self.mine], [], [], deadline - time.monotonic())[0], self.shown[-3000:]
            self.shown += os.read(self.mine, 65536).decode(errors="replace")

    def press(self, key):
        os.write(self.mine, key)

    def end(self):
        """Read all, and return the exit code."""
        try:
            while data := os.read(self.mine, 65536):
                self.shown += data.decode(errors="replace")
        except OSError:  # the other end is closed
            pass
        return self.child.wait(PATIENCE)


@pytest.fixture
def terminal(metaq_broker, behind):
    opened = []

    def run(columns=100, lines=30):
        opened.append(Terminal(metaq_broker.namesrv, columns, lines))
        return opened[-1]

    yield run
    for one in opened:
        if one.child.poll() is None:
            one.child.kill()
            one.child.wait()
        os.close(one.mine)


LEAVES_SCREEN = "\x1b[?1049l"


def test_keys_sort_pause_and_quit(terminal):
    """The terminal is as before at the end."""
    seen = terminal(lines=300)  # room for the topics of other tests, too
    seen.until("q quit")
    assert GROUP in seen.shown
    assert TOPIC in seen.shown
    seen.press(b"p")
    seen.until("paused")
    seen.press(b"\x1b[A")  # an arrow: nothing
    seen.press(b"t")
    seen.until("bytes/s")
    seen.press(b"q")
    assert seen.end() == 0
    assert LEAVES_SCREEN in seen.shown
    assert "Traceback" not in seen.shown
    assert termios.tcgetattr(seen.mine)[3] == seen.before[3]


def test_ctrl_c_on_a_narrow_terminal(terminal):
    """What does not fit is left out, and the terminal is as before."""
    seen = terminal(30, 12)
    seen.until("q quit")
    assert "address" not in seen.shown
    os.kill(seen.child.pid, signal.SIGINT)
    assert seen.end() == 130
    assert LEAVES_SCREEN in seen.shown
    assert "Traceback" not in seen.shown
    assert termios.tcgetattr(seen.mine)[3] == seen.before[3]


# ---------------------------------------------------------------- what is drawn


def runtime(put, p99, disk, end):
    return {
        "putTps": f"{put} 1 1", "getTransferedTps": "2 1 1", "putLatency99": p99, "metaqConnections": "7",
        "commitLogDiskRatio": disk, "commitLogMaxOffset": end,
    }  # fmt: skip


BROKERS = (
    BrokerStatus("C", "broker-a", 0, "10.0.0.1:10911", "", runtime("1234.5", "0.41", "0.9", "9000")),
    BrokerStatus("C", "broker-a", 1, "10.0.0.2:10911", "", runtime("0", "0", "0.4", "8000")),
    BrokerStatus("C", "broker-b", 0, "10.0.0.3:10911", "no answer", registered=False),
)
TOPICS = tuple(TopicActivity(f"topic-{n:02}", float(n), n * 100.0, 1.5, 1, 100 - n) for n in range(40))
GROUPS = tuple(GroupActivity(f"group-{n:02}", n % 3, 1, 0.5, n, float(n - 20)) for n in range(40))
LOOK = Activity(1_795_900_000_123, 0.0, BROKERS, TOPICS, GROUPS, 9, ("groups at broker-a: slow",), (), {}, {})


def drawn(columns, lines, view=View(), look=LOOK):  # noqa: B008  a value that nobody changes
    console = Console(width=columns, height=lines, file=io.StringIO(), force_terminal=False)
    console.print(screen_of(look, view, columns, lines))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("columns", "lines"), [(200, 60), (120, 40), (80, 24), (46, 16)])
def test_everything_fits(columns, lines):
    """Brokers that are gone first, then as many topics and groups as there is room for."""
    shown = drawn(columns, lines)
    assert len(shown) <= lines
    assert max(map(len, shown)) <= columns
    assert shown[2].startswith("broker-b")
    assert any("broker-b: gone: no answer"[: columns - 10] in line for line in shown)
    assert any(line.startswith("topic-39") for line in shown)
    assert any(line.startswith("group-39") for line in shown)
    assert shown[-1].startswith("q quit")


def test_figures_as_people_read_them():
    """Of a wide terminal: all columns."""
    lines = drawn(120, 40)
    line = next(line for line in lines if "10.0.0.1:10911" in line)
    assert line.split() == ["broker-a", "0", "10.0.0.1:10911", "1,234", "2", "0.4", "7", "90%"]
    assert next(line for line in lines if "10.0.0.2:10911" in line).split()[-2:] == ["1000", "B"]
    assert next(line for line in lines if line.startswith("topic-39")).split()[1:] == [
        "39",
        "3.8",
        "KiB",
        "1.5",
        "1",
        "61",
    ]
    assert next(line for line in lines if line.startswith("group-39")).split()[1:] == ["0", "1", "39", "+19.0", "0.5"]
    assert lines[0] == "2026-11-28 21:06:40 UTC   C   2 of 3 brokers   40 topics   40 groups"


def test_few_rows_a_fault_and_a_pause_are_shown():
    lines = drawn(100, 30, View(rows=2, paused=True, fault="no answer came"))
    assert lines[0].startswith("paused")
    assert "the last update has failed: no answer came" in lines
    assert sum(line.startswith("topic-") for line in lines) == 2


def test_sorting():
    """The most first, what is not known last, names from a to z."""
    unknown = TopicActivity("a", None, None, 9.0, 0, 0)
    found = [*TOPICS, unknown]
    firsts = {by: sorted_topics(found, by)[0].topic for by in TopicSort}
    assert firsts == {
        TopicSort.STORED: "topic-39", TopicSort.BYTES: "topic-39", TopicSort.DELIVERED: "a", TopicSort.LAG: "topic-00",
        TopicSort.NAME: "a",
    }  # fmt: skip
    assert sorted_topics(found, TopicSort.STORED)[-1] is unknown
    groups = {by: sorted_groups(GROUPS, by)[0].group for by in GroupSort}
    assert groups == {
        GroupSort.LAG: "group-39", GroupSort.GROWTH: "group-39", GroupSort.DELIVERED: "group-00",
        GroupSort.MEMBERS: "group-02", GroupSort.NAME: "group-00",
    }  # fmt: skip
