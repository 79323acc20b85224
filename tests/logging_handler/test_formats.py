"""Records as bytes: whatever is logged becomes one JSON object, and fits."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.logging_handler.formats import JsonFormatter, cut, encoded, iso_time, text_bytes


def record(message="hello %s", *args, **attributes):
    made = logging.LogRecord("shop.orders", logging.ERROR, "shop.py", 7, message, args, None)
    made.created = 1_790_000_000.123456
    made.process, made.threadName = 42, "MainThread"
    made.__dict__.update(attributes)
    return made


def fields(one, service="shop"):
    return json.loads(JsonFormatter(service).format(one))


def test_a_record_is_one_object():
    """Time in UTC, level, logger, message, service, process and thread; nothing that the record has not."""
    assert fields(record("hello %s", "Anna")) == {
        "time": "2026-09-21T14:13:20.123456Z",
        "level": "ERROR",
        "logger": "shop.orders",
        "message": "hello Anna",
        "service": "shop",
        "process": 42,
        "thread": "MainThread",
    }


def test_exception_stack_and_extra_are_in_it():
    """Text for the first two; `extra` is an object of its own, so that no name of the program's hides one of ours."""
    try:
        {}["lamp"]
    except KeyError:
        info = sys.exc_info()
    found = fields(
        record("x", exc_info=info, stack_info="Stack (most recent call last):", order=17, level="mine", tags=["a"])
    )
    assert found["exception"].endswith("KeyError: 'lamp'")
    assert found["exception"].startswith("Traceback")
    assert found["stack"] == "Stack (most recent call last):"
    assert found["extra"] == {"order": 17, "level": "mine", "tags": ["a"]}
    assert found["level"] == "ERROR"


def test_arguments_that_do_not_fit_lose_nothing():
    """The text, the arguments and the reason."""
    assert fields(record("%d lamps", "many"))["message"].startswith("%d lamps % ('many',) [TypeError: ")


class Hostile:
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


def test_values_that_are_no_json_are_text():
    """Also one that contains itself, one that cannot be shown, half a character, a key that is no text."""
    circle: list = []
    circle.append(circle)
    found = fields(
        record("x", when=dt.date(2026, 1, 2), circle=circle, hostile=Hostile(), half="a\ud800", pair={(1, 2): 3})
    )
    extra = found["extra"]
    assert extra["when"] == "2026-01-02"
    assert extra["hostile"] == "<Hostile that cannot be shown: RuntimeError>"
    assert extra["half"] == "a\\ud800"
    assert extra["pair"] == {"(1, 2)": 3}
    assert "circle" in extra


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.characters(codec=None)
    | st.builds(Hostile) | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.sets(st.integers()),
    max_leaves=20,
)  # fmt: skip


@given(st.text(st.characters(codec=None)), st.dictionaries(st.text(), VALUES), st.text())
def test_whatever_is_logged_is_one_line_of_json(message, extra, service):
    """An object with all the names, in one line, in UTF-8."""
    made = record("%s", message)
    made.__dict__.update({f"x{name}": value for name, value in extra.items()})
    line = encoded(JsonFormatter(service).fields(made))
    assert b"\n" not in line
    found = json.loads(line)
    assert list(found)[:7] == ["time", "level", "logger", "message", "service", "process", "thread"]


@given(st.text(max_size=3000), st.dictionaries(st.text(max_size=10), st.text(max_size=3000), max_size=5),
       st.integers(256, 4000))  # fmt: skip
def test_what_is_cut_is_still_an_object_and_says_so(message, extra, bytes_max):
    """At most so many bytes; what was short stays whole; `cut` is how long it was."""
    body = encoded({"time": iso_time(0.0), "level": "INFO", "message": message, "extra": extra})
    short = cut(body, bytes_max, is_json=True)
    assert len(short) <= bytes_max
    found = json.loads(short)
    assert (found["time"], found["level"]) == ("1970-01-01T00:00:00.000000Z", "INFO")
    if len(body) <= bytes_max:
        assert short is body
    else:
        assert found["cut"] == len(body)


def test_the_longest_value_is_what_is_cut():
    """Its beginning stays, with a mark; the others are whole."""
    body = encoded({"message": "a" * 5000, "exception": "short", "extra": {"order": 1}})
    found = json.loads(cut(body, 1024, is_json=True))
    kept, _, mark = found["message"].partition("… ")
    assert set(kept) == {"a"}
    assert 700 < len(kept) < 1024
    assert mark == f"[{5000 - len(kept)} characters cut]"
    assert (found["exception"], found["extra"]) == ("short", {"order": 1})


def test_too_many_small_values_are_left_out_together():
    """None of ten thousand is worth more than another."""
    body = encoded({"message": "hello", "extra": {f"key-{number}": number for number in range(10_000)}})
    assert json.loads(cut(body, 1024, is_json=True)) == {"message": "hello", "cut": len(body)}


@given(st.text(st.characters(codec=None), max_size=2000), st.integers(256, 2000))
def test_text_is_cut_between_characters(text, bytes_max):
    """Never empty, never half a character, and marked."""
    body = text_bytes(text)
    short = cut(body, bytes_max, is_json=False)
    assert 0 < len(short) <= bytes_max
    assert len(body) <= bytes_max or short.decode().endswith(f"… [cut, it had {len(body)} bytes]")


@pytest.mark.parametrize("body", [b"[1, 2]" + b" " * 600, encoded({str(number): 1 for number in range(100)})])
def test_what_cannot_be_cut_as_an_object_is_cut_as_text(body):
    """A subclass of JsonFormatter may make what it likes."""
    assert len(cut(body, 300, is_json=True)) <= 300
