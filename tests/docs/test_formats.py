"""The bytes printed in docs/formats are what the code reads and writes."""

from __future__ import annotations

import re

import pytest

from metaq.broker.staged import records as staging_records
from metaq.broker.transactions import records as transactions_records
from metaq.model import properties as props
from metaq.model.access import Action
from metaq.model.acl.accounts import AclRules
from metaq.model.acl.judgement import judge, needed
from metaq.model.acl.secret import Secret
from metaq.model.topics.system import HALF_TOPIC
from metaq.model.transactions.staging import (
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    TransactionDecision,
    chunk_crc,
    part_crc,
)
from metaq.wire import command, record, signing, staging
from metaq.wire.acl.reading import read
from tests.support import ROOT

FORMATS = ROOT / "docs" / "formats"


def example(page, kind):
    """The bytes of the page's block ```hex KIND```."""
    found = re.search(rf"```hex {kind}\n(.*?)```", (FORMATS / page).read_text(), re.DOTALL)
    assert found, f"{page} has no hex block of kind {kind}"
    return bytes.fromhex(found[1])


def test_record_of_the_page_decodes_to_what_the_page_says():
    """docs/formats/record.md: topic, queue and body of its example."""
    message = record.decode_record(example("record.md", "record"))
    assert (message.topic, message.queue_id, message.body) == ("TopicA", 1, b"hello")
    assert message.tag == "TagA"


def test_transaction_records_of_the_page_are_what_we_write():
    """docs/formats/transactions.md: RocketMQ's bytes of half message, committed message and op record."""
    half, done, mark = (record.decode_record(example("transactions.md", kind)) for kind in ("half", "committed", "op"))
    assert (half.topic, half.queue_id, half.queue_offset, half.sys_flag) == (HALF_TOPIC, 0, 2, 0)
    ours = transactions_records.committed(half, *transactions_records.destination(half))
    assert encoded(ours, done) == example("transactions.md", "committed")
    assert encoded(transactions_records.op(2, mark.born_ms, mark.born_host_raw), mark) == example(
        "transactions.md", "op"
    )
    assert [slot for _, slot in transactions_records.op_slots(example("transactions.md", "op") * 2)] == [2, 2]
    again = transactions_records.renewed(half, checked=True)
    assert (again.topic, again.queue_id, again.sys_flag) == (half.topic, 0, 0)
    counted = {**half.properties, "TRANSACTION_CHECK_TIMES": "3"}
    assert props.parse(again.properties.decode()) == counted
    assert transactions_records.origin_of(half) == 0


def encoded(put, place):
    """What the store makes of a record to put, where another one lies."""
    return record.encode_record(
        topic=put.topic.encode(), queue_id=put.queue_id, queue_offset=place.queue_offset, log_offset=place.log_offset,
        flag=put.flag, sys_flag=put.sys_flag, born_ms=put.born_ms, born_host=put.born_host, store_ms=place.store_ms,
        store_host=place.store_host_raw, reconsume_times=put.reconsume_times, prepared_offset=put.prepared_offset,
        body=put.body, properties=put.properties,
    )  # fmt: skip


def test_batch_of_the_page_decodes_to_what_the_page_says():
    """docs/formats/batch.md: one entry with its body and key."""
    body = example("batch.md", "batch")
    [(flag, text, properties)] = record.decode_batch(body)
    assert (flag, text) == (0, b"m1")
    assert b"KEYS\x01b1" in properties
    assert record.encode_batch([(flag, text, properties)]) == body


def test_sections_of_the_page_are_what_it_says():
    """docs/formats/staging.md: a chunk, and one that ends its part."""
    body = example("staging.md", "sections")
    chunks, decide = staging.sections_of(body)
    assert [(one.part, one.number, one.topic, one.queue_id, one.body) for one in chunks] == [
        ("p1", 0, "orders", 3, bytes(range(3))), ("p2", 7, "stock", 0, b"bb"),
    ]  # fmt: skip
    assert (chunks[0].seal, chunks[1].seal, decide) == (None, PartSeal(8, 100, 4096, 0xDEADBEEF), None)
    assert staging.sections(chunks) == body


def test_staging_records_of_the_page_are_what_we_write():
    """docs/formats/staging.md: chunk, decision and done; the delivered message is what the chunk holds, and names it."""
    chunk, decided, copy, done = (
        record.decode_record(example("staging.md", kind)) for kind in ("chunk", "decide", "copy", "done")
    )
    name = "t1@broker-a"
    seal = PartSeal(1, 2, len(chunk.body), part_crc(0, chunk_crc(chunk.body)))
    place = staging_records.ChunkName(name, "p1", 0, 2, "orders", 3, staging_records.life_text(PartLifetime.AGE, 86400))
    ours = staging_records.stage_record(
        staging_records.CHUNK, place, seal, chunk.body, chunk.born_ms, chunk.born_host_raw
    )
    assert encoded(ours, chunk) == example("staging.md", "chunk")
    decision = TransactionDecision(
        name, DecisionOutcome.COMMIT, (ManifestPart("broker-a", "p1", "orders", 3, seal),), decided_ms=decided.store_ms
    )
    ours = staging_records.decide_record(decision, decided.born_ms, decided.born_host_raw)
    assert encoded(ours, decided) == example("staging.md", "decide")
    ours = staging_records.done_record(staging_records.DONE, [name], done.born_ms, done.born_host_raw)
    assert encoded(ours, done) == example("staging.md", "done")
    assert (copy.topic, copy.queue_id, copy.queue_offset, copy.body, copy.tag) == ("orders", 3, 7, b"m1", "paid")
    assert copy.prepared_offset == record.copy_mark(chunk.log_offset)
    assert (copy.born_ms, copy.born_host_raw, copy.sys_flag) == (chunk.born_ms, chunk.born_host_raw, 0)


def test_properties_of_staging_records_are_on_their_page_and_registered():
    """Each that the code has; what the register says is used."""
    used = {value for value in vars(staging_records).values() if isinstance(value, str) and value.startswith("METAQ_")}
    page, register = ((FORMATS / name).read_text() for name in ("staging.md", "extensions.md"))
    assert len(used) > 5
    assert {name for name in used if f"│ {name} " not in page} == set()
    [line] = [line for line in register.splitlines() if line.startswith("| `METAQ_TX`")]
    assert set(re.findall(r"`(METAQ_[A-Z]+)`", line)) == used


def test_frame_of_the_page_decodes_to_what_the_page_says():
    """docs/formats/remoting.md: a request for the route of TBW102."""
    frame = example("remoting.md", "frame")
    got = command.decode(frame[4:])
    assert (got.code, got.opaque, got.ext) == (105, 0, {"topic": "TBW102"})


@pytest.mark.parametrize(
    "page", [path.relative_to(ROOT) for path in sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])], ids=str
)
def test_links_inside_the_documentation_lead_somewhere(page):
    """Every relative link of a page names a file that exists."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert (ROOT / page.parent / target).exists(), f"{page} links to {target}"


def test_acl_file_of_the_page_means_what_the_page_says():
    """docs/formats/acl.md: the file is read, its text of a refusal is ours, and so is its signature."""
    page = (FORMATS / "acl.md").read_text()
    file = read(re.search(r"```yaml acl\n(.*?)```", page, re.DOTALL)[1].encode(), "plain_acl.yml")
    assert (len(file.white), file.version.counter) == (2, 3)
    needs = [needed(Action.PUBLISH, "topicA")]
    verdict = judge(AclRules({"plain_acl.yml": file}), "192.0.2.1", "RocketMQ", lambda _secret: True, needs)
    assert f"`{verdict.remark}`" in page
    assert judge(AclRules({"plain_acl.yml": file}), "10.1.0.2", "RocketMQ", lambda _secret: False, needs).allowed
    content = signing.content({"AccessKey": "rocketmq2", "brokerName": "broker-a"})
    assert f"`{content.decode()}`" in page
    assert f"`{signing.signature(content, Secret('12345678'))}`" in page
