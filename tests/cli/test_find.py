"""`metaq message query|get|track` and `metaq topic units`."""

from __future__ import annotations

import json

import pytest

from tests.support import run_metaq


@pytest.fixture(scope="module")
def cli(metaq_broker):
    def run(*args, **options):
        return run_metaq(*args, "-n", metaq_broker.namesrv, **options)

    return run


@pytest.fixture(scope="module")
def sent(cli):
    """Ids of three messages in one queue, keys k0 to k2."""
    assert cli("topic", "create", "cli-find", "--queues", "1").returncode == 0
    lines = "".join(f"k{n}=body {n}\n" for n in range(3))
    assert cli("send", "cli-find", "--lines", "-K", "=", "--tag", "t", stdin=lines).returncode == 0
    shown = json.loads(cli("message", "query", "cli-find", "--json").stdout)
    assert (shown["more"], shown["brokers_not_asked"]) == (False, [])
    assert [one["body"] for one in shown["messages"]] == ["body 0", "body 1", "body 2"]
    return shown["messages"]


def test_messages_are_queried(cli, sent):
    """A line each; by key, by id, by time; older ones are told of; nothing is exit status 3."""
    table = cli("message", "query", "cli-find", "--key", "k1").stdout.splitlines()
    assert [line.split()[1] for line in table] == ["id", sent[1]["message_id"]]
    assert table[1].endswith("t    k1    body 1")
    by_id = cli("message", "query", "cli-find", "--id", sent[2]["message_id"], "--json").stdout
    assert json.loads(by_id)["messages"] == sent[2:]
    in_time = cli(
        "message", "query", "cli-find", "--from", sent[0]["store_time"], "--to", "2099-01-01", "--json"
    ).stdout
    assert json.loads(in_time)["messages"] == sent
    newest = cli("message", "query", "cli-find", "-c", "1")
    assert "body 2" in newest.stdout
    assert "There are older matches" in newest.stderr
    nothing = cli("message", "query", "cli-find", "--key", "k7")
    assert (nothing.returncode, nothing.stderr) == (3, "no message of topic cli-find matches\n")
    assert cli("message", "query", "cli-nowhere", "--key", "k").returncode == 3


def test_one_message_is_shown(cli, sent):
    """By the broker's id alone, by the producer's with the topic; its body as it is."""
    one = sent[1]
    assert json.loads(cli("message", "get", one["offset_id"], "--json").stdout) == one
    text = cli("message", "get", one["message_id"], "-t", "cli-find").stdout
    assert text.endswith("\n\nbody 1\n")
    assert f"stored      {one['store_time']}\n" in text
    assert cli("message", "get", one["offset_id"], "--body").stdout == "body 1"
    missing = cli("message", "get", one["message_id"])
    assert missing.returncode == 3
    assert "name the topic as well" in missing.stderr


def test_a_message_is_tracked(cli, sent):
    """A group that has consumed it and is gone."""
    assert cli("consume", "cli-find", "--group", "cli-track", "-c", "3").returncode == 0
    shown = cli("message", "track", sent[0]["message_id"], "--topic", "cli-find").stdout.splitlines()
    assert shown[0].startswith(f"{sent[0]['message_id']}, topic cli-find, queue ")
    assert shown[1].split() == ["group", "state", "offset", "delivered", "client", "result"]
    assert shown[2].split()[:3] == ["cli-track", "NOT_ONLINE", "3"]
    told = json.loads(cli("message", "track", sent[0]["offset_id"], "--json").stdout)
    assert [(one["group"], one["state"], one["offset"], one["deliveries"]) for one in told["groups"]] == [
        ("cli-track", "NOT_ONLINE", 3, [])
    ]


def test_units_are_shown(cli, sent):
    table = cli("topic", "units", "cli-find", "-p", "0", "-o", "-2").stdout.splitlines()
    assert table[0].endswith(":0 of topic cli-find has the offsets 0 to 2")
    assert [line.split()[0] for line in table[1:]] == ["offset", "1", "2"]
    told = json.loads(cli("topic", "units", "cli-find", "-p", "0", "-c", "1", "--json", "--group", "nobody").stdout)
    [unit] = told["units"]
    assert unit["log_offset"] == int(sent[0]["offset_id"][16:], 16)
    assert (unit["tags_code"], unit["wanted"], told["filter"]) == (ord("t"), None, None)
    assert (
        "group nobody has no online members" in cli("topic", "units", "cli-find", "-p", "0", "--group", "nobody").stdout
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("message", "query", "cli-find", "--from", "earliest"), "is not a time"),
        (("message", "query", "cli-find", "--from", "yesterday"), "'yesterday'"),
        (("message", "query", "cli-find", "--key", "a b"), "is no key"),
        (("message", "query", "cli-find", "-c", "0"), "greater than or equal"),
        (("message", "query", "cli-find", "--id", "x", "--key", "k"), "an id is of one message"),
        (("message", "get", "x", "--body", "--json"), "leave --body out"),
        (("topic", "units", "cli-find", "-p", "x"), "is not a queue"),
        (("topic", "units", "cli-find", "-p", "7"), "no broker has a queue 7"),
    ],
)
@pytest.mark.usefixtures("sent")
def test_wrong_questions_are_one_sentence(cli, words, says):
    done = cli(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr
