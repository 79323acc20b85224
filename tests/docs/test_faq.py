"""docs/faq.md: its programs and commands run, its links lead somewhere, its numbers are those of the code."""

from __future__ import annotations

import shlex

import pytest

import metaq
from metaq.options import BrokerOptions, StoreOptions
from tests.docs.pages import blocks, check_command, dead_links, mentioned, replaced, typed
from tests.support import PATIENCE, ROOT, eventually, run_metaq

pytestmark = pytest.mark.xdist_group("docs.practice")

PAGE = (ROOT / "docs" / "faq.md").read_text()
PRINTED = ["first", "", "1 queue", "bad is sent again", "1000 stored", "[b'tested']"]
ID = "7F0000010A2B18B4AAC2000000000001"


def test_the_programs_of_the_page_run(metaq_broker, capsys):
    """Each by itself, with a topic and groups of its own."""
    programs = blocks(PAGE, "python")
    assert len(programs) == len(PRINTED)
    for number, (program, printed) in enumerate(zip(programs, PRINTED, strict=True)):
        words = {"localhost:9876": metaq_broker.namesrv, '"orders"': f'"faq-orders-{number}"'}
        exec(replaced(program, words), {})
        assert capsys.readouterr().out.strip() == printed


@pytest.mark.parametrize("line", sorted({*typed(PAGE), *mentioned(PAGE)}))
def test_every_command_is_one(line):
    check_command(line)


def test_the_commands_of_the_page_run(fresh_metaq_broker):
    """In their order, beside a group with a member, a producer that traces, and one that answers checks."""
    namesrv = fresh_metaq_broker.namesrv
    with (
        metaq.Producer(namesrv, trace=True) as producer,
        metaq.TransactionProducer(namesrv, group="cashiers", check=lambda _: None),
        metaq.Consumer(namesrv, group="mailer", topics="orders", start="earliest") as consumer,
    ):
        sent = producer.send("orders", b"a lamp", keys=["42"])
        with consumer.receive(PATIENCE):
            pass
        consumer.commit()
        eventually(lambda: not run_metaq("message", "trace", sent.message_id, "-n", namesrv).returncode)
        for line in dict.fromkeys(typed(PAGE)):
            words = shlex.split(line.replace(ID, sent.message_id).replace("broker-a", sent.queue.broker))[1:]
            done = run_metaq(*words, "-n", namesrv)
            assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_links_lead_to_headings_that_are_there():
    assert dead_links(PAGE) == []


def test_numbers_of_the_page_are_true():
    """Options with their defaults, and how often a failed message comes again."""
    usual = {**BrokerOptions().properties(), **StoreOptions().properties()}
    levels = usual["messageDelayLevel"].split()
    assert (len(levels), levels[2:4], levels[-2:]) == (18, ["10s", "30s"], ["1h", "2h"])
    assert "by one of 18 levels" in PAGE.lower() and "2 h: 16 times" in PAGE
    assert f"`fileReservedTime` hours ({usual['fileReservedTime']})" in PAGE
    assert f"after {usual['transactionCheckMax']} the message is moved" in PAGE
    assert usual["unflushedBytesMax"] == str(512 << 20)
    assert "`unflushedBytesMax` (512 MiB)" in PAGE
    assert usual["maxMessageSize"] == str(4 << 20)
    defaults = {**metaq.Producer.__init__.__kwdefaults__, **metaq.Consumer.__init__.__kwdefaults__}
    wanted = {
        "linger": 0.001, "batch_bytes": 64 << 10, "compress_over": 4 << 10, "consume_timeout": 900.0,
        "queue_messages_max": 1000, "queue_bytes_max": 100 << 20, "start": "latest", "commit_interval": 5.0,
    }  # fmt: skip
    assert {name: defaults[name] for name in wanted} == wanted
