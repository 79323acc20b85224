"""`metaq group list|create|delete|clone|move` and `metaq topic stats|update`, as a user types them."""

from __future__ import annotations

import json
import signal

import pytest

import metaq
from metaq.cli.watching import Rates, repeat
from metaq.clock import FakeClock
from metaq.errors import RequestTimeout
from tests.support import PATIENCE, ROOT, metaq_command, process, run_metaq

pytestmark = pytest.mark.slow

TOPIC, BEHIND, DONE = "cli-figures", "cli-figures-behind", "cli-figures-done"


@pytest.fixture(scope="module")
def cli(metaq_broker):
    """Run a command that has to succeed, and return what it prints."""

    def run(*args, code=0):
        done = run_metaq(*args, "-n", metaq_broker.namesrv)
        assert done.returncode == code, (args, done.stderr)
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture(scope="module")
def groups(cli, metaq_broker):
    """A topic of two queues with four messages, and two groups: one has consumed a message, one all."""
    cli("topic", "create", TOPIC, "--queues", "2")
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(4):
            producer.send(TOPIC, b"%d" % number, queue=producer.queues(TOPIC)[number % 2])
    for group, number in ((BEHIND, 1), (DONE, 4)):
        with metaq.Consumer(metaq_broker.namesrv, group=group, topics=TOPIC, start="earliest") as consumer:
            for _ in range(number):
                consumer.receive(PATIENCE).ack()


def listed(cli, *args):
    return {one["group"]: one for one in json.loads(cli("group", "list", "--topic", TOPIC, "--json", *args))}


def test_groups_are_listed_with_what_waits(cli, groups):
    """Messages, bytes, time; the most first; what has no members is marked."""
    found = listed(cli)
    assert list(found) == [BEHIND, DONE]
    behind = found[BEHIND]
    assert (behind["lag"], behind["members"], behind["topics"]) == (3, 0, [TOPIC])
    assert behind["lag_bytes"] > 3 * 91
    assert behind["lag_bytes_exact"]
    assert behind["lag_seconds"] > 0
    assert behind["oldest_waiting"].startswith("20")
    assert {one["topic"] for one in behind["unread_queues"]} >= {TOPIC}
    assert (found[DONE]["lag"], found[DONE]["lag_bytes"], found[DONE]["lag_seconds"]) == (0, 0, 0.0)
    for sort, first in (("bytes", BEHIND), ("seconds", BEHIND), ("name", BEHIND), ("members", BEHIND)):
        assert next(iter(listed(cli, "--sort", sort))) == first
    lines = cli("group", "list", "--topic", TOPIC).splitlines()
    assert lines[0].split()[:5] == ["group", "members", "topics", "lag", "bytes"]
    assert lines[1].rstrip().endswith("no members")
    assert "TOOLS_CONSUMER" in cli("group", "list", "--all")
    assert "lag" in cli("group", "list", "--sort", "colour", code=2)


@pytest.mark.parametrize("what", [("group", "list", "--topic", TOPIC), ("topic", "stats", TOPIC)])
def test_watch_looks_again(metaq_broker, groups, what):
    """A document a look, with rates from the second on, until Ctrl-C."""
    command = metaq_command(*what, "--watch", "--interval", "0.1", "--json", "-n", metaq_broker.namesrv)
    with process(*command) as child:
        looks = [json.loads(child.stdout.readline()) for _ in range(2)]
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130
    rows = [look if what[0] == "group" else look["queues"] for look in looks]
    key = "consumed_per_second" if what[0] == "group" else "stored_per_second"
    assert [{row[key] for row in rows[number]} for number in (0, 1)] == [{None}, {0.0}]


def test_rates_are_growth_over_time():
    """None at first, and after a number has fallen: a group was reset."""
    clock = FakeClock()
    rates = Rates(clock)
    assert rates.rate("a", 5) is None
    clock.advance(2)
    assert rates.rate("a", 11) == 3.0
    clock.advance(1)
    assert rates.rate("a", 2) is None
    clock.advance(1)
    assert rates.rate("a", 3) == 1.0


def test_a_look_that_fails_does_not_end_a_watch(capsys):
    """But the first one does."""
    outcomes = iter([1, RequestTimeout("no answer"), 2])
    shown = []

    def look():
        found = next(outcomes)  # ends the watch when nothing is left
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.raises(StopIteration):
        repeat(look, shown.append, watch=True, seconds=0)
    assert shown == [1, 2]
    assert "no answer" in capsys.readouterr().err
    with pytest.raises(RequestTimeout):
        repeat(lambda: (_ for _ in ()).throw(RequestTimeout("no answer")), shown.append, watch=True, seconds=0)


def test_topic_stats_in_text_and_json(cli, groups):
    """Per queue bounds, bytes, time, and that nobody reads it."""
    stats = json.loads(cli("topic", "stats", TOPIC, "--json"))
    assert [(one["begin"], one["end"], one["messages"], one["unread"]) for one in stats["queues"]] == [
        (0, 2, 2, True)
    ] * 2
    assert stats["bytes"] == sum(one["bytes"] for one in stats["queues"])
    assert stats["bytes_exact"]
    assert stats["readers"] == []
    assert set(stats["groups_without_members"]) >= {BEHIND, DONE}
    text = cli("topic", "stats", TOPIC)
    assert f"topic {TOPIC}: 4 messages, " in text
    assert "read by no group; without members: " in text
    assert text.count("no group reads it") == 2
    cli("topic", "stats", "cli-figures-no-such-topic", code=3)


def test_a_groups_life(cli, groups):
    """Made, stopped, copied, renamed, deleted."""
    made = json.loads(cli("group", "create", "cli-life-group", "--retries", "5", "--stop", "--json"))
    assert [(one["retries"], one["consume"]) for one in made["brokers"]] == [(5, False)]
    assert "exists at 1 broker" in cli("group", "create", "cli-life-group", "--consume")
    seen = json.loads(cli("group", "clone", BEHIND, "cli-life-group", "--dry-run", "--json"))
    assert json.loads(cli("group", "show", "cli-life-group", "--json"))["queues"] == []
    assert f"group cli-life-group has the offsets of group {BEHIND}" in cli("group", "clone", BEHIND, "cli-life-group")
    shown = json.loads(cli("group", "show", "cli-life-group", "--json"))
    assert sum(one["offset"] for one in seen["queues"]) == sum(one["consumed"] for one in shown["queues"]) == 1
    assert "is stopped" in cli("group", "move", "cli-life-group", "cli-life-renamed")
    assert json.loads(cli("group", "show", "cli-life-renamed", "--json"))["lag"] == 3
    [broker] = json.loads(cli("group", "show", "cli-life-group", "--json"))["stopped_at"]
    told = (
        f"stopped: members get no messages from {broker}; `metaq group create cli-life-group --consume` starts it again"
    )
    assert told in cli("group", "show", "cli-life-group")
    assert listed(cli)["cli-life-group"]["stopped_at"] == [broker]
    assert listed(cli)["cli-life-renamed"]["stopped_at"] == []
    marks = {line.split()[0]: line for line in cli("group", "list", "--topic", TOPIC).splitlines()}
    assert marks["cli-life-group"].rstrip().endswith("stopped; no members")
    assert "stopped" not in marks["cli-life-renamed"] + cli("group", "show", "cli-life-renamed")
    for group in ("cli-life-group", "cli-life-renamed"):
        assert f"group {group} is deleted" in cli("group", "delete", group, "--yes")
        cli("group", "show", group, code=3)
    cli("group", "delete", "cli-life-group", "--yes", code=3)
    assert "Delete group" in cli("group", "delete", DONE, code=1)


def test_what_has_members_is_not_deleted(cli, groups, metaq_broker):
    with metaq.Consumer(metaq_broker.namesrv, group="cli-figures-member", topics=TOPIC) as consumer:
        consumer.wait_assigned(PATIENCE)
        assert "group cli-figures-member has members" in cli("group", "delete", "cli-figures-member", "--yes", code=1)


def test_a_topic_that_is_read_is_not_deleted(cli, metaq_broker):
    """Unless by force, or when its readers have left."""
    for topic, force in (("cli-read-one", ()), ("cli-read-two", ("--force",))):
        cli("topic", "create", topic)
        with metaq.Consumer(metaq_broker.namesrv, group="cli-reads", topics=topic) as consumer:
            consumer.wait_assigned(PATIENCE)
            refused = cli("topic", "delete", topic, "--yes", code=1)
            assert f"topic {topic} is not deleted: group cli-reads has members that read it" in refused
            if force:
                cli("topic", "delete", topic, "--yes", *force)
        if not force:
            cli("topic", "delete", topic, "--yes")
        cli("topic", "show", topic, code=3)


def test_a_topic_is_changed(cli):
    """Only what is given; what would be missed is refused."""
    cli("topic", "create", "cli-update", "--queues", "4")
    changed = json.loads(cli("topic", "update", "cli-update", "--write-queues", "2", "--json"))["brokers"]
    assert [(one["read_queues"], one["write_queues"], one["perm"]) for one in changed] == [(4, 2, "rw")]
    assert "rw" in cli("topic", "update", "cli-update", "--queues", "8")
    assert "4 to read" in cli("topic", "update", "cli-update", "--read-queues", "4", code=2)
    assert "nothing is to be changed" in cli("topic", "update", "cli-update", code=2)
    assert "--queues" in cli("topic", "update", "cli-update", "--queues", "2", "--read-queues", "2", code=2)
    assert "none of rw, r, w" in cli("topic", "update", "cli-update", "--perm", "x", code=2)
    cli("topic", "update", "cli-no-such-topic", "--perm", "r", code=3)


def test_a_question_is_asked_on_standard_error(cli, metaq_broker):
    """So that standard output has the document only; without an answer, the option is named that gives it."""
    cli("topic", "create", "cli-asked")
    words = ("topic", "delete", "cli-asked", "--json", "-n", metaq_broker.namesrv)
    silent = run_metaq(*words, stdin="")
    assert (silent.returncode, silent.stdout) == (1, "")
    assert silent.stderr.endswith("metaq: not done: the answer was not yes (--yes does it without a question)\n")
    answered = run_metaq(*words, stdin="y\n")
    assert json.loads(answered.stdout) == {"topic": "cli-asked", "deleted": True}
    assert "Delete topic cli-asked and all its messages?" in answered.stderr


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_nothing_is_asked_of_what_does_not_exist(cli, kind):
    told = cli(kind, "delete", "cli-no-such-name", code=3)
    assert "cli-no-such-name" in told
    assert "[y/N]" not in told


def test_nothing_is_asked_of_what_would_be_refused(cli, groups, metaq_broker):
    """What has members is not deleted without --force, whatever the answer."""
    with metaq.Consumer(metaq_broker.namesrv, group="cli-figures-member", topics=TOPIC) as consumer:
        consumer.wait_assigned(PATIENCE)
        for words in (("topic", "delete", TOPIC), ("group", "delete", "cli-figures-member")):
            assert "[y/N]" not in cli(*words, code=1)
            assert "[y/N]" in cli(*words, "--force", code=1)


def test_all_questions_are_asked_the_same_way():
    askers = [path.name for path in (ROOT / "src/metaq/cli").rglob("*.py") if "typer.confirm(" in path.read_text()]
    assert askers == [], "metaq.cli.output.ask asks"
