"""State and members of a group of replicas, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest, LocalProtocolError
from metaq.model.failover import CHANGING, MEMBERS_MAX, TOKEN_CHARS_MAX, GroupState, Member, Membership, Place
from metaq.wire import failover
from metaq.wire.failover import (
    BYTES_MAX,
    LONG_MAX,
    group_state,
    group_state_of,
    member,
    member_of,
    membership,
    membership_of,
)

PAGE = Path(failover.__file__).parents[3] / "docs/formats/failover.md"
STATE_TEXT = (
    '{"format":1,"history":"0f8e3c","epoch":7,"leader":2,"incarnation":"77aa01",'
    '"inSync":[{"member":2,"store":"b2b2"},{"member":1,"store":"a1a1"}],"handTo":1}'
)
STATE = GroupState("0f8e3c", 7, 2, "77aa01", (Place(2, "b2b2"), Place(1, "a1a1")), 1)
MEMBER_TEXT = (
    '{"format":1,"member":1,"incarnation":"90cd34","store":"a1a1","address":"10.0.0.5:10911","whole":true,'
    '"logEnd":1073741824,"epoch":6}'
)
MEMBER = Member(1, "90cd34", "a1a1", "10.0.0.5:10911", True, 1 << 30, 6)
MEMBERSHIP_TEXT = (
    '{"format":1,"store":"a1a1","member":1,"history":"0f8e3c","epoch":7,"whole":false,"boot":"2f1c","synced":false}'
)
MEMBERSHIP = Membership("a1a1", 1, "0f8e3c", 7, False, "2f1c")

GOLDEN = [
    (STATE_TEXT, STATE, group_state, group_state_of),
    (MEMBER_TEXT, MEMBER, member, member_of),
    (MEMBERSHIP_TEXT, MEMBERSHIP, membership, membership_of),
]
READERS = [group_state_of, member_of, membership_of]

tokens = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=TOKEN_CHARS_MAX)
numbers = st.integers(1, MEMBERS_MAX)
longs = st.integers(0, LONG_MAX)
addresses = st.builds(
    "{}:{}".format, st.sampled_from(["127.0.0.1", "broker-a.example", "[::1]", "x"]), st.integers(1, 65535)
)
members = st.builds(Member, numbers, tokens, tokens, addresses, st.booleans(), st.integers(CHANGING, LONG_MAX), longs)
memberships = st.builds(
    Membership, tokens, st.integers(0, MEMBERS_MAX), st.just("") | tokens, longs, st.booleans(), st.just("") | tokens, st.booleans()
)  # fmt: skip


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    in_sync = draw(st.lists(st.builds(Place, numbers, tokens), min_size=1, unique_by=lambda one: one.member))
    leader = draw(st.sampled_from([0, *(one.member for one in in_sync)]))
    return GroupState(
        draw(tokens),
        draw(st.integers(1, LONG_MAX)),
        leader,
        draw(tokens) if leader else "",
        tuple(in_sync),
        draw(st.integers(0, MEMBERS_MAX)),
    )


@pytest.mark.parametrize(("text", "value", "encode", "decode"), GOLDEN)
def test_the_text_of_the_page(text, value, encode, decode):
    assert encode(value).decode() == text
    assert decode(text.encode()) == value
    assert text in PAGE.read_text()


@given(states())
def test_a_state_comes_back(state):
    assert group_state_of(group_state(state)) == state
    assert len(group_state(state)) <= BYTES_MAX


@given(members)
def test_a_member_comes_back(one):
    assert member_of(member(one)) == one


@given(memberships)
def test_a_membership_comes_back(kept):
    assert membership_of(membership(kept)) == kept


@pytest.mark.parametrize(("text", "value", "encode", "decode"), GOLDEN)
def test_fields_of_a_later_version_are_ignored(text, value, encode, decode):
    later = {**json.loads(text), "comment": {"a": [1]}, "other": None}
    assert decode(json.dumps(later).encode()) == value


@pytest.mark.parametrize(("text", "value", "encode", "decode"), GOLDEN)
def test_another_format_is_refused_by_its_number_whatever_its_fields(text, value, encode, decode):
    with pytest.raises(BadRequest, match="has format 2: this version of MetaQ reads format 1 only"):
        decode(b'{"format":2,"epoch":"new"}')
    with pytest.raises(BadRequest, match="missing required field `format`"):
        decode(json.dumps({key: value for key, value in json.loads(text).items() if key != "format"}).encode())


def changed(text: str, **fields: object) -> bytes:
    return json.dumps({**json.loads(text), **fields}).encode()


TOO_LONG = "x" * (TOKEN_CHARS_MAX + 1)
FAULTS = [
    (group_state_of, STATE_TEXT, {"epoch": 0}, "epoch is 0"),
    (group_state_of, STATE_TEXT, {"epoch": LONG_MAX + 1}, "epoch is"),
    (group_state_of, STATE_TEXT, {"epoch": "7"}, "Expected `int`"),
    (group_state_of, STATE_TEXT, {"leader": 65}, "leader is 65"),
    (group_state_of, STATE_TEXT, {"leader": 3}, "leader 3 is not in inSync"),
    (group_state_of, STATE_TEXT, {"leader": 0}, "incarnation is given, and nobody leads"),
    (group_state_of, STATE_TEXT, {"incarnation": ""}, "incarnation has 0 characters"),
    (group_state_of, STATE_TEXT, {"handTo": -1}, "handTo is -1"),
    (group_state_of, STATE_TEXT, {"history": "a\nb"}, "history is 'a\\\\nb'"),
    (group_state_of, STATE_TEXT, {"history": "ä"}, "history is 'ä'"),
    (group_state_of, STATE_TEXT, {"inSync": []}, "inSync is empty"),
    (group_state_of, STATE_TEXT, {"inSync": None}, "Expected `array`"),
    (group_state_of, STATE_TEXT, {"inSync": [{"member": 2, "store": "a"}] * 2}, "inSync has a member twice"),
    (group_state_of, STATE_TEXT, {"inSync": [{"member": 0, "store": "a"}]}, "a member in inSync is 0"),
    (group_state_of, STATE_TEXT, {"inSync": [{"member": 2, "store": TOO_LONG}]}, "a store in inSync has 65 characters"),
    (group_state_of, STATE_TEXT, {"inSync": [{"member": 2}]}, "missing required field `store`"),
    (member_of, MEMBER_TEXT, {"member": 0}, "member is 0"),
    (member_of, MEMBER_TEXT, {"member": 65}, "member is 65"),
    (member_of, MEMBER_TEXT, {"store": ""}, "store has 0 characters"),
    (member_of, MEMBER_TEXT, {"incarnation": TOO_LONG}, "incarnation has 65 characters"),
    (member_of, MEMBER_TEXT, {"whole": 1}, "Expected `bool`"),
    (member_of, MEMBER_TEXT, {"logEnd": CHANGING - 1}, "logEnd is -2"),
    (member_of, MEMBER_TEXT, {"epoch": -1}, "epoch is -1"),
    *(
        (member_of, MEMBER_TEXT, {"address": text}, "address is .*, and must be host:port")
        for text in ("", "host", "host:", ":1", "host:0", "host:65536", "ho st:1", "host:1\n", "h" * 300 + ":1", "hä:1")
    ),
    (membership_of, MEMBERSHIP_TEXT, {"store": ""}, "store has 0 characters"),
    (membership_of, MEMBERSHIP_TEXT, {"member": -1}, "member is -1"),
    (membership_of, MEMBERSHIP_TEXT, {"history": TOO_LONG}, "history has 65 characters"),
    (membership_of, MEMBERSHIP_TEXT, {"epoch": -1}, "epoch is -1"),
]


@pytest.mark.parametrize(("decode", "text", "fields", "why"), FAULTS)
def test_what_cannot_be_true_is_refused(decode, text, fields, why):
    with pytest.raises(BadRequest, match=why):
        decode(changed(text, **fields))


@pytest.mark.parametrize("decode", READERS)
@pytest.mark.parametrize("body", [b"", b"{", b"null", b"7", b"[]", b"\xff\xfe", b"[" * 5000, b"hello", b'{"format":1}'])
def test_garbage_is_refused(decode, body):
    with pytest.raises(BadRequest, match="cannot be read"):
        decode(body)


@pytest.mark.parametrize("decode", READERS)
def test_too_many_bytes_are_not_looked_at(decode):
    with pytest.raises(BadRequest, match=f"has {BYTES_MAX + 1} bytes, more than {BYTES_MAX}"):
        decode(b" " * (BYTES_MAX + 1))


@given(st.sampled_from(GOLDEN), st.data())
def test_a_damaged_text_is_refused_or_read_as_something_that_can_be_written(golden, data):
    text, _, encode, decode = golden
    damaged = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        value = decode(bytes(damaged))
    except BadRequest:
        return
    assert decode(encode(value)) == value


def test_what_could_not_be_read_again_is_not_written():
    with pytest.raises(LocalProtocolError, match="inSync is empty"):
        group_state(GroupState("h", 1, 0, "", ()))
    with pytest.raises(LocalProtocolError, match="address is '', and must be host:port"):
        member(Member(1, "i", "s", "", True, 0, 0))
    with pytest.raises(LocalProtocolError, match="store has 0 characters"):
        membership(Membership(""))
