"""docs/from-kafka.md: its programs for MetaQ run, and the bridge copies what a stand-in for a Kafka client gives it."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Sequence

import msgspec
import pytest

import metaq
from metaq.options import BrokerOptions, StoreOptions
from tests.docs.pages import blocks, check_command, dead_links, mentioned, replaced, typed
from tests.support import PATIENCE, ROOT, environment

pytestmark = pytest.mark.xdist_group("docs.practice")

PAGE = (ROOT / "docs" / "from-kafka.md").read_text()
BRIDGE = ROOT / "examples" / "from_kafka.py"
PRINTED = ["100 sent", "100 mails", "100 polled", "COMMIT", "{'lamp': '31'}", "[b'refund 2', b'refund 3']", ""]


def test_the_programs_for_metaq_run(metaq_broker, capsys):
    """One after the other, as a reader would: what is sent first is consumed next."""
    programs = blocks(PAGE, "python")
    assert len(programs) == len(PRINTED)
    words = {"localhost:9876": metaq_broker.namesrv, 'group="mailer"': 'group="kafka-mailer"'}
    words |= {f'"{name}"': f'"kafka-{name}"' for name in ("orders", "stock", "prices", "refunds")}
    for program, printed in zip(programs, PRINTED, strict=True):
        exec(replaced(program, words), {})
        assert capsys.readouterr().out.strip() == printed


@pytest.mark.parametrize("line", sorted({*typed(PAGE), *mentioned(PAGE)}))
def test_every_command_is_one(line):
    check_command(line)


def test_links_lead_to_headings_that_are_there():
    assert dead_links(PAGE) == []


def test_options_of_the_tables_are_there():
    """In the second column: arguments of clients, and options of brokers."""
    usual = {**BrokerOptions().properties(), **StoreOptions().properties()}
    calls = [metaq.Producer, metaq.Producer.send, metaq.Consumer, metaq.Consumer.run]
    known = {name for call in calls for name in inspect.signature(call).parameters} | {"instance_name"}
    rows = re.findall(
        r"^\| (`[^|]*) \| ([^|]*) \|",
        PAGE.partition("## Options of the producer")[2].partition("## What is")[0],
        re.MULTILINE,
    )
    assert len(rows) > 25
    for _, ours in rows:
        for name in re.findall(r"`(\w+)(?:=[^`]*)?`", ours):
            assert name in known or name in usual or name in {"run", "PullConsumer", "readFrom"}, name


class Record(msgspec.Struct):
    """What confluent_kafka.Message has, as far as the bridge asks."""

    place: int
    raw: bytes | None
    name: bytes | None = None
    more: Sequence[tuple[str, bytes]] = ()

    def topic(self):
        return "bridged"

    def partition(self):
        return self.place % 3

    def offset(self):
        return self.place // 3

    def timestamp(self):
        return 1, 1_790_000_000_000 + self.place

    def key(self):
        return self.name

    def value(self):
        return self.raw

    def headers(self):
        return list(self.more) or None

    def error(self):
        return None


class Source:
    """A consumer that gives what lies behind its commit again, as Kafka does to who comes back."""

    def __init__(self, records):
        self.records, self.read, self.committed = records, 0, 0

    def consume(self, count, _seconds):
        found = self.records[self.read : self.read + count]
        self.read += len(found)
        return found

    def commit(self, *, asynchronous):
        assert not asynchronous
        self.committed = self.read

    def restart(self):
        self.read = self.committed


@pytest.fixture
def bridge(monkeypatch):
    """The example, with a module in the place of Kafka's client."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", types.ModuleType("confluent_kafka"))
    spec = importlib.util.spec_from_file_location("from_kafka", BRIDGE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored(namesrv):
    with metaq.Reader(namesrv, "bridged", stop_at_end=True) as reader:
        return list(reader)


def test_the_bridge_copies_whole_and_in_the_order_of_keys(fresh_metaq_broker, bridge, capsys):
    """1 000 records of seven keys, a null value, a key with a blank, no key; then the page's count finds none missing."""
    namesrv = fresh_metaq_broker.namesrv
    records = [
        Record(number, b"%d" % number, b"k%d" % (number % 7), [("region", b"eu"), ("raw", b"\xff")])
        for number in range(1000)
    ]
    records += [Record(1000, None, b"gone"), Record(1001, b"blank", b"a b"), Record(1002, b"alone")]
    source = Source(records)
    with metaq.Producer(namesrv) as producer:
        while bridge.copy_batch(source, producer, 0.0):
            assert source.committed == source.read
    messages = stored(namesrv)
    assert sorted(message.body for message in messages) == sorted(one.raw or b"\0" for one in records)
    assert len({message.message_id for message in messages}) == len(records)
    for key in {message.keys for message in messages} - {()}:
        of_key = [message for message in messages if message.keys == key]
        assert len({message.queue for message in of_key}) == 1
        assert [message.body for message in of_key] == [
            one.raw or b"\0" for one in records if one.name == key[0].encode()
        ]
    first = next(message for message in messages if message.body == b"0")
    wanted = {"region": "eu", "raw": "ff", "kafka_partition": "0", "kafka_offset": "0", "kafka_ms": "1790000000000"}
    assert {name: first.properties.get(name) for name in wanted} == wanted
    assert [message.tag for message in messages if message.keys == ("gone",)] == ["tombstone"]
    program = blocks(PAGE, "python")[-1]
    exec(replaced(program, {"localhost:9876": namesrv, '"orders"': '"bridged"'}), {})
    assert re.findall(r"(\d+) missing, (\d+) twice", capsys.readouterr().out) == [("0", "0")] * 3


def test_a_copy_that_is_repeated_has_the_id_of_the_first(fresh_metaq_broker, bridge):
    """A record that MetaQ does not take ends it, with nothing committed; what came before is sent again."""
    namesrv, good = fresh_metaq_broker.namesrv, Record(0, b"good", b"k")
    source = Source([good, Record(1, b"bad", b"k", [("KEYS", b"reserved")])])
    with metaq.Producer(namesrv) as producer:
        with pytest.raises(metaq.InvalidMessage, match="KEYS"):
            bridge.copy_batch(source, producer, 0.0)
        assert source.committed == 0
        source.records[1] = Record(1, b"mended", b"k")
        source.restart()
        assert bridge.copy_batch(source, producer, 0.0) == 2
    messages = stored(namesrv)
    assert [message.body for message in messages] == [b"good", b"good", b"mended"]
    assert len({message.message_id for message in messages}) == 2


def test_the_bridge_runs_with_the_client_of_kafka(fresh_metaq_broker):
    """Against the mock cluster of librdkafka."""
    kafka = pytest.importorskip("confluent_kafka", reason="pip install 'pymetaq[test]' brings it")
    sender = kafka.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    [address] = [f"{one.host}:{one.port}" for one in sender.list_topics(timeout=PATIENCE).brokers.values()]
    for number in range(100):
        sender.produce("bridged", key=f"k{number % 7}", value=b"%d" % number)
    assert sender.flush(PATIENCE) == 0
    command = [
        sys.executable,
        str(BRIDGE),
        "--kafka",
        address,
        "--namesrv",
        fresh_metaq_broker.namesrv,
        "--once",
        "10",
        "bridged",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment())
    assert (done.returncode, done.stdout) == (0, "100 messages copied\n"), done.stderr
    assert sorted(message.body for message in stored(fresh_metaq_broker.namesrv)) == sorted(
        b"%d" % number for number in range(100)
    )
