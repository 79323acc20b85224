"""The comparison itself can fail; and what it lets pass is written up."""

import json
import re

import pytest

from tests.differential import transcript
from tests.differential.transcript import DIFFERENCES, EXTENSIONS, Transcript, compare, normal


def test_each_accepted_difference_is_told_in_the_list_of_extensions() -> None:
    """Each entry of differences.json has its reason, and names words that docs/formats/extensions.md holds."""
    page = " ".join(EXTENSIONS.read_text().split())
    for row in json.loads(DIFFERENCES.read_text()):
        assert row["reason"], row
        assert row["extensions"] in page, (
            f"{row['scenario']} {row['key']}: {row['extensions']!r} is not in {EXTENSIONS}"
        )


def test_ids_addresses_and_times_are_no_difference() -> None:
    id_, text = "7F0000011B6D1B6D0000000000000001", "to 127.0.0.1:10911 at 1600000000000, cost [12]ms"
    assert normal({"id": id_, "text": [text], "MAX_OFFSET": "7"}) == {
        "id": "<id>",
        "text": ["to <address> at <ms>, cost <n>ms"],
    }


def test_the_order_of_a_set_is_no_difference_and_that_of_a_list_is() -> None:
    one, other = Transcript(), Transcript()
    for transcript_, order in ((one, (1, 2)), (other, (2, 1))):
        transcript_.note_set("set", order)
        transcript_.note("list", list(order))
    with pytest.raises(AssertionError, match="2 differences") as failed:
        compare("module::scenario", one.rows, other.rows)
    assert "list[0]" in str(failed.value)
    assert "set" not in str(failed.value)


def test_a_missing_note_is_a_difference() -> None:
    with pytest.raises(AssertionError, match="not noted"):
        compare("module::scenario", {"a": 1}, {})
    with pytest.raises(AssertionError, match="not noted"):
        compare("module::scenario", {}, {"a": 1})


def test_an_accepted_difference_must_be_there_as_it_was_accepted(tmp_path, monkeypatch) -> None:
    """It passes as written; otherwise, gone or unnoted it fails."""
    row = {"scenario": "m::s", "key": "k", "rocketmq": 1, "ours": 2, "reason": "r", "extensions": "e"}
    file = tmp_path / "differences.json"
    file.write_text(json.dumps([row]))
    monkeypatch.setattr(transcript, "DIFFERENCES", file)
    compare("m::s", {"k": 1}, {"k": 2})
    for theirs, ours in (({"k": 1}, {"k": 3}), ({"k": 1}, {"k": 1}), ({}, {})):
        with pytest.raises(AssertionError):
            compare("m::s", theirs, ours)


def test_a_recording_that_is_out_of_date_is_shown_where_it_is() -> None:
    transcript.check_recording({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]})
    with pytest.raises(AssertionError, match=re.escape(".a[1].b: recorded 2, now 3")):
        transcript.check_recording({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
