"""The programs of docs/predicates.md run as they stand, and its tables are true."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types

import pytest

import metaq
from metaq.broker.pulls.predicate_pulls import COUNT_MAX, JUDGED_BYTES_MAX
from metaq.broker.pulls.predicates import EXTRA_MAX, FIRST_PAUSE, LONGEST_PAUSE
from metaq.options import KIB, MIB, BrokerOptions, camel
from metaq.testing import EmbeddedBroker
from tests.support import ROOT

PAGE = (ROOT / "docs" / "predicates.md").read_text()
PREDICATE, USE, FILTER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONFIGURATION = re.search(r"```\n# the broker's configuration\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_predicate_of_the_page_chooses(tmp_path):
    """Written, registered and named as the page says."""
    module = tmp_path / "shop" / "filters.py"
    module.parent.mkdir()
    module.write_text(PREDICATE + "\n\ndef domestic(message):\n    return True\n")
    options = {**tomllib.loads(CONFIGURATION), "filterPredicatePath": str(tmp_path)}
    with EmbeddedBroker(options=options) as broker, metaq.Producer(broker.namesrv) as producer:
        for amount in (5, 20_000, 10_000, 10_001):
            producer.send("orders", b'{"amount": %d}' % amount)
        program = USE.replace("as consumer: ...", "as consumer:\n    take(consumer)")
        program = program.replace("as reader: ...", "as reader:\n    found.extend(message.body for message in reader)")
        found, taken = [], []

        def take(consumer):
            for _ in range(2):
                with consumer.receive() as message:
                    taken.append(message.body)

        program = program.replace('group="audit",', 'group="audit", start="earliest",')
        program = program.replace("stop_at_end=True", 'stop_at_end=True, start="earliest"')
        exec(program, {"metaq": metaq, "NAMESRV": broker.namesrv, "take": take, "found": found})
    assert sorted(found) == sorted(taken) == [b'{"amount": 10001}', b'{"amount": 20000}']


@pytest.mark.parametrize("name", ["filter_server_nums", "filter_time_limit", "filter_memory_limit"])
def test_defaults_of_the_page_are_those_of_the_code(name):
    """In the table."""
    [default] = [item.default for item in dataclasses.fields(BrokerOptions) if item.name == name]
    shown = f"{default // MIB} MiB" if default >= MIB else str(default)
    assert f"| `{camel(name)}` | {shown} |" in PAGE


def test_numbers_of_the_page_are_those_of_the_code():
    """Limits and pauses."""
    assert f"at most {COUNT_MAX} messages or {JUDGED_BYTES_MAX // KIB} KiB" in PAGE
    assert f"up to {EXTRA_MAX} more" in PAGE
    assert f"pauses for {FIRST_PAUSE:g} s" in PAGE
    assert f"({LONGEST_PAUSE:g} s at most)" in PAGE


def test_the_filter_of_the_page_takes_long_bodies():
    """The class of the operator's, as it stands: what it is asked with is metaq's business and tested there."""
    names: dict = {}
    exec(FILTER, names)
    accepts = names["Large"]().accept
    assert [accepts("g", types.SimpleNamespace(body=bytes(size))) for size in (1000, 1001)] == [False, True]
