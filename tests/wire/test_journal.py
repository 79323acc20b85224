"""The lines of a journal: what was written is read, what is torn is dropped, what is damaged is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model import DataVersion, GroupConfig, TopicConfig
from metaq.wire import journal
from metaq.wire.files import GROUPS, TOPICS

BEGINS = b'786167c9 {"dataVersion":{"counter":7,"timestamp":1700000000000},"topicConfigTable":{},"journalVersion":1}\n'
MADE = (
    b'c7421d8b {"dataVersion":{"counter":9,"timestamp":1700000000001},"topicConfigTable":{"orders":{'
    b'"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,'
    b'"writeQueueNums":4}},"removed":["bills"]}\n'
)

texts = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=6)
names = st.text("abc%|-_0", min_size=1, max_size=5)
versions = st.builds(DataVersion, st.integers(0, 2**62), st.integers(0, 2**62))


def entries_of(form, table):
    return {key: None if value is None else form.entry(key, value) for key, value in table.items()}


def test_a_topics_journal_byte_for_byte():
    """Its beginning, and one line for a topic that was made and one that was deleted together."""
    made = entries_of(TOPICS, {"orders": TopicConfig("orders", 4, 4, 6), "bills": None})
    assert journal.line(TOPICS.change({}, DataVersion(1700000000000, 7))) == BEGINS
    assert journal.line(TOPICS.change(made, DataVersion(1700000000001, 9))) == MADE


def test_a_topics_journal_is_understood():
    """Both lines of the one above."""
    found, torn = journal.lines(BEGINS + MADE)
    assert torn == 0
    assert [TOPICS.parse_change(text) for text in found] == [
        (DataVersion(1700000000000, 7), {}),
        (DataVersion(1700000000001, 9), {"orders": TopicConfig("orders", 4, 4, 6), "bills": None}),
    ]


def test_a_journal_of_an_older_release_tells_no_version_and_one_of_a_later_release_is_refused():
    """By its number."""
    old = '{"dataVersion":{"counter":7,"timestamp":1700000000000},"topicConfigTable":{}}'
    assert TOPICS.parse_change(old) == (DataVersion(1700000000000, 7), {})
    with pytest.raises(BadRequest, match="a journal of version 2, and this release reads version 1"):
        TOPICS.parse_change(old[:-1] + ',"journalVersion":2}')


@given(texts)
def test_every_text_comes_back(found):
    """Of any characters but line feeds."""
    assert journal.lines(b"".join(map(journal.line, found))) == (found, 0)


@given(st.dictionaries(names, st.none() | st.integers(0, 1000), max_size=5), versions)
def test_every_change_comes_back(table, version):
    """Of topics and of groups, on one line each."""
    topics = {name: None if n is None else TopicConfig(name, n, n, 6) for name, n in table.items()}
    groups = {name: None if n is None else GroupConfig(name, retry_queues=n) for name, n in table.items()}
    for form, changed in ((TOPICS, topics), (GROUPS, groups)):
        text = form.change(entries_of(form, changed), version)
        assert "\n" not in text
        assert form.parse_change(text) == (version, changed)


@given(texts, st.data())
def test_a_torn_end_is_dropped(found, data):
    """Whatever was written of the last line, with zeros for what was not: the lines before it are there."""
    written = b"".join(map(journal.line, found))
    last = journal.line(data.draw(st.text("xyz\0", max_size=20)))
    kept = data.draw(st.lists(st.booleans(), min_size=len(last), max_size=len(last)).filter(lambda kept: not all(kept)))
    torn = bytes(byte if keep else 0 for byte, keep in zip(last, kept, strict=True))[
        : data.draw(st.integers(0, len(last)))
    ]
    if torn != last:
        assert journal.lines(written + torn) == (found, len(torn))


@given(texts.filter(lambda found: len(found) > 1), st.data())
def test_damage_before_the_last_line_is_an_error(found, data):
    """It names the byte where the line begins. Nothing that follows it is believed."""
    lines = [journal.line(text) for text in found]
    at = data.draw(st.integers(0, len(lines) - 2))
    place = data.draw(st.integers(0, len(lines[at]) - 2))
    damaged = bytearray(lines[at])
    damaged[place] ^= data.draw(st.integers(1, 255))
    written = b"".join([*lines[:at], bytes(damaged), *lines[at + 1 :]])
    with pytest.raises(BadRequest, match=f"at byte {len(b''.join(lines[:at]))} is damaged, and whole ones follow"):
        journal.lines(written)


@pytest.mark.parametrize("text", ["", "7", "{", '{"dataVersion":1}', '{"topicConfigTable":[]}', '{"removed":{}}'])
def test_a_line_that_is_no_change_is_an_error(text):
    """Its checksum is right, what it says is not."""
    with pytest.raises(BadRequest):
        TOPICS.parse_change(text)
