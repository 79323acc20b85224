"""What fuzzing has found in parsers, one test for each fault; those of a module with tests of its own are there."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from metaq.app.configuration import load
from metaq.broker.staged import records
from metaq.client.conversation.sending.send_frames import stored_answer
from metaq.errors import BadRequest, ConfigError
from metaq.model import offsets
from metaq.pipelines.changes.change import NotAChange
from metaq.pipelines.changes.decoding import Decoder
from metaq.wire import extensions, frame_size
from tests.wire.hot.support import GOLDEN_RECORD


@pytest.mark.parametrize("at", [20, 28], ids=["queue offset", "log offset"])
def test_the_frame_of_a_record_with_a_negative_offset_has_no_size(at: int) -> None:
    """It was an OverflowError of the native module, which nobody catches."""
    record = bytearray(GOLDEN_RECORD)
    record[at] = 0x80
    with pytest.raises(ValueError, match="is none"):
        frame_size.frame_bytes(bytes(record))


DEEP = b'{"a":' * 20_000
"""Nested deeper than any decoder follows: a RecursionError, which is no DecodeError."""

DEEP_READERS = {
    "RELOAD": (lambda: extensions.reloaded_of(DEEP), BadRequest),
    "CLOSE_PARTITIONS": (lambda: extensions.closed_partitions_of(b"[" * 20_000), BadRequest),
    "offsets of Spark": (lambda: offsets.from_json((b"[" * 200_000).decode()), ConfigError),
    "a row change": (lambda: Decoder().decode(DEEP), NotAChange),
}


@pytest.mark.parametrize(("read", "error"), DEEP_READERS.values(), ids=DEEP_READERS.keys())
def test_json_nested_without_end_is_refused(read: Callable[[], object], error: type[Exception]) -> None:
    """Some readers named the RecursionError among what they catch, these did not."""
    with pytest.raises(error):
        read()


def test_records_of_staged_transactions_nested_without_end_are_malformed() -> None:
    """They come from the log, so from a damaged file or a master: recovery goes on."""
    assert records.read_decision(DEEP) is None
    assert records.read_names(b"[" * 20_000) == []
    assert records.read_forgotten(DEEP) == records.Names()
    assert records.read_checkpoint(DEEP) is None


def test_answers_nested_without_end_are_left_to_the_slow_way() -> None:
    """Of a broker: the client raised a RecursionError out of its transport."""
    head = b'{"code":0,"extFields":{"x":' + DEEP
    assert stored_answer(len(head + b"1234").to_bytes(4, "big") + len(head).to_bytes(4, "big") + head, 1) is None


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "[broker]\na = " + "{b=" * 5000])
def test_toml_nested_without_end_is_a_wrong_file(tmp_path: pathlib.Path, text: str) -> None:
    """The broker's file says so in one line, as all that is wrong in it."""
    path = tmp_path / "metaq.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"metaq\.toml is not valid TOML"):
        load(str(path))
