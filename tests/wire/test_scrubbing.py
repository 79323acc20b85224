"""What replicas tell each other of their logs: the requests 30015, 30016 and 30017, their answers, and `metaqScrub`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model.scrub import DamagedSide, LogChecksums, LogDifference, Mended, ScrubState
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode

NUMBERS = st.integers(0, 2**62)
TEXTS = st.text(max_size=20)
CHECKSUMS = st.lists(st.integers(-1, 2**32 - 1), max_size=16).map(tuple)
DIFFERENCES = st.builds(LogDifference, NUMBERS, NUMBERS, st.sampled_from(DamagedSide), TEXTS, NUMBERS)


def test_codes_and_headers_are_as_documented():
    """In docs/formats/extensions.md."""
    assert (RequestCode.LOG_CHECKSUMS, RequestCode.LOG_BYTES, RequestCode.REPAIR_LOG) == (30015, 30016, 30017)
    assert headers.LogChecksumsHeader(offset=1 << 40, stop=9).to_ext() == {"offset": "1099511627776", "stop": "9"}
    assert headers.LogBytesHeader(offset=7, size=9).to_ext() == {"offset": "7", "size": "9"}
    assert headers.RepairLogHeader(offset=7, size=9, source="h:1").to_ext() == {
        "offset": "7", "size": "9", "source": "h:1",
    }  # fmt: skip


def test_answers_are_as_documented():
    """In docs/formats/extensions.md."""
    told = LogChecksums(0, 1_048_580, 1 << 30, "/data/commitlog", (0xFFFFFFFF, -1))
    assert extensions.log_checksums(told) == (
        b'{"logMin":0,"logFlushed":1048580,"fileBytes":1073741824,"folder":"/data/commitlog","checksums":[4294967295,-1]}'
    )
    assert told.path((1 << 30) + 5) == "/data/commitlog/00000000001073741824"
    assert (
        extensions.mended(Mended(4096, 210, "/data/cut/x")) == b'{"logOffset":4096,"size":210,"keptIn":"/data/cut/x"}'
    )
    state = ScrubState(1, 2, 3, False, 1, (LogDifference(4096, 210, DamagedSide.SLAVE, "/data/commitlog/0", 4096),))
    assert extensions.scrub_state(state) == (
        '{"beganMs":1,"endedMs":2,"compared":3,"alone":false,"found":1,"differences":[{"logOffset":4096,"size":210,'
        '"damaged":"slave","file":"/data/commitlog/0","at":4096}]}'
    )


@given(st.builds(LogChecksums, NUMBERS, NUMBERS, st.integers(1, 2**40), TEXTS, CHECKSUMS))
def test_checksums_read_back(told):
    """Whatever places and paths are."""
    assert extensions.log_checksums_of(extensions.log_checksums(told)) == told


@given(st.builds(Mended, NUMBERS, NUMBERS, TEXTS))
def test_an_outcome_reads_back(outcome):
    """Whatever places and paths are."""
    assert extensions.mended_of(extensions.mended(outcome)) == outcome


@given(
    st.builds(
        ScrubState, NUMBERS, NUMBERS, NUMBERS, st.booleans(), NUMBERS, st.lists(DIFFERENCES, max_size=3).map(tuple)
    )
)
def test_a_state_reads_back(state):
    """Whatever was found."""
    assert extensions.scrub_state_of(extensions.scrub_state(state)) == state


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"logMin":0,"logFlushed":1,"fileBytes":0,"folder":""}',
        b'{"logMin":-1,"logFlushed":1,"fileBytes":9,"folder":""}', b'{"logMin":0,"logFlushed":-1,"fileBytes":9,"folder":""}',
        b'{"logMin":0,"logFlushed":1,"fileBytes":9,"folder":"","checksums":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}',
        b'{"logMin":0,"logFlushed":1,"fileBytes":9,"folder":"","checksums":["x"]}',
    ],
)  # fmt: skip
def test_no_other_body_is_one(body):
    """A peer's answer is not trusted: places are computed from it."""
    with pytest.raises(BadRequest):
        extensions.log_checksums_of(body)
    with pytest.raises(BadRequest):
        extensions.mended_of(body)
    if body != b"{}":  # a slave may have compared nothing yet
        with pytest.raises(BadRequest):
            extensions.scrub_state_of(f"[{body.decode('latin-1')}")
