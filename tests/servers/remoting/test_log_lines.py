"""The last lines of a broker's log (30026): told to administrators, bounded, and what is refused."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model.servers.log_line import LogLine
from metaq.servers.log_lines import CHARS_MAX, LINES_MAX, LastLines
from metaq.servers.remoting.server import RemotingServer
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from tests.servers.support import Client, open_server

LINE = LogLine(1_700_000_000_123, "WARNING", "metaq.store", "the disk is full")
LINES = st.builds(LogLine, st.integers(0, 2**53), st.text(), st.text(), st.text())


def test_the_code_its_header_and_its_answer_are_as_documented():
    """In docs/formats/extensions.md."""
    assert Code.LOG_LINES == 30026
    assert headers.LogLinesHeader(count=7).to_ext() == {"count": "7", "level": "INFO"}
    assert json.loads(extensions.log_lines([LINE])) == [
        {"atMs": 1_700_000_000_123, "level": "WARNING", "logger": "metaq.store", "text": "the disk is full"}
    ]


@given(st.lists(LINES))
def test_answers_are_read_as_they_were_written(lines: list[LogLine]):
    assert extensions.log_lines_of(extensions.log_lines(lines)) == lines


@pytest.mark.parametrize("body", [b"", b"{}", b'[{"atMs": "x"}]', b"[" * 100_000])
def test_a_body_that_is_no_list_of_lines_is_refused(body: bytes):
    with pytest.raises(BadRequest):
        extensions.log_lines_of(body)


@pytest.fixture
def lines():
    kept = LastLines()
    kept.open()
    yield kept
    kept.close()


def test_lines_are_told_of_a_level_and_cut(tmp_path, lines):
    with open_server(tmp_path) as (broker, _):
        client = Client(RemotingServer(broker, lambda act: act(), lines=lines))
        part = logging.getLogger("metaq.here")
        part.warning("first %s", "\x1b[2J<script>")
        part.error("x" * (2 * CHARS_MAX))
        logging.getLogger("elsewhere").error("of another package")

        def asked(**fields) -> list[LogLine]:
            return extensions.log_lines_of(client.ask(Code.LOG_LINES, headers.LogLinesHeader(**fields)).body)

        told = [one for one in asked(count=LINES_MAX) if one.logger == "metaq.here"]
        assert [(one.level, one.text) for one in told] == [
            ("WARNING", "first \x1b[2J<script>"),
            ("ERROR", "x" * CHARS_MAX),
        ]
        assert [one.level for one in asked(count=1, level="error")] == ["ERROR"]
        for number in range(2 * LINES_MAX):
            part.warning("line %d", number)
        assert [one.text for one in asked(count=2)] == [f"line {2 * LINES_MAX - 2}", f"line {2 * LINES_MAX - 1}"]
        assert len(asked(count=LINES_MAX)) == LINES_MAX


@pytest.mark.parametrize(
    "fields", [{"count": 0}, {"count": -1}, {"count": LINES_MAX + 1}, {"count": 1, "level": "LOUD"}]
)
def test_what_asks_for_no_lines_is_refused(tmp_path, lines, fields):
    with open_server(tmp_path) as (broker, _):
        client = Client(RemotingServer(broker, lambda act: act(), lines=lines))
        answer = client.ask(Code.LOG_LINES, headers.LogLinesHeader(**fields))
        assert answer.code not in {ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
        assert answer.remark


def test_without_access_control_it_is_told_on_this_machine_alone(tmp_path, lines):
    with open_server(tmp_path) as (broker, _):
        client = Client(RemotingServer(broker, lambda act: act(), lines=lines), address="10.0.0.9")
        assert client.ask(Code.LOG_LINES, headers.LogLinesHeader(count=1)).code == ResponseCode.NO_PERMISSION
