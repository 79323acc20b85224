"""docs/best-practices.md: its programs and commands run, and every option that it names is one."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest

import metaq
from metaq.options import BrokerOptions, StoreOptions
from tests.docs.pages import blocks, check_command, dead_links, mentioned, replaced, typed
from tests.support import ROOT, run_metaq

pytestmark = pytest.mark.xdist_group("docs.practice")

PAGE = (ROOT / "docs" / "best-practices.md").read_text()
PRINTED = ["0 to be sent again", "(2, 70)"]


def test_the_programs_of_the_page_run(metaq_broker, tmp_path, monkeypatch, capsys):
    """One after the other, at one broker and in one folder. The second one makes one dead letter and two bills."""
    monkeypatch.chdir(tmp_path)
    programs = blocks(PAGE, "python")
    assert len(programs) == len(PRINTED)
    for program, printed in zip(programs, PRINTED, strict=True):
        words = {
            "localhost:9876": metaq_broker.namesrv,
            '"orders"': '"practice-orders"',
            '"invoices"': '"practice-invoices"',
            '"invoicing"': '"practice-invoicing"',
        }
        exec(replaced(program, words), {})
        assert capsys.readouterr().out.strip() == printed
    with metaq.Reader(metaq_broker.namesrv, "%DLQ%practice-invoicing", stop_at_end=True) as letters:
        assert [letter.body for letter in letters] == [b"no JSON"]


@pytest.mark.parametrize("line", sorted({*typed(PAGE), *mentioned(PAGE)}))
def test_every_command_is_one(line):
    check_command(line)


def test_the_commands_of_the_page_run(fresh_metaq_broker):
    with metaq.Producer(fresh_metaq_broker.namesrv) as producer:
        broker = producer.send("orders", b"a lamp").queue.broker
    for line in typed(PAGE):
        words = shlex.split(line.replace("broker-a", broker))[1:]
        done = run_metaq(*words, *([] if words == ["doctor"] else ["-n", fresh_metaq_broker.namesrv]))
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_links_lead_to_headings_that_are_there():
    assert dead_links(PAGE) == []


def test_every_option_that_is_named_is_one():
    """`name=value`: of a broker where the name is written as theirs are, otherwise of a client or one of its calls."""
    usual = {**BrokerOptions().properties(), **StoreOptions().properties()}
    calls = [metaq.Producer, metaq.Producer.send, metaq.Consumer, metaq.Consumer.run, metaq.Message, metaq.Later]
    known = {name for call in calls for name in inspect.signature(call).parameters}
    known |= {"message_log", "metrics", "trace", "namespace", "instance_name", "acl_file", "tls"}  # of every client
    usual |= {"LimitNOFILE": "of systemd", "httpPort": "of HTTP"}
    for name in re.findall(r"[`, (](\w+)=(?!=)", re.sub(r"```.*?```|`metaq [^`]*`", "", PAGE, flags=re.DOTALL)):
        assert name in (known if name.islower() else usual) or name in usual, name
