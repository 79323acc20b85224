"""What brokers tell of their roles, and keep of them: `metaqLeadership.json`, and the answers to 30011, 30012 and 30013."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metaq.errors import BadRequest
from metaq.model.leadership import CutTail, Epoch, GroupRole, Leadership, ReplicaState, SlaveState
from metaq.wire import extensions, files

NUMBERS = st.integers(0, 2**62)
TEXTS = st.text(max_size=20)


def in_order(epochs: list[Epoch]) -> tuple[Epoch, ...]:
    starts = sorted(one.start for one in epochs)
    return tuple(
        structs.replace(one, number=number, start=start)
        for number, (one, start) in enumerate(zip(epochs, starts, strict=True), 1)
    )


EPOCHS = st.lists(
    st.builds(Epoch, NUMBERS, NUMBERS, TEXTS, NUMBERS, st.integers(0, 9), st.integers(0, 9)), max_size=3
).map(in_order)
QUEUES = st.dictionaries(TEXTS, st.dictionaries(st.integers(0, 65535), NUMBERS, max_size=2), max_size=2)
CUTS = st.lists(st.builds(CutTail, NUMBERS, NUMBERS, NUMBERS, QUEUES, TEXTS, NUMBERS), max_size=2).map(tuple)

KEPT = Leadership(
    "SLAVE", 1, "10.0.0.2:10911",
    (Epoch(1, 4096, "7f", 1_700_000_000_000, 1, 1),),
    (CutTail(4096, 8192, 3, {"orders": {0: 2, 7: 1}}, "/data/cut/00000000000000004096", 1_700_000_000_001),),
    "SYNC_MASTER",
)  # fmt: skip
GOLDEN = """\
{
  "role": "SLAVE",
  "brokerId": 1,
  "master": "10.0.0.2:10911",
  "epochs": [
    {
      "number": 1,
      "start": 4096,
      "leader": "7f",
      "sinceMs": 1700000000000,
      "brokerId": 1,
      "term": 1
    }
  ],
  "cuts": [
    {
      "logOffset": 4096,
      "logEnd": 8192,
      "records": 3,
      "queues": {
        "orders": {
          "0": 2,
          "7": 1
        }
      },
      "folder": "/data/cut/00000000000000004096",
      "atMs": 1700000000001
    }
  ],
  "masterRole": "SYNC_MASTER"
}
"""


def test_the_file_is_as_documented():
    assert files.LEADERSHIP.text(KEPT) == GOLDEN
    assert files.LEADERSHIP.parse(GOLDEN) == KEPT


def test_the_answer_is_as_documented():
    """To REPLICA_STATE, PROMOTE and STEP_DOWN."""
    state = ReplicaState(
        "a",
        0,
        "SYNC_MASTER",
        True,
        0,
        9,
        10912,
        KEPT.epochs,
        slaves=(SlaveState("h:1", 8, 20),),
        torn_from=4,
        torn_end=9,
    )
    assert extensions.replica_state(state) == (
        b'{"broker":"a","brokerId":0,"role":"SYNC_MASTER","leads":true,"logMin":0,"logEnd":9,"haPort":10912,"epochs":[{"number":1,'
        b'"start":4096,"leader":"7f","sinceMs":1700000000000,"brokerId":1,"term":1}],"master":"","masterEnd":-1,"masterHeardMs":0,'
        b'"slaves":[{"address":"h:1","copied":8,"behindMs":20}],"cuts":[],"tornFrom":4,"tornEnd":9,"group":null,"quietMs":-1}'
    )
    role = GroupRole(2, (2, 1), {1: 8}, 7, "", {1: 20}, 2, 900, "nobody leads")
    in_group = extensions.replica_state(structs.replace(state, group=role))
    assert in_group.endswith(
        b'"group":{"member":2,"inSync":[2,1],"copied":{"1":8},"acknowledged":7,"doubt":"","behindMs":{"1":20},"minimum":2,'
        b'"leaseMs":900,"waiting":"nobody leads"},"quietMs":-1}'
    )
    assert extensions.replica_state_of(in_group).group == role


@given(st.builds(Leadership, TEXTS, st.integers(0, 9), TEXTS, EPOCHS, CUTS))
def test_what_is_kept_reads_back(kept):
    """Whatever names and places are."""
    assert files.LEADERSHIP.parse(files.LEADERSHIP.text(kept)) == kept


@given(
    st.builds(
        ReplicaState, TEXTS, NUMBERS, TEXTS, st.booleans(), NUMBERS, NUMBERS, NUMBERS, EPOCHS, TEXTS, st.integers(-1, 2**62), NUMBERS,
        st.lists(st.builds(SlaveState, TEXTS, NUMBERS, NUMBERS), max_size=2).map(tuple), CUTS, NUMBERS, NUMBERS,
    )
)  # fmt: skip
def test_a_state_reads_back(state):
    """Whatever names and places are."""
    assert extensions.replica_state_of(extensions.replica_state(state)) == state


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"broker":1}', b"\xff", b"[" * 100_000])
def test_no_other_body_is_one(body):
    """A peer's answer, and a file, are not trusted."""
    with pytest.raises(BadRequest):
        extensions.replica_state_of(body)
    if not body.startswith(b"{"):  # a file may say less
        with pytest.raises(BadRequest):
            files.LEADERSHIP.parse(body.decode("latin-1"))


@pytest.mark.parametrize("epochs", [[(1, 5), (2, 4)], [(2, 4), (2, 5)], [(3, 1), (2, 5)], [(1, -1)], [(0, 0)]])
def test_epochs_that_run_backwards_are_none(epochs):
    """A log is cut by what they say."""
    made = tuple(Epoch(number, start, "x", 0) for number, start in epochs)
    state = ReplicaState("a", 0, "SYNC_MASTER", True, 0, 9, 10912, made)
    with pytest.raises(BadRequest, match="epoch"):
        extensions.replica_state_of(extensions.replica_state(state))
