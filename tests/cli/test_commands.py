"""The command line against a running broker, as a user types it."""

from __future__ import annotations

import json
import signal
import threading

import pytest

import metaq
from tests.support import PATIENCE, eventually, metaq_command, process, read_line, run_metaq

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cli(metaq_broker):
    """Run a command at the session's broker: cli("topic", "list")."""

    def run(*args, **options):
        return run_metaq(*args, "-n", metaq_broker.namesrv, **options)

    return run


@pytest.fixture(scope="module")
def orders(cli):
    """A topic with three queues and three messages."""
    assert cli("topic", "create", "cli-orders", "--queues", "3").returncode == 0
    for body, tag in (("one", "paid"), ("two", "open"), ("three", "paid")):
        sent = cli("send", "cli-orders", body, "--tag", tag, "--key", f"k-{body}", "--property", "from=test")
        assert sent.returncode == 0, sent.stderr
    return "cli-orders"


def test_topic_is_created_listed_shown_and_deleted(cli):
    """The life of a topic, in text and in JSON."""
    created = cli("topic", "create", "cli-life", "--queues", "2", "--json")
    assert json.loads(created.stdout)["queues"] == 2
    assert "cli-life" in json.loads(cli("topic", "list", "--json").stdout)
    shown = json.loads(cli("topic", "show", "cli-life", "--json").stdout)
    assert [queue["queue_id"] for queue in shown["queues"]] == [0, 1]
    assert cli("topic", "delete", "cli-life", "--yes").returncode == 0
    assert "cli-life" not in cli("topic", "list").stdout.split()
    assert cli("topic", "show", "cli-life").returncode == 3


def test_topic_order_is_set_shown_and_deleted(cli):
    """The life of a fixed layout, in text and in JSON; the default is the queues that the topic has."""
    assert cli("topic", "create", "cli-order", "--queues", "3").returncode == 0
    broker = json.loads(cli("topic", "show", "cli-order", "--json").stdout)["brokers"][0]["broker"]
    assert "has no fixed queues" in cli("topic", "order", "show", "cli-order").stdout
    assert json.loads(cli("topic", "order", "set", "cli-order", "--json").stdout)["order"] == f"{broker}:3"
    assert f"the fixed queues {broker}:2" in cli("topic", "order", "set", "cli-order", f"{broker}:2").stdout
    shown = json.loads(cli("topic", "order", "show", "cli-order", "--json").stdout)
    assert (shown["order"], list(shown["name_servers"].values()), shown["in_routes"]) == (
        f"{broker}:2", [f"{broker}:2"], False,
    )  # fmt: skip
    assert "orderMessageEnable=false" in cli("topic", "order", "show", "cli-order").stdout
    assert cli("topic", "order", "delete", "cli-order").returncode == 0
    assert json.loads(cli("topic", "order", "show", "cli-order", "--json").stdout)["order"] is None


@pytest.mark.parametrize(
    ("layout", "says"), [("x", "need broker:queues"), ("nowhere:1", "has no queues at broker"), ("{}:99", "not 99")]
)
def test_wrong_topic_order_is_refused(cli, orders, layout, says):
    """With what the topic has; nothing is set."""
    broker = json.loads(cli("topic", "show", orders, "--json").stdout)["brokers"][0]["broker"]
    refused = cli("topic", "order", "set", orders, layout.format(broker))
    assert refused.returncode != 0
    assert says in refused.stderr
    assert "has no fixed queues" in cli("topic", "order", "show", orders).stdout
    assert cli("topic", "order", "set", "cli-no-such-topic").returncode == 3


def test_system_topics_are_listed_on_request_only(cli):
    """`topic list` shows what users made; --all adds the broker's own."""
    assert "TBW102" not in cli("topic", "list").stdout.split()
    assert "TBW102" in cli("topic", "list", "--all").stdout.split()


def test_send_tells_where_the_message_is(cli):
    """One message from an argument, one from standard input."""
    sent = json.loads(cli("send", "cli-send", "hello", "--json").stdout)
    assert sent["status"] == "SEND_OK"
    assert len(sent["message_id"]) == 32
    piped = cli("send", "cli-send", stdin="from a pipe")
    assert piped.stdout.startswith("SEND_OK ")


def test_send_takes_a_message_from_each_line(cli):
    """--lines sends every line of standard input and says how many are stored."""
    assert cli("topic", "create", "cli-lines").returncode == 0
    sent = cli("send", "cli-lines", "--lines", stdin="".join(f"line {n}\n" for n in range(500)))
    assert "500 messages are stored" in sent.stdout, sent.stderr
    assert json.loads(cli("topic", "show", "cli-lines", "--json").stdout)["messages"] == 500
    # Empty lines are no messages, and thousands of them are not the end.
    sent = cli("send", "cli-lines", "--lines", stdin="one\n" + "\n" * 5000 + "two\n")
    assert sent.stdout == "2 messages are stored in topic cli-lines\n"


def test_consume_without_a_group_only_looks(cli, orders):
    """Every message is printed, twice if asked twice; --json tells all that is known of each."""
    for _ in range(2):
        got = cli("consume", orders)
        assert got.returncode == 0, got.stderr
        assert sorted(got.stdout.split()) == ["one", "three", "two"]
    lines = [json.loads(line) for line in cli("consume", orders, "--json").stdout.splitlines()]
    one = next(line for line in lines if line["body"] == "one")
    assert (one["tag"], one["keys"], one["properties"]["from"]) == ("paid", ["k-one"], "test")


def test_consume_filters_by_tag_and_stops_at_a_count(cli, orders):
    """--tag keeps what matches, --count ends after so many."""
    assert sorted(cli("consume", orders, "--tag", "paid").stdout.split()) == ["one", "three"]
    assert len(cli("consume", orders, "--count", "2").stdout.split()) == 2


def test_consume_filters_by_a_condition(cli, orders):
    """--filter asks for properties, tags among them; what is wrong in it is said with its place."""
    got = cli("consume", orders, "--filter", "TAGS = 'paid' AND KEYS CONTAINS 'k-one'")
    assert got.stdout.split() == ["one"]
    wrong = cli("consume", orders, "--filter", "TAGS = 'paid' AND")
    assert wrong.returncode == 2
    assert "line 1, column 18: expected a property" in wrong.stderr
    both = cli("consume", orders, "--filter", "a = 5", "--tag", "paid")
    assert both.returncode == 2
    assert "--tag and --filter" in both.stderr


def test_consume_chooses_by_a_predicate(cli, orders):
    """--predicate: one that no broker has is refused with those that there are; it stands alone."""
    unknown = cli("consume", orders, "--predicate", "large")
    assert unknown.returncode == 1
    assert "this broker has no predicate 'large'; registered are: none" in unknown.stderr
    for other in (("--tag", "paid"), ("--filter", "a = 5")):
        both = cli("consume", orders, "--predicate", "large", *other)
        assert both.returncode == 2
        assert "--predicate cannot be combined with" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("",), "empty"),
        (("x", "--key", "a b"), "key"),
        (("x", "--tag", "a|b"), "tag"),
        (("x", "--property", "a="), "property 'a'"),
        (("x", "--property", "KEYS=a"), "reserved"),
        (("x", "--tag", b"\xff"), "UTF-8"),
        (("x", "--delay-level", "19"), "delay-level"),
    ],
)
def test_message_that_cannot_be_sent_is_wrong_usage(cli, arguments, text):
    """One line that says which part; nothing is stored."""
    refused = cli("send", "cli-refused", *arguments)
    assert refused.returncode == 2
    assert text in refused.stderr
    assert "Traceback" not in refused.stderr
    assert cli("topic", "show", "cli-refused").returncode == 3


def test_body_of_any_bytes_is_sent_as_it_is(cli):
    """An argument need not be text."""
    assert cli("send", "cli-bytes", b"caf\xe9").returncode == 0
    [line] = cli("consume", "cli-bytes", "--json").stdout.splitlines()
    assert json.loads(line)["body_base64"] == "Y2Fm6Q=="


@pytest.mark.parametrize("more", [(), ("--group", "cli-wrong-tags")])
def test_tag_expression_that_can_match_nothing_is_wrong_usage(cli, orders, more):
    """It would print nothing and end with 0, or wait for ever."""
    refused = cli("consume", orders, "--tag", "paid,open", *more, timeout=PATIENCE)
    assert refused.returncode == 2
    assert "write 'paid || open'" in refused.stderr


def test_consume_as_a_group_goes_on_where_it_stopped(cli, orders):
    """A group's progress is kept, and `group show` tells what is left in messages and in time."""
    first = cli("consume", orders, "--group", "cli-group", "--count", "2")
    assert first.returncode == 0, first.stderr
    shown = json.loads(cli("group", "show", "cli-group", "--json").stdout)
    assert shown["lag"] == 1
    assert shown["lag_seconds"] > 0
    second = cli("consume", orders, "--group", "cli-group", "--count", "1")
    assert sorted((first.stdout + second.stdout).split()) == ["one", "three", "two"]
    done = json.loads(cli("group", "show", "cli-group", "--json").stdout)
    assert (done["lag"], done["lag_seconds"]) == (0, 0.0)


def test_group_producers_lists_the_instances(cli, metaq_broker):
    """As a table and as JSON; nobody there is exit code 3, as of anything that is not found."""
    nobody = cli("group", "producers", "cli-pg")
    assert nobody.returncode == 3
    assert "no broker" in nobody.stderr
    with metaq.TransactionProducer(metaq_broker.namesrv, group="cli-pg", check=lambda _: None, instance_name="cli"):
        eventually(lambda: not cli("group", "producers", "cli-pg").returncode, what="it is known")
        [shown] = json.loads(cli("group", "producers", "cli-pg", "--json").stdout)
        table = cli("group", "producers", "cli-pg").stdout
    assert (shown["client_id"][-4:], shown["language"], len(shown["addresses"])) == ("@cli", "PYTHON", 1)
    assert shown["client_id"] in table


def refuses(message: object) -> None:
    raise ValueError("no such order")


def test_group_show_asks_a_member_and_message_resend_has_it_consume(cli, metaq_broker):
    """Tables and JSON; exit code 1 if the message was not consumed, 3 if somebody or something is not there, 2 for a wrong use."""
    orders = "cli-asked"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        sent = producer.send(orders, b"again")
    consumer = metaq.Consumer(metaq_broker.namesrv, group="cli-asked", topics=orders, instance_name="asked")
    running = threading.Thread(target=consumer.run, args=(lambda message: None,))
    with consumer:
        consumer.suspend()
        running.start()
        consumer.wait_assigned(PATIENCE)
        [member] = eventually(lambda: members_of_group(cli, "cli-asked", 1), what="its member")["members"]
        client = member["client_id"]
        shown = json.loads(cli("group", "show", "cli-asked", "--client", client, "--stacks", "--json").stdout)
        assert shown["properties"]["instanceName"] == "asked"
        assert shown["subscriptions"][orders] == "*"
        assert {queue["topic"] for queue in shown["queues"]} >= {orders}
        assert shown["rates"][orders]["failed_in_an_hour"] == 0
        assert "metaq-cli-asked-0 TID" in shown["stacks"]
        table = cli("group", "show", "cli-asked", "--client", client).stdout
        assert "pullBatchSize" in table
        assert "TID" not in table
        done = cli("message", "resend", sent.message_id, "--group", "cli-asked")
        assert done.returncode == 0, done.stderr
        assert f"member {client} of group cli-asked consumed the message" in done.stdout
        missing = cli("message", "resend", "0" * 32, "--group", "cli-asked")
        assert (missing.returncode, orders in missing.stderr) == (3, True)
        assert cli("group", "show", "cli-asked", "--client", "nobody").returncode == 3
        assert cli("group", "show", "cli-asked", "--stacks").returncode == 2
        consumer.stop()
        running.join(PATIENCE)
    consumer = metaq.Consumer(metaq_broker.namesrv, group="cli-asked", topics=orders, instance_name="asked")
    running = threading.Thread(target=consumer.run, args=(refuses,))
    with consumer:
        consumer.suspend()
        running.start()
        eventually(lambda: members_of_group(cli, "cli-asked", 1), what="its member")
        failed = cli("message", "resend", sent.message_id, "--group", "cli-asked", "--client", client, "--json")
        assert failed.returncode == 1
        told = json.loads(failed.stdout)
        assert (told["result"], told["remark"]) == ("CR_THROW_EXCEPTION", "ValueError: no such order")
        assert told["topic"] == orders
        consumer.stop()
        running.join(PATIENCE)


def members_of_group(cli, group, count):
    """What is said of the group once it has so many members; until its first heartbeat nobody knows it."""
    shown = cli("group", "show", group, "--json")
    assert shown.returncode == 0, shown.stderr
    said = json.loads(shown.stdout)
    assert len(said["members"]) == count
    return said


def test_group_show_marks_members_that_subscribe_differently(cli, metaq_broker, orders):
    """Each would miss messages; the page says who wants what, and what to do."""
    address = metaq_broker.namesrv
    with (
        metaq.Consumer(address, group="cli-differs", topics={orders: "paid"}, instance_name="one") as first,
        metaq.Consumer(address, group="cli-differs", topics={orders: "paid"}, instance_name="two") as second,
    ):
        for consumer in (first, second):
            consumer.receive(timeout=0.1)
        shown = eventually(lambda: members_of_group(cli, "cli-differs", 2))
        assert (shown["subscriptions_differ"], {member["subscriptions"] for member in shown["members"]}) == (
            False,
            {None},
        )
        assert (shown["subscriptions"], shown["broadcasting"]) == ({orders: "paid"}, False)
        assert f"  subscribes to {orders} (paid)\n" in cli("group", "show", "cli-differs").stdout
        with metaq.Consumer(address, group="cli-differs", topics={orders: "open"}, instance_name="three") as third:
            third.receive(timeout=0.1)
            eventually(lambda: "WARNING" in cli("group", "show", "cli-differs").stdout)
            shown = json.loads(cli("group", "show", "cli-differs", "--json").stdout)
            assert shown["subscriptions_differ"] is True
            wanted = sorted(member["subscriptions"][orders] for member in shown["members"])
            assert wanted == ["open", "paid", "paid"]
            text = cli("group", "show", "cli-differs").stdout
            assert f"subscribes to {orders} (open)" in text
            assert "misses messages" in text


def test_group_show_says_that_a_broadcasting_group_keeps_its_progress_itself(
    cli, metaq_broker, orders, tmp_path, monkeypatch
):
    """Its queues would look as if nobody had ever read them."""
    monkeypatch.setenv("HOME", str(tmp_path))  # where a broadcasting consumer keeps its progress
    with metaq.Consumer(metaq_broker.namesrv, group="cli-broadcast", topics=orders, broadcast=True) as consumer:
        consumer.receive(timeout=0.1)
        eventually(lambda: "broadcasting" in cli("group", "show", "cli-broadcast").stdout)
        assert json.loads(cli("group", "show", "cli-broadcast", "--json").stdout)["broadcasting"] is True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_waiting_consumer_ends_cleanly_on_a_signal(cli, metaq_broker, orders, number, code):
    """Ctrl-C and SIGTERM leave the group and end without a trace of Python."""
    group = f"cli-signal-{code}"
    command = metaq_command("consume", orders, "--group", group, "-n", metaq_broker.namesrv)
    with process(*command) as child:
        read_line(child, "")
        child.send_signal(number)
        assert child.wait(PATIENCE) == code
        assert "Traceback" not in child.stderr.read()

    def left():
        shown = cli("group", "show", group, "--json")
        return shown.returncode == 3 or not json.loads(shown.stdout)["members"]  # 3: it had acknowledged nothing yet

    eventually(left, what="the member left")


def test_signal_in_the_middle_prints_nothing_twice(cli, metaq_broker):
    """What was printed is acknowledged, also the message in hand."""
    bodies = [f"line-{number}" for number in range(300)]
    assert cli("send", "cli-cut", "--lines", stdin="\n".join(bodies)).returncode == 0
    command = metaq_command("consume", "cli-cut", "--group", "cli-cut", "-n", metaq_broker.namesrv)
    with process(*command) as child:
        printed = [child.stdout.readline().strip() for _ in range(20)]
        child.send_signal(signal.SIGTERM)
        printed += child.stdout.read().split()
        assert child.wait(PATIENCE) == 143
    if len(printed) < len(bodies):
        printed += cli("consume", "cli-cut", "--group", "cli-cut", "-c", str(len(bodies) - len(printed))).stdout.split()
    assert sorted(printed) == sorted(bodies)
    assert json.loads(cli("group", "show", "cli-cut", "--json").stdout)["lag"] == 0


def test_cluster_lists_the_broker(cli, metaq_broker):
    """The broker with its address and version, and every runtime value in JSON."""
    [broker] = json.loads(cli("cluster", "--json").stdout)
    assert broker["address"] == metaq_broker.broker
    assert broker["runtime"]["brokerVersionDesc"] == broker["version"]
    assert metaq_broker.broker in cli("cluster").stdout


def test_store_dump_reads_the_folder_of_a_running_broker(cli, metaq_broker, orders):
    """Records as JSON lines, in the order of the log, nothing locked and nothing changed."""
    dumped = run_metaq("store", "dump", str(metaq_broker.data), "--topic", orders, "--json")
    assert [json.loads(line)["body"] for line in dumped.stdout.splitlines()] == ["one", "two", "three"]
    assert "end of the log" in dumped.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("topic", "show", "cli-nowhere"), 3, "there is no topic cli-nowhere"),
        (("group", "show", "cli-nobody"), 3, "knows consumer group cli-nobody"),
        (("topic", "delete", "cli-nowhere", "-y"), 3, "there is no topic"),
        (("topic", "create", "a/b"), 2, "characters outside"),
        (("topic", "create", "cli-x", "--broker", "nobody"), 3, "no broker nobody"),
        (("topic", "create", "cli-x", "--perm", "x"), 2, "none of rw, r, w"),
        (("consume", "cli-nowhere"), 3, "no route for topic cli-nowhere"),
        (("consume", "cli-nowhere", "--from", "yesterday"), 2, "neither earliest, latest nor a time"),
        (("send", "cli-x", "b", "--property", "novalue"), 2, "NAME=VALUE"),
    ],
)
def test_failed_command_says_why_and_exits_with_its_code(cli, command, code, says):
    """One sentence on standard error, a documented exit code, no traceback."""
    done = cli(*command)
    assert done.returncode == code, done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_unreachable_name_server_is_named():
    """Nobody at the address: exit 1, and the address in the text."""
    done = run_metaq("topic", "list", "-n", "127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_name_server_is_taken_from_the_environment(metaq_broker, monkeypatch):
    """NAMESRV_ADDR replaces -n."""
    monkeypatch.setenv("NAMESRV_ADDR", metaq_broker.namesrv)
    assert run_metaq("topic", "list").returncode == 0


def test_help_names_every_command():
    """`metaq --help` has the servers and the tools; every command has a help of its own."""
    listed = run_metaq("--help").stdout
    for name in ("up", "broker", "namesrv", "topic", "send", "consume", "cluster", "group", "store", "doctor"):
        assert f" {name} " in listed
        assert run_metaq(name, "--help").returncode == 0
    assert run_metaq("bogus").returncode == 2


def test_doctor_says_what_runs():
    """Hot module, loop, Java and Spark each have a line; the same in JSON."""
    findings = json.loads(run_metaq("doctor", "--json").stdout)
    assert {"python", "compiled extension", "event loop", "java", "spark", "disk", "limits"} <= {
        one["what"] for one in findings
    }
    assert "compiled extension:" in run_metaq("doctor").stdout


def test_group_skip_leaves_out_what_waits(cli, orders):
    """How many, and where each queue goes on; nothing waits afterwards."""
    assert cli("consume", orders, "--group", "cli-skips", "--count", "1").returncode == 0
    assert json.loads(cli("group", "show", "cli-skips", "--json").stdout)["lag"] == 2
    skipped = json.loads(cli("group", "skip", "cli-skips", orders, "--json").stdout)
    assert skipped["skipped"] == 2
    assert not any(queue["members_told"] for queue in skipped["queues"])
    assert json.loads(cli("group", "show", "cli-skips", "--json").stdout)["lag"] == 0
    assert "skips 0 messages of topic" in cli("group", "skip", "cli-skips", orders).stdout
    assert cli("group", "skip", "cli-nobody", orders).returncode == 3


def test_group_reset_lets_a_group_go_on_elsewhere(cli, orders):
    """To the beginning, the end, and a time; how many come again and how many never do."""
    assert cli("consume", orders, "--group", "cli-resets", "--count", "3").returncode == 0
    again = json.loads(cli("group", "reset", "cli-resets", orders, "--to", "earliest", "--json").stdout)
    assert (again["repeated"], again["skipped"]) == (3, 0)
    assert sum(queue["consumed"] - queue["offset"] for queue in again["queues"]) == 3
    assert not any(queue["members_told"] for queue in again["queues"])
    assert json.loads(cli("group", "show", "cli-resets", "--json").stdout)["lag"] == 3
    late = cli("group", "reset", "cli-resets", orders, "--to", "2100-01-01T00:00:00Z").stdout
    assert "gets 0 messages of topic cli-orders again and skips 3; it has no online members" in late
    early = json.loads(cli("group", "reset", "cli-resets", orders, "--to", "2001-01-01", "--json").stdout)
    assert early["repeated"] == 3


def test_group_reset_refuses_what_it_cannot_do(cli, orders):
    """No place, a place that is none, and a group that nobody knows; nothing is moved."""
    assert cli("consume", orders, "--group", "cli-resets-not", "--count", "3").returncode == 0
    assert "--to" in cli("group", "reset", "cli-resets-not", orders).stderr
    wrong = cli("group", "reset", "cli-resets-not", orders, "--to", "yesterday")
    assert wrong.returncode == 2
    assert "neither earliest, latest nor a time" in wrong.stderr
    assert json.loads(cli("group", "show", "cli-resets-not", "--json").stdout)["lag"] == 0
    assert cli("group", "reset", "cli-nobody", orders, "--to", "latest").returncode == 3
