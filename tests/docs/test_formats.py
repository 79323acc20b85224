"""The bytes printed in docs/formats are what the code reads and writes."""

from __future__ import annotations

import re

import pytest

from metaq.wire import command, record
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


def test_batch_of_the_page_decodes_to_what_the_page_says():
    """docs/formats/batch.md: one entry with its body and key."""
    body = example("batch.md", "batch")
    [(flag, text, properties)] = record.decode_batch(body)
    assert (flag, text) == (0, b"m1")
    assert b"KEYS\x01b1" in properties
    assert record.encode_batch([(flag, text, properties)]) == body


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
