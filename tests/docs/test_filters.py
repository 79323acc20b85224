"""The programs of docs/filters.md run as they stand, and its numbers are true."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import metaq
from metaq.broker.log import long_polling as hold
from metaq.broker.pulls import filters, pull
from metaq.model.filters import sql, sql_program
from metaq.options import MIB, BrokerOptions
from metaq.wire import hot
from tests.support import PATIENCE, ROOT, environment, run_metaq

PAGE = (ROOT / "docs" / "filters.md").read_text()


def test_the_program_and_the_command_run(metaq_broker, tmp_path):
    """The consumer gets two of the four messages, the reader one, the command those of the tag."""
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = tmp_path / "program.py"
    program.write_text(block.replace("localhost:9876", metaq_broker.namesrv))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split()
    assert sorted(lines[:-1]) == ["20", "40"]  # the queues come in no order
    assert lines[-1] == "1"
    [command] = re.findall(r"```\nmetaq (.*?)\n```", PAGE)
    got = run_metaq("consume", "payments", "--filter", re.findall(r'"(.*)"', command)[0], "-n", metaq_broker.namesrv)
    assert (got.returncode, len(got.stdout.splitlines())) == (0, 3)


@pytest.mark.parametrize(
    ("text", "properties", "passes"),
    [
        ("a = 5", {"a": "5"}, True), ("a = 5", {"a": "+5"}, True), ("a = 5", {"a": "05"}, True), ("a = 5", {"a": "5.0"}, False),
        ("a > 4.5", {"a": "5"}, True), ("a > 4.5", {"a": "5.0"}, True), ("a > 4.5", {"a": "5e0"}, True),
        ("NOT (a = 5)", {"a": "five"}, False), ("a = TRUE", {"a": "True"}, True), ("a = FALSE", {"a": "any"}, True),
        ("a = 5", {}, False), ("a <> 5", {}, False), ("NOT (a = 5)", {}, False), ("a = 5 OR b = 7", {"b": "7"}, True),
        ("'x' <> a", {}, True), ("a CONTAINS 'x'", {}, False), ("a NOT CONTAINS 'x'", {}, False),
        ("a = b", {"a": "5", "b": "5.0"}, False), ("a <= b", {"a": "5", "b": "5.0"}, True),
    ],
)  # fmt: skip
def test_examples_of_the_text_are_true(text, properties, passes):
    """Each of them, by the module that brokers use."""
    stored = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    assert hot.Condition(sql.compile_sql(text)).matches(stored.encode()) is passes


@pytest.mark.parametrize("text", ["a > 5 b = 3", "a LIKE 'x%'", "paid AND amount > 5", "TRUE = paid"])
def test_what_the_page_calls_refused_is(text):
    """By the value that users make."""
    with pytest.raises(metaq.ConfigError):
        metaq.Sql(text)


def test_numbers_of_the_page_are_true():
    """Limits and settings, as they are in the code."""
    table = dict(re.findall(r"^\| ([^|`]+?) \| ([^|]+?) \|$", PAGE, re.MULTILINE))
    assert table["length of an expression"] == f"{sql_program.TEXT_BYTES_MAX} bytes"
    assert table["nesting of parentheses, NOT and signs"] == str(sql_program.DEPTH_MAX)
    assert table["different properties"] == str(sql_program.NAMES_MAX)
    assert table["CONTAINS"] == str(sql_program.CONTAINS_MAX)
    assert f"none after {pull.LOOK_SECONDS * 1000:g} ms" in PAGE
    assert f"At one queue, {hold.READING_MAX} may".lower() in PAGE
    assert table["steps (operands and operators)"] == str(sql_program.STEPS_MAX)
    assert f"a pull makes up to {pull.LOOKS_PER_PULL + 1}, and" in PAGE
    assert f"take {filters.COMPILED_BYTES_MAX // MIB} MiB at most" in PAGE
    options = BrokerOptions()
    assert (options.enable_property_filter, options.filter_support_retry) == (True, False)
    assert f"`filterDataCleanTimeSpan` | {options.filter_data_clean_time_span} " in PAGE
